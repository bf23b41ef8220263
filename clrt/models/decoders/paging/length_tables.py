"""Recognises tables by position that a decoder chooses by the length of a sequence (LongRoPE).

onnxruntime-genai's builder writes them as an If: its condition compares the number of past and new
tokens with a constant, and its branches are constant cosines and sines. A paged decoder chooses for
each token of a step, since sequences of a step differ in length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array
from clrt.models.decoders.paging.decode_step_probe import STEPS, DecodeStepProbe
from clrt.models.decoders.paging.size_values import is_positions
from clrt.ops.checks import normalize_axis
from clrt.ops.control.control_flow import If
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Identity, View
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Greater, GreaterOrEqual, Less, LessOrEqual, Not
from clrt.util.fast_dataclass import dataclass

_MAX_LENGTH = (1 << 31) - 1  # lengths and positions are int32


@dataclass(frozen=True, eq=False)
class LengthTable:
    """Two tables with a row per position, of which the length of a sequence chooses one.

    Attributes:
        short: `[rows, ...]`, for sequences of up to `long_beyond` tokens; has a row for each.
        long: `[rows, ...]`, for longer sequences; only the number of rows differs from `short`.
        long_beyond: Maximum number of tokens of a sequence that uses `short`.
    """

    short: Array
    long: Array
    long_beyond: int

    @property
    def places(self) -> int:
        """Maximum number of tokens of a sequence for which the tables have rows."""
        return max(len(self.long), self.long_beyond)

    def joined(self) -> Array:
        """Returns the rows of `short`, then those of `long`."""
        return np.concatenate([self.short, self.long])


def find_length_tables(graph: Graph, probe: DecodeStepProbe) -> dict[Node, LengthTable]:
    """Finds lookups in tables that a decoder chooses by the length of a sequence.

    An If that has another form, or another `long_beyond` than the first one, is left out.

    Args:
        graph: The decoder, with inputs of past keys and values.
        probe: Evaluates values of the graph that depend only on sizes.

    Returns:
        The tables, by the Gather node that reads a row for the position of each token.
    """
    tables: dict[Value, LengthTable] = {}
    lookups: dict[Node, LengthTable] = {}
    for node in graph.nodes:
        if isinstance(node.op, If):
            tables |= _tables(node, node.op, probe)
        elif isinstance(node.op, Gather) and node.arg(0) in tables:
            table = tables[node.arg(0)]
            first = next(iter(lookups.values()), table)
            by_row = normalize_axis(node.op.axis, table.long.ndim, node.op) == 0
            same = first.long_beyond == table.long_beyond
            if by_row and same and is_positions(node.arg(1), probe):
                lookups[node] = table
    return lookups


def _tables(node: Node, op: If, probe: DecodeStepProbe) -> dict[Value, LengthTable]:
    """Returns the tables that an If chooses by the length of a sequence, by its outputs."""
    limit = _limit(node.arg(0), probe)
    if limit is None:
        return {}
    chosen = probe.at(node.arg(0), limit, 1)
    branches = op.graphs if chosen is not None and chosen.any() else op.graphs[::-1]
    found: dict[Value, LengthTable] = {}
    for index, value in enumerate(node.outputs):
        long, short = (_constant(branch, index, node.inputs[1:]) for branch in branches)
        if long is None or short is None or not long.ndim or short.dtype != long.dtype:
            continue
        if short.shape[1:] == long.shape[1:] and len(short) >= limit:
            found[value] = LengthTable(short, long, limit)
    return found


def _constant(branch: Graph, index: int, captured: Sequence[Value | None]) -> Array | None:
    """Returns the elements of an output of a branch; None if it is not constant.

    Args:
        branch: Subgraph of an If.
        index: Index of the output.
        captured: Values of the outer graph that the branch reads as its inputs.
    """
    value: Value | None = branch.outputs[index]
    while value is not None and value.producer is not None:
        if not isinstance(value.producer.op, Identity):
            return None
        value = value.producer.arg(0)
    if value in branch.inputs:
        value = captured[branch.inputs.index(value)]
    return value.numbers if value is not None and value.is_constant else None


def _limit(condition: Value, probe: DecodeStepProbe) -> int | None:
    """Returns the last length before a condition on the length flips: 4096 for `length > 4096`.

    Returns None unless the condition compares the length of a sequence with a constant.
    """
    node = condition.producer
    while node is not None and isinstance(node.op, (View, Cast, Not)):
        node = node.arg(0).producer
    if node is None or not isinstance(node.op, (Greater, GreaterOrEqual, Less, LessOrEqual)):
        return None
    for length, bound in (node.inputs, node.inputs[::-1]):
        if length is None or bound is None or not _is_length(length, probe):
            continue
        number = bound.numbers if bound.is_constant else None
        if number is None or number.size != 1 or not 0 < number.item() < _MAX_LENGTH:
            return None
        ends = (int(number.item()) - 1, int(number.item()))
        return next((n for n in ends if n > 0 and _changes(condition, n, probe)), None)
    return None


def _is_length(value: Value, probe: DecodeStepProbe) -> bool:
    """Returns whether a value is one number: that of past and new tokens."""
    seen = [probe.at(value, past, new) for past, new in STEPS]
    return all(
        array is not None and array.size == 1 and array.item() == past + new
        for array, (past, new) in zip(seen, STEPS, strict=True)
    )


def _changes(condition: Value, length: int, probe: DecodeStepProbe) -> bool:
    """Returns whether a condition differs between sequences of `length` and `length + 1` tokens."""
    before, after = (probe.at(condition, past, 1) for past in (length - 1, length))
    return before is not None and after is not None and bool(before.any()) != bool(after.any())
