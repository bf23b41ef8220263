"""Matrix products relative to the device's peaks: one MatMul with constant B.

Timed as `lab` says: launches enqueued in batches, without the host's copies. A, B and the product
stay where the caches keep them between launches, as between the layers of a model; the
"skinny" sizes have a B much larger than the caches.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import TypeAlias

from rich.console import Console
from rich.progress import track

from .lab import Lab
from .limits import (
    Sample,
    fma_gflops,
    median_share,
    reference_gbs,
    reference_gflops,
    time_matmul,
)
from .results import GemmRow
from .turns import Worker, take_turns

_ROWS = (64, 128, 256, 512, 1024)
_WIDTHS = (384, 768, 1536, 3072)
_QUICK_ROWS = (64, 1024)
_QUICK_WIDTHS = (384, 1536)
_ODD = (
    (67, 769, 385),
    (131, 383, 771),
    (251, 1013, 509),
    (509, 389, 1543),
    (1021, 1151, 389),
    (1023, 1537, 767),
)
_SKINNY = ((1, 12288, 3072), (1, 3072, 12288), (1, 8192, 8192), (8, 8192, 8192))
_QUICK_SKINNY = 2

Size: TypeAlias = "tuple[str, int, int, int]"  # kind, M, N, K


def measure_gemm(labs: list[Worker], turns: int, seconds: float, quick: bool) -> list[GemmRow]:
    """Returns a row per size and device.

    The turns of a size lie a pass over all sizes apart: a neighbour's busy seconds then spoil one
    turn of many sizes, which the medians leave out, and not all turns of a few.
    """
    cases = sizes(quick)
    found: dict[tuple[str, Size], list[Sample]] = {}
    for size in track(cases * turns, "gemm", console=Console(stderr=True)):
        job = partial(_sample, size=size, seconds=seconds)
        for name, samples in take_turns(labs, job, 1).items():
            found.setdefault((name, size), []).extend(samples)
    return [_row(w.name, size, found[w.name, size]) for size in cases for w in labs]


def sizes(quick: bool) -> list[Size]:
    """Returns all product sizes; those that share a B are adjacent."""
    widths, heights = (_QUICK_WIDTHS, _QUICK_ROWS) if quick else (_WIDTHS, _ROWS)
    found = [("model", m, n, k) for n, k, m in product(widths, widths, heights)]
    found += [("odd", *size) for size in _ODD]
    found += [("skinny", *size) for size in _SKINNY[: _QUICK_SKINNY if quick else None]]
    return found


def _row(runtime: str, size: Size, samples: Sequence[Sample]) -> GemmRow:
    kind, m, n, k = size
    gflop, gbyte = 2e-9 * m * n * k, 4e-9 * n * k
    time_s = statistics.median(s.time_s for s in samples)
    return GemmRow(
        runtime,
        kind,
        m,
        n,
        k,
        ms=time_s * 1e3,
        gflops=gflop / time_s,
        gbs=gbyte / time_s,
        fma_share=median_share(samples, gflop, "fma_gflops"),
        gemm_share=median_share(samples, gflop, "gemm_gflops"),
        copy_share=median_share(samples, gbyte, "copy_gbs") if kind == "skinny" else None,
    )


def _sample(lab: Lab, size: Size, seconds: float) -> Sample:
    kind, m, n, k = size
    return Sample(
        time_matmul(lab, m, n, k, seconds),
        fma_gflops(lab, seconds / 4),
        reference_gflops(lab, seconds / 2),
        reference_gbs(lab, seconds / 2) if kind == "skinny" else 0.0,
    )
