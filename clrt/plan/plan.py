"""From a specialised graph to a frozen plan: variants chosen, buffers placed, steps in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError, reworded
from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.spec import (
    MOST_AFTER,
    Buffer,
    BufferArg,
    KernelSpec,
    Launch,
    Lowering,
    Packed,
    Scratch,
    Status,
)
from clrt.limits import check_host
from clrt.ops.base import Op
from clrt.plan.arena import Arena, Interval, Place, live_bytes, place, separate


@dataclass(frozen=True)
class Kernels:
    """A node that runs on the device.

    Attributes:
        variant: Name of the kernel variant.
        rejected: Why earlier variants were not taken.
        within: The node before it whose launches do the work of this one, too.
        idle: Kernels that it launches at other shapes.
    """

    node: Node
    variant: str
    launches: tuple[Launch, ...]
    rejected: tuple[str, ...] = ()
    within: Node | None = None
    idle: tuple[KernelSpec, ...] = ()


@dataclass(frozen=True)
class Host:
    """A node that runs its NumPy reference on the host.

    Attributes:
        reason: Why no kernel variant fits.
    """

    node: Node
    reason: str


Step: TypeAlias = "Kernels | Host"
Placed: TypeAlias = "Value | Scratch"


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
    steps: tuple[Step, ...]
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
        return sum(len(s.launches) for s in self.steps if isinstance(s, Kernels))

    @property
    def host_steps(self) -> tuple[Host, ...]:
        return tuple(s for s in self.steps if isinstance(s, Host))


def make_plan(graph: Graph, caps: DeviceCaps, record: Callable[[str], Mapping[str, int]]) -> Plan:
    """Plans a specialised graph for a device.

    Args:
        record: The tuning record of a kernel, by its entry point; empty where there is none.

    Raises:
        OutOfMemoryError: A buffer is larger than the device can allocate.
        ShapeError: A kernel would count past 32 bits.
    """
    lowering = Lowering(caps, record)
    nodes = [n for n in graph.nodes if not _is_view(n)]
    found: list[Step] = []
    while len(found) < len(nodes):
        found += lower(nodes[len(found) : len(found) + 1 + MOST_AFTER], lowering)
    steps = tuple(found)
    roots = _share(graph, steps)
    owners, intervals = _lifetimes(graph, steps, roots)
    arrange = separate if caps.simulator else place
    arena = arrange(intervals, caps.max_alloc_bytes)
    places = dict(zip(owners, arena.places, strict=True))
    statuses = {b: None for _, b in _buffers(steps) if isinstance(b, Status)}
    return Plan(graph, steps, arena, places, roots, live_bytes(intervals), tuple(statuses))


def lower(nodes: Sequence[Node], ctx: Lowering) -> list[Step]:
    """The first variant that fits, or the host with every reason why none does.

    Args:
        nodes: The node, and those after it, which its launches may include: then a step for each.
    """
    node, *after = nodes
    assert isinstance(node.op, Op)
    rejected: list[str] = []
    dtypes = {v.dtype: None for v in (*node.inputs, *node.outputs) if v is not None}
    unread = [d for d in dtypes if d.storage not in (node.op.storages or (d.storage,))]
    if unread:
        return [_host(node, f"no kernel for {unread[0]}")]
    for variant in node.op.variants:
        reason = variant.misfit(node, ctx.caps)
        if reason is None:
            try:
                found = variant.emit_with(node, after, ctx) if variant.emit_with else None
                emitted, count = found or (variant.emit(node, ctx), 0)
            except UnsupportedError as error:
                reason = str(error)
            except ShapeError as error:
                raise reworded(error, f"{node}: {error}") from error
            else:
                launches = tuple(x for x in emitted if all(x.global_size))
                idle = tuple(x.kernel for x in emitted if not all(x.global_size))
                step = Kernels(node, variant.name, launches, tuple(rejected), idle=idle)
                others = (Kernels(n, variant.name, (), within=node) for n in after[:count])
                return [step, *others]
        rejected.append(f"{variant.name}: {reason}")
    return [_host(node, "; ".join(rejected) or f"{node.op.name} has no kernel")]


def _host(node: Node, reason: str) -> Host:
    check_host(sum(v.nbytes for v in node.outputs), f"The result of {node}, made on the host,")
    return Host(node, reason)


def _is_view(node: Node) -> bool:
    assert isinstance(node.op, Op)
    return node.op.view


def _share(graph: Graph, steps: tuple[Step, ...]) -> dict[Value, Value]:
    """Views share their input's memory; an in-place op takes over an input that dies there."""
    roots: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while value in roots:
            value = roots[value]
        return value

    for node in graph.nodes:
        if _is_view(node):
            roots[node.output] = node.arg(0)
    last = _last_uses(graph, steps, root)
    for index, step in enumerate(steps):
        if isinstance(step, Host) or not (step.launches or step.within):
            continue
        taken = _taken_over(step.node, last, index, root)
        if taken is not None:
            roots[step.node.output] = taken
            last[taken] = max(last.pop(step.node.output, index), index)
    return {v: root(v) for v in roots}


def _last_uses(
    graph: Graph, steps: tuple[Step, ...], root: Callable[[Value], Value]
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


def _buffers(steps: tuple[Step, ...]) -> list[tuple[int, Buffer]]:
    found: list[tuple[int, Buffer]] = []
    for index, step in enumerate(steps):
        if isinstance(step, Host):
            found += [(index, v) for v in (*step.node.inputs, *step.node.outputs) if v is not None]
            continue
        for launch in step.launches:
            found += [(index, a.buffer) for a in launch.args if isinstance(a, BufferArg)]
    return found


def lifetimes(plan: Plan) -> list[tuple[Placed, Interval]]:
    """What lies in the arena, its size, and the first and last step that touch it."""
    return list(zip(*_lifetimes(plan.graph, plan.steps, plan.roots), strict=True))


def _lifetimes(
    graph: Graph, steps: tuple[Step, ...], roots: Mapping[Value, Value]
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
    for index, buffer in _buffers(steps):
        if not isinstance(buffer, (Packed, Status)):
            touch(buffer, index)
    for value in graph.outputs:
        touch(value, len(steps))
    owners = list(spans)
    return owners, [Interval(o.nbytes, *spans[o]) for o in owners]
