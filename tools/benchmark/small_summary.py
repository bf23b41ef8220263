"""Geometric means and worst cases of the section `small`, by groups of nets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .results import NetRow
from .runtimes import ONNXRUNTIME
from .small_configs import NETS

BETTER = "the better"
ALL, RECURRENT = "all", "recurrent"
TINY, LONGER = "under 0.1 ms", "0.1 ms and more"
_TINY_MS = 0.1


@dataclass(frozen=True)
class SmallNetResult:
    """A net on all runtimes.

    Attributes:
        peer_ms: ONNX Runtime's time.
        times_ms, ratios: clrt's times, and these over ONNX Runtime's, by device.
        error: Largest error of any device; None if nothing was compared.
    """

    name: str
    peer_ms: float
    times_ms: dict[str, float]
    ratios: dict[str, float]
    error: float | None


@dataclass(frozen=True)
class GroupSummary:
    """A group of nets.

    Attributes:
        ratios: Times over ONNX Runtime's by device, then by net; those of `BETTER`, the last,
            are the smallest of each net.
    """

    label: str
    ratios: dict[str, dict[str, float]]

    @property
    def count(self) -> int:
        """Number of nets."""
        return len(self.ratios[BETTER])

    def mean(self, device: str) -> float:
        """Returns the geometric mean of a device's ratios."""
        return math.exp(statistics.fmean(map(math.log, self.ratios[device].values())))

    def worst(self, device: str) -> tuple[float, str]:
        """Returns the largest ratio of a device, and its net."""
        return max((ratio, name) for name, ratio in self.ratios[device].items())


def small_results(rows: Iterable[NetRow]) -> list[SmallNetResult]:
    """Returns the nets that ONNX Runtime and clrt ran, the fastest first."""
    by_net: dict[str, list[NetRow]] = {}
    for row in rows:
        by_net.setdefault(row.net, []).append(row)
    results = []
    for name, group in by_net.items():
        peers = [r.median_ms for r in group if r.runtime == ONNXRUNTIME]
        ours = [r for r in group if r.to_onnxruntime is not None]
        if peers and ours:
            errors = [r.error for r in ours if r.error is not None]
            times = {r.runtime: r.median_ms for r in ours}
            ratios = {r.runtime: r.to_onnxruntime for r in ours if r.to_onnxruntime is not None}
            error = max(errors, default=None)
            results.append(SmallNetResult(name, peers[0], times, ratios, error))
    return sorted(results, key=lambda r: r.peer_ms)


def is_recurrent(name: str) -> bool:
    """Returns whether a net is one recurrent layer over a sequence."""
    return name in NETS and NETS[name].kind == "Recurrent"


_GROUPS: tuple[tuple[str, Callable[[SmallNetResult], bool]], ...] = (
    (ALL, lambda r: True),
    ("under 1 ms", lambda r: r.peer_ms < 1),
    (LONGER, lambda r: r.peer_ms >= _TINY_MS),
    (TINY, lambda r: r.peer_ms < _TINY_MS),
    (RECURRENT, lambda r: is_recurrent(r.name)),
)


def small_summaries(rows: Iterable[NetRow]) -> list[GroupSummary]:
    """Returns a summary per group that has nets; times of groups are ONNX Runtime's."""
    results = small_results(rows)
    groups = ((label, [r for r in results if belongs(r)]) for label, belongs in _GROUPS)
    return [_summary(label, group) for label, group in groups if group]


def _summary(label: str, results: Sequence[SmallNetResult]) -> GroupSummary:
    ratios: dict[str, dict[str, float]] = {}
    for result in results:
        for device, ratio in result.ratios.items():
            ratios.setdefault(device, {})[result.name] = ratio
    ratios[BETTER] = {r.name: min(r.ratios.values()) for r in results}
    return GroupSummary(label, ratios)
