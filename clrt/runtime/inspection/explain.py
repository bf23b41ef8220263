"""Explains a plan: where each node runs, by which kernel and why, and its memory traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from clrt.device.caps import DeviceCaps
from clrt.errors import explain_missing_extra
from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.tuned import TUNED
from clrt.kernels.tuning_records import find_record
from clrt.ops.base import Op
from clrt.passes.report import PassReport
from clrt.plan.graph_break import GraphBreak
from clrt.plan.memory import Memory
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep, HostStep, PlanStep, Region, launches_of
from clrt.plan.traffic import traffic
from clrt.runtime.inspection.findings import BreakRow, Findings, KernelUse, NodeRow, PassRow
from clrt.util.fast_dataclass import dataclass
from clrt.util.formatting import format_seconds


@dataclass(frozen=True)
class Explanation(Findings):
    """An explanation of a plan: where each node runs and why.

    Returned by `Model.explain`; `print` shows it in at most 100 columns.
    """

    def __str__(self) -> str:
        with explain_missing_extra("The text of an explanation"):
            from clrt.runtime.inspection.tables import as_text

        return as_text(self)

    def __rich__(self) -> object:
        with explain_missing_extra("The text of an explanation"):
            from clrt.runtime.inspection.tables import explanation_tables

        return explanation_tables(self)


def explain(
    graph: Graph,
    plan: Plan,
    graph_break: GraphBreak | None,
    caps: DeviceCaps,
    device: str,
    memory: Memory,
    report: PassReport | None,
    is_quick: Callable[[KernelSpec], bool] = lambda spec: False,
) -> Explanation:
    """Explains a plan: where each node runs, by which kernel and why.

    Args:
        graph: The optimised graph that was planned.
        plan: Plan of the graph for some input shapes.
        graph_break: Graph break at the end of the plan; None if the plan covers the graph.
        caps: Capabilities of the device.
        device: Name of the device, for display.
        memory: Memory that the plan needs.
        report: Matches and misses of the graph passes; None if unknown.
        is_quick: Whether a kernel's program is compiled without optimization so far.
    """
    steps = {n: s for s in plan.steps for n in s.nodes}
    missed: dict[Node, list[str]] = {}
    for miss in plan.missed_regions:
        missed.setdefault(miss.node, []).append(f"{miss.rule}: {miss.reason}")
    for note in plan.subviews:
        if note.reason:
            missed.setdefault(note.node, []).append(f"%{note.value.name} is copied: {note.reason}")
    parents = {p.value: p.parent for p in plan.subviews if not p.reason}
    aliasing = {p.node for p in plan.subviews if not p.reason}

    def row(node: Node) -> NodeRow:
        step, parent = steps.get(node), parents.get(node.output) if node.outputs else None
        if step is None:
            return _view_row(node, plan)
        return _step_row(node, step, missed.get(node, ()), plan, caps, parent, node in aliasing)

    rows = tuple(map(row, plan.graph.nodes))
    later = [] if graph_break is None else graph_break.suffix.nodes
    host_driven = () if graph_break is None else graph_break.host_driven
    kept = {n.name for n in (*plan.graph.nodes, *later, *host_driven)}
    folded = tuple(n.name for n in graph.nodes if n.name not in kept)
    shapes = {v.name: v.dims for v in plan.graph.inputs}
    break_row = None if graph_break is None else _break_row(graph_break)
    kernels = (launch.kernel for launch in launches_of(plan.steps))
    quick = tuple(dict.fromkeys(kernel.entry for kernel in kernels if is_quick(kernel)))
    passes = _pass_rows(report)
    return Explanation(device, shapes, rows, folded, break_row, memory, passes, quick)


def _step_row(
    node: Node,
    step: PlanStep,
    missed: Sequence[str],
    plan: Plan,
    caps: DeviceCaps,
    parent: Value | None,
    aliases: bool,
) -> NodeRow:
    """Returns the explanation's row of a node that a plan step computes.

    Args:
        node: The node.
        step: Plan step that computes the node.
        missed: Reasons why launch fusions missed and why subviews are copied.
        parent: Parent of the node's output, if the output is a subview that aliases the parent;
            else None.
        aliases: Whether subviews of the node alias their parent, so that they are not copied.
    """
    outputs = tuple(repr(v) for v in node.outputs)
    if isinstance(step, HostStep):
        read = sum(v.nbytes for v in {v for v in node.inputs if v is not None})
        written = sum(v.nbytes for v in node.outputs)
        why = f"no kernel fits: {step.reason}"
        return _row(node, "host", why, outputs, "", read=read, written=written)
    launches = step.launches_of(node)
    root = plan.roots.get(node.output)
    shared = "" if root is None else f"in place of %{root.name}"
    if parent is not None:
        shared = f"inside %{parent.name}"
    moved = [traffic(step.nodes, x) for x in launches]
    why = "the cheapest variant that fits" if step.rejected else "the op's first variant fits"
    if not step.launches:
        why = "nothing to compute: an output has no elements"
        if aliases:
            why = "its parts are made where they belong, or read where they lie: no kernel runs"
    elif isinstance(step, Region):
        others = ", ".join(f"'{n.name}'" for n in step.nodes if n is not node)
        why = f"shares launches with {others}"
    return _row(
        node,
        "device",
        why,
        outputs,
        shared,
        variant=step.variant,
        rejected=(*step.rejected, *_costlier(node, step, caps), *missed),
        kernels=tuple(_use(x, caps) for x in launches),
        read=sum(m.read for m in moved),
        written=sum(m.written for m in moved),
        scratch=sum(m.scratch for m in moved),
        flops=_flops_at(node, step),
    )


def _costlier(node: Node, step: DeviceStep, caps: DeviceCaps) -> Iterator[str]:
    """Yields a text per slower variant, with its predicted time and the chosen variant's.

    Yields nothing for a node of a region.
    """
    op = node.op_as(Op)
    if isinstance(step, Region):
        return
    fitting = [v for v in op.variants if v.rejected(node, caps) is None]
    chosen = next((v for v in fitting if v.name == step.variant), None)
    if chosen is None:
        return
    least = format_seconds(chosen.cost(node, caps))
    tried = {reason.partition(":")[0] for reason in step.rejected}
    for variant in fitting:
        if variant is not chosen and variant.name not in tried:
            cost = format_seconds(variant.cost(node, caps))
            yield f"{variant.name}: predicted {cost}, {chosen.name} {least}"


def _view_row(node: Node, plan: Plan) -> NodeRow:
    root = plan.root(node.output)
    why = "another shape of the same memory: no kernel runs"
    return _row(node, "view", why, tuple(map(repr, node.outputs)), f"view of %{root.name}")


def _row(
    node: Node,
    where: str,
    why: str,
    outputs: tuple[str, ...],
    memory: str,
    *,
    variant: str = "",
    rejected: tuple[str, ...] = (),
    kernels: tuple[KernelUse, ...] = (),
    read: int = 0,
    written: int = 0,
    scratch: int = 0,
    flops: int = 0,
) -> NodeRow:
    """Returns the explanation's row of a node.

    The arguments are fields of `NodeRow`; `read`, `written` and `scratch` are in bytes.
    """
    return NodeRow(
        node.name,
        node.op.name,
        where,
        why,
        variant,
        rejected,
        kernels,
        node.origins,
        node.made_by,
        read,
        written,
        scratch,
        flops,
        outputs,
        memory,
    )


def _use(launch: Launch, caps: DeviceCaps) -> KernelUse:
    """Returns the kernel of a launch with its tunables and their tuning record."""
    spec = launch.kernel
    tuned = TUNED.get(spec.entry)
    if tuned is None:
        return KernelUse(spec.entry, spec.source, launch.global_size, {}, "")
    defines = dict(spec.defines)
    # Sources that include common/math.clh name the vector width VW.
    values = {m: defines.get(m, defines.get("VW" if m == "T_VW" else m)) for m in tuned.defaults}
    used = {m: int(v) for m, v in values.items() if v is not None}
    record = str(find_record(spec.entry, caps))
    return KernelUse(spec.entry, spec.source, launch.global_size, used, record)


def flops_of(step: PlanStep) -> int:
    """Returns the number of floating-point operations of a plan step.

    Sums the FLOPs that the step's launches count. If no launch counts any, sums the FLOPs that the
    ops of the step's nodes count.
    """
    return sum(_flops_at(n, step) for n in step.nodes)


def _flops_at(node: Node, step: PlanStep) -> int:
    """Returns the number of floating-point operations of a node in a plan step.

    Sums the FLOPs of the node's launches. If no launch of the step counts FLOPs, returns the FLOPs
    that the node's op counts.
    """
    if isinstance(step, DeviceStep) and any(x.flops for x in step.launches):
        return sum(x.flops for x in step.launches_of(node))
    return node.op_as(Op).flops(node.input_types, [v.type for v in node.outputs])


def _break_row(graph_break: GraphBreak) -> BreakRow:
    first = graph_break.nodes[0]
    why = "the shape of what follows, or its kernel, depends on what the host reads"
    if first in graph_break.host_driven:
        why = "the host drives it: control flow, a sequence, a map or bounds that are computed"
        if first.op_as(Op).computes_on_host:
            why = "the host computes it: how much comes out depends on the data"
    ops = Counter(n.op.name for n in graph_break.suffix.nodes)
    return BreakRow(graph_break.title, why, graph_break.reads, dict(ops.most_common()))


def _pass_rows(report: PassReport | None) -> tuple[PassRow, ...]:
    records = [] if report is None else report.records
    hits: dict[str, list[str]] = {}
    misses: Mapping[str, list[tuple[str, str]]] = {r.name: r.misses for r in records}
    for record in records:
        hits.setdefault(record.name, []).extend(record.hits)
    return tuple(PassRow(n, tuple(h), tuple(misses[n])) for n, h in hits.items())
