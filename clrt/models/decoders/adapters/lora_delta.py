"""What adapters make of a matrix or a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = Callable[[slice], Floats]
"""Some rows of a matrix, as float32."""
# Elements that are merged at a time: what lies between two copies of a matrix.
_CHUNK_ELEMS = 1 << 22


# Whoever merges looks at the sums.
_large = np.errstate(over="ignore", invalid="ignore")


@dataclass(frozen=True)
class LoraDelta:
    """A product that is added to a matrix.

    Source: Hu et al., LoRA (2021); for the lengths Liu et al., DoRA (2024).

    Attributes:
        up: float32 `[rows, rank]`.
        down: float32 `[rank, columns]`.
        scale: A factor of the product.
        lengths: The length that each row of the sum gets; None for its own.
        of_columns: They are the lengths of columns.
    """

    up: Floats
    down: Floats
    scale: float
    lengths: Floats | None = None
    of_columns: bool = False


@dataclass(frozen=True)
class TensorDelta:
    """What an adapter makes of a tensor.

    Attributes:
        value: What takes its place.
        product: What is added to it, or to that.
        added: The same, of a vector.
    """

    value: Floats | None = None
    product: LoraDelta | None = None
    added: Floats | None = None

    def __bool__(self) -> bool:
        return not (self.value is None and self.product is None and self.added is None)

    @_large
    def rows(self, base: Rows, part: slice) -> Floats:
        """Some rows of the matrix that it makes of one."""
        found = base(part) if self.value is None else self.value[part]
        product = self.product
        if product is None:
            return found
        found = found + np.float32(product.scale) * (product.up[part] @ product.down)
        if product.lengths is None:
            return found
        if product.of_columns:
            return found * product.lengths
        own = np.linalg.norm(found, axis=1)
        return found * _ratio(product.lengths[part], own)[:, None]

    def vector(self, base: Floats) -> Floats:
        """The vector that it makes of one."""
        found = base if self.value is None else self.value
        return found if self.added is None else found + self.added


Changes: TypeAlias = Sequence[tuple[float, TensorDelta]]
"""What adapters make of a tensor, and how much of each is taken."""


def merged_rows(base: Rows, shape: tuple[int, int], changes: Changes) -> Iterator[Floats]:
    """The rows of a matrix with what adapters change of it, in chunks.

    Of each adapter a share of the difference to the base is added; of one alone that counts in
    full, its matrix is taken as it is. Sums beyond float32 are infinite.
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
    """The same of a vector."""
    if len(changes) == 1 and changes[0][0] == 1:
        return changes[0][1].vector(base)
    return _summed(base, [(f, change.vector(base)) for f, change in changes])


@_large
def _by_columns(change: TensorDelta, base: Rows, parts: Sequence[slice]) -> TensorDelta:
    """The same change, where it gives columns lengths with the factors of these as lengths."""
    product = change.product
    if product is None or product.lengths is None or not product.of_columns:
        return change
    plain = replace(change, product=replace(product, lengths=None))
    squares = sum(np.square(plain.rows(base, part)).sum(axis=0, dtype=np.float64) for part in parts)
    factors = _ratio(product.lengths, np.sqrt(squares).astype(np.float32))
    return replace(change, product=replace(product, lengths=factors))


def _ratio(wanted: Floats, own: Floats) -> Floats:
    """One length by the other; 0 where there is no length to change."""
    return np.divide(wanted, own, out=np.zeros_like(own), where=own > 0)
