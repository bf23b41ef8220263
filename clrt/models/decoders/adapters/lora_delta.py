"""Applies the changes of adapters to matrices and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clrt.util.fast_dataclass import dataclass

Floats: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = Callable[[slice], Floats]
"""Function of a slice of row indices that returns these rows of a matrix as float32."""
# Elements merged at a time, which bounds the temporary copy.
_CHUNK_ELEMS = 1 << 22


# Suppresses NumPy's warnings of overflow, because callers check sums for infinities.
_large = np.errstate(over="ignore", invalid="ignore")


@dataclass(frozen=True)
class LoraDelta:
    """A low-rank product that is added to a matrix.

    The changed matrix is matrix + scale * (up @ down). If `lengths` are given, its rows or columns
    are then scaled to these norms.

    Source: Hu et al., LoRA (2021); for `lengths` Liu et al., DoRA (2024).

    Attributes:
        up: float32 `[rows, rank]`.
        down: float32 `[rank, columns]`.
        scale: Factor of the product.
        lengths: L2 norm to which each row or column of the sum is scaled, float32 `[rows]` or
            `[columns]`; None for no scaling.
        of_columns: Whether `lengths` are norms of columns; if not, of rows.
    """

    up: Floats
    down: Floats
    scale: float
    lengths: Floats | None = None
    of_columns: bool = False


@dataclass(frozen=True)
class TensorDelta:
    """The change of a tensor by an adapter.

    Attributes:
        value: Replacement of the tensor; None to keep it.
        product: Low-rank product that is added to a matrix; None for none.
        added: Vector that is added to a vector; None for none.
    """

    value: Floats | None = None
    product: LoraDelta | None = None
    added: Floats | None = None

    def __bool__(self) -> bool:
        return not (self.value is None and self.product is None and self.added is None)

    @_large
    def rows(self, base: Rows, part: slice) -> Floats:
        """Returns rows of the matrix with the change applied.

        Norms of columns depend on all rows, which this method does not read. If `lengths` of the
        product are of columns, they must hold the factor of each column in place of its norm;
        `_by_columns` computes the factors.

        Args:
            base: Reads rows of the matrix without the change.
            part: Slice of row indices.
        """
        merged = base(part) if self.value is None else self.value[part]
        product = self.product
        if product is None:
            return merged
        merged = merged + np.float32(product.scale) * (product.up[part] @ product.down)
        if product.lengths is None:
            return merged
        if product.of_columns:
            return merged * product.lengths
        norms = np.linalg.norm(merged, axis=1)
        return merged * _ratio(product.lengths[part], norms)[:, None]

    def vector(self, base: Floats) -> Floats:
        """Returns a vector (bias or norm scale) with the change applied.

        Args:
            base: The unchanged vector.
        """
        value = base if self.value is None else self.value
        return value if self.added is None else value + self.added


Changes: TypeAlias = Sequence[tuple[float, TensorDelta]]
"""(weight, change) of each adapter that changes a tensor; weight 1 applies a change fully."""


def merged_rows(base: Rows, shape: tuple[int, int], changes: Changes) -> Iterator[Floats]:
    """Merges the changes of adapters into a matrix; yields the merged rows in chunks.

    The merged matrix is base + sum of weight * (changed - base) over the adapters, where `changed`
    is the matrix with one adapter's change. Sums beyond float32 are infinite.

    Args:
        base: Reads rows of the unchanged matrix.
        shape: (rows, columns) of the matrix.
        changes: (weight, change) of each adapter.
    """
    rows, columns = shape
    step = max(_CHUNK_ELEMS // columns, 1)
    parts = [slice(first, min(first + step, rows)) for first in range(0, rows, step)]
    ready = [(factor, _by_columns(change, base, parts)) for factor, change in changes]
    for part in parts:
        if len(ready) == 1 and ready[0][0] == 1:
            yield ready[0][1].rows(base, part)
            continue
        yield _summed(base(part), [(f, change.rows(base, part)) for f, change in ready])


@_large
def _summed(base: Floats, others: Sequence[tuple[float, Floats]]) -> Floats:
    return base + sum(np.float32(factor) * (other - base) for factor, other in others)


@_large
def merged_vector(base: Floats, changes: Changes) -> Floats:
    """Merges the changes of adapters into a vector.

    The merged vector is base + sum of weight * (changed - base) over the adapters, where `changed`
    is the vector with one adapter's change. Sums beyond float32 are infinite.

    Args:
        base: The unchanged vector.
        changes: (weight, change) of each adapter.
    """
    if len(changes) == 1 and changes[0][0] == 1:
        return changes[0][1].vector(base)
    return _summed(base, [(f, change.vector(base)) for f, change in changes])


@_large
def _by_columns(change: TensorDelta, base: Rows, parts: Sequence[slice]) -> TensorDelta:
    """Returns a change in which factors of columns replace the norms of columns (DoRA).

    With factors, chunks of rows can be scaled one after the other; norms depend on all rows.

    Args:
        change: A change of a matrix; returned unchanged if it has no norms of columns.
        base: Reads rows of the unchanged matrix.
        parts: Slices that together cover all rows.
    """
    product = change.product
    if product is None or product.lengths is None or not product.of_columns:
        return change
    plain = replace(change, product=replace(product, lengths=None))
    squares = sum(np.square(plain.rows(base, part)).sum(axis=0, dtype=np.float64) for part in parts)
    factors = _ratio(product.lengths, np.sqrt(squares).astype(np.float32))
    return replace(change, product=replace(product, lengths=factors))


def _ratio(wanted: Floats, own: Floats) -> Floats:
    """Returns wanted / own elementwise; 0 if `own` is 0."""
    return np.divide(wanted, own, out=np.zeros_like(own), where=own > 0)
