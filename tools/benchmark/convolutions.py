"""Distinct convolutions of nets, relative to the device's best GEMM and copy speeds.

A convolution is timed by the device's events where it stands in a run of its net: what it reads has
just been written, its weights have not been read since the run before. It counts the operations of
direct sums, whatever its kernel does, and each byte of x, weights, what the epilogue reads, and y
once. What it is held against is the slower of the best product, and of a copy that moves as many
bytes and is run again and again: both its tensors lie in the caches as far as they fit.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .conv_nets import conv_nets
from .lab import Lab
from .limits import reference_gflops
from .results import ConvolutionRow
from .turns import Worker, take_turns

PRODUCT_GOAL, COPY_GOAL = 0.75, 0.80
_RUNS = 15
_REFERENCE_SECONDS = 0.2
_COPY_RUNS = 20
# Whole work-groups of the copy.
_COPY_STEP = 1 << 14


@dataclass(frozen=True)
class TimedConvolution:
    """A convolution in a run of a net.

    Attributes:
        geometry: Sizes, window, stride and groups, which identify the convolution.
        algorithm: Variant and kernels.
        gflop, gbyte: Operations of the direct sums, and each byte counted once.
        copy_s: Seconds of a copy of the same number of bytes.
    """

    geometry: str
    algorithm: str
    time_s: float
    gflop: float
    gbyte: float
    copy_s: float


def measure_convolutions(
    labs: list[Worker], turns: int
) -> tuple[list[ConvolutionRow], dict[str, float]]:
    """Returns a row per distinct convolution and device, by falling loss of time.

    Returns:
        The rows, and the GFLOP/s of the best product by device.
    """
    nets = conv_nets()
    found: dict[str, list[tuple[str, TimedConvolution]]] = {w.name: [] for w in labs}
    best = {w.name: 0.0 for w in labs}
    for net, model in nets.items():
        job = partial(_time_net, model=model)
        for name, answers in take_turns(labs, job, turns).items():
            best[name] = max(best[name], *(speed for speed, _ in answers))
            found[name] += [(net, x) for x in _medians([timed for _, timed in answers])]
    return [r for n, timed in found.items() for r in convolution_rows(n, timed, best[n])], best


def _medians(turns: Sequence[Sequence[TimedConvolution]]) -> Iterator[TimedConvolution]:
    for one in zip(*turns, strict=True):
        time_s, copy_s = _times_of(one)
        yield replace(one[0], time_s=time_s, copy_s=copy_s)


def _times_of(timed: Sequence[TimedConvolution]) -> tuple[float, float]:
    """Returns the median time of a convolution, and of its copy."""
    return (
        statistics.median(x.time_s for x in timed),
        statistics.median(x.copy_s for x in timed),
    )


def convolution_rows(
    runtime: str, timed: Iterable[tuple[str, TimedConvolution]], gemm_gflops: float
) -> list[ConvolutionRow]:
    """Returns the rows of one device.

    Args:
        timed: Nets and their timed convolutions.
        gemm_gflops: GFLOP/s of the best GEMM.
    """
    groups: dict[tuple[str, str], list[tuple[str, TimedConvolution]]] = {}
    for net, one in timed:
        groups.setdefault((one.geometry, one.algorithm), []).append((net, one))
    rows = []
    for (geometry, algorithm), group in groups.items():
        time_s, copy_s = _times_of([x for _, x in group])
        one = group[0][1]
        product_s = one.gflop / gemm_gflops
        by_product = product_s >= copy_s
        floor_s, goal = (product_s, PRODUCT_GOAL) if by_product else (copy_s, COPY_GOAL)
        rows.append(
            ConvolutionRow(
                runtime,
                tuple(Counter(net for net, _ in group).items()),
                geometry,
                algorithm,
                us=1e6 * time_s,
                gflops=one.gflop / time_s,
                gbs=one.gbyte / time_s,
                bound_by="product" if by_product else "copy",
                share=floor_s / time_s,
                goal=goal,
                lost_us=1e6 * len(group) * max(time_s - floor_s / goal, 0.0),
            )
        )
    return sorted(rows, key=lambda r: -r.lost_us)


def _time_net(lab: Lab, model: bytes) -> tuple[float, list[TimedConvolution]]:
    """Returns the current GFLOP/s of the best GEMM, and the net's convolutions in order."""
    from clrt.runtime.execution.execution import Execution
    from clrt.runtime.execution.profiler import PlanRun, Recorder

    loaded = lab.load(model)
    bound = lab.bind(loaded, {"x": (1, 3, 224, 224)})
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)}
    recorder = Recorder(lab.session)
    for _ in range(_RUNS):
        Execution(bound, feeds, {}, recorder).run()
    spans = [run.spans for run in recorder.take() if isinstance(run, PlanRun)]
    runs = [[s.end_ns - s.start_ns for s in run] for run in spans]
    times_s = iter([1e-9 * statistics.median(t) for t in zip(*runs, strict=True)])
    found = []
    for step in bound.plan.steps:
        step_s = sum(next(times_s) for _ in step.launches)
        convolutions = [n for n in step.nodes if is_convolution(n)]
        if convolutions:
            gflop = 1e-9 * sum(n.op.flops(n.input_types, [n.output.type]) for n in convolutions)
            nbytes = moved_bytes(step.nodes)
            kernels = dict.fromkeys(x.kernel.entry for x in step.launches)
            algorithm = f"{step.variant}: {', '.join(kernels)}"
            geometry = " then ".join(map(geometry_of, convolutions))
            copy_s = _copy_s(lab, nbytes)
            found.append(
                TimedConvolution(geometry, algorithm, step_s, gflop, 1e-9 * nbytes, copy_s)
            )
    speed = reference_gflops(lab, _REFERENCE_SECONDS)
    loaded.close()
    return speed, found


