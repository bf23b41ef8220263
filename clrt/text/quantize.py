"""Quantizes vectors to int8, uint8 or single bits, as sentence-transformers does."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.text.torch_interop import as_array, rows_of

Array = NDArray[Any]

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")

_LEVELS = 255  # Quantization steps between the minimum and maximum of an element.
_MIN_CALIBRATION_VECTORS = 100  # Ranges from fewer vectors are logged as a warning.
_log = logging.getLogger(__name__)


def check_precision(precision: object) -> str:
    """Returns `precision` as a string if it is one of `PRECISIONS`.

    Raises:
        InputError: `precision` is another value.
    """
    if precision not in PRECISIONS:
        raise InputError(f"precision={precision!r} is not one of {', '.join(PRECISIONS)}.")
    return str(precision)


def quantize_embeddings(
    embeddings: Any,
    precision: str,
    ranges: NDArray[Any] | None = None,
    calibration_embeddings: Any = None,
) -> Array:
    """Quantizes float vectors to int8, uint8, or one bit per element.

    Args:
        embeddings: Floats [n, size], or one vector [size].
        precision: "float32" converts only; "int8" and "uint8" divide the range of each element
            into 255 steps; "binary" and "ubinary" pack eight signs per byte.
        ranges: Minimum and maximum of each element, [2, size], for int8 and uint8. None computes
            them from `calibration_embeddings`.
        calibration_embeddings: Vectors [n, size] to compute ranges from. None uses `embeddings`,
            which then must have at least two vectors.

    Returns:
        float32, int8 or uint8 [n, size]. For "binary" int8 [n, ceil(size / 8)], for "ubinary" uint8
        of the same shape. Without the first axis for one vector.

    Raises:
        InputError: `precision` is unknown, `embeddings` is quantized already, or there are too few
            vectors to compute ranges from.

    Source: sentence-transformers, `quantize_embeddings`.
    """
    check_precision(precision)
    if np.asarray(embeddings).dtype in (np.int8, np.uint8):
        raise InputError("These vectors are already quantised; pass the floats.")
    vectors = as_array(embeddings)
    if precision == "float32":
        return vectors.astype(np.float32)
    if precision.endswith("binary"):
        bits: Array = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if ranges is None and not len(vectors):
        return np.zeros(vectors.shape, np.int8 if precision == "int8" else np.uint8)
    if ranges is None:
        ranges = _ranges(vectors, precision, calibration_embeddings)
    starts, ends = np.asarray(ranges, np.float32)
    steps = (ends - starts) / _LEVELS
    steps = np.where(steps == 0, 1, steps)
    levels = np.clip(np.floor((vectors - starts) / steps), 0, _LEVELS)
    if precision == "int8":
        return np.asarray(levels - 128, np.int8)
    return np.asarray(levels, np.uint8)


def _ranges(vectors: Array, precision: str, calibration: Any) -> Array:
    """Returns minima and maxima, [2, n], of the calibration vectors, else of `vectors`."""
    known = vectors if calibration is None else as_array(calibration)
    if calibration is None and len(rows_of(vectors)) == 1:
        raise InputError(
            f"One vector does not determine ranges for {precision}; quantise several at once, or "
            "pass ranges or calibration_embeddings to quantize_embeddings."
        )
    if calibration is None and len(vectors) < _MIN_CALIBRATION_VECTORS:
        _log.warning(
            "The ranges for %s come from only %d vectors; pass more calibration_embeddings.",
            precision,
            len(vectors),
        )
    return np.stack((known.min(axis=0), known.max(axis=0)))
