"""Sparse vectors in CSR form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.util.fast_dataclass import dataclass

# Maximum size of the dense float32 block that `SparseVectors.dot` unpacks at once.
_DENSE_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class SparseVectors:
    """Sparse matrix in CSR form, or one sparse vector.

    The arrays are those of scipy.sparse: `csr_array((v.values, v.indices, v.offsets), v.shape)`.

    Attributes:
        offsets: int64 [rows + 1]; row i spans values[offsets[i]:offsets[i + 1]].
        indices: Column of each value, int64 [nonzeros], ascending in each row.
        values: Nonzero elements, float32 [nonzeros].
        shape: (rows, width), or (width,) for one vector.
    """

    offsets: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float32]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, dense: NDArray[Any]) -> SparseVectors:
        """Converts a dense array [width] or [rows, width]."""
        array = np.asarray(dense, np.float32)
        if array.ndim not in (1, 2):
            raise InputError(f"Sparse vectors must have one or two dimensions, not {array.ndim}.")
        table = array.reshape(-1, array.shape[-1])
        rows, columns = table.nonzero()
        counts = np.bincount(rows, minlength=len(table))
        offsets = np.concatenate(([0], counts.cumsum())).astype(np.int64)
        return cls(offsets, columns.astype(np.int64), table[rows, columns], array.shape)

    @classmethod
    def stack(cls, vectors: Sequence[SparseVectors], width: int) -> SparseVectors:
        """Stacks vectors and matrices into one matrix.

        Args:
            vectors: Single vectors or matrices.
            width: Size of each vector.
        """
        counts = [np.diff(v.offsets) for v in vectors]
        offsets = np.concatenate([[0], *counts]).cumsum().astype(np.int64)
        indices = np.concatenate([np.zeros(0, np.int64), *(v.indices for v in vectors)])
        values = np.concatenate([np.zeros(0, np.float32), *(v.values for v in vectors)])
        return cls(offsets, indices, values, (len(offsets) - 1, width))

    @property
    def ndim(self) -> int:
        """Number of axes: 1 for one vector, 2 for a matrix."""
        return len(self.shape)

    @property
    def rows(self) -> SparseVectors:
        """This matrix, or this vector as a matrix of one row."""
        if self.ndim == 2:
            return self
        return SparseVectors(self.offsets, self.indices, self.values, (1, *self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[SparseVectors]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: int | slice | Sequence[int]) -> SparseVectors:
        if self.ndim == 1:
            raise InputError("A single sparse vector has no rows; use to_dense() for its elements.")
        chosen = np.arange(len(self))[key]
        if chosen.ndim == 0:
            span = slice(self.offsets[chosen], self.offsets[chosen + 1])
            ends = np.array([0, span.stop - span.start], np.int64)
            return SparseVectors(ends, self.indices[span], self.values[span], self.shape[1:])
        return SparseVectors.stack([self[int(i)] for i in chosen], self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("Sparse vectors cannot become an array without a copy.")
        return self.to_dense().astype(dtype or np.float32, copy=False)

    def __repr__(self) -> str:
        return f"<SparseVectors {self.shape}, {len(self.values)} numbers that are not zero>"

    def to_dense(self) -> NDArray[np.float32]:
        """Returns the dense float32 array of `shape`."""
        table = np.zeros(self.rows.shape, np.float32)
        table[self._row_numbers(), self.indices] = self.values
        return table.reshape(self.shape)

    def to_dict(self) -> dict[int, float]:
        """Returns column -> value of the nonzero elements of one vector.

        Raises:
            InputError: This is a matrix.
        """
        if self.ndim == 2:
            raise InputError(
                "Several sparse vectors cannot become a dict; convert them one by one."
            )
        return dict(zip(self.indices.tolist(), self.values.tolist(), strict=True))

    def dot(self, other: SparseVectors) -> NDArray[np.float32]:
        """Computes the dot product of each row of this matrix with each row of `other`.

        Returns:
            float32 [rows of this, rows of `other`]; a vector counts as one row.

        Raises:
            InputError: The widths differ.
        """
        left, right = self.rows, other.rows
        if left.shape[1] != right.shape[1]:
            raise InputError(f"Vectors of {left.shape[1]} and {right.shape[1]} numbers differ.")
        products = np.zeros((len(left), len(right)), np.float32)
        step = max(_DENSE_BYTES // (4 * max(left.shape[1], 1)), 1)
        for start in range(0, len(right), step):
            dense = right[start : start + step].to_dense()
            for i, row in enumerate(left):
                products[i, start : start + step] = dense[:, row.indices] @ row.values
        return products

    def squared_lengths(self) -> NDArray[np.float32]:
        """Returns the squared L2 norm of each row, float32 [rows]."""
        count = self.rows.shape[0]
        squares = np.bincount(self._row_numbers(), self.values.astype(float) ** 2, count)
        return squares.astype(np.float32)

    def scaled(self, factors: NDArray[Any]) -> SparseVectors:
        """Multiplies row i by `factors[i]`."""
        values = (self.values * factors[self._row_numbers()]).astype(np.float32)
        return SparseVectors(self.offsets, self.indices, values, self.shape)

    def _row_numbers(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
