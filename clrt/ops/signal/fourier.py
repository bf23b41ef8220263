"""Matrices of discrete Fourier transforms, which are linear maps."""

from __future__ import annotations

import numpy as np

from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class Transform:
    """A discrete Fourier transform along one axis, as multiplication by a matrix.

    Attributes:
        points: Number of points of the transform.
        length: Number of input elements along the axis; if fewer than `points`, zeros follow them.
        parts: Numbers per input element: 1 (real) or 2 (complex).
        outputs: Number of output elements along the axis.
        inverse: Whether the transform is inverse.
        real: Whether the output is real; the input is then the first half of a Hermitian spectrum.
    """

    points: int
    length: int
    parts: int
    outputs: int
    inverse: bool = False
    real: bool = False

    @property
    def rows(self) -> int:
        """Number of rows of the matrix: one for each real or imaginary part of the input."""
        return self.length * self.parts

    @property
    def columns(self) -> int:
        """Number of columns of the matrix: numbers that one transform writes."""
        return self.outputs * (1 if self.real else 2)

    @property
    def nbytes(self) -> int:
        """Size of the matrix in bytes, as float32."""
        return self.rows * self.columns * 4

    def matrix(self) -> Array:
        """Returns the matrix of the transform, float64 `[length, parts, outputs, 1 or 2]`.

        The last axis is 1 if the output is real.
        """
        exponents = np.outer(np.arange(self.length), np.arange(self.outputs)) % self.points
        angles = np.arange(self.points) * (2 * np.pi / self.points)
        roots = np.exp(angles * (1j if self.inverse else -1j))
        if self.inverse:
            roots /= self.points
        factors = roots[exponents]
        if self.real:  # All points but the first and the middle represent a conjugate pair.
            factors[[j for j in range(1, self.length) if 2 * j != self.points]] *= 2
        both = np.stack([factors, 1j * factors], axis=1)[:, : self.parts]
        parts = (both.real,) if self.real else (both.real, both.imag)
        return np.stack(parts, axis=-1)
