"""Data of a profile: times and work of each step, and lifetimes of buffers in the arena."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from clrt.runtime.opencl.peaks import Peaks
from clrt.util.fast_dataclass import dataclass
from clrt.util.renamed import renamed


@dataclass(frozen=True)
class StepTime:
    """Measured time of a step of a run: of a kernel launch, or of a node that the host computes.

    Attributes:
        index: Index in the order of execution.
        stage: Index, in `Timings.stages`, of the plan that the step belongs to.
        step: Index of the plan step in that plan; -1 for a host-driven node between plans.
        node: Name of the node.
        op: Name of the node's op.
        origins: Names of the ONNX nodes that the node stands for.
        median_ns: Median duration over the profiled runs, in nanoseconds.
        start_ns: Start in the median run, in nanoseconds from the run's start.
        end_ns: End in the median run, in nanoseconds from the run's start.
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
        """Name by which step times are summed: the kernel's entry point, or "host: " and the op."""
        return f"host: {self.op}"


@dataclass(frozen=True)
class HostTime(StepTime):
    """Measured time of a node that the host computes.

    Attributes:
        reason: Why no kernel computes the node.
    """

    reason: str


@renamed(floor_ns="roofline_ns")
@dataclass(frozen=True)
class KernelTime(StepTime):
    """Measured time and work of a kernel launch.

    Attributes:
        entry: Name of the `__kernel` function.
        variant: Name of the op's variant.
        defines: Macros of the kernel and their values.
        global_size: Work-items per dimension.
        shape: Shape of the node's first output.
        flops: Number of floating-point operations; 0 if the kernel does not count them.
        nbytes: Bytes read plus written.
        roofline_ns: Minimum time at the device's peaks, in nanoseconds (roofline). The bandwidth
            depends on the size of the launch's data, which may fit in caches.
    """

    entry: str
    variant: str
    defines: tuple[tuple[str, str], ...]
    global_size: tuple[int, ...]
    shape: tuple[int, ...]
    flops: int
    nbytes: int
    roofline_ns: float

    @property
    def kernel(self) -> str:
        return self.entry

    @property
    def gflops(self) -> float:
        """Achieved rate in 10^9 floating-point operations per second; 0 if none are counted."""
        return _over(self.flops, self.median_ns)

    @property
    def gbs(self) -> float:
        """Achieved bandwidth in 10^9 bytes per second, reads plus writes."""
        return _over(self.nbytes, self.median_ns)

    @property
    def roofline_share(self) -> float:
        """Minimum time at the device's peaks, divided by the measured time; 1 is ideal."""
        return _over(self.roofline_ns, self.median_ns)


@dataclass(frozen=True)
class Gap:
    """An interval of a run in which no step ran: the host copies, binds or waits.

    Attributes:
        start_ns: Start, in nanoseconds from the start of the run.
        end_ns: End, in nanoseconds from the start of the run.
    """

    start_ns: float
    end_ns: float


@dataclass(frozen=True)
class Tenant:
    """A buffer in the arena of a profiled plan.

    Attributes:
        name: Name of the value in the buffer; "scratch" for scratch.
        type: Dtype and shape, as text.
        slab: Index of the slab that holds the buffer.
        offset: Offset in the slab in bytes.
        nbytes: Size in bytes.
        first: Index of the first plan step at which the buffer is live; -1 is before the first
            step.
        last: Index of the last plan step at which the buffer is live.
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
    """A node of a profiled plan's graph.

    Attributes:
        name: Name of the node.
        op: Name of its op.
        origins: Names of the ONNX nodes that the node stands for.
        made_by: The pass that created the node; "" for a node of the model.
        step: Index of the node's step in the plan; -1 for a view, which takes no time.
        where: Name of the kernel variant, "host", or "view".
        inputs: Name and type of each tensor that the node reads, as one string.
        outputs: Name and type of each tensor that the node writes, as one string.
        sources: Indices, in the plan's `nodes`, of the nodes whose outputs the node reads.
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
    """A plan in a profile. A model has one plan, and one more for each graph break.

    Attributes:
        nodes: Nodes of the plan's graph.
        tenants: Buffers in the arena.
        slab_bytes: Size of each slab of the arena in bytes.
        steps: Number of plan steps.
    """

    nodes: tuple[NodeInfo, ...]
    tenants: tuple[Tenant, ...]
    slab_bytes: tuple[int, ...]
    steps: int


