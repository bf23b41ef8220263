"""What a profile measures: when each step ran, what it did, and which buffers were live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from clrt.runtime.opencl.peaks import Peaks


@dataclass(frozen=True)
class StepTime:
    """A step of a run: a kernel launch, or a node that the host computes.

    Attributes:
        index: Place in the order in which steps ran.
        stage: Index of its plan in `Timings.stages`.
        step: Index of its step in that plan; -1 for a node between plans.
        node, op, origins: The node, its op, and the ONNX nodes that it stands for.
        median_ns: Median time over the runs.
        start_ns, end_ns: When it ran, from the start of the run shown.
    """

    index: int
    stage: int
    step: int
    node: str
    op: str
    origins: tuple[str, ...]
    median_ns: float
    start_ns: float
    end_ns: float

    @property
    def kernel(self) -> str:
        """The name that times are summed by."""
        return f"host: {self.op}"


@dataclass(frozen=True)
class HostTime(StepTime):
    """A node that the host computes.

    Attributes:
        reason: Why no kernel runs it.
    """

    reason: str


@dataclass(frozen=True)
class KernelTime(StepTime):
    """A kernel launch.

    Attributes:
        entry: Name of the `__kernel` function.
        variant: Name of the op's variant.
        shape: Of the node's first output.
        flops: Floating-point operations; 0 where they are not counted.
        nbytes: Bytes read and written: see `clrt.plan.traffic`.
        floor_ns: The least time at the device's peaks. For bytes that is the peak of the smallest
            cache, or the memory, that holds all of them.
    """

    entry: str
    variant: str
    defines: tuple[tuple[str, str], ...]
    global_size: tuple[int, ...]
    shape: tuple[int, ...]
    flops: int
    nbytes: int
    floor_ns: float

    @property
    def kernel(self) -> str:
        return self.entry

    @property
    def gflops(self) -> float:
        """10^9 floating-point operations per second."""
        return _over(self.flops, self.median_ns)

    @property
    def gbs(self) -> float:
        """10^9 bytes per second."""
        return _over(self.nbytes, self.median_ns)

    @property
    def roofline_share(self) -> float:
        """The least possible time over the time taken."""
        return _over(self.floor_ns, self.median_ns)


@dataclass(frozen=True)
class Gap:
    """A time in which no step ran: the host copies, binds, or waits."""

    start_ns: float
    end_ns: float


@dataclass(frozen=True)
class Tenant:
    """A buffer in the arena.

    Attributes:
        first, last: The first and last step at which it is live; -1 is before the first.
    """

    name: str
    type: str
    slab: int
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class NodeInfo:
    """A node of the graph as it runs.

    Attributes:
        step: Index of its step in the plan; -1 for a view, which takes no time.
        where: The kernel variant, "host", or "view".
        made_by: The pass that made it; empty for a node of the model.
        inputs, outputs: Names and types of its tensors.
        sources: Indices of the nodes that it reads from.
    """

    name: str
    op: str
    origins: tuple[str, ...]
    made_by: str
    step: int
    where: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: tuple[int, ...]


@dataclass(frozen=True)
class TimedStage:
    """A plan. Most models have one, and one more for each graph break."""

    nodes: tuple[NodeInfo, ...]
    tenants: tuple[Tenant, ...]
    slab_bytes: tuple[int, ...]
    steps: int


@dataclass(frozen=True)
class KernelSum:
    """The sum of all steps of one kernel.

    Attributes:
        ns: Sum of their medians.
        share: Of the sum of all steps.
    """

    kernel: str
    calls: int
    ns: float
    share: float
    flops: int
    nbytes: int
    floor_ns: float

    @property
    def gflops(self) -> float:
        return _over(self.flops, self.ns)

    @property
    def gbs(self) -> float:
        return _over(self.nbytes, self.ns)

    @property
    def roofline_share(self) -> float:
        return _over(self.floor_ns, self.ns)


# Relative difference up to which two times are said to agree.
_AGREES = 0.02


@dataclass(frozen=True)
class Timings:
    """Where the time of a model goes.

    Attributes:
        model: Name of the model.
        inputs: Shapes by name.
        repeat: Number of runs with the profiler, and as many without.
        wall_ms: Median time of a run without the profiler, with copies in and out.
        run_ns: Time of the median run under the profiler. `start_ns` and gaps refer to that run.
        steps: Kernel launches and host steps in the order in which they ran.
    """

    model: str
    device: str
    inputs: dict[str, tuple[int, ...]]
    repeat: int
    wall_ms: float
    run_ns: float
    peaks: Peaks
    steps: tuple[StepTime, ...]
    stages: tuple[TimedStage, ...]

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        return tuple(s for s in self.steps if isinstance(s, KernelTime))

    @property
    def host_steps(self) -> tuple[HostTime, ...]:
        return tuple(s for s in self.steps if isinstance(s, HostTime))

    @property
    def step_ns(self) -> float:
        """The sum of all steps."""
        return sum(s.median_ns for s in self.steps)

    @property
    def flops(self) -> int:
        return sum(k.flops for k in self.kernels)

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes for k in self.kernels)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The times in the run shown at which no step ran."""
        gaps: list[Gap] = []
        free = 0.0
        for step in sorted(self.steps, key=lambda s: s.start_ns):
            if step.start_ns > free:
                gaps.append(Gap(free, step.start_ns))
            free = max(free, step.end_ns)
        if self.run_ns > free:
            gaps.append(Gap(free, self.run_ns))
        return tuple(gaps)

    @property
    def gap_share(self) -> float:
        """The part of the run shown in which no step ran."""
        return _over(sum(g.end_ns - g.start_ns for g in self.gaps), self.run_ns)

    @property
    def sums(self) -> str:
        """How the time of a run and the sum of its steps agree, and why they differ, in words."""
        gaps_ns = sum(g.end_ns - g.start_ns for g in self.gaps)
        text = (
            f"The medians of the steps sum to {1e-6 * self.step_ns:.2f} ms; the run shown took "
            f"{1e-6 * self.run_ns:.2f} ms, {1e-6 * gaps_ns:.2f} ms of it gaps in which the host "
            "copies, enqueues or waits."
        )
        apart = self.step_ns + gaps_ns - self.run_ns
        if abs(apart) > _AGREES * self.run_ns:
            more = "more" if apart > 0 else "less"
            text += (
                f" Steps and gaps are {1e-6 * abs(apart):.2f} ms {more} than it: each step has its "
                "own median over the runs, and steps that overlap count twice."
            )
        if abs(1e-6 * self.run_ns - self.wall_ms) > _AGREES * self.wall_ms:
            text += f" Without the profiler, which times each launch, it is {self.wall_ms:.2f} ms."
        return text

    def by_kernel(self) -> list[KernelSum]:
        """The steps summed by kernel, the slowest first."""
        total = self.step_ns
        ordered = sorted(self.steps, key=lambda s: s.kernel)
        groups = [(k, list(g)) for k, g in groupby(ordered, lambda s: s.kernel)]
        sums = [_sum(kernel, steps, total) for kernel, steps in groups]
        return sorted(sums, key=lambda s: -s.ns)


def _sum(kernel: str, steps: Iterable[StepTime], total_ns: float) -> KernelSum:
    steps = list(steps)
    launches = [s for s in steps if isinstance(s, KernelTime)]
    ns = sum(s.median_ns for s in steps)
    return KernelSum(
        kernel,
        len(steps),
        ns,
        _over(ns, total_ns),
        sum(k.flops for k in launches),
        sum(k.nbytes for k in launches),
        sum(k.floor_ns for k in launches),
    )


def _over(amount: float, per: float) -> float:
    """The ratio; 0 if `per` is 0."""
    return amount / per if per else 0.0
