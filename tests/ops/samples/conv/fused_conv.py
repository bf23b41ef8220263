"""Samples of FusedConv of `clrt/ops/conv/conv.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import Step
from clrt.ops.conv.conv import FusedConv
from clrt.ops.pointwise.fused import Literal
from clrt.ops.pointwise.pointwise import Add, HardSwish, Mul, Relu, Where
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(FusedConv)
def fused_conv_samples(cls: type[FusedConv]) -> Iterator[Sample]:
    rng = np.random.default_rng(17)

    def make(op: FusedConv, *shapes: tuple[int, ...] | None) -> Sample:
        arrays = [None if s is None else rng.standard_normal(s) for s in shapes]
        return Sample(op, tuple(None if a is None else a.astype(np.float32) for a in arrays))

    add, relu = (Step(Add(), (0, 1)),), (Step(Relu(), (0,)),)
    residual = (Step(Mul(), (0, 1)), Step(Add(), (3, 2)), Step(HardSwish(), (4,)))
    scaled = (Step(Literal(0.125), ()), Step(Mul(), (0, 1)))
    # x, w, y and the op but for its steps: a product in place, unfolded, grouped, and depthwise
    forms: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, object]]] = [
        ((2, 3, 9), (4, 3, 1), (4, 9), {}),
        ((2, 6, 3, 5), (4, 3, 1, 1), (4, 3, 5), {"group": 2}),
        ((3, 4, 5, 6), (6, 2, 3, 3), (6, 5, 6), {"group": 2, "pads": (1, 1, 1, 1)}),
        ((2, 4, 5, 5), (8, 1, 3, 3), (8, 5, 5), {"group": 4, "pads": (1, 1, 1, 1)}),
        ((1, 2, 3, 70), (2, 1, 1, 3), (2, 3, 34), {"group": 2, "strides": (1, 2)}),
        ((1, 2, 3, 4, 20), (2, 1, 2, 3, 3), (2, 2, 2, 18), {"group": 2}),
    ]
    for x, w, y, fields in forms:
        n, (o, *space) = x[0], y
        ones = (1,) * len(space)
        for bias in (None, (o,)):
            yield make(cls(**fields, steps=relu), x, w, bias)  # type: ignore[arg-type]
            extras = (n, o, *ones), (n, *y)
            yield make(cls(**fields, steps=residual), x, w, bias, *extras)  # type: ignore[arg-type]
        for extra in [(), (1,), (o, *ones), (1, *y), (n, 1, *ones), (n, 1, *space), tuple(space)]:
            op = cls(**fields, steps=add)  # type: ignore[arg-type]
            yield make(op, x, w, (o,), extra)
    yield make(cls(steps=scaled), (1, 2, 6, 7), (3, 2, 3, 3), (3,))
    plain = make(cls(steps=add), (1, 2, 5, 5), (3, 2, 3, 3), (3,), (3, 1, 1))
    yield Sample(plain.op, tuple(a.astype(np.float16) for a in plain.inputs if a is not None))
    where = cls(group=2, steps=(Step(Where(), (1, 0, 2)),))
    for w in ((2, 1, 3), (4, 1, 1)):
        chosen = make(where, (1, 2, 9), w, None, (1, w[0], 10 - w[2]), ())
        mask = None if chosen.inputs[3] is None else chosen.inputs[3] > 0
        yield Sample(where, (*chosen.inputs[:3], mask, *chosen.inputs[4:]))
    yield make(cls(steps=add), (0, 2, 5, 5), (3, 2, 3, 3), None, (3, 1, 1))


@error_samples_of(FusedConv)
def fused_conv_errors(cls: type[FusedConv]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, w = np.zeros((1, 4, 5, 5), np.float32), np.zeros((2, 4, 3, 3), np.float32)
    for shape in [(2, 2, 3, 3), (1, 1, 2, 3, 3), (4,)]:
        steps = (Step(Add(), (0, 1)),)
        yield Sample(cls(steps=steps), (x, w, None, np.zeros(shape, np.float32))), ShapeError
