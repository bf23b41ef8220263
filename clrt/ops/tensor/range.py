"""Range: returns an arithmetic progression."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dim_operations import floordiv, maximum
from clrt.ir.dims import Dim, Expr
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, lacks_float64
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import data_of, fresh_dim, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits
from clrt.util.host_limits import check_host_bytes

# Maximum element count, which quotients of floats may exceed; larger than any tensor.
_MAX_COUNT = 2.0**62


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.output.dtype
    return f"no {dtype} arithmetic" if dtype is DType.FLOAT16 else lacks_float64((dtype,), caps)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    y = node.output
    elems = num_elements(y.dims)
    if not elems:
        return []
    kernel = KernelSpec.of("tensor/range.cl", "range", DATA_T=y.dtype.cl)
    return [launch(kernel, (elems,), start=node.arg(0), delta=node.arg(2), y=y, n=elems)]


@register
class Range(Op):
    """Returns start, start + delta, … as long as the numbers are below limit.

    If delta < 0, the numbers end before the first one that is not above limit. Inputs: start,
    limit, delta.

    Source: ONNX Range, opset 11.
    """

    input_traits = InputTraits(plan_time=(0, 1, 2), host_driven=(0, 1, 2))
    host_traits = HostTraits(evaluates_dims=True)
    accuracy = Accuracy.ELEMENTWISE
    variants = (Variant("flat", _emit, _reject),)

    def infer(self, inputs: Types) -> list[TensorType]:
        dtype = need(inputs, 0, self).dtype
        data = [data_of(inputs, i) for i in range(3)]
        if any(d is None for d in data):
            return [TensorType(dtype, (fresh_dim(),))]
        start, limit, delta = (d.reshape(-1)[0] for d in data if d is not None)
        return [TensorType(dtype, (_count(start, limit, delta),))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        start, limit, delta = (x.reshape(-1)[0] for x in inputs if x is not None)
        count = int(_count(start, limit, delta))
        check_host_bytes(16 * count, f"Range: {count} elements")
        steps = np.arange(count)
        if isinstance(start, Expr) or isinstance(delta, Expr):
            return (start + steps.astype(object) * delta,)
        dtype = np.asarray(start).dtype
        wide = np.float64 if dtype.kind == "f" else np.int64
        return ((wide(start) + steps * wide(delta)).astype(dtype),)


def _count(start: object, limit: object, delta: object) -> Dim:
    """Returns the number of elements of Range: max(ceil((limit - start) / delta), 0).

    The number is an unknown dim if delta is symbolic.

    Raises:
        ShapeError: delta is 0, or a number is not finite.
    """
    if isinstance(delta, Expr):
        return fresh_dim()
    if all(isinstance(n, (int, np.integer)) for n in (start, limit, delta)) and delta:
        whole = _integer(limit) - _integer(start)
        return max(-(-whole // _integer(delta)), 0)
    number = float(delta)  # type: ignore[arg-type]
    if number == 0:
        raise ShapeError("Range: delta is 0.")
    ends = [n for n in (start, limit) if not isinstance(n, Expr)]
    if not all(np.isfinite(n) for n in (*ends, number)):  # type: ignore[call-overload]
        raise ShapeError(f"Range: from {start} to {limit} in steps of {delta} never ends.")
    if len(ends) < 2:
        first = start if isinstance(start, Expr) else int(start)  # type: ignore[call-overload]
        last = limit if isinstance(limit, Expr) else int(limit)  # type: ignore[call-overload]
        step = int(number)
        span = last - first if step > 0 else first - last
        size = abs(step)
        return floordiv(maximum(span, 0) + (size - 1), size)
    quotient = (float(limit) - float(start)) / number  # type: ignore[arg-type]
    return math.ceil(max(min(quotient, _MAX_COUNT), 0))


def _integer(number: object) -> int:
    return number if isinstance(number, int) else int(cast(np.int64, number))
