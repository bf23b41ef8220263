"""Samples of the ops of `clrt/ops/recurrent/lstm.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ops.recurrent.lstm import LSTM
from tests.ops.samples.recurrent.recurrent import sample_inputs
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(LSTM)
def lstm_samples(cls: type[LSTM]) -> Iterator[Sample]:
    some = ("HardSigmoid", "Softsign", "Relu")
    for op, optional in [
        (cls(), (False,) * 5),
        (cls(direction="reverse", layout=1, clip=0.5), (True, True, True, False, True)),
        (cls(direction="bidirectional"), (True,) * 5),
        (cls(direction="bidirectional", layout=1, input_forget=1,
             activations=(*cls.defaults, *some)), (True, False, False, True, False)),
    ]:  # fmt: skip
        yield Sample(op, sample_inputs(cls, (4, 3, 5, 7), op, optional))
    op = cls(direction="bidirectional")
    yield Sample(op, sample_inputs(cls, (2, 1, 3, 26), op, (True, False, False, False, False)))
    # One sequence, whose last block of states overlaps the one before it.
    for op, optional in [
        (cls(), (False,) * 5),
        (cls(direction="bidirectional", layout=1, clip=0.5), (True, False, True, True, True)),
        (cls(direction="reverse", input_forget=1), (False, False, True, False, True)),
    ]:
        yield Sample(op, sample_inputs(cls, (5, 1, 3, 19), op, optional))
    # Rows that GPUs take tiles for.
    yield Sample(cls(), sample_inputs(cls, (2, 11, 3, 5), cls(), (False,) * 5))
    for dtype in (np.float16, np.float64):
        yield Sample(cls(), sample_inputs(cls, (3, 2, 4, 5), cls(), (True,) * 5, dtype))


@error_samples_of(LSTM)
def lstm_errors(cls: type[LSTM]) -> Iterator[tuple[Sample, type[Exception]]]:
    good = sample_inputs(cls, (4, 3, 5, 7), cls(), (True,) * 5)
    yield Sample(cls(layout=1), good), ShapeError
    yield Sample(cls(), (*good[:7], np.zeros((1, 7), np.float32))), ShapeError
