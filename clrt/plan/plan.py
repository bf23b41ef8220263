"""From a specialised graph to a frozen plan: variants chosen, buffers placed, steps in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph, Value
from clrt.kernels.spec import Status
from clrt.kernels.variant import MOST_AFTER, Lowering
from clrt.plan.arena import Arena, Interval, Place, live_bytes, place, separate
from clrt.plan.lifetimes import buffer_lifetimes, buffers_of, is_view, share
from clrt.plan.lower import lower
from clrt.plan.steps import DeviceStep, HostStep, Placed, PlanStep


@dataclass(frozen=True)
class Plan:
    """All that a run at one set of shapes needs; nothing here touches a device.

    Attributes:
        places: Where each root value and scratch lies in the arena.
        roots: A value that shares memory with another, and that other.
        live_bytes: The largest sum of live bytes: the floor of the arena.
        statuses: The words in which kernels report numbers out of range, in their order.
    """

    graph: Graph
    steps: tuple[PlanStep, ...]
    arena: Arena
    places: Mapping[Placed, Place]
    roots: Mapping[Value, Value]
    live_bytes: int
    statuses: tuple[Status, ...] = field(default=())

    def root(self, value: Value) -> Value:
        """The value whose memory `value` lies in."""
        return self.roots.get(value, value)

    @property
    def launches(self) -> int:
        """Kernel launches in a run."""
        return sum(len(s.launches) for s in self.steps if isinstance(s, DeviceStep))

    @property
    def host_steps(self) -> tuple[HostStep, ...]:
        return tuple(s for s in self.steps if isinstance(s, HostStep))


def make_plan(graph: Graph, caps: DeviceCaps, record: Callable[[str], Mapping[str, int]]) -> Plan:
    """Plans a specialised graph for a device.

    Args:
        record: The tuning record of a kernel, by its entry point; empty where there is none.

    Raises:
        OutOfMemoryError: A buffer is larger than the device can allocate.
        ShapeError: A kernel would count past 32 bits.
    """
    lowering = Lowering(caps, record)
    nodes = [n for n in graph.nodes if not is_view(n)]
    found: list[PlanStep] = []
    while len(found) < len(nodes):
        found += lower(nodes[len(found) : len(found) + 1 + MOST_AFTER], lowering)
    steps = tuple(found)
    roots = share(graph, steps)
    owners, intervals = buffer_lifetimes(graph, steps, roots)
    arrange = separate if caps.simulator else place
    arena = arrange(intervals, caps.max_alloc_bytes)
    places = dict(zip(owners, arena.places, strict=True))
    statuses = {b: None for _, b in buffers_of(steps) if isinstance(b, Status)}
    return Plan(graph, steps, arena, places, roots, live_bytes(intervals), tuple(statuses))


def lifetimes(plan: Plan) -> list[tuple[Placed, Interval]]:
    """What lies in the arena, its size, and the first and last step that touch it."""
    return list(zip(*buffer_lifetimes(plan.graph, plan.steps, plan.roots), strict=True))
