"""Tables by which Resize samples an axis: source elements and weights of each output element."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ir.stored_functions import storable
from clrt.ir.symbolic_trace import pure
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import check_host_bytes

# Host memory in bytes while tables are computed, per output element and unit of `_reach`.
_TABLE_BYTES = 64
# Size in bytes of the tables of a copied axis, per element: an index and a weight.
_COPY_BYTES = 16


@dataclass(frozen=True)
class SamplingTables:
    """Source elements and weights of each output element along a resampled axis.

    Attributes:
        indices: `[outputs, taps]`, indices of source elements.
        weights: `[outputs, taps]`, weights of the source elements.
        values: `[outputs]`, numbers added to extrapolated outputs, which have zero weights; None if
            no output is outside the source.
    """

    indices: Array
    weights: Array
    values: Array | None


@dataclass(frozen=True)
class SamplingRule:
    """Resampling of one axis by Resize, independent of its size.

    Attributes:
        mode: "nearest", "linear" or "cubic"; "copy" for an axis that stays as it is.
        coordinates: coordinate_transformation_mode of Resize.
        nearest: nearest_mode of Resize, or "by_scale", that of opset 10.
        cubic: Coefficient of `cubic_weights`.
        antialias: Whether linear and cubic windows widen if the axis shrinks.
        exclude_outside: Whether elements outside the source have weight 0.
        extrapolation: Output for coordinates outside the source with "tf_crop_and_resize".
        scale: Scale of the axis; None to derive it from the sizes.
        start: Start of the roi, as a fraction of the axis.
        end: End of the roi, as a fraction of the axis.
        double: Whether coordinates are computed in float64; else in float32.
    """

    mode: str = "copy"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0
    scale: float | None = None
    start: float = 0.0
    end: float = 1.0
    double: bool = False

    @property
    def constants(self) -> dict[str, Any]:
        """Fields by name: keyword arguments of `sampling_table`, as stored plans hold them."""
        return dict(vars(self))

    def tables(self, size: int, outputs: int) -> SamplingTables:
        """Returns the tables that resample `size` elements to `outputs`.

        Raises:
            OutOfMemoryError: The tables would exceed CLRT_HOST_LIMIT.
        """
        if self.mode == "copy":
            check_host_bytes(size * _COPY_BYTES, "Tables of a Resize")
            return SamplingTables(np.arange(size)[:, None], np.ones((size, 1)), None)
        scale = outputs / size if self.scale is None else self.scale
        check_host_bytes(outputs * self._reach(scale) * _TABLE_BYTES, "Tables of a Resize")
        k = np.arange(outputs, dtype=np.float64 if self.double else np.float32)
        x = _COORDINATES[self.coordinates](k, size, scale, outputs, (self.start, self.end))
        values = None
        if self.mode == "nearest":
            indices = _nearest(x, self.nearest, scale)[:, None]
            weights = np.ones((outputs, 1))
        else:
            indices, weights = self._filter(x, size, scale)
        if self.coordinates == "tf_crop_and_resize":
            outside = (x < 0) | (x > size - 1)
            if outside.any():
                weights = np.where(outside[:, None], 0.0, weights)
                values = np.where(outside, self.extrapolation, 0.0)
        return SamplingTables(np.clip(indices, 0, size - 1), weights, values)

    def _shrink(self, scale: float) -> float:
        """Returns 1 over the factor by which antialiasing widens the filter; 1 without it."""
        return min(scale, 1.0) if self.antialias else 1.0

    def _reach(self, scale: float) -> int:
        """Returns the number of source elements on each side of a sample that the filter reads."""
        width = 2 if self.mode == "cubic" else 1
        return math.ceil(width / self._shrink(scale))

    def _filter(self, x: Array, size: int, scale: float) -> tuple[Array, Array]:
        """Returns the source elements and weights of linear or cubic sampling.

        Args:
            x: Source coordinates, `[outputs]`.
            size: Size of the source axis.
            scale: Scale of the axis.

        Returns:
            Indices, which may be outside the source, and weights: `[outputs, taps]` each.
        """
        shrink, reach = self._shrink(scale), self._reach(scale)
        indices = np.floor(x).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
        distance = np.abs(indices - x[:, None]) * shrink
        if self.mode == "linear":
            weights = np.maximum(1 - distance, 0)
        else:
            weights = cubic_weights(distance, self.cubic)
        if self.exclude_outside:
            weights = np.where((indices < 0) | (indices >= size), 0, weights)
        total = weights.sum(1, keepdims=True)
        return indices, weights / np.where(total == 0, 1, total)


@lru_cache(maxsize=4)
def _tables(rule: SamplingRule, size: int, outputs: int) -> SamplingTables:
    return rule.tables(size, outputs)


@storable
def sampling_table(size: int, outputs: int, *, kind: str, by_taps: bool, **constants: Any) -> Array:
    """Returns one field of an axis' `SamplingTables`; missing `values` are zeros.

    Args:
        size: Number of elements along the axis in the source.
        outputs: Number of elements along the axis in the output.
        kind: Name of the field: indices, weights or values.
        by_taps: Whether to transpose to `[taps, outputs]`.
        constants: Fields of the `SamplingRule`.
    """
    dtype = DType.INT32 if kind == "indices" else DType.FLOAT32
    table = getattr(_tables(SamplingRule(**constants), size, outputs), kind)
    array = np.zeros(outputs) if table is None else table
    return np.ascontiguousarray(array.T if by_taps else array, dtype.numpy)


@pure
def sampling_taps(size: int, outputs: int, **constants: Any) -> int:
    """Returns the number of source elements per output element; arguments as `sampling_table`."""
    return int(_tables(SamplingRule(**constants), size, outputs).indices.shape[1])


@pure
def extrapolates(size: int, outputs: int, **constants: Any) -> int:
    """Returns 1 if some outputs are outside the source, else 0; arguments as `sampling_table`."""
    return int(_tables(SamplingRule(**constants), size, outputs).values is not None)


@pure
def scaled_size(size: int, *, scale: float) -> int:
    """Returns a size times a scale, multiplied in float32 and rounded down."""
    return int(np.float32(size) * np.float32(scale))


def cubic_weights(distance: Array, a: float) -> Array:
    """Returns weights of elements by the cubic convolution kernel of Keys (1981).

    Args:
        distance: Distances from the sampled position, at least 0, in elements.
        a: Coefficient of the convolution kernel, such as -0.75.
    """
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.asarray(np.where(distance <= 1, near, np.where(distance < 2, far, 0.0)))


def _nearest(x: Array, mode: str, scale: float) -> Array:
    """Rounds source coordinates to indices.

    Args:
        x: Source coordinates.
        mode: nearest_mode of Resize, or "by_scale": ceil if `scale` is below 1, else floor.
        scale: Scale of the axis.
    """
    if mode == "by_scale":
        mode = "ceil" if scale < 1 else "floor"
    rounded = {
        "round_prefer_floor": lambda: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda: np.floor(x + 0.5),
        "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x),
    }
    return np.asarray(rounded[mode](), np.int64)


def _align_corners(k: Array, size: int, scale: float, outputs: int, window: Any) -> Array:
    length = scale * size
    return np.zeros_like(k) if length == 1 else k * (size - 1) / (length - 1)


def _half_pixel(k: Array, size: int, scale: float, outputs: int, window: Any) -> Array:
    return (k + 0.5) / scale - 0.5


def _tf_half_pixel(k: Array, size: int, scale: float, outputs: int, window: Any) -> Array:
    return (k + 0.5) / scale


def _pytorch_half_pixel(k: Array, size: int, scale: float, outputs: int, window: Any) -> Array:
    return np.zeros_like(k) if outputs == 1 else (k + 0.5) / scale - 0.5


def _half_pixel_symmetric(k: Array, size: int, scale: float, outputs: int, window: Any) -> Array:
    offset = size / 2 * (1 - outputs / (scale * size))
    return offset + (k + 0.5) / scale - 0.5


def _asymmetric(k: Array, size: int, scale: float, outputs: int, window: Any) -> Array:
    return k / scale


def _crop(k: Array, size: int, scale: float, outputs: int, window: tuple[float, float]) -> Array:
    """Returns the source coordinates of output indices `k` for the mode "tf_crop_and_resize".

    Args:
        k: Output indices along the axis.
        size: Size of the source axis.
        scale: Ignored.
        outputs: Size of the output axis.
        window: Start and end of the roi, as fractions of the axis.
    """
    # In float32 like the window, and in ONNX's order of operations: the exact coordinate decides
    # which element is nearest, and whether it is outside.
    start, end, last = (np.float32(v) for v in (*window, size - 1))
    if outputs == 1:
        return np.full_like(k, np.float32(0.5) * (start + end) * last)
    return k.astype(np.float32) * (end - start) * last / np.float32(outputs - 1) + start * last


# coordinate_transformation_mode -> function that returns the source coordinates of outputs k.
_COORDINATES = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_crop_and_resize": _crop,
    "tf_half_pixel_for_nn": _tf_half_pixel,  # opset 11 only
}
