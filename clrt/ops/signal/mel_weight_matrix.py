"""MelWeightMatrix: converts a spectrum to mel bands."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.ir.dim_operations import floordiv
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.movement.common import elements, fresh_dim
from clrt.ops.pointwise.cast import onnx_dtype
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class MelWeightMatrix(Op):
    """Returns a matrix with a triangular filter per mel band, `[dft_length / 2 + 1, num_mel_bins]`.

    Inputs: num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz. If they are
    constants, the matrix is computed at plan time; else on the host.

    Attributes:
        dtype: Dtype of the matrix.

    Source: ONNX MelWeightMatrix, opset 17.
    """

    dtype: DType = DType.FLOAT32

    input_traits = InputTraits(plan_time=(0, 1))
    accuracy = Accuracy.ELEMENTWISE

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        return cls(onnx_dtype(node.attrs.get("output_datatype", 1), cls.name))

    def to_onnx(self) -> dict[str, Any]:
        return {"output_datatype": self.dtype}

    def infer(self, inputs: Types) -> list[TensorType]:
        bands, points = elements(inputs, 0), elements(inputs, 1)
        rows = fresh_dim() if points is None else floordiv(points[0], 2) + 1
        return [TensorType(self.dtype, (rows, fresh_dim() if bands is None else bands[0]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        numbers = [a.reshape(-1)[0].item() for a in inputs if a is not None]
        bands, points, rate, lower, upper = numbers
        low, high = (2595 * np.log1p(f / 700) / np.log(10) for f in (lower, upper))
        mel = np.arange(bands + 2) * (high - low) / (bands + 2) + low
        hertz = 700 * np.expm1(mel / 2595 * np.log(10))
        edges = ((points + 1) * hertz // rate).astype(int)
        left, centre, right = edges[:-2], edges[1:-1], edges[2:]
        rows = np.arange(points // 2 + 1)[:, None]
        with np.errstate(all="ignore"):
            rising = np.where(left == centre, rows == centre, (rows - left) / (centre - left))
            falling = (right - rows) / (right - centre)
        inside = (rows >= left) & (rows <= centre)
        weights = np.where(inside, rising, 0.0)
        after = (rows >= centre) & (rows < right) & (right > centre)
        return (np.where(after, falling, weights).astype(self.dtype.numpy),)
