"""From a specialised graph to a frozen plan: variants chosen, buffers placed, steps in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, reworded
from clrt.ir.graph import Graph, Value
from clrt.ir.symbolic_trace import is_traced
from clrt.kernels.index_range import check_index_range
from clrt.kernels.spec import KernelSpec, Launch, PackedWeight, StatusWord
from clrt.kernels.variant import Lowering
from clrt.plan.arena import Allocation, Arena, LiveInterval, assign_offsets, live_bytes, separate
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.fuse_launches import MissedRegion, fuse_launches
from clrt.plan.lifetimes import buffer_lifetimes, is_view_by_sizes, share, ticks
from clrt.plan.lower import lower
from clrt.plan.steps import DeviceStep, HostStep, Placed, PlanStep, Region, launches_of
from clrt.plan.subview_placement import SubviewNote, place_parts
from clrt.plan.traffic import traffic
from clrt.util.gc_control import gc_disabled

# The smallest buffer that is made.
LEAST_BUFFER_BYTES = 4
# What a step takes of the host's memory; measured: 3 to 11 KB, with its part of the graph.
_STEP_BYTES = 8 << 10


@dataclass(frozen=True)
class Plan:
    """All that a run at one set of shapes needs; nothing here touches a device.

    Attributes:
        places: Where each root value and scratch lies in the arena.
        roots: A value that shares memory with another, and that other.
        live_bytes: The largest sum of live bytes: the floor of the arena.
        external: The root values that lie in memory of the caller, bound at each run.
        contract: Which inputs and outputs it was made for as tensors on the device.
        statuses: The words in which kernels report numbers out of range, in their order.
        missed_regions: Where a rule of launch fusion nearly held.
        also: Kernels that the same graph launches at other shapes only.
        parts: Values that are parts of others, and which of them lie there.
    """

    graph: Graph
    steps: tuple[PlanStep, ...]
    arena: Arena
    places: Mapping[Placed, Allocation]
    roots: Mapping[Value, Value]
    live_bytes: int
    external: tuple[Value, ...] = ()
    contract: DeviceIo = HOST_ONLY
    statuses: tuple[StatusWord, ...] = field(default=())
    missed_regions: tuple[MissedRegion, ...] = ()
    also: tuple[KernelSpec, ...] = ()
    parts: tuple[SubviewNote, ...] = ()

    def root(self, value: Value) -> Value:
        """The value whose memory `value` lies in."""
        return self.roots.get(value, value)

    @cached_property
    def launches(self) -> int:
        """Kernel launches in a run."""
        return len(launches_of(self.steps))

    @cached_property
    def flops(self) -> int:
        """Floating-point operations in a run."""
        return sum(launch.flops for launch in launches_of(self.steps))

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """What each launch takes beside the others, in some unit."""
        steps = (s for s in self.steps if isinstance(s, DeviceStep))
        pairs = [(s.nodes, x) for s in steps for x in s.launches]
        return tuple(1 + x.flops + traffic(n, x).nbytes for n, x in pairs)

    @property
    def host_bytes(self) -> int:
        """The host's memory that it takes, roughly."""
        return len(self.steps) * _STEP_BYTES

    @property
    def status_count(self) -> int:
        """How many `statuses` there are."""
        return len(self.statuses)

    @cached_property
    def uploads(self) -> dict[tuple[Value, str], int]:
        """The bytes of each constant, or packed form of it by its layout, that it uploads."""
        buffers = (b for x in launches_of(self.steps) for b in x.buffers)
        found: dict[tuple[Value, str], int] = {}
        for buffer in (*buffers, *self.graph.outputs):
            if isinstance(buffer, PackedWeight):
                found[buffer.value, buffer.layout] = max(buffer.nbytes, LEAST_BUFFER_BYTES)
            elif isinstance(buffer, Value) and (root := self.root(buffer)).is_constant:
                found[root, ""] = max(root.nbytes, LEAST_BUFFER_BYTES)
        return found

    @cached_property
    def host_steps(self) -> tuple[HostStep, ...]:
        return tuple(s for s in self.steps if isinstance(s, HostStep))


