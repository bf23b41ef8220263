"""Memory-bound ops relative to a copy, and the time per kernel of a model's run.

The ops run alone on tensors larger than the caches, timed as `lab` says. Bytes are those of the
op's inputs and outputs, each once; an op that may work in place does, and spares the memory the
reading of lines that are only written, as a copy cannot.

The launches of a model's run are timed by the device's events, in the order and on the memory of
that run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from .inputs import MINILM
from .lab import Lab, Shapes
from .limits import Sample, median_share, reference_gbs, reference_gflops
from .results import KernelRow, LaunchRow
from .runtimes import ModelFiles, make_feeds
from .turns import Worker, take_turns

_TENSOR_BYTES = 128 << 20
_REFERENCE_SECONDS = 0.1


@dataclass(frozen=True)
class _Case:
    """One op on a tensor [rows, width] of numbers up to 1 from `around`."""

    op: str
    width: int
    attributes: tuple[tuple[str, Any], ...] = ()
    around: float = 0.0

    @property
    def rows(self) -> int:
        return _TENSOR_BYTES // (4 * self.width)

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        tensor = 4 * self.rows * self.width
        if self.op == "Add":
            return 3 * tensor
        if self.op == "ReduceMean":
            return tensor + 4 * self.rows
        if self.op == "Gather":
            return 2 * tensor + 8 * self.rows
        return 2 * tensor


_CASES = (
    _Case("Softmax", 512, (("axis", -1),)),
    _Case("LayerNormalization", 768, (("axis", -1),)),
    # Where GELU keeps numbers: else, in place on its own result, it ends in subnormal ones, which
    # take half as long again.
    _Case("Gelu", 3072, around=10.0),
    _Case("Add", 768),
    _Case("ReduceMean", 768, (("keepdims", 1),)),
    _Case("Gather", 384),
)


def measure_kernels(labs: list[Worker], turns: int, seconds: float) -> list[KernelRow]:
    """Returns a row per op and device."""
    rows = []
    for case in track(_CASES, "kernels", console=Console(stderr=True)):
        job = partial(_sample, case=case, seconds=seconds)
        for name, samples in take_turns(labs, job, turns).items():
            gbyte = 1e-9 * case.moved_bytes
            time_s = statistics.median(s.time_s for s in samples)
            share = median_share(samples, gbyte, "copy_gbs")
            shape = f"{case.rows}x{case.width}"
            rows.append(KernelRow(name, case.op, shape, time_s * 1e3, gbyte / time_s, share))
    return rows


def _sample(lab: Lab, case: _Case, seconds: float) -> Sample:
    model = lab.model(case, partial(_case_model, case))
    shapes = {s.name: tuple(int(d) for d in s.shape) for s in model.inputs}
    time_s = lab.time_bound(lab.bind(model, shapes, case.around), seconds)
    return Sample(time_s, copy_gbs=reference_gbs(lab, seconds))


def _case_model(case: _Case) -> bytes:
    """Builds an ONNX model of one op."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    shape = (case.rows, case.width)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    constants: dict[str, np.ndarray[Any, Any]] = {}
    names = ["x"]
    if case.op == "LayerNormalization":
        constants = {"scale": np.ones(case.width, np.float32), "bias": np.ones(case.width, "f4")}
    elif case.op == "ReduceMean":
        constants = {"axes": np.array([-1])}
    elif case.op == "Gather":
        constants = {"indices": rng.integers(0, case.rows, case.rows)}
    elif case.op == "Add":
        inputs.append(helper.make_tensor_value_info("residual", TensorProto.FLOAT, shape))
        names.append("residual")
    node = helper.make_node(case.op, [*names, *constants], ["y"], **dict(case.attributes))
    result = (case.rows, 1 if case.op == "ReduceMean" else case.width)
    graph = helper.make_graph(
        [node],
        case.op,
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [helper.make_opsetid("", 20)]
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return bytes(proto.SerializeToString())


@dataclass(frozen=True)
class Timed:
    """A timed launch of a model's run.

    Attributes:
        label: Op, and the sizes that identify it.
        moved_bytes: The buffers that it names, each once: those of a large table that it reads in
            part count as much as its output.
    """

    label: str
    time_s: float
    flops: int
    moved_bytes: int


def measure_launches(
    labs: list[Worker], files: ModelFiles, shape: tuple[int, int], turns: int
) -> list[LaunchRow]:
    """A row per kind of launch and device, the costliest first, and one for what is between."""
    job = partial(_time_run, source=files.source, shape=shape)
    rows: list[LaunchRow] = []
    for name, answers in take_turns(labs, job, turns).items():
        sample, timed = min(answers, key=lambda a: float(a[0].time_s))
        rows += launch_rows(name, sample, timed)
    return rows


def _time_run(lab: Lab, source: Any, shape: tuple[int, int]) -> tuple[Sample, list[Timed]]:
    """A run with its copies, and its launches by the device's events; medians of a few runs."""
    from clrt.plan.traffic import traffic
    from clrt.runtime.execution.execution import Execution
    from clrt.runtime.execution.profiler import PlanRun, Recorder

    model = lab.model((MINILM, source), lambda: source)
    feeds = make_feeds([s.name for s in model.inputs], *shape)
    shapes: Shapes = {name: array.shape for name, array in feeds.items()}
    bound = model.bind(shapes, {})
    wanted = {s.name: False for s in model.outputs}
    Execution(bound, feeds, wanted).run()
    walls = []
    for _ in range(7):
        start = time.perf_counter()
        Execution(bound, feeds, wanted).run()
        walls.append(time.perf_counter() - start)
    recorder = Recorder(lab.session)
    for _ in range(7):
        Execution(bound, feeds, wanted, recorder).run()
    spans = [run.spans for run in recorder.take() if isinstance(run, PlanRun)]
    runs = [[1e-9 * (s.end_ns - s.start_ns) for s in run] for run in spans]
    launches = [(s.nodes, n, x) for s in bound.plan.steps for x, n, _ in s.work()]
    timed = [
        Timed(_label(node), time_s, launch.flops, traffic(nodes, launch).nbytes)
        for (nodes, node, launch), time_s in zip(
            launches, map(statistics.median, zip(*runs, strict=True)), strict=True
        )
    ]
    references = reference_gflops(lab, _REFERENCE_SECONDS), reference_gbs(lab, _REFERENCE_SECONDS)
    return Sample(statistics.median(walls), 0.0, *references), timed


def _label(node: Any) -> str:
    """The op's name and sizes: rows x columns x depth of a product, else those of the output."""
    dims = node.output.dims
    if "MatMul" in node.op.name or node.op.name == "Gemm":
        k = node.inputs[0].dims[-1]
        return f"{node.op.name} {prod(dims[:-1])}x{dims[-1]}x{k}"
    return f"{node.op.name} {'x'.join(map(str, dims))}"


def launch_rows(runtime: str, run: Sample, timed: Sequence[Timed]) -> list[LaunchRow]:
    """Returns launches by label, the costliest first, then the rest of the wall time."""
    groups: dict[str, list[Timed]] = {}
    for launch in timed:
        groups.setdefault(launch.label, []).append(launch)
    rows = []
    for label, group in groups.items():
        time_s = sum(t.time_s for t in group)
        gflop, gbyte = (1e-9 * sum(getattr(t, a) for t in group) for a in ("flops", "moved_bytes"))
        floor_s = max(gflop / run.gemm_gflops, gbyte / run.copy_gbs)
        rows.append(
            LaunchRow(
                runtime,
                label,
                len(group),
                ms=time_s * 1e3,
                time_share=time_s / run.time_s,
                gflops=gflop / time_s,
                gbs=gbyte / time_s,
                intensity=gflop / gbyte if gbyte else 0.0,
                limit_share=floor_s / time_s,
            )
        )
    rows.sort(key=lambda r: -r.ms)
    rest_s = run.time_s - sum(t.time_s for t in timed)
    between = "between launches, copies from and to the host"
    share = rest_s / run.time_s
    return [
        *rows,
        LaunchRow(runtime, between, 0, rest_s * 1e3, share, 0.0, 0.0, 0.0, None),
    ]
