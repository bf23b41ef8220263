"""Performance goals on a CPU, with the measured figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .results import Report
from .runtimes import ONNXRUNTIME, OPENVINO
from .small_shipped import SHIPPED
from .small_summary import ALL, BETTER, LONGER, RECURRENT, TINY, small_summaries

_POCL = "clrt PoCL"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Goal:
    """A bound that holds for every case on the better device, or on one device by itself.

    Attributes:
        at_most: Whether the bound is an upper one.
        values: Figures by device, then by case.
        floors: By case, what a figure would be if nothing but products took time, and these
            ran at the best speed seen on any device.
    """

    name: str
    bound: float
    at_most: bool
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    floors: dict[str, float] = field(default_factory=dict)

    @property
    def by_device(self) -> dict[str, float]:
        """Returns the worst case on each device."""
        worst = max if self.at_most else min
        return {device: worst(cases.values()) for device, cases in self.values.items()}

    @property
    def headline(self) -> tuple[str, float]:
        """Returns the worst case, each case on its best device."""
        worst, best = (max, min) if self.at_most else (min, max)
        cases = {c for found in self.values.values() for c in found}
        figures = {c: best(v[c] for v in self.values.values() if c in v) for c in cases}
        case = worst(figures, key=figures.__getitem__)
        return case, figures[case]

    @property
    def is_met(self) -> bool:
        """Whether the headline is within the bound."""
        _, value = self.headline
        return value <= self.bound + _ROUNDING if self.at_most else value >= self.bound - _ROUNDING


def goals_of(report: Report) -> list[Goal]:
    """Returns the goals for which there are figures."""
    goals = [
        *_model_goals(report),
        *_small_goals(report),
        *_kernel_goals(report),
        *_use_goals(report),
    ]
    return [g for g in goals if g.values]


def _model_goals(report: Report) -> Iterable[Goal]:
    for model in dict.fromkeys(r.model for r in report.models):
        rows = [r for r in report.models if r.model == model and r.runtime.startswith("clrt")]
        pocl = [r for r in rows if r.runtime == _POCL]
        ort, openvino = (_floors(report, model, peer) for peer in (ONNXRUNTIME, OPENVINO))
        peer = f"{model}: time over ONNX Runtime's"
        column = ("shape", "to_onnxruntime", ort)
        yield _goal(peer, 0.80, True, rows, *column)
        yield _goal(
            f"{model}: time over OpenVINO's", 0.93, True, rows, "shape", "to_openvino", openvino
        )
        long, short = [r for r in pocl if r.shape != "1x16"], [r for r in pocl if r.shape == "1x16"]
        yield _goal(f"{peer}, PoCL", 0.85, True, long, *column)
        yield _goal(f"{peer}, PoCL, 1x16", 1.0, True, short, *column)


def _small_goals(report: Report) -> Iterable[Goal]:
    name = "Small nets: time over ONNX Runtime's"
    groups = {g.label: g for g in small_summaries(report.small)}
    for device, bound in ((_POCL, 0.85), (BETTER, 0.80)):
        if ALL in groups and device in groups[ALL].ratios:
            mean = {device: {"geometric mean": groups[ALL].mean(device)}}
            yield Goal(f"{name}, {_short(device)}", bound, True, mean)
    for label, bound in ((LONGER, 1.5), (TINY, 2.5), (RECURRENT, 1.1)):
        ratios = groups[label].ratios if label in groups else {}
        for device, values in ratios.items():
            if device != BETTER:
                yield Goal(f"{name}, {label}, {_short(device)}", bound, True, {device: values})
    one = [r for r in report.small if r.net == "one Add" and r.runtime != ONNXRUNTIME]
    exact = [r for r in report.small if not (r.net in SHIPPED and SHIPPED[r.net].is_quantized)]
    yield _goal("Small nets: largest error", 0.001, True, exact, "net", "error")
    yield _goal("A run of one Add, ms", 0.020, True, one, "net", "median_ms")


def _short(device: str) -> str:
    return device.removeprefix("clrt ")


def _floors(report: Report, model: str, peer: str) -> dict[str, float]:
    """Returns the time of a model's operations at the best measured speed, over a peer's time."""
    best = max(
        (max(x.fma_gflops, x.unit_gflops, x.gemm_gflops) for x in report.limits), default=None
    )
    rows = [r for r in report.models if (r.model, r.runtime) == (model, peer)]
    return {r.shape: 1e3 * r.gflop / best / r.median_ms for r in rows} if best else {}


def _kernel_goals(report: Report) -> Iterable[Goal]:
    def of(kind: str) -> list[Any]:
        return [r for r in report.gemm if r.kind == kind and (kind != "skinny" or r.m == 1)]

    yield _goal("GEMM over the best GEMM", 0.90, False, of("model"), "size", "gemm_share")
    yield _goal("GEMM, odd sizes", 0.80, False, of("odd"), "size", "gemm_share")
    yield _goal(
        "GEMM, M = 1, bandwidth over a copy's", 0.80, False, of("skinny"), "size", "copy_share"
    )
    bound = [r for r in report.kernels if r.op in ("Softmax", "LayerNormalization", "Gelu", "Add")]
    yield _goal("Memory-bound ops over a copy", 0.80, False, bound, "op", "copy_share")


def _use_goals(report: Report) -> Iterable[Goal]:
    encode = [r for r in report.encode if r.runtime.startswith("clrt")]
    name = "encode: texts per second over sentence-transformers'"
    yield _goal(f"{name}, torch", 1.6, False, encode, "texts", "to_torch")
    yield _goal(f"{name}, ONNX", 1.3, False, encode, "texts", "to_onnx")
    yield _goal("encode: least cosine", 0.99999, False, encode, "texts", "least_cosine")
    pocl = [r for r in report.memory if r.runtime == _POCL]
    yield _goal("Peak memory, PoCL, MiB", 400.0, True, pocl, "shape", "peak_mib")
    for caches, bound in (("empty", 5.0), ("warm", 0.6)):
        rows = [r for r in report.startup if r.caches == caches]
        yield _goal(f"First result, {caches} caches, s", bound, True, rows, "shape", "first_s")
    yield _goal(
        "A new shape's first run over its repeat, ms",
        20,
        True,
        report.new_shapes,
        "shape",
        "extra_ms",
    )
    for what, bound in (("core", 120.0), ("core, small PoCL", 200.0)):
        installed = [r for r in report.install if r.runtime == what]
        yield _goal(f"Installed, MiB: {what}", bound, True, installed, "runtime", "mib")
    yield _goal("Memory left after close, MiB", 30.0, True, report.left, "cycle", "left_mib")
    yield _goal("Programs built for a new shape", 0, True, report.new_shapes, "shape", "builds")


def _goal(
    name: str,
    bound: float,
    at_most: bool,
    rows: list[Any],
    case: str,
    figure: str,
    floors: dict[str, float] | None = None,
) -> Goal:
    """Returns a goal over a column of rows; rows without the figure are skipped."""
    values: dict[str, dict[str, float]] = {}
    for row in rows:
        value = getattr(row, figure)
        if value is not None:
            values.setdefault(row.runtime, {})[str(getattr(row, case))] = float(value)
    return Goal(name, bound, at_most, values, floors or {})
