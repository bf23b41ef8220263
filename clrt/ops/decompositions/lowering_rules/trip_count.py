"""Determines the trip count of a loop on the host, if it depends only on known numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array
from clrt.ops.base import Op
from clrt.ops.control.control_flow import Loop, counters
from clrt.ops.reference_interpreter import evaluate
from clrt.util.fast_dataclass import dataclass

# Maximum elements of a tensor that the host evaluates: counters, limits, a few flags.
_MAX_ELEMS = 64


@dataclass(frozen=True)
class TripCountGraph:
    """The part of a loop body that determines when the loop ends, for evaluation on the host.

    The graph depends only on numbers that are known before the loop.

    Attributes:
        graph: Inputs: iteration number, condition, known numbers. Outputs: the next condition
            (unless `goes_on`), then the next values of the loop-carried values in `places`.
        places: Indices of the loop-carried values that the graph computes.
        starts: Initial values of the graph's inputs after iteration number and condition, by name.
        carries: Name of the graph's input for each loop-carried value in `places`.
        limit: Maximum number of iterations; None if unlimited.
        goes_on: Whether the condition always holds.
    """

    graph: Graph
    places: tuple[int, ...]
    starts: Mapping[str, Array]
    carries: tuple[str, ...]
    limit: int | None
    goes_on: bool

    @classmethod
    def of(cls, loop: Loop, body: Graph, inputs: Sequence[Value | None]) -> TripCountGraph | None:
        """Extracts the nodes of a loop body that determine when the loop ends.

        Args:
            loop: Loop op.
            body: Body of the loop, with known symbols bound to numbers.
            inputs: Inputs of the Loop node.

        Returns:
            The extracted graph; None if the end depends on unknown numbers, the condition is false
            from the start, or the loop never ends.
        """
        limit, condition = (None if v is None else _numbers(v) for v in inputs[:2])
        if any(
            v is not None and n is None for v, n in zip(inputs, (limit, condition), strict=False)
        ):
            return None
        if condition is not None and not condition.all():
            return None
        max_iterations = None if limit is None else int(limit.reshape(()))
        carried, captured = np.split(np.array(body.inputs[2:], object), [loop.carried])
        pairs = zip(body.inputs[2:], inputs[2:], strict=True)
        starts = {v: n for v, x in pairs if x is not None and (n := _numbers(x)) is not None}
        places = [k for k, v in enumerate(carried) if v in starts]
        while True:
            known = {*body.inputs[:2], *(v for v in captured if v in starts)}
            known.update(carried[k] for k in places)
            graph_inputs = [v for v in body.inputs if v in known]
            nodes = _computable(body, known)
            computed = [k for k in places if _is_known(body.outputs[1 + k], known)]
            if computed == places:
                break
            places = computed
        ends = [] if loop.goes_on else body.outputs[:1]
        if not all(_is_known(v, known) for v in ends) or (max_iterations is None and not ends):
            return None
        outputs = [*ends, *(body.outputs[1 + k] for k in places)]
        graph = Graph(
            body.name, graph_inputs, outputs, nodes, [str(k) for k in range(len(outputs))]
        )
        graph.remove_dead()
        at_first = {v.name: n for v, n in starts.items() if v in known}
        carries = tuple(carried[k].name for k in places)
        return cls(graph, tuple(places), at_first, carries, max_iterations, loop.goes_on)

    def turns(self, most: int) -> list[dict[int, Array]] | None:
        """Computes the loop-carried values in `places` for all iterations.

        Args:
            most: Maximum number of iterations.

        Returns:
            For the start of each iteration, and for the end of the loop, the values by index (of
            `places`). None if there are more than `most` iterations, or a value cannot be computed.
        """
        values, history, going = dict(self.starts), list[dict[int, Array]](), True
        names = [v.name for v in self.graph.inputs[:2]]
        for turn in range(most + 1):
            history.append({k: values[n] for k, n in zip(self.places, self.carries, strict=True)})
            if not going or (self.limit is not None and turn >= self.limit):
                return history
            feeds = dict(zip(names, counters(self.graph, turn), strict=True))
            try:
                results = list(evaluate(self.graph, {**values, **feeds}).values())
            except ClrtError:  # the run reports it
                return None
            if not self.goes_on:
                going = bool(np.all(results.pop(0)))
            values.update(zip(self.carries, results, strict=True))
        return None


def _computable(graph: Graph, known: set[Value]) -> list[Node]:
    """Returns the nodes of a graph that the host can evaluate from known values.

    Args:
        graph: Loop body.
        known: Values known at planning; changed: outputs of the returned nodes are added.
    """
    nodes = []
    for node in graph.nodes:
        op = node.op_as(Op)
        needs_host = op.host_traits.host_driven or op.graphs or op.is_random(node.input_types)
        is_known = all(v is None or _is_known(v, known) for v in node.inputs)
        if is_known and not needs_host and all(map(_is_small, node.outputs)):
            known.update(node.outputs)
            nodes.append(node)
    return nodes


def _is_known(value: Value, known: set[Value]) -> bool:
    """Returns whether a value is in `known` or is a small constant."""
    return value in known or (value.is_constant and value.has_numbers and _is_small(value))


def _is_small(value: Value) -> bool:
    """Returns whether a value is a device tensor of at most `_MAX_ELEMS` elements.

    Returns False if its shape has symbols or is unknown.
    """
    dims = value.type.static_shape
    return dims is not None and prod(dims) <= _MAX_ELEMS and not value.type.on_host


def _numbers(value: Value) -> Array | None:
    """Returns the elements of a constant of at most `_MAX_ELEMS` elements; None for other values.

    A plan that depends on these elements is valid for no other elements.
    """
    if not value.is_constant or not value.has_numbers or not _is_small(value):
        return None
    return np.asarray(value.numbers, value.dtype.numpy)
