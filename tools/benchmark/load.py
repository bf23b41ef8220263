"""Measures the load of other programs during the benchmark."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_STAT = Path("/proc/stat")
# Fields of the first line: user, nice, system, idle, iowait, irq, softirq, steal.
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)


class OtherPrograms:
    """Counts the CPU time of other programs since its creation.

    Linux's count for the whole machine less that of this process and its ended children; time
    that a hypervisor gave to other machines counts as theirs.
    """

    def __init__(self) -> None:
        self._start = _others_seconds(), os.times().elapsed

    def share(self) -> float | None:
        """Cores that others had on average, over the cores there are; None where unknown."""
        seconds, start = self._start
        others, elapsed = _others_seconds(), os.times().elapsed - start
        if others is None or seconds is None or not elapsed:
            return None
        return max(0.0, others - seconds) / elapsed / (os.cpu_count() or 1)


def _others_seconds() -> float | None:
    if sys.platform != "linux":
        return None
    ticks = [int(t) for t in _STAT.read_text("utf-8").splitlines()[0].split()[1:]]
    busy = sum(ticks[i] for i in _BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return busy - own.user - own.system - own.children_user - own.children_system
