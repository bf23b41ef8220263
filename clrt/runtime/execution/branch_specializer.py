"""Specialises a graph for input values or shapes that decide the conditions of its If nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from clrt.errors import ClrtError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value, all_graphs
from clrt.ir.op import Array, TensorType
from clrt.ir.runtime_values import RuntimeValue, shapes_of
from clrt.ops.control.control_flow import If, copy_all
from clrt.plan.specialise import fix_inputs
from clrt.runtime.executables.branches import BranchKey, BranchPath, follow, inputs_of
from clrt.runtime.execution.signature import bind_dims

_LOG = logging.getLogger(__name__)
# Maximum number of elements, and dtypes, of an input on which conditions depend, such as a sampling
# rate or a flag for the use of a cache.
_MAX_ELEMS = 4
_DTYPES = (DType.BOOL, DType.INT32, DType.INT64)
# Maximum number of values searched from a condition back to inputs, which bounds the time.
# Exporters write only a cast and a comparison between them.
_MAX_NODES = 32
# Maximum number of specialised graphs per model, which bounds memory if inputs change in every run.
_MAX_GRAPHS = 16
# Maximum number of nodes in a graph that is specialised for its shapes, which takes about 0.1 ms
# per node. It saves launches, which matter little in a larger graph.
_MAX_SHAPED_NODES = 256


class _Branch:
    """A graph, and the graphs specialised from it for input values or shapes.

    Attributes:
        choosing: Names of the inputs whose elements decide conditions of If nodes.
        by_shape: Whether to specialise for input shapes, which may decide conditions.
        specialised: Specialised graph for each key (input values or shapes); this object itself
            for a key that removes no If or whose graph cannot be specialised.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.choosing = _choosing(graph)
        tensors = all(type(v.type) is TensorType for v in graph.inputs)
        small = len(graph.nodes) <= _MAX_SHAPED_NODES
        self.by_shape = not self.choosing and tensors and small and _ifs(graph) > 0
        self.specialised: dict[BranchKey, _Branch] = {}


class Branches:
    """Caches graphs of a model, each specialised for inputs that decide the conditions of If nodes.

    Without specialisation, an If whose condition is computed from an input is a graph break: three
    plans, two waits for the device, and no fusion across its border. An If whose condition follows
    from shapes, frequent in TorchScript, is not a break, but prevents fusion too.
    """

    def __init__(
        self,
        graph: Graph,
        rewrite: Callable[[Graph], object],
        adopt: Callable[[Graph], object],
    ) -> None:
        """Starts with no specialised graphs.

        Args:
            graph: Graph of the model, which runs if no input decides a condition, or if such an
                input is on the device.
            rewrite: Applies the model's passes to a graph in place.
            adopt: Called with each specialised graph that will be run.
        """
        self._first = _Branch(graph)
        self._rewrite, self._adopt = rewrite, adopt
        self._count = 0

    @property
    def specialises(self) -> bool:
        """Whether input values or shapes decide an If, for `chosen` to specialise the graph."""
        return bool(self._first.choosing) or self._first.by_shape

    def chosen(self, feeds: Mapping[str, RuntimeValue]) -> tuple[Graph, Mapping[str, RuntimeValue]]:
        """Returns the graph specialised for the inputs of a run, and that graph's inputs.

        Args:
            feeds: Inputs of the model by name.

        Returns:
            The graph, which is the model's own if nothing can be specialised, and `feeds` without
            the inputs that became constants.
        """
        branch, feeds = follow(self._first, feeds, self._cached)
        return branch.graph, feeds

    def paths(self) -> list[BranchPath]:
        """Returns the branches made so far, each with the keys that lead to it."""
        found, pending = [], [BranchPath((), self._first)]
        for path in pending:
            found.append(path)
            branch = path.branch
            assert isinstance(branch, _Branch)
            pending += [
                BranchPath((*path.keys, key), each)
                for key, each in branch.specialised.items()
                if each is not branch
            ]
        return found

    def _cached(self, branch: _Branch, key: BranchKey) -> _Branch:
        """Returns the branch specialised for input values or shapes, from the cache if present.

        Returns `branch` itself if the specialised graph has no fewer If nodes or cannot be made, or
        if there are `_MAX_GRAPHS` already.

        Args:
            branch: Branch to specialise.
            key: The input values or shapes.
        """
        if key not in branch.specialised:
            if self._count == _MAX_GRAPHS:
                return branch
            known = inputs_of(branch.graph, key)
            by_shape = any(elements is None for _, _, elements in key)
            make = (
                partial(_with_shapes, branch.graph, shapes_of(known))
                if by_shape
                else partial(_with_values, branch.graph, known)
            )
            specialised = self._specialise(branch, make)
            self._count += 1
            branch.specialised[key] = specialised
        return branch.specialised[key]

    def _specialise(self, branch: _Branch, make: Callable[[], Graph]) -> _Branch:
        """Returns a branch with the graph that `make` builds, optimised.

        Returns `branch` itself if that graph has no fewer If nodes, or cannot be made.
        """
        try:
            graph = make()
            self._rewrite(graph)
        except ClrtError:
            # The types that the file declares for a branch may be wrong; a run of the branch
            # reports it.
            _LOG.debug("no branch of %s", branch.graph.name, exc_info=True)
            return branch
        if _ifs(graph) >= _ifs(branch.graph):
            return branch
        self._adopt(graph)
        return _Branch(graph)


def _with_values(graph: Graph, known: Mapping[str, Array]) -> Graph:
    """Returns a copy of a graph in which the inputs named in `known` are constants."""
    copy = copy_all(graph)
    fix_inputs(copy, {}, {name: array.copy() for name, array in known.items()})
    return copy


def _with_shapes(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Returns a copy of a graph in which the inputs have static shapes.

    Args:
        shapes: Shape of each input by name.
    """
    copy = copy_all(graph, bind_dims(graph.inputs, shapes))
    fix_inputs(copy, shapes, {})
    return copy


def _ifs(graph: Graph) -> int:
    return sum(isinstance(node.op, If) for g in all_graphs(graph) for node in g.nodes)


def _choosing(graph: Graph) -> list[str]:
    """Returns the names of small inputs that decide the condition of an If.

    The condition must depend on no other inputs. Ifs in subgraphs are not considered.
    """
    choices = dict[Value, None]()
    for node in graph.nodes:
        condition = node.input(0)
        if isinstance(node.op, If) and condition is not None:
            sources = _sources(condition)
            if all(map(_is_choice, sources)):
                choices.update(dict.fromkeys(sources))
    return [v.name for v in graph.inputs if v in choices]


def _sources(value: Value) -> list[Value]:
    """Returns the graph inputs that a value is computed from.

    Once more than `_MAX_NODES` values have been found, the search stops: values whose producers
    were not searched are then returned as if they were inputs.
    """
    sources, todo = dict[Value, None](), [value]
    seen = set(todo)
    for value in todo:
        if value.is_constant:
            continue
        if value.producer is None or len(todo) > _MAX_NODES:
            sources[value] = None
            continue
        new = {v for v in value.producer.inputs if v is not None} - seen
        seen |= new
        todo += new
    return list(sources)


def _is_choice(value: Value) -> bool:
    shape = value.type.static_shape
    plain = value.producer is None and type(value.type) is TensorType and shape is not None
    return plain and prod(shape or ()) <= _MAX_ELEMS and value.dtype in _DTYPES
