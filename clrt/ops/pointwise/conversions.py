"""Number conversions as the device does them, in NumPy and in OpenCL C."""

from __future__ import annotations

import math

import numpy as np

from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.op import Array


def widened(array: Array) -> Array:
    """Casts floats of 16 bits or less to float32, and integers of 4 bits or less to int32.

    Kernels compute in these dtypes. Other arrays are returned unchanged.
    """
    if array.dtype == object or DType.of(array.dtype).storage == "plain":
        return array
    return array.astype(np.float32 if DType.of(array.dtype).is_float else np.int32)


def literal(value: float, dtype: DType) -> Code:
    """Returns `value` as an OpenCL C literal.

    For float64 it is a double; for narrower floats it is a float, since kernels compute them in
    float32. For other dtypes it is an integer, cast to the C type of `dtype`.
    """
    if not dtype.is_float:
        return Code("({})({})").substitute(dtype.cl, int(value))
    with np.errstate(over="ignore"):
        number = float(value if dtype is DType.FLOAT64 else np.float32(value))
    if math.isnan(number):
        return Code("NAN")
    if math.isinf(number):
        return Code("INFINITY") if number > 0 else Code("(-INFINITY)")
    return (Code("({})") if dtype is DType.FLOAT64 else Code("({}f)")).substitute(number)


def truncated(array: Array, dtype: DType) -> Array:
    """Converts floats to an integer dtype, rounded towards 0, as `integer_cl` does on the device.

    Floats are converted to int32 (int64 for uint32, int64 and uint64), whose low bits are the
    result. Floats outside the range of that type, and NaN, become its smallest number. For uint64,
    floats from 2^63 to 2^64 are converted correctly, too.
    """
    wide = array.astype(np.float64)
    target, bound = (np.int32, 2.0**31) if dtype in _BY_INT32 else (np.int64, 2.0**63)
    fits = (wide >= -bound) & (wide < bound)
    whole = np.where(fits, wide, -bound).astype(target)
    if dtype is DType.UINT64:
        high = (wide >= bound) & (wide < 2 * bound)
        upper = np.where(high, wide - bound, 0).astype(np.uint64) + np.uint64(1 << 63)
        return np.where(high, upper, whole.astype(np.uint64))
    return whole.astype(dtype.numpy)


def integer_cl(text: Code, source: DType, dtype: DType) -> Code:
    """Returns the OpenCL C expression that converts a float to an integer, rounded towards 0.

    `truncated` describes the results for floats out of range.

    Args:
        text: Expression of the float.
        source: Dtype of the float.
        dtype: Integer dtype.
    """
    kind = Code("double") if source is DType.FLOAT64 else Code("float")
    wide = DType.INT32 if dtype in _BY_INT32 else DType.INT64
    wide = dtype if dtype is DType.UINT64 else wide
    return Code("({})({}_to_{}({}))").substitute(dtype.compute, kind, wide.cl, text)


# Integer dtypes to which floats are converted by way of int64; the others by way of int32.
_BY_INT64 = (DType.UINT32, DType.INT64, DType.UINT64)
_BY_INT32 = frozenset(d for d in DType if d.is_int and d not in _BY_INT64)
