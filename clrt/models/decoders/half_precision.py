"""Floats in 16 bits."""

from __future__ import annotations

import numpy as np

from clrt.ir.op import Array

_MOST = float(np.finfo(np.float16).max)


def in_half(array: Array) -> Array:
    """Floats as float16; as float32 where one is beyond its range.

    Numerics: bfloat16 loses nothing but what lies below 2 ** -14, whose steps are 2 ** -24.
    """
    if array.dtype == np.float16:
        return array
    with np.errstate(over="ignore"):
        made = array.astype(np.float16)
    if np.isfinite(made).all():
        return made
    return array.astype(np.float32, copy=False)


def in_one_dtype(arrays: list[Array]) -> list[Array]:
    """Arrays of several dtypes of floats: float16 if all have 16 bits and fit, else float32."""
    if len({array.dtype for array in arrays}) == 1:
        return arrays
    if all(array.itemsize == 2 for array in arrays):
        arrays = [in_half(array) for array in arrays]
    if len({array.dtype for array in arrays}) == 1:
        return arrays
    return [array.astype(np.float32, copy=False) for array in arrays]