def is_convolution(node: Any) -> bool:
    """Returns whether a node is a convolution."""
    from clrt.ops.conv.conv import Convolution

    return isinstance(node.op, Convolution)


def moved_bytes(nodes: Sequence[Any]) -> int:
    """Returns the bytes that fused nodes must read and write, each tensor once."""
    made = {v for n in nodes for v in n.outputs}
    read = {v: None for n in nodes for v in n.inputs if v is not None and v not in made}
    inner = {v for n in nodes for v in n.inputs if v in made}
    return sum(v.nbytes for v in (*read, *(v for v in made if v not in inner)))


def geometry_of(node: Any) -> str:
    """Returns the sizes of x and y, channels last, the window, its stride, and groups."""
    op, w = node.op, node.arg(1).dims
    (x, y) = (
        d if op.name == "ChannelsLastConv" else (d[0], *d[2:], d[1])
        for d in (node.arg(0).dims, node.output.dims)
    )
    text = f"{_times(x[1:])} to {_times(y[1:])}, {_times(w[2:])}"
    stride = max(op.strides or (1,))
    text += f" / {stride}" if stride > 1 else ""
    return text + (f", {op.group} groups" if op.group > 1 else "")


def _times(dims: Sequence[int]) -> str:
    return "x".join(map(str, dims))


def _copy_s(lab: Lab, nbytes: int) -> float:
    """Measures the seconds of a copy of that many bytes, by device events."""
    half = -(-nbytes // 2 // _COPY_STEP) * _COPY_STEP
    if half not in lab.copies:
        lab.copies[half] = _time_copy(lab, half)
    return lab.copies[half] * nbytes / (2 * half)


def _time_copy(lab: Lab, nbytes: int) -> float:
    import pyopencl as cl

    from clrt.runtime.opencl.peaks import kernel_copy

    session = lab.session
    queue = cl.CommandQueue(
        session.context,
        session.device.handle,
        properties=cl.command_queue_properties.PROFILING_ENABLE,
    )
    ones = np.ones(nbytes // 4, np.float32)
    probe: Any = kernel_copy(session, session.upload(ones), session.upload(ones), queue)
    times_ns = []
    for _ in range(_COPY_RUNS):
        event = probe.enqueue()
        queue.finish()
        times_ns.append(event.profile.end - event.profile.start)
    return 1e-9 * float(statistics.median(times_ns))


def page(rows: Sequence[ConvolutionRow], gemm_gflops: dict[str, float]) -> str:
    """The table as Markdown: of each device what loses most, then all in the order of their names.

    Args:
        gemm_gflops: GFLOP/s of the best GEMM, by device.
    """
    lines: list[str] = []
    for runtime in dict.fromkeys(r.runtime for r in rows):
        own = [r for r in rows if r.runtime == runtime]
        missed = [r for r in own if r.lost_us > 0]
        lost_ms = 1e-3 * sum(r.lost_us for r in own)
        lines += [
            f"## {runtime.removeprefix('clrt ')}",
            "",
            f"Best product {gemm_gflops[runtime]:.0f} GFLOP/s. {len(own)} distinct convolutions, "
            f"{len(missed)} below the target; they lose {lost_ms:.2f} ms in all networks together.",
            "",
            "| convolution | nets | kernel | us | GFLOP/s | GB/s | of | share | lost, us |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_line(r) for r in own),
            "",
        ]
    return "\n".join(lines)


def _line(r: ConvolutionRow) -> str:
    nets = ", ".join(f"{net} x {count}" for net, count in r.nets)
    lost = f"{r.lost_us:.0f}" if r.lost_us > 0 else ""
    figures = f"{r.us:.0f} | {r.gflops:.0f} | {r.gbs:.1f} | {r.bound_by} | {r.share:.0%}"
    return f"| {r.geometry} | {nets} | `{r.algorithm}` | {figures} | {lost} |"
