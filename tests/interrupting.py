"""Raises an exception at any line of a call, as Ctrl-C's handler does."""

from __future__ import annotations

import linecache
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import clrt

# How often a call is broken off; `make test-interrupts` wants more.
TIMES = int(os.environ.get("CLRT_INTERRUPTS", "4"))
ROOT = str(Path(clrt.__file__).parent)


class _Lines:
    """Counts the lines of clrt that run, and raises KeyboardInterrupt at one of them.

    Not at the end of a `with` block, which counts as its first line: what a tracer raises there
    keeps a lock for ever, and signals are not looked for before a built-in lock is released.
    """

    def __init__(self, last: int | None) -> None:
        self.count, self._last = 0, last
        self._entered: set[tuple[FrameType, int]] = set()

    def _ends_block(self, frame: FrameType) -> bool:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if not line.lstrip().startswith("with "):
            return False
        place = frame, frame.f_lineno
        ends = place in self._entered
        self._entered.add(place)
        return ends

    def forget(self) -> None:
        """Lets go of the frames."""
        self._entered.clear()

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        if event == "line":
            self.count += 1
            if self._last is None:
                return self.trace
            if not self._ends_block(frame) and self.count >= self._last:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.trace


def lines_of(call: Callable[[], object], stop_at: int | None = None) -> int:
    """How many lines of clrt a call runs.

    Args:
        stop_at: Raises KeyboardInterrupt at this line, counted from 1, which is swallowed.
    """
    lines, before = _Lines(stop_at), sys.gettrace()
    sys.settrace(lines.trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        lines.forget()
    return lines.count


def sampled(total: int, count: int | None, seed: int) -> list[int]:
    """Lines to stop at: all of them, or so many, of each part of the call alike many."""
    if count is None or count >= total:
        return list(range(1, total + 1))
    draw, step = Random(seed), total / count
    return [1 + int(step * (k + draw.random())) for k in range(count)]


def interrupted(call: Callable[[], object], after_s: float) -> str:
    """Breaks a call off by a signal; on what line it came, or "" where the call was done before."""
    place, armed = "", True

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal place, armed
        if not armed:
            return
        armed = False
        assert frame is not None
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(after_s, 1e-6))
            call()
        finally:
            armed = False
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return place
