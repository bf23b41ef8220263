"""Vectors in fewer bits, as sentence-transformers quantises them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.text.torch_interop import as_array, rows_of

Array = NDArray[Any]

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")

_LEVELS = 255
_FEW = 100
_log = logging.getLogger(__name__)


def check_precision(precision: object) -> str:
    """The name of a precision.

    Raises:
        InputError: There is no such precision.
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
    """Vectors in fewer bits.

    Args:
        embeddings: Floats [n, size], or one vector [size].
        precision: "float32"; "int8" or "uint8", where the range of each number is cut into 255
            steps; "binary" or "ubinary", the signs of eight numbers in a byte.
        ranges: Least and largest of each number, [2, size], for int8 and uint8.
        calibration_embeddings: Vectors that give the ranges instead; by default those quantised
            do, which needs at least two.

    Returns:
        float32, int8 or uint8 [n, size]; int8 or uint8 [n, ceil(size / 8)] for binary ones.

    Raises:
        InputError: There is no such precision, or nothing that gives ranges.

    Source: sentence-transformers, `quantize_embeddings`.
    """
    check_precision(precision)
    if np.asarray(embeddings).dtype in (np.int8, np.uint8):
        raise InputError("These vectors are quantised already; give the floats.")
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
    known = vectors if calibration is None else as_array(calibration)
    if calibration is None and len(rows_of(vectors)) == 1:
        raise InputError(
            f"One vector gives no ranges for {precision}; quantise several at once, or give "
            "quantize_embeddings ranges or calibration_embeddings."
        )
    if calibration is None and len(vectors) < _FEW:
        _log.warning(
            "The ranges for %s come from %d vectors; calibration_embeddings of more are better.",
            precision,
            len(vectors),
        )
    return np.stack((known.min(axis=0), known.max(axis=0)))
