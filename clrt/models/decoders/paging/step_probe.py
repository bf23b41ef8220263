"""What values are that follow from the sizes of a step: masks and places."""

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

# Numbers of tokens before a step, and in it. They tell apart what depends on either, and on both.
STEPS = ((0, 5), (7, 1), (3, 4))
MOST_ELEMENTS = 1 << 26
"""More are not computed: a few bytes of a file can ask for any number."""


class StepProbe:
    """Computes values of a graph for one text of which every token counts.

    Exporters write masks and places in too many ways to know them all by form; what they are shows
    in their elements. They depend on sizes, the padding mask and places alone, so a few steps tell.
    """

    def __init__(self, graph: Graph, names: DecoderNames) -> None:
        self._graph, self._names = graph, names
        self._data = {v for v in graph.inputs if v.name in names.data}
        self._found: dict[tuple[Value, int, int], Array | None] = {}
        self._makers: dict[Value, list[Node] | None] = {}

    def elements(self, value: Value, past: int, new: int) -> int:
        """How many elements all values have that `at` computes, roughly."""
        sizes, total = {PAST: past, TOKENS: new}, 0
        for node in self._nodes(value) or ():
            for made in node.outputs:
                dims = [substitute(d, sizes) for d in made.shape or ()]
                total += prod(d if isinstance(d, int) else past + new for d in dims)
        return total

    def at(self, value: Value, past: int, new: int) -> Array | None:
        """The elements in a step of `new` tokens behind `past`; None where data decides them, or
        where they take too much."""
        key = (value, past, new)
        if key not in self._found:
            self._found[key] = self._compute(value, past, new)
        return self._found[key]

    def _compute(self, value: Value, past: int, new: int) -> Array | None:
        nodes = self._nodes(value)
        if nodes is None or self.elements(value, past, new) > MOST_ELEMENTS:
            return None
        sizes = {PAST: past, TOKENS: new}
        if value.is_constant and value.type.data is not None:
            numbers = [substitute(d, sizes) for d in value.type.data.flat]
            return np.array(numbers).reshape(value.type.data.shape)
        feeds: dict[str, Any] = {}
        for given in self._graph.inputs:
            assert given.shape is not None
            shape = [d if isinstance(d, int) else substitute(d, sizes) for d in given.shape]
            if any(isinstance(d, Expr) for d in shape):
                return None
            one = np.ones if given.name == self._names.mask else np.zeros
            feeds[given.name] = np.broadcast_to(one((), given.dtype.numpy), shape)  # type: ignore[arg-type]
        if self._names.places in feeds:
            kind = feeds[self._names.places].dtype
            feeds[self._names.places] = np.arange(past, past + new, dtype=kind)[None]
        part = Graph("probe", self._graph.inputs, [value], nodes, ["value"])
        try:
            found = evaluate(part, feeds)["value"]
        except (ClrtError, NotImplementedError):
            return None
        return found if isinstance(found, np.ndarray) else None

    def _nodes(self, value: Value) -> list[Node] | None:
        """The nodes that a value takes; None where one of them reads tokens or the past."""
        if value not in self._makers:
            wanted: set[Value] = set()
            pending = [value]
            while pending:
                one = pending.pop()
                if one in wanted:
                    continue
                if one in self._data:
                    self._makers[value] = None
                    return None
                wanted.add(one)
                if one.producer is not None:
                    pending += [v for v in one.producer.inputs if v is not None]
            nodes = [n for n in self._graph.nodes if any(v in wanted for v in n.outputs)]
            self._makers[value] = nodes
        return self._makers[value]
