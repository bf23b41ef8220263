"""Draws the report as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .results import LaunchRow, Limits, ModelRow, Report
from .runtimes import ONNXRUNTIME, THREADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2563eb", "#0d9488", "#7c3aed", "#db2777")
_PEER_COLOURS = {"OpenVINO": "#a8a29e", ONNXRUNTIME: "#d6d3d1"}
_OTHER_PEER = "#c4bfba"
_LEAST_INTENSITY, _MOST_INTENSITY = 0.3, 1000
_LEAST_GFLOPS = 8
_INK = "#292524"
_FAINT = "#78716c"


def draw(report: Report, target: Path) -> None:
    """Writes a PNG with a panel per part that was measured: models, encode, roofline."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": _FAINT,
            "text.color": _INK,
            "axes.labelcolor": _INK,
            "xtick.color": _FAINT,
            "ytick.color": _FAINT,
        }
    )
    has_models = any(r.to_onnxruntime is not None for r in report.models)
    has_roofline = bool(report.limits and (report.launches or report.gemm))
    lower = [bool(report.encode), has_roofline]
    layout = [["models"] * 2] if has_models else []
    if any(lower):
        names = ["encode" if lower[0] else "roofline", "roofline" if lower[1] else "encode"]
        layout.append(names)
    if not layout:
        raise SystemExit("--plot has nothing to draw; add models, encode, gemm or kernels.")
    figure, axes = plt.subplot_mosaic(
        layout,
        figsize=(13, 4.6 * len(layout) + 0.6),
        width_ratios=(2, 3) if all(lower) else (1, 1),
        layout="constrained",
    )
    if "models" in axes:
        _draw_models(axes["models"], report.models)
    if "encode" in axes:
        _draw_encode(axes["encode"], report)
    if "roofline" in axes:
        _draw_roofline(axes["roofline"], report)
    cpu, date = report.environment["cpu"], str(report.environment["date"])[:10]
    figure.supxlabel(f"{cpu}, {THREADS} threads, float32, {date}", color=_FAINT, fontsize=9)
    figure.savefig(target, dpi=150)
    plt.close(figure)


def _colour(runtime: str, ours: list[str]) -> str:
    if runtime in ours:
        return _COLOURS[ours.index(runtime) % len(_COLOURS)]
    return _PEER_COLOURS.get(runtime, _OTHER_PEER)


def _ours(names: list[str]) -> list[str]:
    return [n for n in names if n.startswith("clrt")]


def _draw_models(axes: Axes, rows: list[ModelRow]) -> None:
    """Bars of time over ONNX Runtime's, in groups of one shape."""
    names = [n for n in dict.fromkeys(r.runtime for r in rows) if n != ONNXRUNTIME]
    cases = list(dict.fromkeys((r.model, r.shape) for r in rows))
    figures = {(r.model, r.shape, r.runtime): r for r in rows}
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        places = np.arange(len(cases)) + (index - (len(names) - 1) / 2) * width
        heights = [figures[(*case, name)].to_onnxruntime or 0.0 for case in cases]
        colour = _colour(name, _ours(names))
        bars = axes.bar(places, heights, width * 0.92, color=colour, label=name)
        texts = [f"{h:.2f}" for h in heights]
        halo = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.bar_label(bars, texts, padding=3, fontsize=8, color=_FAINT, bbox=halo)
    axes.axhline(1, color=_INK, linewidth=1, zorder=0)
    peers = [figures.get((*case, ONNXRUNTIME)) for case in cases]
    ticks = [
        f"{model} {shape}" + (f"\n{peer.median_ms:.3g} ms" if peer else "")
        for (model, shape), peer in zip(cases, peers, strict=True)
    ]
    axes.set_xticks(range(len(cases)), ticks, color=_INK)
    axes.set_xlim(-0.5, len(cases) - 0.5)
    axes.set_ylabel(f"time over {ONNXRUNTIME}'s")
    axes.set_xlabel(f"below the shape: milliseconds of {ONNXRUNTIME}", color=_FAINT, fontsize=9)
    axes.set_title("Time of a run by batch x sequence: lower is faster", loc="left", weight="bold")
    axes.tick_params(axis="x", length=0)
    axes.legend(frameon=False, ncols=len(names), loc="lower right", bbox_to_anchor=(1, 1))


def _draw_encode(axes: Axes, report: Report) -> None:
    """Horizontal bars of texts per second, the fastest on top."""
    rows = sorted(report.encode, key=lambda r: r.texts_per_s)
    ours = _ours([r.runtime for r in report.encode])
    speeds = [r.texts_per_s for r in rows]
    colours = [_colour(r.runtime, ours) for r in rows]
    bars = axes.barh(range(len(rows)), speeds, 0.62, color=colours)
    axes.bar_label(bars, [f" {s:.0f}" for s in speeds], color=_INK)
    names = [r.runtime.replace(", ", "\n") for r in rows]
    axes.set_yticks(range(len(rows)), names, color=_INK)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(speeds) * 1.12)
    axes.set_xlabel("texts per second")
    axes.set_title("Sentences to vectors, mixed lengths", loc="left", weight="bold")


def _draw_roofline(axes: Axes, report: Report) -> None:
    """Each device's roof, and under it its kernels: large dots take most of a run's time."""
    ours = [x.runtime for x in report.limits]
    for limits in report.limits:
        colour = _colour(limits.runtime, ours)
        _draw_roof(axes, limits, colour)
        products = [r for r in report.gemm if r.runtime == limits.runtime]
        if products:
            moved = [4 * (r.m * r.k + r.k * r.n + r.m * r.n) for r in products]
            intensity = [2 * r.m * r.n * r.k / b for r, b in zip(products, moved, strict=True)]
            axes.scatter(intensity, [r.gflops for r in products], 9, color=colour, alpha=0.35)
        kernels = [r for r in report.launches if r.runtime == limits.runtime and r.intensity]
        _draw_kernels(axes, kernels, colour, labelled=limits is report.limits[0])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_GFLOPS, 1.5 * max(x.fma_gflops for x in report.limits))
    axes.set_xlim(_LEAST_INTENSITY, _MOST_INTENSITY)
    axes.set_xlabel("floating-point operations per byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title("Kernels under their roof: multiply-adds, copies", loc="left", weight="bold")
    axes.legend(frameon=False, loc="lower right")


def _draw_roof(axes: Axes, limits: Limits, colour: str) -> None:
    intensity = np.geomspace(_LEAST_INTENSITY, _MOST_INTENSITY, 500)
    roof = np.minimum(limits.fma_gflops, intensity * limits.copy_gbs)
    label = f"{limits.runtime}: {limits.fma_gflops:.0f} GFLOP/s, {limits.copy_gbs:.0f} GB/s"
    axes.plot(intensity, roof, color=colour, linewidth=1.5, label=label)


def _draw_kernels(axes: Axes, rows: list[LaunchRow], colour: str, *, labelled: bool) -> None:
    for r in rows:
        size = 20 + 900 * r.time_share
        axes.scatter([r.intensity], [r.gflops], size, color=colour, alpha=0.7, edgecolor="white")
    if not labelled:
        return
    costliest: dict[str, LaunchRow] = {}
    for r in rows:
        costliest.setdefault(r.label.split()[0].removeprefix("Fused"), r)
    for name, r in costliest.items():
        axes.annotate(
            name,
            (r.intensity, r.gflops),
            xytext=(14, -12),
            textcoords="offset points",
            fontsize=8.5,
            color=_INK,
        )
