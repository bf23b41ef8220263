"""Weight tables for resampling an image axis, equal to Pillow's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.ops.vision.resize_image import WEIGHT_BITS
from clrt.util.fast_dataclass import dataclass


def _box(x: Array) -> Array:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _bilinear(x: Array) -> Array:
    return np.maximum(1.0 - np.abs(x), 0.0)


# Coefficients of the Hamming window, in float32 as in Pillow.
_HAMMING = float(np.float32(0.54)), float(np.float32(0.46))


def _hamming(x: Array) -> Array:
    x = np.abs(x)
    turn = np.where(x == 0, 1.0, x) * math.pi
    bell = np.sin(turn) / turn * (_HAMMING[0] + _HAMMING[1] * np.cos(turn))
    return np.where(x == 0, 1.0, np.where(x >= 1, 0.0, bell))


def _bicubic(x: Array) -> Array:
    x, a = np.abs(x), -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _sinc(x: Array) -> Array:
    turn = np.where(x == 0, 1.0, x) * math.pi
    return np.where(x == 0, 1.0, np.sin(turn) / turn)


def _lanczos(x: Array) -> Array:
    return np.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)


# Filter functions and their supports in pixels. "nearest" reads one pixel and has none.
_FILTERS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "box": (_box, 0.5),
    "bilinear": (_bilinear, 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_bicubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
# Filter names in the order of Pillow's numbers.
NAMES = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


@dataclass(frozen=True, eq=False)
class AxisTable:
    """Filter weights of a range of output pixels along an image axis.

    Attributes:
        begin: First input pixel that the output pixels read.
        end: Input pixel after the last one that the output pixels read.
        firsts: First input pixel that each output pixel reads, relative to `begin`, int32
            `[outputs]`.
        weights: Weights of each output pixel, int32 `[outputs, taps]` in units of 2^-22.
    """

    begin: int
    end: int
    firsts: Array
    weights: Array


def downwards_first(size: tuple[int, int], outputs: tuple[int, int], name: str) -> bool:
    """Returns whether Pillow 13 and later resamples the columns of an image before its rows.

    Args:
        size: Height and width of the image.
        outputs: Height and width of the resampled image.
        name: Name of the filter.
    """
    fewer_rows, fewer_columns = (s - o for s, o in zip(size, outputs, strict=True))
    return name != "nearest" and fewer_rows > max(0, 2 * fewer_columns)


def filter_name(given: str | int) -> str:
    """Returns the name of a resampling filter.

    Args:
        given: Name of the filter, or Pillow's number of it.

    Raises:
        InputError: There is no such filter.
    """
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(NAMES):
        return NAMES[given]
    if given in NAMES:
        return str(given)
    raise InputError(f"The filter is {given!r}; expected one of: {', '.join(NAMES)}.")


@lru_cache(maxsize=256)
def axis_table(size: int, outputs: int, name: str, start: int, stop: int) -> AxisTable:
    """Returns the filter weights of some output pixels along an image axis.

    Args:
        size: Input pixels along the axis.
        outputs: Output pixels along the axis.
        name: Name of the filter.
        start: First output pixel to compute.
        stop: Output pixel after the last one to compute.

    Numerics: float64, and rounded as in Pillow. Source: Pillow's Resample.c and Geometry.c.
    """
    if name == "nearest" or size == outputs:
        firsts, weights = _nearest(size, outputs)[start:stop], np.ones((stop - start, 1))
    else:
        firsts, weights = _filtered(size, outputs, name, np.arange(start, stop))
    taps = weights.shape[1]
    begin = int(firsts.min()) if len(firsts) else 0
    end = int(firsts.max()) + taps if len(firsts) else 1
    scaled = weights * (1 << WEIGHT_BITS)
    whole = np.trunc(np.where(scaled < 0, scaled - 0.5, scaled + 0.5)).astype(np.int32)
    return AxisTable(begin, end, (firsts - begin).astype(np.int32), np.ascontiguousarray(whole))


def _nearest(size: int, outputs: int) -> Array:
    if size == outputs:
        return np.arange(size)
    step = size / outputs
    # Adds up steps as Pillow does, so that rounding errors are the same.
    places = np.add.accumulate(np.concatenate([[step * 0.5], np.full(outputs - 1, step)]))
    return np.minimum(places.astype(np.int64), size - 1)


def _filtered(size: int, outputs: int, name: str, k: Array) -> tuple[Array, Array]:
    """Returns which input pixels some output pixels read along an axis, and with which weights.

    Args:
        size: Input pixels along the axis.
        outputs: Output pixels along the axis.
        name: Name of the filter.
        k: Indices of the output pixels, 1-D.

    Returns:
        First input pixel of each of these output pixels, `[pixels]`; and weights of the input
        pixels from there on, `[pixels, taps]`.
    """
    function, reach = _FILTERS[name]
    scale = size / outputs
    stretch = max(scale, 1.0)
    support = reach * stretch
    centre = (k + 0.5) * scale
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + support + 0.5).astype(np.int64), size)
    taps = int((high - low).max(initial=1))
    firsts = np.minimum(low, size - taps)
    pixels = firsts[:, None] + np.arange(taps)
    weights = function((pixels - centre[:, None] + 0.5) * (1.0 / stretch))
    weights = np.where((pixels >= low[:, None]) & (pixels < high[:, None]), weights, 0.0)
    total = np.add.accumulate(weights, axis=1)[:, -1:]
    return firsts, weights / np.where(total == 0, 1.0, total)
