"""Plans a specialised graph: chooses kernel variants, orders steps, assigns buffers offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, reworded
from clrt.ir.graph import Graph, Value
from clrt.ir.symbolic_trace import is_traced
from clrt.kernels.index_range import check_index_range
from clrt.kernels.spec import KernelSpec, Launch, StatusWord
from clrt.kernels.variant import Lowering
from clrt.plan.arena import LiveInterval, assign_offsets, live_bytes, one_slab_per_buffer
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.fuse_launches import fuse_launches
from clrt.plan.lifetimes import assign_roots, buffer_lifetimes, is_view_by_sizes, memory_events
from clrt.plan.lower import lower
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep, Placed, PlanStep, Region, launches_of
from clrt.plan.subview_placement import place_subviews
from clrt.util.gc_control import gc_disabled


@gc_disabled
def make_plan(
    graph: Graph,
    caps: DeviceCaps,
    record: Callable[[str], Mapping[str, int]],
    contract: DeviceIo = HOST_ONLY,
) -> Plan:
    """Plans a specialised graph for a device.

    Args:
        caps: Capabilities of the device.
        record: Returns the tuning record of a kernel, by its entry point, or of a group of
            thresholds, by its name; empty if there is none.
        contract: Inputs and outputs to bind in device memory.

    Raises:
        OutOfMemoryError: A buffer is larger than the device can allocate.
        ShapeError: A kernel index or argument would exceed 32 bits.
    """
    lowering = Lowering(caps, cache(record))  # the cache lets equal layers share kernels
    fused = fuse_launches(graph, lowering)
    steps = tuple(u if isinstance(u, Region) else lower(u, lowering) for u in fused.order)
    parts = place_subviews(graph, steps, lowering)
    _check_index_ranges(parts.steps)
    times, read_only = memory_events(parts.steps), contract.device_inputs - contract.donated
    roots = assign_roots(graph, times, _named(graph, read_only), parts.inside)
    all_kernels = _kernels_at_all_shapes(graph, parts.steps, lowering)
    steps = tuple(_without_copies(step, roots, parts.inside) for step in parts.steps)
    launched = {x.kernel for x in launches_of(steps)}
    also = tuple(k for k in all_kernels if k not in launched)
    external = _external(graph, roots, contract)
    owners, intervals = buffer_lifetimes(graph, times, roots, external)
    arrange = one_slab_per_buffer if caps.simulator else assign_offsets
    arena = arrange(intervals, caps.max_alloc_bytes)
    places = dict(zip(owners, arena.places, strict=True))
    statuses = {b: None for t in times for b in t.buffers if isinstance(b, StatusWord)}
    live = live_bytes(intervals)
    details = (tuple(external), contract, tuple(statuses), fused.misses, also, parts.notes)
    return Plan(graph, steps, arena, places, roots, live, *details)


def _check_index_ranges(steps: Sequence[PlanStep]) -> None:
    """Checks that kernels can index all tensors of a plan's steps with 32 bits.

    Raises:
        ShapeError: A tensor is too large; the message names the first node of the step.
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
    """Returns all kernels that a graph launches at any size of the model's dims, as dict keys.

    Included are kernels of copies that may be elided at the sizes of this plan, and kernels of
    nodes that are views at these sizes only, such as a Transpose that moves a dim of 1. A traced
    plan needs no kernels of such views: an ordinary plan, made earlier, has compiled them.
    """
    views = (n for n in graph.nodes if is_view_by_sizes(n))
    idle = [lower(n, ctx) for n in views if not any(map(is_traced, n.output.dims))]
    kernels = {x.kernel: None for x in launches_of((*steps, *idle))}
    idle_kernels = (s.precompiled_kernels for s in (*steps, *idle) if isinstance(s, DeviceStep))
    return kernels | dict.fromkeys(chain.from_iterable(idle_kernels))


def _named(graph: Graph, names: Collection[str]) -> frozenset[Value]:
    """Returns the inputs of a graph whose names are in `names`."""
    return frozenset(v for v in graph.inputs if v.name in names)


def _external(graph: Graph, roots: Mapping[Value, Value], contract: DeviceIo) -> dict[Value, None]:
    """Returns the values that own memory in tensors of the caller, as dict keys.

    These are the device inputs of `contract`, and the roots of its device outputs except constants.
    """
    external = dict.fromkeys(v for v in graph.inputs if v.name in contract.device_inputs)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        root = roots.get(value, value)
        if name in contract.device_outputs and not root.is_constant:
            external[root] = None
    return external


def _without_copies(
    step: PlanStep, roots: Mapping[Value, Value], inside: Mapping[Value, Value]
) -> PlanStep:
    """Returns a step without copy launches whose source and destination share memory.

    Copies that access an aliased subview are kept.

    Args:
        roots: Maps each value that shares memory to the value that owns it.
        inside: Maps aliased subviews to their parents.
    """
    if not isinstance(step, DeviceStep) or not any(x.copy for x in step.launches):
        return step

    def is_needed(launch: Launch) -> bool:
        if launch.copy is None or not inside.keys().isdisjoint(launch.copy):
            return True
        return len({roots.get(v, v) for v in launch.copy}) > 1

    return replace(step, launches=tuple(filter(is_needed, step.launches)))


def arena_buffers(plan: Plan) -> list[tuple[Placed, LiveInterval]]:
    """Returns each buffer of a plan's arena with its size and lifetime.

    Lifetimes are indices of `memory_events(plan.steps)`: -1 stands for before the first event, the
    number of events for after the last.
    """
    owners, intervals = buffer_lifetimes(
        plan.graph, memory_events(plan.steps), plan.roots, plan.external
    )
    return list(zip(owners, intervals, strict=True))


def step_lifetimes(plan: Plan) -> list[tuple[Placed, LiveInterval]]:
    """Returns the buffers of a plan's arena with size and lifetime, in indices of steps.

    Index -1 stands for before the first step, len(plan.steps) for after the last.
    """
    step_of = [
        -1,
        *(t.step for t in memory_events(plan.steps)),
        len(plan.steps),
    ]  # index: memory event + 1
    return [
        (owner, LiveInterval(i.nbytes, step_of[i.first + 1], step_of[i.last + 1]))
        for owner, i in arena_buffers(plan)
    ]
