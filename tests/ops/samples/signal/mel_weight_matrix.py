"""Samples of the ops of `clrt/ops/signal/mel_weight_matrix.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ops.signal.mel_weight_matrix import MelWeightMatrix
from tests.ops.samples.registry import Sample, samples_of


@samples_of(MelWeightMatrix)
def mel_weight_matrix_samples(cls: type[MelWeightMatrix]) -> Iterator[Sample]:
    yield Sample(cls(), tuple(np.array(v) for v in (8, 16, 8192, 0.0, 4096.0)))
