"""From a specialised graph to a frozen plan: variants chosen, buffers placed, steps in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph, Value
from clrt.kernels.spec import Status
from clrt.kernels.variant import Lowering
from clrt.plan.arena import Arena, Interval, Place, live_bytes, place, separate
from clrt.plan.fuse_launches import MissedRegion, fuse_launches
from clrt.plan.lifetimes import buffer_lifetimes, share, ticks
from clrt.plan.lower import lower
from clrt.plan.steps import DeviceStep, HostStep, Placed, PlanStep, Region


@dataclass(frozen=True)
class Plan:
    """All that a run at one set of shapes needs; nothing here touches a device.

    Attributes:
        places: Where each root value and scratch lies in the arena.
        roots: A value that shares memory with another, and that other.
        live_bytes: The largest sum of live bytes: the floor of the arena.
        statuses: The words in which kernels report numbers out of range, in their order.
        missed_regions: Where a rule of launch fusion nearly held.
    """

    graph: Graph
    steps: tuple[PlanStep, ...]
    arena: Arena
    places: Mapping[Placed, Place]
    roots: Mapping[Value, Value]
    live_bytes: int
    statuses: tuple[Status, ...] = field(default=())
    missed_regions: tuple[MissedRegion, ...] = ()

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
    lowering = Lowering(caps, cache(record))  # each layer asks for the same kernels
    fused = fuse_launches(graph, lowering)
    steps = tuple(u if isinstance(u, Region) else lower(u, lowering) for u in fused.order)
    times = ticks(steps)
    roots = share(graph, times)
    owners, intervals = buffer_lifetimes(graph, times, roots)
    arrange = separate if caps.simulator else place
    arena = arrange(intervals, caps.max_alloc_bytes)
    places = dict(zip(owners, arena.places, strict=True))
    statuses = {b: None for t in times for b in t.buffers if isinstance(b, Status)}
    live = live_bytes(intervals)
    return Plan(graph, steps, arena, places, roots, live, tuple(statuses), fused.misses)


def lifetimes(plan: Plan) -> list[tuple[Placed, Interval]]:
    """What lies in the arena, its size, and the first and last step that touch it."""
    times = ticks(plan.steps)
    owners, intervals = buffer_lifetimes(plan.graph, times, plan.roots)
    step_of = [-1, *(t.step for t in times), len(plan.steps)]  # by 1 + tick
    by_step = (Interval(i.nbytes, step_of[i.first + 1], step_of[i.last + 1]) for i in intervals)
    return list(zip(owners, by_step, strict=True))
