"""Samples of the ops of `clrt/ops/conv/channels_last.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.conv.channels_last import MAX_DEPTHWISE_TAPS, ChannelsLastConv
from clrt.ops.pointwise.table import Add, HardSwish, Mul, Relu
from tests.ops.samples.registry import Sample, error_samples_of, samples_of


@samples_of(ChannelsLastConv)
def channels_last_conv_samples(cls: type[ChannelsLastConv]) -> Iterator[Sample]:
    rng = np.random.default_rng(19)

    def make(op: ChannelsLastConv, *shapes: tuple[int, ...] | None) -> Sample:
        arrays = [None if s is None else rng.standard_normal(s) for s in shapes]
        return Sample(op, tuple(None if a is None else a.astype(np.float32) for a in arrays))

    around = (1, 1, 1, 1)
    for op, x, w in [
        (cls(), (2, 9, 3), (4, 3, 1)),
        (cls(), (2, 5, 4, 24), (8, 24, 1, 1)),
        (cls(strides=(2, 2)), (2, 5, 4, 6), (10, 6, 1, 1)),
        (cls(pads=around), (2, 5, 6, 5), (9, 5, 3, 3)),
        (cls(pads=around, strides=(2, 1), dilations=(1, 2)), (1, 7, 8, 3), (24, 3, 3, 3)),
        (cls(pads=around, group=2), (2, 5, 6, 6), (8, 3, 3, 3)),
        (cls(pads=(2, 2)), (1, 11, 1), (30, 1, 5)),
        (cls(pads=(1, 0, 1, 1, 2, 0)), (1, 3, 4, 5, 2), (6, 2, 2, 3, 3)),
        (cls(auto_pad="SAME_UPPER", strides=(2, 2)), (1, 6, 7, 2), (3, 2, 3, 3)),
        (cls(pads=around, group=24), (2, 5, 7, 24), (24, 1, 3, 3)),
        (cls(pads=around, group=19, strides=(2, 2)), (1, 6, 9, 19), (19, 1, 3, 3)),
        (cls(pads=(2, 2), dilations=(2,), group=5), (2, 3, 5), (5, 1, 3)),
        (cls(group=8, pads=(1, 1, 0, 0, 1, 2)), (1, 3, 3, 9, 8), (8, 1, 2, 2, 3)),
        (cls(group=3), (0, 5, 5, 3), (3, 1, 3, 3)),
        (cls(group=1), (0, 5, 5, 3), (3, 3, 3, 3)),
        (cls(group=2), (1, 200, 2), (2, 1, MAX_DEPTHWISE_TAPS + 1)),
        (cls(), (1, 5, 0), (3, 0, 2)),
        (cls(strides=(3,)), (2, 17, 1), (30, 1, 7)),
        (cls(strides=(2,), auto_pad="VALID"), (3, 9, 4), (5, 4, 3)),
    ]:
        yield make(op, x, w, (w[0],))
    # Images of few channels, and lines, of which each element is read for several positions.
    for fields, x, w in [
        ({"strides": (1, 2, 2), "pads": (0, 1, 1, 0, 1, 1)}, (2, 3, 9, 11, 1), (40, 1, 3, 3, 3)),
        ({"strides": (1, 1, 3), "pads": (0, 3, 0, 0, 2, 4)}, (1, 4, 5, 30, 1), (9, 1, 4, 5, 7)),
        ({"pads": (4, 3), "strides": (4,)}, (2, 45, 1), (17, 1, 9)),
        ({"dilations": (2,)}, (1, 30, 1), (5, 1, 4)),
    ]:
        yield make(cls(**fields), x, w, (w[0],))  # type: ignore[arg-type]
    # Winograd: tiles and panels that are not whole, padding of different widths.
    for pads, x, w in [
        ((0, 0, 0, 0), (2, 14, 13, 17), (19, 17, 3, 3)),
        ((1, 2, 0, 1), (1, 13, 11, 16), (24, 16, 3, 3)),
    ]:
        yield make(cls(pads=pads), x, w, (w[0],))
    add, relu = (ElementwiseInstruction(Add(), (0, 1)),), (ElementwiseInstruction(Relu(), (0,)),)
    residual = (
        ElementwiseInstruction(Mul(), (0, 1)),
        ElementwiseInstruction(Add(), (3, 2)),
        ElementwiseInstruction(HardSwish(), (4,)),
    )
    for fields, x, w, y in [
        ({}, (2, 5, 6, 8), (16, 8, 1, 1), (5, 6)),
        ({"pads": around}, (2, 5, 6, 5), (9, 5, 3, 3), (5, 6)),
        ({"pads": around}, (1, 11, 12, 17), (18, 17, 3, 3), (11, 12)),
        ({"pads": around, "group": 2}, (2, 5, 6, 6), (8, 3, 3, 3), (5, 6)),
        ({"pads": around, "group": 9}, (2, 5, 6, 9), (9, 1, 3, 3), (5, 6)),
        ({"strides": (1,)}, (2, 9, 3), (7, 3, 2), (8,)),
        ({"pads": (1, 1), "group": 8}, (2, 9, 8), (8, 1, 3), (9,)),
        ({"group": 8}, (2, 2, 5, 8), (8, 1, 2, 3), (1, 3)),
    ]:
        n, o, ones = x[0], w[0], (1,) * len(y)
        yield make(cls(**fields, steps=relu), x, w)  # type: ignore[arg-type]
        for bias in (None, (o,)):
            extras = (n, *ones, o), (n, *y, o)
            yield make(cls(**fields, steps=residual), x, w, bias, *extras)  # type: ignore[arg-type]
        for extra in [(), (o,), (1, *y, o), (n, *ones, 1), (*y, 1)]:
            op = cls(**fields, steps=add)  # type: ignore[arg-type]
            yield make(op, x, w, (o,), extra)
    half = make(cls(pads=around), (1, 5, 5, 2), (3, 2, 3, 3))
    yield Sample(half.op, tuple(a.astype(np.float16) for a in half.inputs if a is not None))


@error_samples_of(ChannelsLastConv)
def channels_last_conv_errors(
    cls: type[ChannelsLastConv],
) -> Iterator[tuple[Sample, type[Exception]]]:
    x, w = np.zeros((1, 5, 5, 4), np.float32), np.zeros((2, 4, 3, 3), np.float32)
    yield Sample(cls(), (x, np.zeros((2, 5, 3, 3), np.float32))), ShapeError
    yield Sample(cls(), (x, np.zeros((2, 4, 3), np.float32))), ShapeError
    yield Sample(cls(), (x[0, 0], w[0, 0])), ShapeError
    wide = np.zeros((1, 3, 3, 3), np.float32)
    yield (
        Sample(cls(steps=(ElementwiseInstruction(Add(), (0, 1)),)), (x, w, None, wide)),
        ShapeError,
    )
