"""Which values share memory, and from which step to which each is alive."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.spec import Buffer, BufferArg, Packed, Status
from clrt.ops.base import Op
from clrt.plan.arena import Interval
from clrt.plan.steps import HostStep, Placed, PlanStep


def share(graph: Graph, steps: tuple[PlanStep, ...]) -> dict[Value, Value]:
    """Views share their input's memory; an in-place op takes over an input that dies there."""
    roots: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while value in roots:
            value = roots[value]
        return value

    for node in graph.nodes:
        if is_view(node):
            roots[node.output] = node.arg(0)
    last = _last_uses(graph, steps, root)
    for index, step in enumerate(steps):
        if isinstance(step, HostStep) or not (step.launches or step.within):
            continue
        taken = _taken_over(step.node, last, index, root)
        if taken is not None:
            roots[step.node.output] = taken
            last[taken] = max(last.pop(step.node.output, index), index)
    return {v: root(v) for v in roots}


def _last_uses(
    graph: Graph, steps: tuple[PlanStep, ...], root: Callable[[Value], Value]
) -> dict[Value, int]:
    last: dict[Value, int] = {}
    for index, step in enumerate(steps):
        for value in step.node.inputs:
            if value is not None:
                last[root(value)] = index
    for value in graph.outputs:
        last[root(value)] = len(steps)
    return last


def _taken_over(
    node: Node, last: Mapping[Value, int], index: int, root: Callable[[Value], Value]
) -> Value | None:
    """The root whose memory the output of `node` may have."""
    assert isinstance(node.op, Op)
    output = node.output
    places = node.op.in_place
    for position in places:
        value = node.input(position)
        if value is None or value.dims != output.dims or value.dtype is not output.dtype:
            continue
        owner = root(value)
        if owner.is_constant or last.get(owner) != index:
            continue
        # Another input in the same memory must stand being overwritten too: x in x W + x must not.
        sharing = [(i, v) for i, v in enumerate(node.inputs) if v is not None and root(v) is owner]
        if all(i in places and v.dims == output.dims for i, v in sharing):
            return owner
    return None


def buffers_of(steps: tuple[PlanStep, ...]) -> list[tuple[int, Buffer]]:
    """Every buffer that a step touches, with the index of the step."""
    found: list[tuple[int, Buffer]] = []
    for index, step in enumerate(steps):
        if isinstance(step, HostStep):
            found += [(index, v) for v in (*step.node.inputs, *step.node.outputs) if v is not None]
            continue
        for launch in step.launches:
            found += [(index, a.buffer) for a in launch.args if isinstance(a, BufferArg)]
    return found


def buffer_lifetimes(
    graph: Graph, steps: tuple[PlanStep, ...], roots: Mapping[Value, Value]
) -> tuple[list[Placed], list[Interval]]:
    """The arena's tenants with their sizes, first and last step."""
    spans: dict[Placed, tuple[int, int]] = {}

    def touch(buffer: Placed, index: int) -> None:
        owner = roots.get(buffer, buffer) if isinstance(buffer, Value) else buffer
        if isinstance(owner, Value) and owner.is_constant:
            return
        first, last = spans.get(owner, (index, index))
        spans[owner] = (min(first, index), max(last, index))

    for value in graph.inputs:
        touch(value, -1)
    for index, buffer in buffers_of(steps):
        if not isinstance(buffer, (Packed, Status)):
            touch(buffer, index)
    for value in graph.outputs:
        touch(value, len(steps))
    owners = list(spans)
    return owners, [Interval(o.nbytes, *spans[o]) for o in owners]


def is_view(node: Node) -> bool:
    """Whether a node only gives its input another shape."""
    assert isinstance(node.op, Op)
    return node.op.view
