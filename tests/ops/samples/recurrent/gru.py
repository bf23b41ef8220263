"""Samples of the ops of `clrt/ops/recurrent/gru.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ops.recurrent.gru import GRU
from tests.ops.samples.recurrent.recurrent import sample_inputs
from tests.ops.samples.registry import Sample, samples_of


@samples_of(GRU)
def gru_samples(cls: type[GRU]) -> Iterator[Sample]:
    for linear in (0, 1):
        for op, optional in [
            (cls(linear_before_reset=linear), (False,) * 3),
            (cls(direction="reverse", layout=1, clip=0.5, linear_before_reset=linear),
             (True, True, False)),
            (cls(direction="bidirectional", linear_before_reset=linear,
                 activations=("Sigmoid", "Tanh", "HardSigmoid", "Softsign")), (True,) * 3),
        ]:  # fmt: skip
            yield Sample(op, sample_inputs(cls, (4, 3, 5, 7), op, optional))
        op = cls(linear_before_reset=linear, layout=1)
        yield Sample(op, sample_inputs(cls, (2, 1, 3, 26), op, (True, False, True)))
        yield Sample(op, sample_inputs(cls, (3, 2, 4, 5), op, (True,) * 3, np.float16))
        op = cls(linear_before_reset=linear)
        yield Sample(op, sample_inputs(cls, (2, 11, 3, 5), op, (False,) * 3))
    # One sequence, whose last block of states overlaps the one before it.
    for direction, optional in (("reverse", (False,) * 3), ("bidirectional", (True, False, True))):
        op = cls(direction=direction, linear_before_reset=1)
        yield Sample(op, sample_inputs(cls, (5, 1, 3, 19), op, optional))
    yield Sample(cls(), sample_inputs(cls, (2, 1, 3, 4), cls(), (False,) * 3, np.float64))
