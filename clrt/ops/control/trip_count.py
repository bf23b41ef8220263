"""How many iterations a loop makes, where the host can tell without the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array
from clrt.ops.base import Op
from clrt.ops.control.control_flow import Loop, counters
from clrt.ops.reference_interpreter import evaluate

# Elements of what is counted with: counters, limits, a few flags.
_MOST_ELEMS = 64


@dataclass(frozen=True)
class TripCountGraph:
    """The part of a loop's graph that depends on nothing but numbers known at the start.

    Attributes:
        graph: Takes the iteration's number, the condition and such numbers; gives the next
            condition, where that is no constant, and the next numbers of `places`.
        places: Of the values that the loop carries, those that it gives.
        starts: What the inputs behind the first two are at first, by name.
        carries: The names of those that `places` are.
        limit: The most iterations; None for no such.
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
        """The part of a loop; None where it does not say when the loop ends.

        Args:
            body: The loop's, in which symbols are numbers where these are known.
            inputs: Of the loop's node.
        """
        limit, condition = (None if v is None else _numbers(v) for v in inputs[:2])
        if any(
            v is not None and n is None for v, n in zip(inputs, (limit, condition), strict=False)
        ):
            return None
        if condition is not None and not condition.all():
            return None
        most = None if limit is None else int(limit.reshape(()))
        carried, captured = np.split(np.array(body.inputs[2:], object), [loop.carried])
        pairs = zip(body.inputs[2:], inputs[2:], strict=True)
        starts = {v: n for v, x in pairs if x is not None and (n := _numbers(x)) is not None}
        places = [k for k, v in enumerate(carried) if v in starts]
        while True:
            known = {*body.inputs[:2], *(v for v in captured if v in starts)}
            known.update(carried[k] for k in places)
            taken = [v for v in body.inputs if v in known]
            nodes = _computable(body, known)
            kept = [k for k in places if _is_known(body.outputs[1 + k], known)]
            if kept == places:
                break
            places = kept
        ends = [] if loop.goes_on else body.outputs[:1]
        if not all(_is_known(v, known) for v in ends) or (most is None and not ends):
            return None
        outputs = [*ends, *(body.outputs[1 + k] for k in places)]
        graph = Graph(body.name, taken, outputs, nodes, [str(k) for k in range(len(outputs))])
        graph.remove_dead()
        at_first = {v.name: n for v, n in starts.items() if v in known}
        carries = tuple(carried[k].name for k in places)
        return cls(graph, tuple(places), at_first, carries, most, loop.goes_on)

    def turns(self, most: int) -> list[dict[int, Array]] | None:
        """The numbers of `places` before each iteration, and behind the last.

        None where there are more than `most` iterations, or these numbers cannot be computed.
        """
        held, found, going = dict(self.starts), list[dict[int, Array]](), True
        names = [v.name for v in self.graph.inputs[:2]]
        for turn in range(most + 1):
            found.append({k: held[n] for k, n in zip(self.places, self.carries, strict=True)})
            if not going or (self.limit is not None and turn >= self.limit):
                return found
            feeds = dict(zip(names, counters(self.graph, turn), strict=True))
            try:
                results = list(evaluate(self.graph, {**held, **feeds}).values())
            except ClrtError:  # the run says so
                return None
            if not self.goes_on:
                going = bool(np.all(results.pop(0)))
            held.update(zip(self.carries, results, strict=True))
        return None


def _computable(graph: Graph, known: set[Value]) -> list[Node]:
    """The nodes of a graph that the host can compute; what they give is added to `known`."""
    found = []
    for node in graph.nodes:
        op = node.op
        assert isinstance(op, Op)
        driven = op.host_driven or op.graphs or op.is_random(node.input_types)
        reads = all(v is None or _is_known(v, known) for v in node.inputs)
        if reads and not driven and all(map(_is_small, node.outputs)):
            known.update(node.outputs)
            found.append(node)
    return found


def _is_known(value: Value, known: set[Value]) -> bool:
    return value in known or (value.is_constant and value.has_numbers and _is_small(value))


def _is_small(value: Value) -> bool:
    dims = value.type.static_shape
    return dims is not None and prod(dims) <= _MOST_ELEMS and not value.type.on_host


def _numbers(value: Value) -> Array | None:
    """A few elements, where they are known; a plan that depends on sizes holds for these alone."""
    if not value.is_constant or not value.has_numbers or not _is_small(value):
        return None
    return np.asarray(value.numbers, value.dtype.numpy)
