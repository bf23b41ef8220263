"""Evaluates values that depend only on sizes of a step, such as masks and positions."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.dims import Expr, substitute
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array
from clrt.models.decoders.io_names import PAST, TOKENS, DecoderNames
from clrt.ops.reference_interpreter import evaluate

# Sample steps (past tokens, new tokens): they distinguish dependence on either and on both.
STEPS = ((0, 5), (7, 1), (3, 4))
MAX_ELEMENTS = 1 << 26
"""Maximum number of elements to compute: a short file can request any number of them."""


class DecodeStepProbe:
    """Evaluates values of a decoder in sample steps of one sequence without padding.

    Exporters compute masks and positions in too many ways to match the nodes, so masks and
    positions are recognised by their elements. The elements depend only on the numbers of past and
    new tokens, so the three sample steps of `STEPS` suffice.

    Args:
        graph: The decoder, with inputs of past keys and values.
        names: Inputs and outputs of the graph.
    """

    def __init__(self, graph: Graph, names: DecoderNames) -> None:
        self._graph, self._names = graph, names
        self._data = {v for v in graph.inputs if v.name in names.data}
        self._found: dict[tuple[Value, int, int], Array | None] = {}
        self._makers: dict[Value, list[Node] | None] = {}

    def elements(self, value: Value, past: int, new: int) -> int:
        """Returns about how many elements `at` computes for a value, intermediate ones included.

        Args:
            value: Value of the graph.
            past: Number of past tokens.
            new: Number of tokens of the step.
        """
        sizes, total = {PAST: past, TOKENS: new}, 0
        for node in self._nodes(value) or ():
            for output in node.outputs:
                dims = [substitute(d, sizes) for d in output.shape or ()]
                total += prod(d if isinstance(d, int) else past + new for d in dims)
        return total

    def at(self, value: Value, past: int, new: int) -> Array | None:
        """Returns the elements of a value in a step of `new` tokens after `past` tokens.

        Returns None if the elements depend on token ids or past keys, are more than `MAX_ELEMENTS`,
        or cannot be computed.
        """
        key = (value, past, new)
        if key not in self._found:
            self._found[key] = self._compute(value, past, new)
        return self._found[key]

    def _compute(self, value: Value, past: int, new: int) -> Array | None:
        """Returns the elements of a value in a step of `new` tokens after `past` tokens.

        Unlike `at`, computes them at each call. Returns None if they cannot be computed.
        """
        nodes = self._nodes(value)
        if nodes is None or self.elements(value, past, new) > MAX_ELEMENTS:
            return None
        if value.is_constant and value.has_numbers:
            return value.numbers
        sizes = {PAST: past, TOKENS: new}
        if value.is_constant and value.type.data is not None:
            numbers = [substitute(d, sizes) for d in value.type.data.flat]
            return np.array(numbers).reshape(value.type.data.shape)
        feeds: dict[str, Any] = {}
        for graph_input in self._graph.inputs:
            assert graph_input.shape is not None
            shape = [d if isinstance(d, int) else substitute(d, sizes) for d in graph_input.shape]
            if any(isinstance(d, Expr) for d in shape):
                return None
            one = np.ones if graph_input.name == self._names.mask else np.zeros
            feeds[graph_input.name] = np.broadcast_to(one((), graph_input.dtype.numpy), shape)  # type: ignore[arg-type]
        if self._names.places in feeds:
            kind = feeds[self._names.places].dtype
            feeds[self._names.places] = np.arange(past, past + new, dtype=kind)[None]
        part = Graph("probe", self._graph.inputs, [value], nodes, ["value"])
        try:
            result = evaluate(part, feeds)["value"]
        except (ClrtError, NotImplementedError):
            return None
        return result if isinstance(result, np.ndarray) else None

    def _nodes(self, value: Value) -> list[Node] | None:
        """Returns the nodes that a value depends on; None if one reads token ids or past keys."""
        if value not in self._makers:
            ancestors: set[Value] = set()
            pending = [value]
            while pending:
                one = pending.pop()
                if one in ancestors:
                    continue
                if one in self._data:
                    self._makers[value] = None
                    return None
                ancestors.add(one)
                if one.producer is not None:
                    pending += [v for v in one.producer.inputs if v is not None]
            nodes = [n for n in self._graph.nodes if any(v in ancestors for v in n.outputs)]
            self._makers[value] = nodes
        return self._makers[value]
