"""Result rows of the sections, from which tables, goals, JSON and the picture are made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Measured peaks of a device.

    Attributes:
        fma_gflops: Multiply-adds on registers alone.
        unit_gflops: Products of float32 on registers by a CPU's matrix unit; 0 without one.
        gemm_gflops: The best of a few large MatMuls, by multiply-adds.
        copy_buffer_gbs, copy_kernel_gbs: GB/s of a copy, bytes read plus bytes written, of
            buffers much larger than the caches: by clEnqueueCopyBuffer and by a kernel.
        read_gbs: GB/s of a kernel that only reads.
        copy_gbs: The better of the two copies: the bandwidth that shares refer to.
    """

    runtime: str
    fma_gflops: float
    unit_gflops: float
    gemm_gflops: float
    copy_buffer_gbs: float
    copy_kernel_gbs: float
    read_gbs: float
    copy_gbs: float


@dataclass(frozen=True)
class ModelRow:
    """A runtime at one input shape of one model.

    Attributes:
        to_onnxruntime, to_openvino: Time over the peer's, median over the turns; None where the
            peer did not run.
        gflop: Billions of floating-point operations of a run, as clrt counts them.
        ceiling_share: GFLOP/s over the best GEMM of the device; None for peers.
    """

    model: str
    shape: str
    runtime: str
    median_ms: float
    best_ms: float
    to_onnxruntime: float | None
    to_openvino: float | None
    gflop: float
    gflops: float
    ceiling_share: float | None


@dataclass(frozen=True)
class NetRow:
    """A runtime at one batch of a known net.

    Attributes:
        to_onnxruntime, to_openvino: Time over the peer's, median over the turns; None where the
            peer did not run.
        error: Largest difference from ONNX Runtime's outputs over the largest output.
    """

    net: str
    batch: int
    runtime: str
    median_ms: float
    to_onnxruntime: float | None
    to_openvino: float | None
    error: float | None


@dataclass(frozen=True)
class GenerationRow:
    """A runtime at reading a prompt, or at writing behind one.

    Attributes:
        what: "prefill" or "decode".
        tokens: Of the prompt.
        to_best: Tokens a second over the best peer's, median over the turns; None of itself, and
            where there is none.
    """

    model: str
    what: str
    tokens: int
    runtime: str
    tokens_per_s: float
    to_best: float | None


@dataclass(frozen=True)
class EncodeRow:
    """Sentences to vectors with one runtime.

    Attributes:
        first_texts_per_s: In the first pass, where each batch's shape is new.
        to_torch, to_onnx: Texts per second over those of sentence-transformers with torch, and
            with ONNX Runtime, median over the turns.
        least_cosine: Between its vectors and those of sentence-transformers with torch.
    """

    runtime: str
    texts: int
    texts_per_s: float
    first_texts_per_s: float
    to_torch: float | None
    to_onnx: float | None
    least_cosine: float | None


