"""Samples of the ops of `clrt/ops/signal/dft.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.signal.dft import DFT, STFT
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(DFT)
def dft_samples(cls: type[DFT]) -> Iterator[Sample]:
    rng = np.random.default_rng(91)
    for shape, axis, points in [
        ((2, 8, 1), None, None), ((2, 7, 3, 2), 1, None), ((2, 6, 2), 1, 9), ((9, 2, 1), 0, 4),
    ]:  # fmt: skip
        x = rng.standard_normal(shape).astype(np.float32)
        extra = [None if v is None else np.array(v) for v in (points, axis)]
        for op in (cls(), cls(inverse=True), cls(onesided=True)):
            yield Sample(op, (x, *extra))
    half = np.fft.rfft(rng.standard_normal((3, 8)), axis=1)
    parts = np.stack([half.real, half.imag], -1).astype(np.float32)
    yield Sample(cls(True, True), (parts,))
    yield Sample(cls(True, True), (parts, np.array(9)))
    yield Sample(cls(), (parts.astype(np.float16),))


@error_samples_of(DFT)
def dft_errors(cls: type[DFT]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 8, 3), np.float32)
    yield Sample(cls(), (x,)), ShapeError
    yield Sample(cls(), (x[..., :1], None, np.array(2))), ShapeError


@samples_of(STFT)
def stft_samples(cls: type[STFT]) -> Iterator[Sample]:
    rng = np.random.default_rng(92)
    x = rng.standard_normal((2, 33, 1)).astype(np.float32)
    window = np.hanning(8).astype(np.float32)
    yield Sample(cls(), (x, np.array(4), window))
    yield Sample(cls(False), (x[..., 0], np.array(5), None, np.array(7)))
    complex_x = rng.standard_normal((1, 20, 2)).astype(np.float32)
    yield Sample(cls(False), (complex_x, np.array(3), window, np.array(8)))


@error_samples_of(STFT)
def stft_errors(cls: type[STFT]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((2, 8, 1), np.float32)
    yield Sample(cls(), (x, np.array(2))), ShapeError
    yield Sample(cls(), (x, np.array(0), None, np.array(4))), ShapeError
    yield Sample(cls(), (x, np.array(2), None, np.array(11))), ShapeError
    yield Sample(cls(), (x, np.array(2), x[0, :3, 0], np.array(4))), ShapeError
    yield Sample(cls(), (x, np.array(2), np.zeros(4, np.float64))), ShapeError
    yield Sample(cls(), (np.zeros((2, 8, 3), "f4"), np.array(2), x[0, :4, 0])), ShapeError
