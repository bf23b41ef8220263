"""Classifies the values of a decoder that depend only on the numbers of past and new tokens."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import field

import numpy as np

from clrt.ir.dims import Expr, product, provably_equal, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.models.decoders.io_names import PAST, TOKENS, DecoderNames
from clrt.models.decoders.paging.decode_step_probe import STEPS, DecodeStepProbe
from clrt.ops.tensor.shape import Shape_
from clrt.util.fast_dataclass import dataclass

_INTEGERS = (DType.INT32, DType.INT64)
_PER_STEP = "'{}' depends on the number of past tokens, or on the order of tokens in a step"


@dataclass(frozen=True, eq=False)
class SizeValues:
    """Values of a decoder that depend only on sizes: the numbers of past and new tokens.

    Attributes:
        places: Values that are the positions of the step's tokens.
        unsupported: For each value that a paged decoder cannot compute, the reason, for an error
            message. Such a value is combined with tokens by a node, but is neither the positions
            nor a number that is the same in all steps.
    """

    places: set[Value] = field(default_factory=set)
    unsupported: dict[Value, str] = field(default_factory=dict)


def read_sizes(
    graph: Graph, names: DecoderNames, paged: Set[Node], probe: DecodeStepProbe
) -> SizeValues:
    """Finds values of a decoder that depend only on sizes: the numbers of past and new tokens.

    Args:
        graph: The decoder, with inputs of past keys and values.
        names: Inputs and outputs of the graph.
        paged: Nodes that are rewritten, such as attention; their inputs are not checked here.
        probe: Evaluates values of the graph that depend only on sizes.

    Returns:
        The values that are the positions of a step's tokens; and, with reasons, those that a paged
        decoder cannot compute. A value that is the same number in all steps, or that no node
        combines with tokens, is neither.
    """
    sizes = SizeValues()
    data = names.data | {names.places}
    by_token = {v for v in graph.inputs if v.name in data}
    sized = {v for v in graph.inputs if v not in by_token}
    sized |= {v for v in graph.constants() if not v.has_numbers}
    for node in graph.nodes:
        read = [v for v in node.inputs if v is not None]
        if by_token.isdisjoint(read) or isinstance(node.op, Shape_):
            if sized.isdisjoint(read):
                continue
            for value in node.outputs:
                places = is_positions(value, probe)
                (by_token if places else sized).add(value)
                if places:
                    sizes.places.add(value)
            continue
        by_token.update(node.outputs)
        if node in paged:
            continue
        for value in read:
            if value in sized and value not in sizes.unsupported and _is_unsupported(value, probe):
                sizes.unsupported[value] = _PER_STEP.format(value.name)
    return sizes


def _counts_tokens(value: Value) -> bool:
    """Returns whether a value is an integer tensor with one element per token."""
    shape = value.shape
    return (
        shape is not None
        and value.dtype in _INTEGERS
        and provably_equal(product(shape), symbol(TOKENS))
    )


def is_positions(value: Value, probe: DecodeStepProbe) -> bool:
    """Returns whether a value is the positions of the tokens of a step, in any shape."""
    if not _counts_tokens(value):
        return False
    for past, new in STEPS:
        positions = probe.at(value, past, new)
        if positions is None or not np.array_equal(
            positions.reshape(-1), np.arange(past, past + new)
        ):
            return False
    return True


def _is_unsupported(value: Value, probe: DecodeStepProbe) -> bool:
    """Returns whether a paged decoder cannot compute a value that depends on sizes.

    A constant, such as a shape, is unsupported if an element depends on the number of past tokens,
    or if its elements are unknown. A computed value is unsupported unless all its elements, in all
    sample steps, are one and the same number.

    Args:
        value: Value that depends only on sizes.
        probe: Evaluates the value in sample steps.
    """
    if value.is_constant:
        elements = value.type.data
        return elements is None or any(
            isinstance(d, Expr) and PAST in d.symbols for d in elements.flat
        )
    seen = [probe.at(value, past, new) for past, new in STEPS]
    numbers = {n for array in seen if array is not None for n in np.unique(array).tolist()}
    return any(array is None for array in seen) or len(numbers) > 1
