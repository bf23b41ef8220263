"""Weights as small integers with a scale and a zero point per block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Shares of a block's range that the levels span; the pair with the least error wins.
_REACHES = (1.0, 0.95, 0.9, 0.85, 0.8)
# Columns whose corrections reach the others at once.
_STRIPE = 128
_DAMPING = 0.01


@dataclass(frozen=True)
class Rounded:
    """Weights `[N, K]` as (level - zero) * scale.

    Attributes:
        levels: uint8 `[N, K]`.
        scales: float32 `[N, blocks]`.
        zeros: uint8 `[N, blocks]`.
        block: Places to a block.
    """

    levels: NDArray[np.uint8]
    scales: Floats
    zeros: NDArray[np.uint8]
    block: int

    def restored(self) -> Floats:
        """The weights that the levels stand for."""
        at = np.arange(self.levels.shape[1]) // self.block
        levels = self.levels.astype(np.float32)
        return np.asarray((levels - self.zeros[:, at]) * self.scales[:, at], np.float32)


def round_blocks(
    weights: Floats, block: int, bits: int, moments: Floats | None = None, *, search: bool = True
) -> Rounded:
    """Rounds each row in blocks of `block` places.

    Args:
        weights: float32 `[N, K]`.
        moments: `[K, K]`, the sum of x xT over inputs x of the product. Rounding errors are then
            passed on to the places not rounded yet, such that the product changes least.
        search: Whether levels that span less than a block's range are tried, too; they err less.

    Source: the second form is GPTQ (Frantar et al. 2022, arXiv 2210.17323).
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
            part = slice(b * block, (b + 1) * block)
            scales[:, b], zeros[:, b] = _grid(work[:, part], bits, reaches)
            levels[:, part] = _levels(work[:, part], scales[:, [b]], zeros[:, [b]], bits)
        return Rounded(levels[:, :k], scales, zeros, block)
    inverse = _inverse_root(moments)
    for first in range(0, k, _STRIPE):
        last = min(first + _STRIPE, k)
        errors = np.zeros((n, last - first))
        for j in range(first, last):
            b = j // block
            if j % block == 0:
                scales[:, b], zeros[:, b] = _grid(work[:, j : j + block], bits, reaches)
            place = slice(j, j + 1)
            levels[:, place] = _levels(work[:, place], scales[:, [b]], zeros[:, [b]], bits)
            rounded = (levels[:, place] - zeros[:, [b]].astype(np.float64)) * scales[:, [b]]
            error = (work[:, place] - rounded) / inverse[j, j]
            work[:, j:last] -= error * inverse[j, j:last]
            errors[:, j - first] = error[:, 0]
        work[:, last:k] -= errors @ inverse[first:last, last:]
    return Rounded(levels[:, :k], scales, zeros, block)


def _grid(
    block: NDArray[np.float64], bits: int, reaches: tuple[float, ...]
) -> tuple[Floats, NDArray[np.uint8]]:
    """The scale and zero point of each row that round it with the least error."""
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
    steps = np.rint(weights / scales) + zeros
    return np.asarray(np.clip(steps, 0, (1 << bits) - 1), np.uint8)


def _inverse_root(moments: Floats) -> NDArray[np.float64]:
    """U, upper triangular, with UT U the inverse of the damped moments."""
    damped = moments.astype(np.float64)
    mean = float(np.mean(np.diag(damped))) or 1.0
    damped[np.diag_indices(len(damped))] += _DAMPING * mean
    return np.asarray(np.linalg.cholesky(np.linalg.inv(damped)).T)
