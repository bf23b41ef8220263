"""Block quantization of weight matrices: integers with a scale and a zero point per block of K."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clrt.util.fast_dataclass import dataclass

Floats = NDArray[np.float32]

# Candidate fractions of a block's minimum and maximum that the quantized range spans; the pair of
# least error is used.
_REACHES = (1.0, 0.95, 0.9, 0.85, 0.8)
# Columns per GPTQ step: corrections to later columns are applied once per step.
_STRIPE = 128
# Added to the diagonal of the moments, relative to its mean, so that they can be inverted.
_DAMPING = 0.01


@dataclass(frozen=True)
class Rounded:
    """Block-quantized weights `[N, K]`: element = (level - zero) * scale.

    K is the summed axis of the matrix product, which is divided into blocks.

    Attributes:
        levels: Integer codes of the elements, uint8 `[N, K]`.
        scales: Scales, float32 `[N, blocks]`.
        zeros: Zero points, uint8 `[N, blocks]`.
        block: Number of elements of a row per block.
    """

    levels: NDArray[np.uint8]
    scales: Floats
    zeros: NDArray[np.uint8]
    block: int

    def restored(self) -> Floats:
        """Dequantizes the weights to float32 `[N, K]`."""
        block_of = np.arange(self.levels.shape[1]) // self.block
        levels = self.levels.astype(np.float32)
        return np.asarray((levels - self.zeros[:, block_of]) * self.scales[:, block_of], np.float32)


def round_blocks(
    weights: Floats, block: int, bits: int, moments: Floats | None = None, *, search: bool = True
) -> Rounded:
    """Quantizes each row of a weight matrix in blocks of `block` elements.

    Args:
        weights: float32 `[N, K]`, with K the summed axis of the matrix product.
        block: Number of elements per block; the last block of a row may be shorter.
        bits: Bits per element, at most 8.
        moments: `[K, K]`, the sum of outer products of the input rows of the matrix product. If
            given, the rounding error of a column is compensated in columns not quantized yet, so
            that the product changes least. None rounds each element to nearest.
        search: Whether to also try quantized ranges narrower than that of a block's elements, which
            reduces the error.

    Source: with moments, GPTQ (Frantar et al. 2022, arXiv 2210.17323).
    """
    n, k = weights.shape
    reaches = _REACHES if search else _REACHES[:1]
    blocks = -(-k // block)
    work = np.zeros((n, blocks * block), np.float64)
    work[:, :k] = weights
    levels = np.zeros(work.shape, np.uint8)
    scales, zeros = np.empty((n, blocks), np.float32), np.empty((n, blocks), np.uint8)
    if moments is None:
        for b in range(blocks):
            columns = slice(b * block, (b + 1) * block)
            scales[:, b], zeros[:, b] = _grid(work[:, columns], bits, reaches)
            levels[:, columns] = _levels(work[:, columns], scales[:, [b]], zeros[:, [b]], bits)
        return Rounded(levels[:, :k], scales, zeros, block)
    inverse = _inverse_root(moments)
    for first in range(0, k, _STRIPE):
        last = min(first + _STRIPE, k)
        errors = np.zeros((n, last - first))
        for j in range(first, last):
            b = j // block
            if j % block == 0:
                scales[:, b], zeros[:, b] = _grid(work[:, j : j + block], bits, reaches)
            column = slice(j, j + 1)
            levels[:, column] = _levels(work[:, column], scales[:, [b]], zeros[:, [b]], bits)
            rounded = (levels[:, column] - zeros[:, [b]].astype(np.float64)) * scales[:, [b]]
            error = (work[:, column] - rounded) / inverse[j, j]
            work[:, j:last] -= error * inverse[j, j:last]
            errors[:, j - first] = error[:, 0]
        work[:, last:k] -= errors @ inverse[first:last, last:]
    return Rounded(levels[:, :k], scales, zeros, block)


def _grid(
    block: NDArray[np.float64], bits: int, reaches: tuple[float, ...]
) -> tuple[Floats, NDArray[np.uint8]]:
    """Chooses the scale and zero point of least squared error for one block of each row.

    Args:
        block: Elements of the block in each row, `[rows, block size]`.
        bits: Bits per element.
        reaches: Candidate fractions of minimum and maximum that the quantized range spans.

    Returns:
        Scales `[rows]` and zero points `[rows]`.
    """
    top = (1 << bits) - 1
    low = np.minimum(block.min(axis=1, keepdims=True), 0)
    high = np.maximum(block.max(axis=1, keepdims=True), 0)
    best = np.full(low.shape, np.inf)
    scales, zeros = np.ones(low.shape, np.float32), np.zeros(low.shape, np.uint8)
    for below in reaches:
        for above in reaches:
            span = high * above - low * below
            scale = np.where(span == 0, 1, span / top).astype(np.float32)
            zero = np.clip(np.rint(-low * below / scale), 0, top).astype(np.uint8)
            level = _levels(block, scale, zero, bits)
            error = np.square((level - zero.astype(np.float64)) * scale - block)
            total = error.sum(axis=1, keepdims=True)
            better = total < best
            best = np.where(better, total, best)
            scales, zeros = np.where(better, scale, scales), np.where(better, zero, zeros)
    return scales[:, 0], zeros[:, 0]


def _levels(
    weights: NDArray[np.float64], scales: Floats, zeros: NDArray[np.uint8], bits: int
) -> NDArray[np.uint8]:
    """Returns the integer codes of weights: w / scale + zero point, clipped to 0 … 2**bits - 1."""
    steps = np.rint(weights / scales) + zeros
    return np.asarray(np.clip(steps, 0, (1 << bits) - 1), np.uint8)


def _inverse_root(moments: Floats) -> NDArray[np.float64]:
    """Returns the upper triangular U for which U.T @ U is the inverse of the damped moments.

    Damping adds a small number to the diagonal, so that the matrix is invertible.

    Args:
        moments: `[K, K]`, K being the summed axis: sum of outer products of the input rows.
    """
    damped = moments.astype(np.float64)
    mean = float(np.mean(np.diag(damped))) or 1.0
    damped[np.diag_indices(len(damped))] += _DAMPING * mean
    return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).T)
