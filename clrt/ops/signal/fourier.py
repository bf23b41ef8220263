"""The matrices of discrete Fourier transforms, which are linear."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.ir.op import Array


@dataclass(frozen=True)
class Transform:
    """A discrete Fourier transform of a line.

    Attributes:
        points: Of the transform.
        length: Elements of the line; what lies behind them is 0.
        parts: Of an element: 1 (real) or 2.
        outputs: Of a line.
        real: The result has one part; the line is the first half of what mirrors itself.
    """

    points: int
    length: int
    parts: int
    outputs: int
    inverse: bool = False
    real: bool = False

    @property
    def rows(self) -> int:
        """Numbers of a line."""
        return self.length * self.parts

    @property
    def columns(self) -> int:
        """Numbers of its result."""
        return self.outputs * (1 if self.real else 2)

    @property
    def nbytes(self) -> int:
        """Memory of the matrix in float32."""
        return self.rows * self.columns * 4

    def matrix(self) -> Array:
        """What a line is multiplied by: float64 [length, parts, outputs, parts of the result]."""
        turns = np.outer(np.arange(self.length), np.arange(self.outputs)) % self.points
        angles = np.arange(self.points) * (2 * np.pi / self.points)
        roots = np.exp(angles * (1j if self.inverse else -1j))
        if self.inverse:
            roots /= self.points
        found = roots[turns]
        if self.real:  # All but the first and the middle stand for two.
            found[[j for j in range(1, self.length) if 2 * j != self.points]] *= 2
        both = np.stack([found, 1j * found], axis=1)[:, : self.parts]
        parts = (both.real,) if self.real else (both.real, both.imag)
        return np.stack(parts, axis=-1)