@dataclass(frozen=True)
class GemmRow:
    """A matrix product on one device.

    Attributes:
        kind: "model" (sizes of transformers), "odd" (multiples of no tile), "skinny" (few rows
            times a matrix larger than the caches).
        gbs: GB/s of reading B once.
        fma_share, gemm_share: Of multiply-adds on registers, and of the best GEMM.
        copy_share: `gbs` over a copy's; None for sizes that the caches hold.
    """

    runtime: str
    kind: str
    m: int
    n: int
    k: int
    ms: float
    gflops: float
    gbs: float
    fma_share: float
    gemm_share: float
    copy_share: float | None

    @property
    def size(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class KernelRow:
    """An op on tensors larger than the caches.

    Attributes:
        gbs: Bytes that must be read and written over time.
        copy_share: Of the device's copy.
    """

    runtime: str
    op: str
    shape: str
    ms: float
    gbs: float
    copy_share: float


@dataclass(frozen=True)
class LaunchRow:
    """Launches of one kind in a run of a model.

    Attributes:
        ms: All of them together.
        time_share: Of the run's wall time.
        intensity: Operations per byte; 0 where none are counted.
        limit_share: Of the roofline at that intensity; None for what is no kernel. Tensors of one
            run stay in the caches, so memory-bound kernels may pass 1.
    """

    runtime: str
    label: str
    count: int
    ms: float
    time_share: float
    gflops: float
    gbs: float
    intensity: float
    limit_share: float | None


@dataclass(frozen=True)
class ConvolutionRow:
    """A convolution of nets on one device, where it stands in their runs.

    Attributes:
        nets: In which, and how often in each.
        algorithm: Variant and kernels.
        gflops, gbs: Of direct sums, and of each tensor once.
        bound_by: "product" or "copy": which of them takes longer for as much.
        share: Of that one's speed; by Winograd, products pass 1.
        goal: The share that is asked.
        lost_us: What all of them take longer than at that share.
    """

    runtime: str
    nets: Sequence[tuple[str, int]]
    geometry: str
    algorithm: str
    us: float
    gflops: float
    gbs: float
    bound_by: str
    share: float
    goal: float
    lost_us: float


@dataclass(frozen=True)
class MemoryRow:
    """Peak resident memory of a process that runs the model.

    Attributes:
        over_imports_mib: The increase since the runtime was imported.
    """

    runtime: str
    shape: str
    peak_mib: float
    over_imports_mib: float


@dataclass(frozen=True)
class StartRow:
    """A process from `clrt.load` to its first result.

    Attributes:
        caches: "empty" or "warm".
        builds: Programs compiled from source.
    """

    runtime: str
    caches: str
    shape: str
    import_s: float
    load_s: float
    first_s: float
    builds: int


@dataclass(frozen=True)
class ProcessRow:
    """Processes from their start to the first result.

    Attributes:
        model: Name of the model.
        start: Runtime, and what it loads.
        empty_s: Seconds of the first process, which found the caches empty.
        warm_s: Median seconds of later ones.
        to_onnxruntime: Median ratio of warm processes to ONNX Runtime's beside them.
    """

    model: str
    start: str
    empty_s: float
    warm_s: float
    to_onnxruntime: float | None


@dataclass(frozen=True)
class NewShapeRow:
    """A shape's first run in a warm process.

    Attributes:
        extra_ms: First run minus the median of its repeats.
        builds: Programs compiled from source meanwhile.
    """

    runtime: str
    shape: str
    first_ms: float
    extra_ms: float
    builds: int


@dataclass(frozen=True)
class NeighbourRow:
    """How long something took that a program does beside a model's runs, over `count` times."""

    runtime: str
    what: str
    count: int
    median_ms: float
    p99_ms: float
    worst_ms: float


@dataclass(frozen=True)
class ProgramRow:
    """A pass of a program that was made for ONNX Runtime.

    Attributes:
        case: "start" from the imports to the first answers; passes over inputs of the same shapes,
            and of new ones each time.
        session_ms: What of it was spent in sessions' `run`.
        to_onnxruntime: Time over the one on ONNX Runtime, median over the passes.
    """

    program: str
    case: str
    runtime: str
    median_ms: float
    session_ms: float
    to_onnxruntime: float


@dataclass(frozen=True)
class InstallRow:
    """What pip puts on the disk of an empty environment.

    Attributes:
        packages: The largest of them and their MiB.
    """

    runtime: str
    mib: float
    packages: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class ImportRow:
    """`import clrt`: its time over that of Python's own start, and how many modules it loads."""

    ms: float
    modules: int


@dataclass(frozen=True)
class LeftRow:
    """What is resident around a model's life.

    Attributes:
        cycle: The how manieth model of the process; the first starts the driver, too.
    """

    runtime: str
    cycle: int
    before_mib: float
    running_mib: float
    closed_mib: float

    @property
    def left_mib(self) -> float:
        return self.closed_mib - self.before_mib


@dataclass
class Report:
    """Everything one run of the benchmark found.

    Attributes:
        small_failures: Reasons by name of a net, or by net and runtime.
    """

    environment: dict[str, Any] = field(default_factory=dict)
    limits: list[Limits] = field(default_factory=list)
    models: list[ModelRow] = field(default_factory=list)
    nets: list[NetRow] = field(default_factory=list)
    small: list[NetRow] = field(default_factory=list)
    small_failures: dict[str, str] = field(default_factory=dict)
    generation: list[GenerationRow] = field(default_factory=list)
    encode: list[EncodeRow] = field(default_factory=list)
    gemm: list[GemmRow] = field(default_factory=list)
    kernels: list[KernelRow] = field(default_factory=list)
    launches: list[LaunchRow] = field(default_factory=list)
    convolutions: list[ConvolutionRow] = field(default_factory=list)
    memory: list[MemoryRow] = field(default_factory=list)
    startup: list[StartRow] = field(default_factory=list)
    processes: list[ProcessRow] = field(default_factory=list)
    new_shapes: list[NewShapeRow] = field(default_factory=list)
    neighbours: list[NeighbourRow] = field(default_factory=list)
    programs: list[ProgramRow] = field(default_factory=list)
    install: list[InstallRow] = field(default_factory=list)
    imports: list[ImportRow] = field(default_factory=list)
    left: list[LeftRow] = field(default_factory=list)

    def to_json(self) -> str:
        """All rows, section by section."""
        return json.dumps(asdict(self), indent=2) + "\n"
