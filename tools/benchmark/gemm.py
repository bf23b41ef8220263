"""Matrix products against the ceiling of the device: one MatMul with constant B.

Timed as `lab` says: launches enqueued in batches, without the host's copies. A, B and the product
stay where the caches keep them between launches, as between the layers of a model; the
"skinny" sizes have a B much larger than the caches.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from itertools import product

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


def measure_gemm(labs: list[Worker], turns: int, seconds: float, quick: bool) -> list[GemmRow]:
    """A row per size and device."""
    rows = []
    for kind, m, n, k in track(sizes(quick), "gemm", console=Console(stderr=True)):
        job = partial(_sample, kind=kind, size=(m, n, k), seconds=seconds)
        samples = take_turns(labs, job, turns)
        rows += [_row(name, kind, (m, n, k), found) for name, found in samples.items()]
    return rows


def sizes(quick: bool) -> list[tuple[str, int, int, int]]:
    """(kind, M, N, K) of every product; those that share a B follow each other."""
    widths, heights = (_QUICK_WIDTHS, _QUICK_ROWS) if quick else (_WIDTHS, _ROWS)
    found = [("model", m, n, k) for n, k, m in product(widths, widths, heights)]
    found += [("odd", *size) for size in _ODD]
    found += [("skinny", *size) for size in _SKINNY[: _QUICK_SKINNY if quick else None]]
    return found


def _row(runtime: str, kind: str, size: tuple[int, int, int], samples: Sequence[Sample]) -> GemmRow:
    m, n, k = size
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


def _sample(lab: Lab, kind: str, size: tuple[int, int, int], seconds: float) -> Sample:
    return Sample(
        time_matmul(lab, *size, seconds),
        fma_gflops(lab, seconds / 4),
        reference_gflops(lab, seconds / 2),
        reference_gbs(lab, seconds / 2) if kind == "skinny" else 0.0,
    )
