"""Effects on the rest of a program: other threads, deadlines, other models."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import track

from .results import NeighbourRow
from .runtimes import THREADS, ModelFiles, Runtime, make_feeds
from .turns import call_apart

_TICK_S = 0.005
_RUN_S = 0.3
_LONG_S = 1.5
_SHORT = (1, 16)
_SEQUENCE = 128


def measure_neighbours(
    files: ModelFiles, runtimes: Sequence[Runtime], repeats: int
) -> list[NeighbourRow]:
    """Returns rows per clrt device, measured in a process of its own."""
    rows = []
    for runtime in track(runtimes, "neighbours", console=Console(stderr=True)):
        for what, times in call_apart(_measure, runtime, files, repeats):
            ms = sorted(1e3 * t for t in times)
            p99 = ms[min(len(ms) - 1, int(0.99 * len(ms)))]
            rows.append(
                NeighbourRow(runtime.name, what, len(ms), statistics.median(ms), p99, ms[-1])
            )
    return rows


def _measure(runtime: Runtime, files: ModelFiles, repeats: int) -> list[tuple[str, list[float]]]:
    """Returns the seconds of each case."""
    import clrt

    found = [("a tick is late: nothing runs", _lateness(lambda: time.sleep(0.5)))]
    found.append(("a tick is late: all cores compute", _lateness(_spin_apart)))

    def load() -> None:
        clrt.load(files.source, device=runtime.device).close()

    found.append(("a tick is late: the first load, imports included", _lateness(load)))
    found.append(("a tick is late: load", [x for _ in range(repeats) for x in _lateness(load)]))
    with (
        clrt.load(files.source, device=runtime.device) as model,
        clrt.load(files.source, device=runtime.device) as other,
    ):
        feeds, took = _lasting(model, _RUN_S)
        label = f"a run of {1e3 * took:.0f} ms"

        def runs() -> None:
            for _ in range(repeats):
                model.run(feeds)

        found.append((f"a tick is late: {label}", _lateness(runs)))
        found.append((f"cancel of {label}", [_cancel(model, feeds, took) for _ in range(repeats)]))
        found.append((f"timeout of {label}", [_expire(model, feeds, took) for _ in range(repeats)]))
        found += _short_runs(model, other)
    return found


def _lateness(action: Callable[[], object]) -> list[float]:
    """How late a thread is that sleeps for 5 ms again and again, while something is done."""
    ends = threading.Event()
    late: list[float] = []

    def tick() -> None:
        last = time.perf_counter()
        while not ends.is_set():
            time.sleep(_TICK_S)
            now = time.perf_counter()
            late.append(now - last - _TICK_S)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        action()
    finally:
        ends.set()
        thread.join()
    return late


def _spin_apart() -> None:
    """Has processes compute on all cores for a while, as a CPU device's threads do."""
    spin = "import time; end = time.time() + 1\nwhile time.time() < end: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(THREADS)]
    for process in others:
        process.wait()


def _lasting(model: Any, seconds: float) -> tuple[Any, float]:
    """Feeds with which a run takes about so long, and what it takes."""
    names, batch = [s.name for s in model.inputs], 4
    while True:
        feeds = make_feeds(names, batch, _SEQUENCE)
        model.run(feeds)
        start = time.perf_counter()
        model.run(feeds)
        took = time.perf_counter() - start
        if took > 0.8 * seconds:
            return feeds, took
        batch = max(batch + 1, int(batch * seconds / took))


def _cancel(model: Any, feeds: Any, took: float) -> float:
    """How long `cancel` takes in the midst of a run."""
    run = model.submit(feeds)
    time.sleep(took / 3)
    start = time.perf_counter()
    run.cancel()
    return time.perf_counter() - start


def _expire(model: Any, feeds: Any, took: float) -> float:
    """By how much a timeout is late that ends a run."""
    start = time.perf_counter()
    with suppress(TimeoutError):
        model.run(feeds, timeout=took / 3)
    return time.perf_counter() - start - took / 3


def _short_runs(model: Any, other: Any) -> Iterator[tuple[str, list[float]]]:
    """A short run of a model: alone, and beside long runs of another."""
    feeds = make_feeds([s.name for s in other.inputs], *_SHORT)
    other.run(feeds)
    label = f"a run of {_SHORT[0]}x{_SHORT[1]}"
    yield f"{label}, alone", _timed(other, feeds, 0.5)
    long_feeds, took = _lasting(model, _LONG_S)
    with _running(model, long_feeds):
        yield f"{label}, beside one of {took:.1f} s", _timed(other, feeds, 2 * took)


def _timed(model: Any, feeds: Any, seconds: float) -> list[float]:
    times = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        model.run(feeds)
        times.append(time.perf_counter() - start)
        time.sleep(_TICK_S)
    return times


@contextmanager
def _running(model: Any, feeds: Any) -> Iterator[None]:
    """Within it another thread runs the model again and again."""
    ends = threading.Event()

    def go() -> None:
        while not ends.is_set():
            model.run(feeds)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
