"""Samples of the ops of `clrt/ops/conv/conv.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.conv.conv import Conv, FusedConv
from clrt.ops.pointwise.fused import Literal
from clrt.ops.pointwise.table import Add, HardSwish, Mul, Relu, Where
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(Conv)
def conv_samples(cls: type[Conv]) -> Iterator[Sample]:
    rng = np.random.default_rng(13)

    def make(op: Conv, x: tuple[int, ...], w: tuple[int, ...], bias: bool = True) -> Sample:
        shapes = (x, w, (w[0],)) if bias else (x, w)
        arrays = (rng.standard_normal(s).astype(np.float32) for s in shapes)
        return Sample(op, tuple(arrays))

    for op, x, w in [
        (cls(), (2, 3, 9), (4, 3, 3)),
        (cls((1,)), (2, 3, 9), (5, 3, 1)),
        (cls((1, 1), group=2), (2, 6, 3, 5), (4, 3, 1, 1)),
        (cls((1, 1), (2, 2)), (2, 3, 5, 4), (4, 3, 1, 1)),
        (cls((3, 2), (2, 1), (1, 2), (1, 0, 2, 1)), (2, 3, 8, 9), (5, 3, 3, 2)),
        (cls((3, 3), pads=(1, 1, 1, 1), group=2), (3, 4, 5, 6), (6, 2, 3, 3)),
        (cls((3, 3), pads=(1, 1, 1, 1), group=4), (2, 4, 5, 5), (4, 1, 3, 3)),
        (cls((3,), (2,), (2,), (3, 1), group=3), (2, 3, 70), (6, 1, 3)),
        (cls((2, 3, 3), pads=(1, 1, 2, 0, 1, 2), group=2), (1, 2, 3, 20, 4), (2, 1, 2, 3, 3)),
        (cls((3, 3), (2, 2), auto_pad="SAME_UPPER"), (1, 2, 6, 7), (3, 2, 3, 3)),
        (cls((3, 4), (2, 2), auto_pad="SAME_LOWER"), (1, 2, 6, 7), (3, 2, 3, 4)),
        (cls((3, 3), auto_pad="VALID"), (1, 2, 6, 7), (3, 2, 3, 3)),
        (cls((4, 4), (4, 4)), (2, 3, 8, 12), (24, 3, 4, 4)),
        (cls((2, 2, 2), pads=(0, 1, 0, 1, 0, 1)), (1, 2, 3, 4, 5), (3, 2, 2, 2, 2)),
        (cls((3, 3)), (0, 2, 5, 5), (3, 2, 3, 3)),
    ]:
        yield make(op, x, w)
        yield make(op, x, w, bias=False)
    half = make(cls((3, 3), pads=(1, 1, 1, 1)), (1, 2, 5, 5), (3, 2, 3, 3))
    for dtype in (np.float16, np.float64):
        yield Sample(half.op, tuple(a.astype(dtype) for a in half.inputs if a is not None))


@error_samples_of(Conv)
def conv_errors(cls: type[Conv]) -> Iterator[tuple[Sample, type[Exception]]]:
    x = np.zeros((1, 4, 5, 5), np.float32)
    for op, shape in [
        (cls(), (2, 3, 3, 3)),
        (cls(group=2), (3, 2, 3, 3)),
        (cls((2, 2)), (2, 4, 3, 3)),
        (cls(), (2, 4, 3)),
        (cls(), (2, 4, 9, 9)),
        (cls(strides=(1,)), (2, 4, 3, 3)),
        (cls(strides=(0, 1)), (2, 4, 3, 3)),
        (cls(strides=(1, 1 << 31)), (2, 4, 3, 3)),
        (cls(dilations=(1, -1)), (2, 4, 3, 3)),
        (cls(pads=(0, 1 << 30, 0, 0)), (2, 4, 3, 3)),
        (cls(group=0), (2, 4, 3, 3)),
    ]:
        yield Sample(op, (x, np.zeros(shape, np.float32))), ShapeError
    yield Sample(cls(), (x, np.zeros((2, 4, 3, 3), np.float32), x[0, 0, 0])), ShapeError


@samples_of(FusedConv)
def fused_conv_samples(cls: type[FusedConv]) -> Iterator[Sample]:
    rng = np.random.default_rng(17)

    def make(op: FusedConv, *shapes: tuple[int, ...] | None) -> Sample:
        arrays = [None if s is None else rng.standard_normal(s) for s in shapes]
        return Sample(op, tuple(None if a is None else a.astype(np.float32) for a in arrays))

    add, relu = (ElementwiseInstruction(Add(), (0, 1)),), (ElementwiseInstruction(Relu(), (0,)),)
    residual = (
        ElementwiseInstruction(Mul(), (0, 1)),
        ElementwiseInstruction(Add(), (3, 2)),
        ElementwiseInstruction(HardSwish(), (4,)),
    )
    scaled = (ElementwiseInstruction(Literal(0.125), ()), ElementwiseInstruction(Mul(), (0, 1)))
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
            one = make(cls(**fields, steps=relu), x, w, bias)  # type: ignore[arg-type]
            yield one
            if not fields and bias:
                yield Sample(
                    one.op, tuple(a.astype(np.float64) for a in one.inputs if a is not None)
                )
            extras = (n, o, *ones), (n, *y)
            yield make(cls(**fields, steps=residual), x, w, bias, *extras)  # type: ignore[arg-type]
        for extra in [(), (1,), (o, *ones), (1, *y), (n, 1, *ones), (n, 1, *space), tuple(space)]:
            op = cls(**fields, steps=add)  # type: ignore[arg-type]
            yield make(op, x, w, (o,), extra)
    yield make(cls(steps=scaled), (1, 2, 6, 7), (3, 2, 3, 3), (3,))
    plain = make(cls(steps=add), (1, 2, 5, 5), (3, 2, 3, 3), (3,), (3, 1, 1))
    yield Sample(plain.op, tuple(a.astype(np.float16) for a in plain.inputs if a is not None))
    where = cls(group=2, steps=(ElementwiseInstruction(Where(), (1, 0, 2)),))
    for w in ((2, 1, 3), (4, 1, 1)):
        chosen = make(where, (1, 2, 9), w, None, (1, w[0], 10 - w[2]), ())
        mask = None if chosen.inputs[3] is None else chosen.inputs[3] > 0
        yield Sample(where, (*chosen.inputs[:3], mask, *chosen.inputs[4:]))
    yield make(cls(steps=add), (0, 2, 5, 5), (3, 2, 3, 3), None, (3, 1, 1))


@error_samples_of(FusedConv)
def fused_conv_errors(cls: type[FusedConv]) -> Iterator[tuple[Sample, type[Exception]]]:
    x, w = np.zeros((1, 4, 5, 5), np.float32), np.zeros((2, 4, 3, 3), np.float32)
    for shape in [(2, 2, 3, 3), (1, 1, 2, 3, 3), (4,)]:
        steps = (ElementwiseInstruction(Add(), (0, 1)),)
        yield Sample(cls(steps=steps), (x, w, None, np.zeros(shape, np.float32))), ShapeError
