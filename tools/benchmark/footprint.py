"""Measures peak memory, and time from loading to the first result."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from .results import MemoryRow, NewShapeRow, StartRow
from .runtimes import ModelFiles, Runtime, import_runtime, load_forward, make_feeds
from .turns import call_apart

_RUNS = 5
# None of them is the first shape; the last needs a larger arena than it.
_NEW_SHAPES = ((1, 16), (3, 77), (5, 40), (16, 30), (2, 250), (12, 100))
# clrt's programs, PoCL's, those of Intel's GPU driver, and what libraries keep in the user's cache.
_CACHES = ("CLRT_CACHE_DIR", "POCL_CACHE_DIR", "NEO_CACHE_DIR", "XDG_CACHE_HOME")


def measure_memory(
    files: ModelFiles, runtimes: Sequence[Runtime], shape: tuple[int, int]
) -> list[MemoryRow]:
    """Returns a row per runtime, each measured in a process of its own."""
    rows = []
    for runtime in track(runtimes, "memory", console=Console(stderr=True)):
        before, peak = call_apart(_measure_peak, runtime, files, shape)
        mib = 2**20
        label = f"{shape[0]}x{shape[1]}"
        rows.append(MemoryRow(runtime.name, label, peak / mib, (peak - before) / mib))
    return rows


def _measure_peak(runtime: Runtime, files: ModelFiles, shape: tuple[int, int]) -> tuple[int, int]:
    """Returns peak resident bytes after the imports, and after a few runs."""
    import_runtime(runtime)
    before = peak_resident_bytes()
    names, forward = load_forward(runtime, files)
    feeds = make_feeds(names, *shape)
    for _ in range(_RUNS):
        forward(feeds)
    return before, peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Returns the peak resident bytes of this process.

    Linux's own count where it is: `getrusage` there begins with the peak of the parent.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text("utf-8"))
        assert found is not None
        return int(found[1]) << 10
    if sys.platform == "win32":
        raise NotImplementedError("Memory is measured on Linux and macOS; leave the section out.")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def measure_startup(
    files: ModelFiles, runtimes: Sequence[Runtime], shape: tuple[int, int], repeats: int
) -> tuple[list[StartRow], list[NewShapeRow]]:
    """Medians over `repeats` starts with empty caches and with warm ones, for each clrt device.

    Each start is a process of its own. New shapes are met by the warm ones.
    """
    starts, shapes = [], []
    for runtime in track(runtimes, "startup", console=Console(stderr=True)):
        found: dict[str, list[Any]] = {"empty": [], "warm": []}
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                for caches, answers in found.items():
                    new = _NEW_SHAPES if caches == "warm" else ()
                    answers.append(call_apart(_start, folder, runtime, files, shape, new))
        for caches, answers in found.items():
            numbers = [[a[0][i] for a in answers] for i in range(4)]
            import_s, load_s, first_s, builds = map(statistics.median, numbers)
            label = f"{shape[0]}x{shape[1]}"
            starts.append(
                StartRow(runtime.name, caches, label, import_s, load_s, first_s, int(builds))
            )
        shapes += _new_shape_rows(runtime.name, [a[1] for a in found["warm"]])
    return starts, shapes


def _new_shape_rows(name: str, starts: list[list[tuple[float, float, int]]]) -> list[NewShapeRow]:
    rows = []
    for shape, seen in zip(_NEW_SHAPES, zip(*starts, strict=True), strict=True):
        first, extra = (statistics.median(s[i] for s in seen) * 1e3 for i in (0, 1))
        builds = max(s[2] for s in seen)
        rows.append(NewShapeRow(name, f"{shape[0]}x{shape[1]}", first, extra, builds))
    return rows


def _start(
    caches: str,
    runtime: Runtime,
    files: ModelFiles,
    shape: tuple[int, int],
    new_shapes: Sequence[tuple[int, int]],
) -> tuple[tuple[float, float, float, int], list[tuple[float, float, int]]]:
    """Seconds to import, to load, and from there on to the first result, and programs built.

    Then for each new shape the seconds of its first run, those over its repeats, and programs.
    """
    for variable in _CACHES:
        os.environ[variable] = str(Path(caches) / variable.lower())
    begin = time.perf_counter()
    import clrt
    from clrt.runtime.opencl.session import session_for

    start = time.perf_counter()
    model = clrt.load(files.source, device=runtime.device, strict=True)
    loaded = time.perf_counter()
    names = [s.name for s in model.inputs]
    model.run(make_feeds(names, *shape))
    end = time.perf_counter()
    programs = session_for(model.device).programs
    times = (start - begin, loaded - start, end - start, programs.builds)
    found = []
    for new in new_shapes:
        builds, feeds = programs.builds, make_feeds(names, *new)
        seconds = []
        for _ in range(1 + _RUNS):
            begin = time.perf_counter()
            model.run(feeds)
            seconds.append(time.perf_counter() - begin)
        first, *repeats = seconds
        found.append((first, first - statistics.median(repeats), programs.builds - builds))
    return times, found
