"""Nets of 0.02 to 25 ms: clrt on each device beside ONNX Runtime.

Times a call from NumPy arrays to NumPy arrays, in float32, of one batch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from .nets import net_rows
from .results import NetRow
from .runtimes import Feeds, ModelFiles, Runtime, is_installed, load_forward
from .small_configs import NETS
from .small_net import draw_feeds, file_stem
from .small_shipped import SHIPPED
from .turns import Handler, Worker, call_apart, open_workers, take_turns, time_turn

_MAKERS = ("torch", "transformers", "onnxscript")
_SHORT_TURN = 0.25


@dataclass(frozen=True)
class _Opening:
    """Request to a worker: load a net and return its outputs."""

    path: Path
    feeds: Feeds


def can_make_small() -> bool:
    """Returns whether the packages that make nets are installed."""
    return all(is_installed(m) for m in _MAKERS)


def measure_small(
    runtimes: Sequence[Runtime],
    parts: Sequence[str] | None,
    work: Path,
    turns: int,
    seconds: float,
) -> tuple[list[NetRow], dict[str, str]]:
    """Returns a row per net and runtime, and the reasons why nets are missing by name.

    Args:
        parts: Substrings of the names of nets; None for all.
        work: Folder of the exports, which are reused if present.
        seconds: Length of a turn of the other sections; these take a quarter of it.
    """
    wanted = [
        n for n in (*NETS, *SHIPPED) if parts is None or any(p.lower() in n.lower() for p in parts)
    ]
    failures = _make_missing([n for n in wanted if n in NETS], work)
    openings = {n: opening for n in wanted if (opening := _opening(n, work))}
    rows: list[NetRow] = []
    makers = {r.name: (_make_handler, r) for r in runtimes if openings}
    with open_workers(makers) as workers:
        for name in track(openings, "small nets", console=Console(stderr=True)):
            found, errors = _open(workers, openings[name])
            failures |= {f"{name}, {runtime}": error for runtime, error in errors.items()}
            able = [w for w in workers if w.name in found]
            times = take_turns(able, (_SHORT_TURN * seconds,), turns)
            rows += net_rows(name, 1, times, found)
    return rows, failures


def _open(
    workers: Iterable[Worker], opening: _Opening
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Loads a net in each worker; returns outputs and errors by runtime."""
    found, errors = {}, {}
    for worker in workers:
        answer = worker.ask(opening)
        if isinstance(answer, str):
            errors[worker.name] = answer
        else:
            found[worker.name] = [answer]
    return found, errors


def _opening(name: str, work: Path) -> _Opening | None:
    """Returns the file and inputs of a net; None if it was not made or is not installed."""
    if name in NETS:
        path = _export_path(name, work)
        if not path.is_file():
            return None
        with np.load(path.with_suffix(".npz")) as feeds:
            return _Opening(path, dict(feeds))
    net = SHIPPED[name]
    return _Opening(net.path, draw_feeds(net.feeds)) if net.path else None


def _export_path(name: str, work: Path) -> Path:
    return work / "small" / f"{file_stem(name)}.onnx"


def _make_missing(names: Sequence[str], work: Path) -> dict[str, str]:
    """Exports the nets that the folder lacks; returns the reasons of failures by name."""
    targets = {n: path for n in names if not (path := _export_path(n, work)).is_file()}
    if not targets:
        return {}
    if not can_make_small():
        return {f"{len(targets)} exports": f"not made: {', '.join(_MAKERS)} make them"}
    failures: dict[str, str] = call_apart(_make_all, targets)
    return failures


def _make_all(targets: dict[str, Path]) -> dict[str, str]:
    import logging

    from .small_models import ExportError, make_small_net

    # Exporters log and print at length what `ExportError` says.
    logging.disable()
    failures = {}
    for name, path in track(targets.items(), "exports", console=Console(stderr=True)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with redirect_stdout(StringIO()):
                make_small_net(name, path)
        except ExportError as error:
            failures[name] = str(error)
    return failures


def _make_handler(runtime: Runtime) -> Handler:
    """A worker's handler: an opening gives outputs or an error, (seconds,) the times of a turn."""
    current: list[Callable[[], object]] = []

    def answer(request: _Opening | tuple[float]) -> Any:
        if isinstance(request, tuple):
            return time_turn(current[0], *request)
        current.clear()
        gc.collect()  # ends the net before
        try:
            files = ModelFiles(request.path.stem, request.path, request.path)
            names, forward = load_forward(runtime, files)
            current.append(partial(forward, {n: request.feeds[n] for n in names}))
            outputs: Any = current[0]()
        except Exception as error:  # runtimes raise all kinds; the next net may work
            return f"{type(error).__name__}: {error}"
        values = outputs.values() if hasattr(outputs, "values") else outputs
        return [np.array(v) for v in values]

    return answer
