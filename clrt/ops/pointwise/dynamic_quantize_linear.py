"""DynamicQuantizeLinear: floats as uint8, by their own range."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.spec import KernelSpec, Launch, launch, unused
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.util.math import ceil_div, round_up

TUNED = tuned("dynamic_quantize_linear", {"T_VW": (4, 8, 16)}, T_VW=8)
_LEVELS = np.float32(255)
# Elements of a work-item at least, and work-items at most (of a CPU for each core): each reads all
# parts of the range. Up to 8,192 elements a core takes less time than a second launch.
_CPU, _GPU = (8192, 8), (1024, 256)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    # A file may leave out outputs that nothing reads.
    scale, zero = (
        node.outputs[i] if i < len(node.outputs) else ctx.scratch(1, dtype)
        for i, dtype in ((1, DType.FLOAT32), (2, DType.UINT8))
    )
    n = prod(x.dims)
    caps = ctx.caps
    lanes = ctx.tunables(TUNED)["T_VW"] if caps.is_cpu else 1
    least, most = _CPU if caps.is_cpu else _GPU
    items = clamp(ceil_div(n, least), 1, most * (caps.compute_units if caps.is_cpu else 1))
    chunk = max(round_up(ceil_div(n, items), 16), 16)
    count = max(ceil_div(n, chunk), 1)
    kernel = KernelSpec.of("pointwise/dynamic_quantize_linear.cl", TUNED.entry, T_VW=lanes)
    local = (1,) if caps.is_cpu else None
    sizes = {"n": n, "chunk": chunk}
    args = {"y": y, "scale": scale, "zero": zero, "x": x, **sizes}
    if count == 1:
        return [launch(kernel, (1,), local, n, parts=unused(x), count=0, **args)]
    parts = ctx.scratch(2 * count)
    ranges = KernelSpec.of("pointwise/dynamic_quantize_linear.cl", "range_parts", T_VW=lanes)
    return [
        launch(ranges, (count,), local, n, parts=parts, x=x, **sizes),
        launch(kernel, (count,), local, n, parts=parts, count=count, **args),
    ]


@register
class DynamicQuantizeLinear(Op):
    """x as levels 0 to 255, their scale and their zero point: those of the range of x and 0.

    Output: uint8 of the shape of x; float32 and uint8 scalars. The scale is 1 where all of x is 0,
    as ONNX Runtime's. Source: ONNX DynamicQuantizeLinear, opset 11.
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
        low, high = np.float32(min(x.min(initial=0), 0)), np.float32(max(x.max(initial=0), 0))
        scale = np.float32(1) if low == high else (high - low) / _LEVELS
        zero = np.rint(np.clip(np.float32(0) - low / scale, np.float32(0), _LEVELS))
        levels = np.clip(np.rint(x / scale) + zero, 0, _LEVELS)
        return levels.astype(np.uint8), np.asarray(scale), np.asarray(zero, np.uint8)
