"""Lifetimes of buffers, and which values share memory: views and in-place results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ir.symbolic_trace import untraced
from clrt.kernels.spec import Buffer, PackedWeight, StatusWord
from clrt.ops.base import Op
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.plan.arena import LiveInterval
from clrt.plan.steps import HostStep, Placed, PlanStep, Region
from clrt.util.background import yield_point
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class MemoryEvent:
    """A point in time at which memory is accessed: a step, or one launch of a region.

    Attributes:
        step: Index of the step in the plan.
        nodes: Nodes whose inputs are read for the last time in this event.
        buffers: Buffers that are read or written.
        on_host: Whether the host accesses the buffers.
    """

    step: int
    nodes: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    on_host: bool = False


def memory_events(steps: Sequence[PlanStep]) -> list[MemoryEvent]:
    """Returns one event for each step of a plan, or each launch if the step is a region, in order.

    Lifetimes of buffers are counted in these events: a buffer lives from the first event that
    accesses it to the last one.

    Args:
        steps: Steps of the plan.

    Returns:
        The events. A region with nodes that no launch computes has one event more than launches.
    """
    events: list[MemoryEvent] = []
    for index, step in enumerate(steps):
        yield_point()
        if isinstance(step, Region):
            events += _region_ticks(index, step)
        elif isinstance(step, HostStep):
            values = (*step.node.inputs, *step.node.outputs)
            buffers = tuple(v for v in values if v is not None)
            events.append(MemoryEvent(index, step.nodes, buffers, on_host=True))
        else:
            accessed = (b for x in step.launches for b in x.buffers)
            events.append(MemoryEvent(index, step.nodes, tuple(dict.fromkeys(accessed))))
    return events


def _region_ticks(index: int, region: Region) -> Iterator[MemoryEvent]:
    """Yields a memory event for each launch of a region.

    The nodes of an event are those that its launch computes, because no later launch reads their
    inputs (see `LaunchFusionRule.emit`). Nodes that no launch computes get one more event, at the
    end.

    Args:
        index: Index of the region's step in the plan.
    """
    remaining = list(region.nodes)
    for launch, _, completed in region.work():
        remaining = [n for n in remaining if n not in completed]
        yield MemoryEvent(index, completed, tuple(launch.buffers))
    if remaining:
        yield MemoryEvent(index, tuple(remaining), ())


def assign_roots(
    graph: Graph,
    times: Sequence[MemoryEvent],
    read_only: Collection[Value] = (),
    inside: Mapping[Value, Value] = MappingProxyType({}),
) -> dict[Value, Value]:
    """Decides which values share memory: views with their input, and results computed in place.

    A result is computed in place of an input whose last use is the same node.

    Args:
        times: Memory events of the plan.
        read_only: Inputs whose memory the plan must not overwrite.
        inside: Maps each aliased subview to its parent. No result is computed in place of a
            subview, and no subview in place of an input.

    Returns:
        Maps each value that shares memory to its root, the value that owns the memory.
    """
    roots: dict[Value, Value] = dict(inside)
    subviews = set(inside)  # subviews, and views of subviews

    def root(value: Value) -> Value:
        while value in roots:
            value = roots[value]
        return value

    for node in graph.nodes:
        yield_point()
        if is_view(node):
            roots[node.output] = node.arg(0)
            if node.arg(0) in subviews:
                subviews.add(node.output)
    last = _last_uses(graph, times, root)
    for now, tick in enumerate(times):
        for node in tick.nodes:
            yield_point()
            op = node.op_as(Op)
            for index, candidates in op.inplace_candidates(node):
                output = node.outputs[index]
                if tick.on_host or output not in tick.buffers or output in subviews:
                    continue
                reused = _reusable_root(node, output, candidates, tick, last, now, root, subviews)
                if reused is not None and reused not in read_only:
                    roots[output] = reused
                    last[reused] = max(last.pop(output, now), now)
    return {v: root(v) for v in roots}


def _last_uses(
    graph: Graph, times: Sequence[MemoryEvent], root: Callable[[Value], Value]
) -> dict[Value, int]:
    last: dict[Value, int] = {}
    for now, tick in enumerate(times):
        for value in (v for n in tick.nodes for v in n.inputs):
            if value is not None:
                last[root(value)] = now
    for value in graph.outputs:
        last[root(value)] = len(times)
    return last


def _reusable_root(
    node: Node,
    output: Value,
    candidates: Sequence[int],
    tick: MemoryEvent,
    last: Mapping[Value, int],
    now: int,
    root: Callable[[Value], Value],
    subviews: Collection[Value],
) -> Value | None:
    """Returns the root of an input whose memory `output` may reuse; None if there is none.

    Args:
        candidates: Indices of the inputs of `node` that its op allows to be overwritten.
        tick: The memory event in which `node` runs.
        last: Index of the memory event with the last use, by root.
        now: Index of the memory event `tick`.
        root: Returns the value that owns the memory of a value.
        subviews: Subviews and views of subviews, whose memory is never reused.
    """
    for position in candidates:
        value = node.input(position)
        if value is None or value.dims != output.dims or value.dtype is not output.dtype:
            continue
        owner = root(value)
        if value in subviews or owner.is_constant or last.get(owner) != now:
            continue
        # Every input in that memory must be overwritable. In x W + x, x is overwritable as
        # residual, but not as operand of the product.
        sharing = [(i, v) for i, v in enumerate(node.inputs) if v is not None and root(v) is owner]
        if not all(i in candidates and v.dims == output.dims for i, v in sharing):
            continue
        # Nodes of the same launch must not read that memory, unless their own output is in it.
        others = (n for n in tick.nodes if n is not node and root(n.output) is not owner)
        if not any(v is not None and root(v) is owner for n in others for v in n.inputs):
            return owner
    return None


def buffer_lifetimes(
    graph: Graph,
    times: Sequence[MemoryEvent],
    roots: Mapping[Value, Value],
    external: Collection[Value] = (),
) -> tuple[list[Placed], list[LiveInterval]]:
    """Returns the buffers of an arena, and the size and lifetime of each in the same order.

    Sizes are plain numbers even in a traced plan: arena offsets are not formulas of the input
    shapes (see `arena_relayout`). Lifetimes are indices of `times`; -1 stands for before the first
    event (inputs) and len(times) for after the last (outputs). Constants are left out.

    Args:
        times: Memory events of the plan.
        roots: Maps each value that shares memory to its owner; see `assign_roots`.
        external: Values in tensors of the caller, which need no arena memory and are left out.
    """
    spans: dict[Placed, tuple[int, int]] = {}

    def touch(buffer: Placed, index: int) -> None:
        owner = roots.get(buffer, buffer) if isinstance(buffer, Value) else buffer
        if isinstance(owner, Value) and (owner.is_constant or owner in external):
            return
        first, last = spans.get(owner, (index, index))
        spans[owner] = (min(first, index), max(last, index))

    for value in graph.inputs:
        touch(value, -1)
    for now, tick in enumerate(times):
        for buffer in tick.buffers:
            yield_point()
            if not isinstance(buffer, (PackedWeight, StatusWord)):
                touch(buffer, now)
    for value in graph.outputs:
        touch(value, len(times))
    owners = list(spans)
    return owners, [LiveInterval(untraced(o.nbytes), *spans[o]) for o in owners]


def is_view(node: Node) -> bool:
    """Returns whether a node only reshapes its input, so that its output shares the memory."""
    return node.op_as(Op).is_view(node.input_types)


def is_view_by_sizes(node: Node) -> bool:
    """Returns whether a node is a view at the sizes of this call, but not at all sizes."""
    types = (None if v is None else TensorType(v.dtype, symbolic_shape(v)) for v in node.inputs)
    return is_view(node) and not node.op_as(Op).is_view(list(types))
