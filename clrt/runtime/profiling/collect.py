"""Runs a model repeatedly under a recorder, and collects the times of its steps in a profile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.spec import Launch, Scratch
from clrt.plan.make_plan import step_lifetimes
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep
from clrt.plan.traffic import accessed_bytes, traffic
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.profiler import NodeRun, PlanRun, Recorder, Span
from clrt.runtime.opencl.peaks import Peaks, peaks_of
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.profiling.profile import Profile
from clrt.runtime.profiling.timings import (
    HostTime,
    KernelTime,
    NodeInfo,
    StepTime,
    Tenant,
    TimedStage,
)
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class _Recorded:
    """One run of a model under the profiler.

    Attributes:
        whole: Span of the whole run on the host.
        runs: Runs of the model's plans and host-driven nodes, in order.
    """

    whole: Span
    runs: tuple[PlanRun | NodeRun, ...]

    @property
    def ns(self) -> int:
        return self.whole.end_ns - self.whole.start_ns

    def spans(self) -> Iterator[Span]:
        for run in self.runs:
            yield from (run.span,) if isinstance(run, NodeRun) else run.spans


def collect(
    session: DeviceSession,
    run: Callable[[Recorder | None], object],
    name: str,
    inputs: dict[str, tuple[int, ...]],
    repeat: int,
) -> Profile:
    """Measures a model and returns its profile.

    Args:
        session: Session of the device that the model runs on.
        run: Runs the model once, under the recorder passed to it; without profiling if the
            recorder is None.
        name: Name of the model.
        inputs: Shape of each input, by name.
        repeat: Number of runs with the profiler, and of runs without it. They alternate.
    """
    recorder = Recorder(session)
    run(None)
    first = {r.bound: None for r in _record(recorder, run).runs if isinstance(r, PlanRun)}
    unoptimized = sum(len(bound.quick_launches) for bound in first)
    walls: list[float] = []
    recorded: list[_Recorded] = []
    for _ in range(repeat):
        start = time.perf_counter()
        run(None)
        walls.append(1e3 * (time.perf_counter() - start))
        recorded.append(_record(recorder, run))
    shown = sorted(recorded, key=lambda r: r.ns)[repeat // 2]
    times = zip(*([s.end_ns - s.start_ns for s in r.spans()] for r in recorded), strict=True)
    medians = [statistics.median(t) for t in times]
    peaks = peaks_of(session)
    plans = {r.bound: None for r in shown.runs if isinstance(r, PlanRun)}
    return Profile(
        name,
        str(session.device.name),
        inputs,
        repeat,
        statistics.median(walls),
        shown.ns,
        peaks,
        tuple(_steps(shown, medians, list(plans), peaks)),
        tuple(_stage(bound.plan) for bound in plans),
        unoptimized,
    )


def _record(recorder: Recorder, run: Callable[[Recorder | None], object]) -> _Recorded:
    start = time.perf_counter_ns()
    run(recorder)
    return _Recorded(Span(start, time.perf_counter_ns()), recorder.take())


def _steps(
    shown: _Recorded, medians: Sequence[float], plans: Sequence[BoundPlan], peaks: Peaks
) -> Iterator[StepTime]:
    """Yields the times of each launch and host step, in order of execution.

    Args:
        shown: Run with the median duration, whose start and end times are used.
        medians: Median duration of each step over all runs, in nanoseconds.
        plans: Plans of the run.
        peaks: Peak rates of the device.
    """
    zero, index, stage = shown.whole.start_ns, 0, 0
    for run in shown.runs:
        if isinstance(run, PlanRun):
            stage = plans.index(run.bound)
            parts = list(_launches(run.bound.plan))
        else:
            parts = [(-1, run.node, "how much comes out depends on the data", None)]
        spans = run.spans if isinstance(run, PlanRun) else (run.span,)
        for (step, node, why, launch), span in zip(parts, spans, strict=True):
            times = (medians[index], max(span.start_ns - zero, 0), max(span.end_ns - zero, 0))
            common = (index, stage, step, node.name, node.op.name, node.origins, *times)
            if launch is None:
                yield HostTime(*common, why)
            else:
                yield _kernel(common, why, launch, node, peaks, run)
            index += 1


def _kernel(
    common: tuple[int, int, int, str, str, tuple[str, ...], float, float, float],
    variant: str,
    launch: Launch,
    node: Node,
    peaks: Peaks,
    run: PlanRun | NodeRun,
) -> KernelTime:
    """Returns the measured time of a launch with its traffic and roofline.

    Args:
        common: Values of the fields of `StepTime`, in order.
        variant: Name of the op's variant.
        launch: The launch.
        node: Node that the launch computes.
        peaks: Peak rates of the device.
        run: Run of the plan with the launch.
    """
    assert isinstance(run, PlanRun)
    plan, step = run.bound.plan, common[2]
    nbytes = traffic(plan.steps[step].nodes, launch).nbytes
    gbs = peaks.gbs_of(min(_footprint(plan, launch), nbytes))
    return KernelTime(
        *common,
        launch.kernel.entry,
        variant,
        launch.kernel.defines,
        launch.global_size,
        node.output.dims,
        launch.flops,
        nbytes,
        max(launch.flops / peaks.gflops, nbytes / gbs),
    )


def _footprint(plan: Plan, launch: Launch) -> int:
    """Returns the bytes of distinct memory that a launch of a plan accesses.

    Memory that several values share, as views and in-place outputs do, counts once.
    """
    sizes: dict[object, int] = {}
    for buffer, nbytes in accessed_bytes(launch).items():
        owner = plan.root(buffer) if isinstance(buffer, Value) else buffer
        sizes[owner] = max(sizes.get(owner, 0), nbytes)
    return sum(sizes.values())


def _launches(plan: Plan) -> Iterator[tuple[int, Node, str, Launch | None]]:
    """Yields each launch and host step of a plan, in order.

    An item is (index of the plan step, node, name of the variant, launch); for a host step, (index,
    node, reason why no kernel runs it, None).
    """
    for index, step in enumerate(plan.steps):
        if isinstance(step, DeviceStep):
            yield from ((index, node, step.variant, x) for x, node, _ in step.work())
        else:
            yield index, step.node, step.reason, None


def _stage(plan: Plan) -> TimedStage:
    """Returns nodes, buffers, slab sizes and number of steps of a plan."""
    return TimedStage(
        tuple(_nodes(plan.graph, plan)),
        tuple(_tenants(plan)),
        plan.arena.slab_bytes,
        len(plan.steps),
    )


def _nodes(graph: Graph, plan: Plan) -> Iterator[NodeInfo]:
    """Yields the nodes of a graph with the plan step that computes each (-1 if none does)."""
    steps = {node: index for index, step in enumerate(plan.steps) for node in step.nodes}
    indices = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        step = steps.get(node, -1)
        plan_step = plan.steps[step] if step >= 0 else None
        producers = (v.producer for v in node.inputs if v is not None)
        sources = {indices[p]: None for p in producers if p is not None and p in indices}
        yield NodeInfo(
            node.name,
            node.op.name,
            node.origins,
            node.made_by,
            step,
            "view" if plan_step is None else getattr(plan_step, "variant", "host"),
            tuple(_text(v) for v in node.inputs if v is not None),
            tuple(_text(v) for v in node.outputs),
            tuple(sources),
        )


def _tenants(plan: Plan) -> Iterator[Tenant]:
    """Yields the buffers of an arena with place and lifetime."""
    for owner, interval in step_lifetimes(plan):
        place = plan.allocations[owner]
        yield Tenant(
            "scratch" if isinstance(owner, Scratch) else owner.name,
            f"{owner.dtype}[{owner.elems}]" if isinstance(owner, Scratch) else _type(owner),
            place.slab,
            place.offset_bytes,
            interval.nbytes,
            interval.first,
            interval.last,
        )


def _text(value: Value) -> str:
    return f"{value.name}: {_type(value)}"


def _type(value: Value) -> str:
    return f"{value.dtype}[{', '.join(map(str, value.shape or ()))}]"
