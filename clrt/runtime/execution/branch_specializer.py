"""Inputs that say which branches run: a graph for each of their values, optimised with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from math import prod

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import RuntimeValue, all_graphs, shapes_of
from clrt.ops.control.control_flow import If, copy_all
from clrt.plan.specialise import fix_inputs
from clrt.runtime.execution.signature import bind_dims

_LOG = logging.getLogger(__name__)
# Of an input that chooses: a number or a few, such as a sampling rate, or whether there is a cache.
_MOST_ELEMS = 4
_DTYPES = (DType.BOOL, DType.INT32, DType.INT64)
# Between the input and the condition: exporters write a cast and a comparison.
_MOST_NODES = 32
# Of a model: an input that changes from run to run gets no more of them.
_MOST_GRAPHS = 16
# Nodes of a graph that is optimised anew for its shapes: each costs about 0.1 ms. In a larger one
# launches weigh little, which are what that saves.
_MOST_SHAPED = 256


class _Branch:
    """A graph, and what was made of it where more is known.

    Attributes:
        choosing: Names of the inputs whose elements choose branches.
        by_shape: Whether their shapes may.
        made: By elements or shapes; the branch itself where they help nothing.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.choosing = _choosing(graph)
        tensors = all(type(v.type) is TensorType for v in graph.inputs)
        small = len(graph.nodes) <= _MOST_SHAPED
        self.by_shape = not self.choosing and tensors and small and _ifs(graph) > 0
        self.made: dict[Hashable, _Branch] = {}


class Branches:
    """The graphs of a model by what its inputs say of its branches.

    Without them an If whose condition an input gives is a graph break: three plans, two waits for
    the device, and nothing fused across its border. One whose condition follows from shapes, which
    scripts of torch are full of, is no break, but nothing is fused there either.
    """

    def __init__(
        self,
        graph: Graph,
        rewrite: Callable[[Graph], object],
        adopt: Callable[[Graph], object],
    ) -> None:
        """
        Args:
            graph: Of the model; it runs where no input chooses, or one lies on the device.
            rewrite: Optimises a graph in place, as that of the model was.
            adopt: Is told of each graph that was made.
        """
        self._first = _Branch(graph)
        self._rewrite, self._adopt = rewrite, adopt
        self._count = 0

    def chosen(self, feeds: Mapping[str, RuntimeValue]) -> tuple[Graph, Mapping[str, RuntimeValue]]:
        """The graph for the inputs of a run, and those of them that it takes."""
        branch = self._first
        while branch.choosing:
            given = [feeds.get(name) for name in branch.choosing]
            arrays = [x for x in given if isinstance(x, np.ndarray)]
            if len(arrays) < len(given):
                break
            known = dict(zip(branch.choosing, arrays, strict=True))
            values = tuple((x.shape, x.tobytes()) for x in arrays)
            found = self._kept(branch, values, partial(_with_values, branch.graph, known))
            if found is branch:
                break
            branch, feeds = found, {n: feed for n, feed in feeds.items() if n not in known}
        if branch.by_shape:
            shapes = shapes_of(feeds)
            make = partial(_with_shapes, branch.graph, shapes)
            branch = self._kept(branch, tuple(shapes.values()), make)
        return branch.graph, feeds

    def _kept(self, branch: _Branch, key: Hashable, make: Callable[[], Graph]) -> _Branch:
        """What was made of a branch for a key; itself, where that has no fewer of If, cannot be
        made, or there are too many.
        """
        if key not in branch.made:
            if self._count == _MOST_GRAPHS:
                return branch
            made = self._make(branch, make)
            self._count += 1
            branch.made[key] = made
        return branch.made[key]

    def _make(self, branch: _Branch, make: Callable[[], Graph]) -> _Branch:
        try:
            graph = make()
            self._rewrite(graph)
        except ClrtError:
            # What a file declares of a branch may be wrong, which a run does without or names.
            _LOG.debug("no branch of %s", branch.graph.name, exc_info=True)
            return branch
        if _ifs(graph) >= _ifs(branch.graph):
            return branch
        self._adopt(graph)
        return _Branch(graph)


def _with_values(graph: Graph, known: Mapping[str, Array]) -> Graph:
    """A copy in which some inputs are constants."""
    copy = copy_all(graph)
    fix_inputs(copy, {}, {name: array.copy() for name, array in known.items()})
    return copy


def _with_shapes(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """A copy in which the shapes of the inputs are numbers."""
    copy = copy_all(graph, bind_dims(graph.inputs, shapes))
    fix_inputs(copy, shapes, {})
    return copy


def _ifs(graph: Graph) -> int:
    return sum(isinstance(node.op, If) for g in all_graphs(graph) for node in g.nodes)


def _choosing(graph: Graph) -> list[str]:
    """The inputs by which alone, and constants, the conditions of some nodes are known."""
    found = dict[Value, None]()
    for node in graph.nodes:
        condition = node.input(0)
        if isinstance(node.op, If) and condition is not None:
            sources = _sources(condition)
            if all(map(_is_choice, sources)):
                found.update(dict.fromkeys(sources))
    return [v.name for v in graph.inputs if v in found]


def _sources(value: Value) -> list[Value]:
    """What a value is computed from: inputs, and what is too far away."""
    sources, todo = dict[Value, None](), [value]
    seen = set(todo)
    for value in todo:
        if value.is_constant:
            continue
        if value.producer is None or len(todo) > _MOST_NODES:
            sources[value] = None
            continue
        new = {v for v in value.producer.inputs if v is not None} - seen
        seen |= new
        todo += new
    return list(sources)


def _is_choice(value: Value) -> bool:
    shape = value.type.static_shape
    plain = value.producer is None and type(value.type) is TensorType and shape is not None
    return plain and prod(shape or ()) <= _MOST_ELEMS and value.dtype in _DTYPES
