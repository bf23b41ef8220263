"""Which values share memory, and from when to when each is alive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ir.symbolic_trace import untraced
from clrt.kernels.spec import Buffer, PackedWeight, StatusWord
from clrt.ops.base import Op
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.plan.arena import LiveInterval
from clrt.plan.steps import HostStep, Placed, PlanStep, Region


@dataclass(frozen=True)
class MemoryEvent:
    """What runs at once, as far as memory goes: a step, or one launch of a region.

    Attributes:
        step: Its index.
        nodes: Those whose last inputs are read now.
        buffers: What is touched.
        on_host: The host reads and writes all of them.
    """

    step: int
    nodes: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    on_host: bool = False


def ticks(steps: Sequence[PlanStep]) -> list[MemoryEvent]:
    """The times at which memory is touched, in order."""
    found: list[MemoryEvent] = []
    for index, step in enumerate(steps):
        if isinstance(step, Region):
            found += _region_ticks(index, step)
        elif isinstance(step, HostStep):
            values = (*step.node.inputs, *step.node.outputs)
            held = tuple(v for v in values if v is not None)
            found.append(MemoryEvent(index, step.nodes, held, on_host=True))
        else:
            named = (b for x in step.launches for b in x.buffers)
            found.append(MemoryEvent(index, step.nodes, tuple(dict.fromkeys(named))))
    return found


def _region_ticks(index: int, region: Region) -> Iterator[MemoryEvent]:
    """A node has read its inputs once the launch that makes it ends (`LaunchFusionRule.emit`)."""
    left = list(region.nodes)
    for launch, _, made in region.work():
        left = [n for n in left if n not in made]
        yield MemoryEvent(index, made, tuple(launch.buffers))
    if left:
        yield MemoryEvent(index, tuple(left), ())


def share(
    graph: Graph,
    times: Sequence[MemoryEvent],
    read_only: Collection[Value] = (),
    inside: Mapping[Value, Value] = MappingProxyType({}),
) -> dict[Value, Value]:
    """Views share their input's memory; an in-place op takes over an input that dies there.

    Args:
        read_only: Inputs whose memory is not the plan's to write to.
        inside: Values that lie in another one, as its parts, and that other. Nothing takes a part's
            memory over, and a part nobody's.
    """
    roots: dict[Value, Value] = dict(inside)
    apart = set(inside)  # and views of these

    def root(value: Value) -> Value:
        while value in roots:
            value = roots[value]
        return value

    for node in graph.nodes:
        if is_view(node):
            roots[node.output] = node.arg(0)
            if node.arg(0) in apart:
                apart.add(node.output)
    last = _last_uses(graph, times, root)
    for now, tick in enumerate(times):
        for node in tick.nodes:
            assert isinstance(node.op, Op)
            for index, places in node.op.inplace_candidates(node):
                output = node.outputs[index]
                if tick.on_host or output not in tick.buffers or output in apart:
                    continue
                taken = _taken_over(node, output, places, tick, last, now, root, apart)
                if taken is not None and taken not in read_only:
                    roots[output] = taken
                    last[taken] = max(last.pop(output, now), now)
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


def _taken_over(
    node: Node,
    output: Value,
    places: Sequence[int],
    tick: MemoryEvent,
    last: Mapping[Value, int],
    now: int,
    root: Callable[[Value], Value],
    apart: Collection[Value],
) -> Value | None:
    """The root whose memory an output of `node` may have, of the inputs at some places."""
    for position in places:
        value = node.input(position)
        if value is None or value.dims != output.dims or value.dtype is not output.dtype:
            continue
        owner = root(value)
        if value in apart or owner.is_constant or last.get(owner) != now:
            continue
        # Another input in the same memory must stand being overwritten too: in x W + x must not.
        sharing = [(i, v) for i, v in enumerate(node.inputs) if v is not None and root(v) is owner]
        if not all(i in places and v.dims == output.dims for i, v in sharing):
            continue
        # So must what the other nodes of a launch read, if it is not their own place.
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
    """The arena's tenants with their sizes, first and last tick.

    Where they lie is no formula of the sizes of a call (see `restack`): sizes are plain numbers.

    Args:
        external: Root values that lie elsewhere.
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
            if not isinstance(buffer, (PackedWeight, StatusWord)):
                touch(buffer, now)
    for value in graph.outputs:
        touch(value, len(times))
    owners = list(spans)
    return owners, [LiveInterval(untraced(o.nbytes), *spans[o]) for o in owners]


def is_view(node: Node) -> bool:
    """Whether a node only gives its input another shape."""
    assert isinstance(node.op, Op)
    return node.op.is_view(node.input_types)


def is_view_by_sizes(node: Node) -> bool:
    """Whether a node is a view at these sizes, and none at others of the model's dims."""
    assert isinstance(node.op, Op)
    types = (None if v is None else TensorType(v.dtype, symbolic_shape(v)) for v in node.inputs)
    return is_view(node) and not node.op.is_view(list(types))
