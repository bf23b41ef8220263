"""Samples of the ops of `clrt/ops/pointwise/fused.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.pointwise.fused import Fused, Literal
from tests.ops.samples.registry import Sample, samples_of


@samples_of(Fused)
def fused_samples(cls: type[Fused]) -> Iterator[Sample]:
    from clrt.ops.pointwise.table import Add, Gelu, Less, Mul, Where

    rng = np.random.default_rng(1)
    steps = (
        ElementwiseInstruction(Add(), (0, 1)),
        ElementwiseInstruction(Gelu(), (2,)),
        ElementwiseInstruction(Literal(0.5), ()),
        ElementwiseInstruction(Mul(), (3, 4)),
    )
    pick = (ElementwiseInstruction(Less(), (0, 1)), ElementwiseInstruction(Where(), (2, 0, 1)))
    for n in (1, 7, 8, 9, 65):
        for shapes in [
            ((n,), (n,)),
            ((3, n), (n,)),
            ((3, n), (3, 1)),
            ((2, 1, n), (4, 1)),
            ((n,), ()),
        ]:
            a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
            yield Sample(cls(steps), (a, b))
            yield Sample(cls(pick), (a, b))
    yield from _widened(cls)
    # More than a work-item's share: of one row, of rows, of rows along several axes.
    for shapes in [
        ((2500,), (2500,)),
        ((4, 701), (701,)),
        ((2, 3, 17, 33), (2, 1, 17, 1)),
        ((2, 1, 3, 1, 2, 19), (2, 1, 2, 1, 19)),
    ]:
        a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
        yield Sample(cls(pick), (a, b))


def _widened(cls: type[Fused]) -> Iterator[Sample]:
    """int32 as int64 beside constants, which rusticl 22.3 takes to be without a sign."""
    from clrt.ops.pointwise.cast import Cast
    from clrt.ops.pointwise.table import Abs, Less, Mul, Where
    from clrt.ops.pointwise.variadic import Max

    five = ElementwiseInstruction(Literal(5, DType.INT64), ())
    steps = (
        ElementwiseInstruction(Cast(DType.INT64), (0,)),
        five,
        ElementwiseInstruction(Less(), (1, 2)),
        ElementwiseInstruction(Abs(), (1,)),
    )
    steps += (ElementwiseInstruction(Max(), (1, 2)), ElementwiseInstruction(Mul(), (4, 1)))
    yield Sample(
        cls((*steps, ElementwiseInstruction(Where(), (3, 6, 5)))),
        (np.arange(-9, 12, dtype=np.int32),),
    )
