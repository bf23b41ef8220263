"""RoundToScale: QuantizeLinear followed by DequantizeLinear, in floating point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.base import Accuracy
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.registry import register


@register
class RoundToScale(Pointwise):
    """clamp(round(x / scale), low, high) * scale, rounded half to even.

    Operands: x, scale, low, high. `low` and `high` are integral with a magnitude below 2^21. The op
    is equal to QuantizeLinear and DequantizeLinear if `low` and `high` are the bounds of the
    quantized dtype minus the zero point.

    Numerics: identical to QuantizeLinear and DequantizeLinear; NaN gives `low * scale`.
    Source: clrt.
    """

    domain = "clrt"
    arity = 4
    only_floats = True
    accuracy = Accuracy.ELEMENTWISE

    def evaluate(self, *arrays: Array) -> Any:
        x, scale, low, high = arrays
        v = x / scale
        v = np.where(v > low, v, low)
        return np.rint(np.where(v < high, v, high)) * scale

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        if dtypes[0] is DType.FLOAT64:
            return None
        return Code("c_on_scale({}, {}, {}, {})").substitute(*args)