@gc_disabled
def make_plan(
    graph: Graph,
    caps: DeviceCaps,
    record: Callable[[str], Mapping[str, int]],
    contract: DeviceIo = HOST_ONLY,
) -> Plan:
    """Plans a specialised graph for a device.

    Args:
        record: The tuning record of a kernel, by its entry point; empty where there is none.
        contract: Which inputs and outputs are tensors on the device.

    Raises:
        OutOfMemoryError: A buffer is larger than the device can allocate.
        ShapeError: A kernel would count past 32 bits.
    """
    lowering = Lowering(caps, cache(record))  # each layer asks for the same kernels
    fused = fuse_launches(graph, lowering)
    steps = tuple(u if isinstance(u, Region) else lower(u, lowering) for u in fused.order)
    parts = place_parts(graph, steps, lowering)
    _check_index_ranges(parts.steps)
    times, kept = ticks(parts.steps), contract.device_inputs - contract.donated
    roots = share(graph, times, _named(graph, kept), parts.inside)
    all_kernels = _kernels_at_all_shapes(graph, parts.steps, lowering)
    steps = tuple(_without_copies(step, roots, parts.inside) for step in parts.steps)
    also = tuple(k for k in all_kernels if k not in {x.kernel for x in launches_of(steps)})
    external = _external(graph, roots, contract)
    owners, intervals = buffer_lifetimes(graph, times, roots, external)
    arrange = separate if caps.simulator else assign_offsets
    arena = arrange(intervals, caps.max_alloc_bytes)
    places = dict(zip(owners, arena.places, strict=True))
    statuses = {b: None for t in times for b in t.buffers if isinstance(b, StatusWord)}
    live = live_bytes(intervals)
    made_for = (tuple(external), contract, tuple(statuses), fused.misses, also, parts.notes)
    return Plan(graph, steps, arena, places, roots, live, *made_for)


def _check_index_ranges(steps: Sequence[PlanStep]) -> None:
    """Refuses steps over tensors that their kernels cannot index.

    Raises:
        ShapeError: There is one; the message names its first node.
    """
    for step in steps:
        if isinstance(step, DeviceStep):
            try:
                check_index_range(step.launches)
            except ShapeError as error:
                raise reworded(error, f"{step.nodes[0]}: {error}") from error


def _kernels_at_all_shapes(
    graph: Graph, steps: Sequence[PlanStep], ctx: Lowering
) -> dict[KernelSpec, None]:
    """The kernels that the nodes launch at some sizes of the model's dims, if not at these.

    Besides those of the steps, copies among them that may be left out, they are those of nodes that
    are views by their sizes alone, as a Transpose is that moves a dim of 1. A template is never the
    first plan: it needs none of these.
    """
    views = (n for n in graph.nodes if is_view_by_sizes(n))
    idle = [lower(n, ctx) for n in views if not any(map(is_traced, n.output.dims))]
    found = {x.kernel: None for x in launches_of((*steps, *idle))}
    known = (s.also for s in (*steps, *idle) if isinstance(s, DeviceStep))
    return found | dict.fromkeys(chain.from_iterable(known))


def _named(graph: Graph, names: Collection[str]) -> frozenset[Value]:
    """The inputs of these names."""
    return frozenset(v for v in graph.inputs if v.name in names)


def _external(graph: Graph, roots: Mapping[Value, Value], contract: DeviceIo) -> dict[Value, None]:
    """The root values that lie in memory of the caller.

    Inputs on the device do, and what outputs that stay there are computed in.
    """
    found = dict.fromkeys(v for v in graph.inputs if v.name in contract.device_inputs)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        root = roots.get(value, value)
        if name in contract.device_outputs and not root.is_constant:
            found[root] = None
    return found


def _without_copies(
    step: PlanStep, roots: Mapping[Value, Value], inside: Mapping[Value, Value]
) -> PlanStep:
    """The step without copies of a tensor to where it lies."""
    if not isinstance(step, DeviceStep) or not any(x.copy for x in step.launches):
        return step

    def moves(launch: Launch) -> bool:
        if launch.copy is None or not inside.keys().isdisjoint(launch.copy):
            return True
        return len({roots.get(v, v) for v in launch.copy}) > 1

    return replace(step, launches=tuple(filter(moves, step.launches)))


def arena_buffers(plan: Plan) -> list[tuple[Placed, LiveInterval]]:
    """What lies in the arena, its size, and the first and last tick that touch it."""
    owners, intervals = buffer_lifetimes(plan.graph, ticks(plan.steps), plan.roots, plan.external)
    return list(zip(owners, intervals, strict=True))


def step_lifetimes(plan: Plan) -> list[tuple[Placed, LiveInterval]]:
    """What lies in the arena, its size, and the first and last step that touch it."""
    step_of = [-1, *(t.step for t in ticks(plan.steps)), len(plan.steps)]  # by 1 + tick
    return [
        (owner, LiveInterval(i.nbytes, step_of[i.first + 1], step_of[i.last + 1]))
        for owner, i in arena_buffers(plan)
    ]
