"""Known nets at their real geometries: clrt on each device beside its peers, and how far apart.

What is timed is a call from NumPy arrays to NumPy arrays, in float32. `net_models` makes the nets,
in a process that has torch; those that run them do without.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from .results import NetRow
from .runtimes import ONNXRUNTIME, OPENVINO, ModelFiles, Runtime, load_forward
from .turns import Handler, call_apart, median_ratio, open_workers, take_turns, time_turn

Shape: TypeAlias = "tuple[int, ...]"
Arrays: TypeAlias = "list[NDArray[Any]]"
# Inputs of the usual size, and some that no training has seen.
_SCALES = (1.0, 1000.0)


def measure_nets(
    runtimes: Sequence[Runtime],
    parts: Sequence[str] | None,
    work: Path,
    turns: int,
    seconds: float,
) -> list[NetRow]:
    """Returns a row per net, batch and runtime.

    Args:
        parts: Parts of the names of nets; None for all.
        work: A folder; the nets that it has are not made anew.
        seconds: Length of a turn; one call where that takes longer.
    """
    rows = []
    wanted = [
        (name, shape)
        for name, shape in call_apart(_list_nets)
        if parts is None or any(p.lower() in name.lower() for p in parts)
    ]
    for name, shape in track(wanted, "nets", console=Console(stderr=True)):
        path = work / f"{name} {shape[0]}.onnx"
        if not path.exists():
            call_apart(_make_net, name, shape[0], path)
        files = ModelFiles(name, path, path)
        with open_workers({r.name: (_make_forward, r, files, shape) for r in runtimes}) as workers:
            found = {w.name: [w.ask(scale) for scale in _SCALES] for w in workers}
            times = take_turns(workers, (seconds,), turns)
        rows += net_rows(name, shape[0], times, found)
    return rows


def net_rows(
    name: str, batch: int, times: dict[str, list[list[float]]], found: dict[str, list[Arrays]]
) -> list[NetRow]:
    medians = {r: [statistics.median(t) for t in turns] for r, turns in times.items()}
    rows = []
    for runtime, own in medians.items():
        to_ort, to_openvino = (
            median_ratio(own, medians[peer]) if peer in medians and peer != runtime else None
            for peer in (ONNXRUNTIME, OPENVINO)
        )
        error = None
        if runtime != ONNXRUNTIME and ONNXRUNTIME in found:
            pairs = zip(found[runtime], found[ONNXRUNTIME], strict=True)
            error = max(largest_error(a, b) for a, b in pairs)
        rows.append(
            NetRow(name, batch, runtime, 1e3 * statistics.median(own), to_ort, to_openvino, error)
        )
    return rows


def largest_error(own: Arrays, peer: Arrays) -> float:
    """The largest difference of any output, over that output's largest element."""
    from clrt.util.accuracy import max_difference

    return max((max_difference(a, b)[1] for a, b in zip(own, peer, strict=True)), default=0.0)


def _list_nets() -> list[tuple[str, Shape]]:
    from .net_models import list_nets

    return list_nets()


def _make_net(name: str, batch: int, target: Path) -> None:
    from .net_models import make_net

    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    make_net(name, batch, part)
    part.rename(target)


def _make_forward(runtime: Runtime, files: ModelFiles, shape: Shape) -> Handler:
    """A worker's handler: a scale gives the outputs, (seconds,) the times of one turn."""
    (name,), forward = load_forward(runtime, files)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)

    def answer(request: float | tuple[float]) -> Any:
        if isinstance(request, tuple):
            return time_turn(partial(forward, {name: x}), *request)
        found: Any = forward({name: x * np.float32(request)})
        values = found.values() if hasattr(found, "values") else found
        return [np.array(v) for v in values]

    return answer