@renamed(floor_ns="roofline_ns")
@dataclass(frozen=True)
class KernelSum:
    """Sums over all steps of a profile that run one kernel, or one op on the host.

    Attributes:
        kernel: Name of the kernel, or "host: " and the op.
        calls: Number of steps.
        ns: Sum of the steps' median durations in nanoseconds.
        share: `ns` as a fraction of the sum over all steps of the profile.
        flops: Sum of floating-point operations.
        nbytes: Sum of bytes read and written.
        roofline_ns: Sum of minimum times at the device's peaks, in nanoseconds.
    """

    kernel: str
    calls: int
    ns: float
    share: float
    flops: int
    nbytes: int
    roofline_ns: float

    @property
    def gflops(self) -> float:
        return _over(self.flops, self.ns)

    @property
    def gbs(self) -> float:
        return _over(self.nbytes, self.ns)

    @property
    def roofline_share(self) -> float:
        return _over(self.roofline_ns, self.ns)


# Maximum relative difference between times that count as equal.
_TOLERANCE = 0.02


@dataclass(frozen=True)
class Timings:
    """Timings of a model's runs: durations of runs and steps, and the device's peaks.

    Attributes:
        model: Name of the model.
        device: Name of the device.
        inputs: Shape of each input, by name.
        repeat: Number of runs with the profiler, and of runs without it.
        wall_ms: Median duration in milliseconds of a run without the profiler, including the
            copies of inputs and outputs.
        run_ns: Duration, in nanoseconds, of the median run under the profiler; `start_ns` and
            `end_ns` of steps and gaps are relative to its start.
        peaks: Peak rates of the device.
        steps: Kernel launches and host steps in order of execution.
        stages: Plans of the run.
        unoptimized: Number of launches, in the first run, of kernels that were compiled without
            optimization; they may have been replaced by optimized ones since.
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
    unoptimized: int = 0

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        return tuple(s for s in self.steps if isinstance(s, KernelTime))

    @property
    def host_steps(self) -> tuple[HostTime, ...]:
        return tuple(s for s in self.steps if isinstance(s, HostTime))

    @property
    def step_ns(self) -> float:
        """Sum of the median durations of all steps of a run, in nanoseconds."""
        return sum(s.median_ns for s in self.steps)

    @property
    def flops(self) -> int:
        return sum(k.flops for k in self.kernels)

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes for k in self.kernels)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Intervals of the median run in which no step ran."""
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
        """Fraction of the median run's duration in which no step ran."""
        return _over(sum(g.end_ns - g.start_ns for g in self.gaps), self.run_ns)

    @property
    def sums(self) -> str:
        """Text that compares the median run's duration with the sum of its steps and gaps."""
        gaps_ns = sum(g.end_ns - g.start_ns for g in self.gaps)
        text = (
            f"The medians of the steps sum to {1e-6 * self.step_ns:.2f} ms; the run shown took "
            f"{1e-6 * self.run_ns:.2f} ms, {1e-6 * gaps_ns:.2f} ms of it gaps in which the host "
            "copies, enqueues or waits."
        )
        difference = self.step_ns + gaps_ns - self.run_ns
        if abs(difference) > _TOLERANCE * self.run_ns:
            more = "more" if difference > 0 else "less"
            text += (
                f" Steps and gaps are {1e-6 * abs(difference):.2f} ms {more} than it: each step "
                "has its own median over the runs, and steps that overlap count twice."
            )
        if abs(1e-6 * self.run_ns - self.wall_ms) > _TOLERANCE * self.wall_ms:
            text += f" Without the profiler, which times each launch, it is {self.wall_ms:.2f} ms."
        return text

    def by_kernel(self) -> list[KernelSum]:
        """Returns sums over the steps of each kernel, sorted by time, the slowest kernel first."""
        total = self.step_ns
        ordered = sorted(self.steps, key=lambda s: s.kernel)
        groups = [(k, list(g)) for k, g in groupby(ordered, lambda s: s.kernel)]
        sums = [_sum(kernel, steps, total) for kernel, steps in groups]
        return sorted(sums, key=lambda s: -s.ns)


def _sum(kernel: str, steps: Iterable[StepTime], total_ns: float) -> KernelSum:
    """Returns sums over the steps of one kernel.

    Args:
        kernel: Name of the kernel, or "host: " and the op.
        steps: Steps that run the kernel.
        total_ns: Sum of the durations of all steps of the profile, in nanoseconds.
    """
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
        sum(k.roofline_ns for k in launches),
    )


def _over(amount: float, per: float) -> float:
    """Returns `amount / per`; 0 if `per` is 0."""
    return amount / per if per else 0.0
