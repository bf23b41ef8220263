"""Whole models: clrt on each device beside ONNX Runtime and OpenVINO, shape by shape.

What is timed is a call from NumPy arrays to NumPy arrays, in float32.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import track

from .results import Limits, ModelRow
from .runtimes import (
    ONNXRUNTIME,
    OPENVINO,
    Forward,
    ModelFiles,
    Runtime,
    clrt_runtimes,
    load_forward,
    make_feeds,
)
from .turns import Handler, call_apart, median_ratio, open_workers, take_turns, time_turn

Shape: TypeAlias = "tuple[int, int]"
Times: TypeAlias = "dict[str, list[list[float]]]"


def measure_model(
    files: ModelFiles,
    runtimes: Sequence[Runtime],
    shapes: Sequence[Shape],
    limits: Sequence[Limits],
    turns: int,
    seconds: float,
) -> list[ModelRow]:
    """Returns a row per shape and runtime.

    Args:
        shapes: Pairs of batch and sequence.
        seconds: Length of a turn; one call where that takes longer.
    """
    gflop = call_apart(count_gflop, files, list(shapes))
    ceilings = {x.runtime: x.gemm_gflops for x in limits}
    rows = []
    with open_workers({r.name: (_make_forward, r, files) for r in runtimes}) as workers:
        for shape in track(shapes, files.name, console=Console(stderr=True)):
            times: Times = take_turns(workers, (shape, seconds), turns)
            rows += model_rows(files.name, shape, times, gflop[shape], ceilings)
    return rows


def model_rows(
    model: str, shape: Shape, times: Times, gflop: float, ceilings: dict[str, float]
) -> list[ModelRow]:
    """Medians over the turns' medians, and ratios turn by turn.

    Args:
        times: Seconds of each call of each turn, by runtime.
    """
    medians = {name: [statistics.median(t) for t in turns] for name, turns in times.items()}
    rows = []
    for name, own in medians.items():
        median_s = statistics.median(own)
        ceiling = ceilings.get(name)
        to_ort, to_openvino = (
            median_ratio(own, medians[peer]) if peer in medians else None
            for peer in (ONNXRUNTIME, OPENVINO)
        )
        rows.append(
            ModelRow(
                model,
                f"{shape[0]}x{shape[1]}",
                name,
                median_ms=median_s * 1e3,
                best_ms=min(min(t) for t in times[name]) * 1e3,
                to_onnxruntime=to_ort,
                to_openvino=to_openvino,
                gflop=gflop,
                gflops=gflop / median_s,
                ceiling_share=gflop / median_s / ceiling if ceiling else None,
            )
        )
    return rows


def count_gflop(files: ModelFiles, shapes: list[Shape]) -> dict[Shape, float]:
    """Billions of floating-point operations by shape: products and normalisations."""
    import clrt

    with clrt.load(files.source, device=clrt_runtimes()[0].device, strict=True) as model:
        return {
            s: 1e-9
            * sum(
                launch.flops
                for step in model.plan({i.name: s for i in model.inputs}).steps
                for launch in getattr(step, "launches", ())
            )
            for s in shapes
        }


def _make_forward(runtime: Runtime, files: ModelFiles) -> Handler:
    """A worker's handler: (shape, seconds) gives the times of one turn."""
    names, forward = load_forward(runtime, files)
    return lambda request: _turn(names, forward, *request)


def _turn(names: list[str], forward: Forward, shape: Shape, seconds: float) -> Any:
    return time_turn(partial(forward, make_feeds(names, *shape)), seconds)
