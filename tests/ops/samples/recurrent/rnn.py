"""Samples of the ops of `clrt/ops/recurrent/rnn.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ops.recurrent.recurrent import ALPHA
from clrt.ops.recurrent.rnn import RNN
from tests.ops.samples.recurrent.recurrent import sample_inputs
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(RNN)
def rnn_samples(cls: type[RNN]) -> Iterator[Sample]:
    for op, optional in [
        (cls(), (False, False, False)),
        (cls(direction="reverse", layout=1, clip=0.5), (True, True, False)),
        (cls(direction="bidirectional", activations=("Softsign", "Affine"),
             activation_alpha=(0.5,), activation_beta=(0.1,)), (True, True, True)),
    ]:  # fmt: skip
        yield Sample(op, sample_inputs(cls, (4, 3, 5, 7), op, optional))
    # One activation of each, through two steps.
    for name in (*ALPHA, "Relu", "Softplus", "Sigmoid"):
        op = cls(activations=(name,))
        yield Sample(op, sample_inputs(cls, (2, 1, 2, 3), op, (True, False, True)))
    # One sequence, whose last block of states overlaps the one before it.
    op = cls(direction="bidirectional")
    yield Sample(op, sample_inputs(cls, (5, 1, 3, 19), op, (True, False, True)))
    for dtype in (np.float16, np.float64):
        yield Sample(cls(), sample_inputs(cls, (3, 2, 4, 5), cls(), (True, True, True), dtype))
    for sizes in [(0, 2, 3, 4), (2, 0, 3, 4)]:
        yield Sample(cls(), sample_inputs(cls, sizes, cls(), (False, False, True)))


@error_samples_of(RNN)
def rnn_errors(cls: type[RNN]) -> Iterator[tuple[Sample, type[Exception]]]:
    good = sample_inputs(cls, (4, 3, 5, 7), cls(), (True, True, True))
    yield Sample(cls(activations=("Cos",)), good), ModelError
    yield Sample(cls(activations=("Tanh", "Tanh")), good), ModelError
    yield Sample(cls(direction="bidirectional"), good), ShapeError
    yield Sample(cls(), (good[0], good[2], good[1])), ShapeError
