"""DynamicQuantizeLinear: quantizes floats to uint8 by their range."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.spec import Buffer, KernelSpec, Launch, launch, unread_arg
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.util.math import ceil_div, round_up

_SOURCE = "pointwise/dynamic_quantize_linear.cl"
TUNED = tuned("dynamic_quantize_linear", {"T_VW": (4, 8, 16)}, T_VW=8)
_LEVELS = np.float32(255)
# (minimum elements per work-item, maximum number of work-items), the latter per core on CPUs. It is
# limited because each work-item reads the partial ranges of all others. Below 8192 elements one
# core is faster than a second launch.
_CPU, _GPU = (8192, 8), (1024, 256)


def dynamic_levels(x: Array, of: Array) -> tuple[Array, np.float32, np.float32]:
    """Quantizes x to 8 bits by NumPy in float32.

    Args:
        x: Numbers to quantize.
        of: Numbers whose range, widened to include 0, gives scale and zero point.

    Returns:
        The quantized values, integral floats in 0..255; the scale; the zero point.
    """
    low, high = np.float32(min(of.min(initial=0), 0)), np.float32(max(of.max(initial=0), 0))
    scale = np.float32(1) if low == high else (high - low) / _LEVELS
    zero = np.rint(np.clip(np.float32(0) - low / scale, np.float32(0), _LEVELS))
    return np.clip(np.rint(x / scale) + zero, 0, _LEVELS), scale, zero


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    # Models may omit outputs that nothing reads.
    scale, zero = (
        node.outputs[i] if i < len(node.outputs) else ctx.scratch(1, dtype)
        for i, dtype in ((1, DType.FLOAT32), (2, DType.UINT8))
    )
    return quantize_launches(node.arg(0), node.output, scale, zero, ctx)


def quantize_launches(
    x: Value, y: Buffer, scale: Buffer, zero: Buffer, ctx: Lowering, lens: Value | None = None
) -> list[Launch]:
    """Emits the launches that quantize x to 8 bits by its range, widened to include 0.

    Args:
        x: float32 tensor.
        y: Output, uint8 with the elements of x.
        scale: Output, one float32.
        zero: Output, one uint8.
        lens: Length of each sequence, for an x `[time steps, sequences, …]`: time steps past the
            longest sequence do not count for the range. None to use all elements.
    """
    n = prod(x.dims)
    caps = ctx.caps
    lanes = ctx.tunables(TUNED)["T_VW"] if caps.is_cpu else 1
    min_elems, max_items = _CPU if caps.is_cpu else _GPU
    max_items *= caps.compute_units if caps.is_cpu else 1
    items = clamp(ceil_div(n, min_elems), 1, max_items)
    chunk = max(round_up(ceil_div(n, items), 16), 16)
    count = max(ceil_div(n, chunk), 1)
    macros: dict[str, Define] = {"T_VW": lanes}
    sizes: dict[str, Any] = {"n": n, "chunk": chunk}
    if lens is not None:
        macros |= {"F_LENS": 1, "LENS_T": lens.dtype.cl}
        sizes |= {"lens": lens, "B": lens.dims[0], "width": prod(x.dims[1:])}
    kernel = KernelSpec.of(_SOURCE, TUNED.entry, **macros)
    local = (1,) if caps.is_cpu else None
    args = {"y": y, "scale": scale, "zero": zero, "x": x, **sizes}
    if count == 1:
        return [launch(kernel, (1,), local, n, parts=unread_arg(x), count=0, **args)]
    parts = ctx.scratch(2 * count)
    ranges = KernelSpec.of(_SOURCE, "range_parts", **macros)
    return [
        launch(ranges, (count,), local, n, parts=parts, x=x, **sizes),
        launch(kernel, (count,), local, n, parts=parts, count=count, **args),
    ]


@register
class DynamicQuantizeLinear(Op):
    """Quantizes x to 0..255, with scale and zero point from the range of x, widened to include 0.

    Outputs: uint8 of the shape of x; the scale, a float32 scalar; the zero point, a uint8 scalar.
    The scale is 1 if all of x is 0, as in ONNX Runtime.

    Source: ONNX DynamicQuantizeLinear, opset 11.
    """

    accuracy = Accuracy.ELEMENTWISE
    variants = (Variant("dynamic_quantize", _emit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.dtype is not DType.FLOAT32:
            raise ShapeError(f"{self.name}: x is {x}; expected float32.")
        scalars = TensorType(DType.FLOAT32, ()), TensorType(DType.UINT8, ())
        return [TensorType(DType.UINT8, x.shape), *scalars]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        levels, scale, zero = dynamic_levels(x, x)
        return levels.astype(np.uint8), np.asarray(scale), np.asarray(zero, np.uint8)
