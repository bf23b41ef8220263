"""LpNormalization: an axis to a norm of 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import WIDENED_STORAGES
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.columns import launch_lines
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    Lowering,
    Variant,
    misfit_in_float32,
)
from clrt.ops.base import Accuracy, Op, Sample, Types, need, normalize_axis, register
from clrt.ops.softmax import around_axis


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, op = node.arg(0), node.op
    assert isinstance(op, LpNormalization)
    sizes = around_axis(x.dims, normalize_axis(op.axis, len(x.dims), op))
    kernel = KernelSpec.of(
        "lp_normalization.cl",
        "lp_normalization",
        P=op.p,
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
    )
    return launch_lines(kernel, (BufferArg(node.output), BufferArg(x)), sizes, 3)


@register
@dataclass(frozen=True)
class LpNormalization(Op):
    """x / ‖x‖ along an axis, with the 1- or 2-norm; 0 where the norm is 0.

    Source: ONNX LpNormalization, opset 1 to 22.
    """

    axis: int = -1
    p: Literal[1, 2] = 2

    storages = WIDENED_STORAGES
    in_place = (0,)
    accuracy = Accuracy.ACCUMULATED
    variants = (Variant("any", _emit, misfit_in_float32),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is not None:
            normalize_axis(self.axis, len(x.shape), self)
        return [TensorType(x.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        wide = x.astype(np.float64)
        norm = (np.abs(wide) ** self.p).sum(axis=self.axis, keepdims=True) ** (1 / self.p)
        with np.errstate(all="ignore"):
            return (np.where(norm == 0, 0, wide / norm).astype(x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(31)
        for shape, axis in [((1,), 0), ((3, 65), -1), ((2, 5, 4), 1), ((0, 3), -1)]:
            for p in (1, 2):
                for dtype in (np.float32, np.float16):
                    yield Sample(cls(axis, p), (np.asarray(rng.standard_normal(shape), dtype),))
        yield Sample(cls(), (np.zeros((2, 3), np.float32),))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        yield Sample(cls(2), (np.zeros((2, 3), np.float32),)), ShapeError
