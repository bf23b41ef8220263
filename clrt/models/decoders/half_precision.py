"""Converts float weights to 16 bits."""

from __future__ import annotations

import numpy as np

from clrt.ir.op import Array

_MAX_HALF = float(np.finfo(np.float16).max)


def in_half(array: Array) -> Array:
    """Converts floats to float16, or to float32 if an element exceeds float16's range.

    Numerics: bfloat16 numbers are exact in float16, except magnitudes below 2 ** -14, which are
    rounded to multiples of 2 ** -24.
    """
    if array.dtype == np.float16:
        return array
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    if np.isfinite(half).all():
        return half
    return array.astype(np.float32, copy=False)


def in_one_dtype(arrays: list[Array]) -> list[Array]:
    """Converts float arrays to a common dtype.

    Arrays that already have one dtype are returned unchanged. Otherwise all become float16 if all
    have 16 bits per element and no element exceeds float16's range, else float32.
    """
    if len({array.dtype for array in arrays}) == 1:
        return arrays
    if all(array.itemsize == 2 for array in arrays):
        arrays = [in_half(array) for array in arrays]
    if len({array.dtype for array in arrays}) == 1:
        return arrays
    return [array.astype(np.float32, copy=False) for array in arrays]
