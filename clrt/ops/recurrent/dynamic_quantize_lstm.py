"""DynamicQuantizeLSTM: an LSTM with 8-bit weights, and inputs and states rounded to 8 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Types
from clrt.ops.checks import agree, need
from clrt.ops.pointwise.dynamic_quantize_linear import dynamic_levels
from clrt.ops.recurrent.lstm import LSTM
from clrt.ops.recurrent.recurrent import Cell
from clrt.ops.recurrent.recurrent_launches import variants
from clrt.ops.recurrent.rounded_launches import (
    STEPS_BYTES,
    RoundedLaunches,
    dequantized,
    rows_together,
)
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

_BYTES = (DType.INT8, DType.UINT8)


def _rounded(x: Array, of: Array) -> Array:
    """Quantizes x to 8 bits and dequantizes it, both in NumPy; returns float64.

    Args:
        x: Numbers to round.
        of: Numbers whose range, widened to include 0, gives scale and zero point.
    """
    levels, scale, zero = dynamic_levels(x.astype(np.float32), of.astype(np.float32))
    return (levels.astype(np.float64) - float(zero)) * float(scale)


@register
@dataclass(frozen=True)
class DynamicQuantizeLSTM(LSTM):
    """LSTM with 8-bit weights W `[D, I, 4 H]` and R `[D, H, 4 H]`.

    D is the number of directions, I the input size, and H the hidden size. Inputs: the inputs of
    LSTM, then scale and zero point of W, scale and zero point of R, each `[D]` or `[D, 4 H]`.
    Weights, scales and zero points are constants.

    X is rounded to 8 bits by its range over the steps of the longest sequence, as by
    DynamicQuantizeLinear. The states before each step are rounded by the range of each sequence; 2
    to 4 sequences with more than 256 states share one range.

    Numerics: products of 8-bit integers are summed exactly, then scaled in float32.

    Source: com.microsoft DynamicQuantizeLSTM 1, as ONNX Runtime computes it on CPUs with as many
    threads as sequences.
    """

    domain = "com.microsoft"
    hidden_axis = 1
    input_traits = replace(
        LSTM.input_traits,
        plan_time=(1, 2, 8, 9, 10, 11),
        same_dtype=((0, 3, 5, 6, 7, 8, 10), (1, 9), (2, 11)),
    )
    variants = (
        STEPS_BYTES,
        *variants(RoundedLaunches, typed=False),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w, r = (need(inputs, i, self) for i in range(3))
        if x.dtype is not DType.FLOAT32 or w.dtype not in _BYTES or r.dtype not in _BYTES:
            raise ShapeError(
                f"{self.name}: X, W and R are {x}, {w}, {r}; expected float32 and 8-bit integers."
            )
        for index, weights in ((8, w), (10, r)):
            shapes: list[tuple[Dim, ...]] = [(self.directions,)]
            if weights.shape is not None and len(weights.shape) == 3:
                shapes.append((self.directions, weights.shape[2]))
            for i in (index, index + 1):
                parameter = need(inputs, i, self)
                if not any(agree(parameter, shape) for shape in shapes):
                    wanted = " or ".join(f"[{','.join(map(str, s))}]" for s in shapes)
                    raise ShapeError(f"{self.name}: input {i} is {parameter}; expected {wanted}.")
        return super().infer(inputs)

    def to_onnx(self) -> dict[str, Any]:
        attributes = super().to_onnx()
        if not self.clip:
            del attributes["clip"]  # ONNX Runtime refuses 0
        return attributes

    def weight_shapes(self, depth: Dim, hidden: Dim) -> list[tuple[Dim, ...]]:
        wide = self.gates * hidden
        return [(self.directions, depth, wide), (self.directions, hidden, wide)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w, r, *optional, w_scale, w_zero, r_scale, r_zero = inputs
        assert x is not None and w is not None and r is not None
        assert w_scale is not None and w_zero is not None
        assert r_scale is not None and r_zero is not None
        lens = optional[1]
        longest = len(x) if lens is None else int(np.clip(lens, 0, len(x)).max(initial=0))
        weights = (dequantized(w, w_scale, w_zero), dequantized(r, r_scale, r_zero))
        transposed = [np.ascontiguousarray(a.swapaxes(1, 2)) for a in weights]
        outputs = super().reference(_rounded(x, x[:longest]), *transposed, *optional)
        return tuple(a.astype(x.dtype) for a in outputs)

    def step(self, x: Array, states: list[Array], cell: Cell) -> list[Array]:
        h, c = states
        together = rows_together(*h.shape)
        parts = [h[k : k + together] for k in range(0, len(h), together)]
        rounded = np.concatenate([_rounded(part, part) for part in parts]) if parts else h
        return super().step(x, [rounded, c], cell)
