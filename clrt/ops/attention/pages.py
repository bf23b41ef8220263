"""What ops of a cache in pages share: its form, its arguments, and how it is read with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.errors import NumberError, ShapeError
from clrt.ir.code import Define
from clrt.ir.dims import Dim, differ
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import Status
from clrt.ops.base import Op, Types
from clrt.ops.checks import need

# Places of a page. A multiple of every vector's lanes; small, since a sequence leaves part of its
# last page empty, and pages are what sequences with one beginning share.
PAGE = 32
# Slabs of a cache: as many times it can grow without a copy of what is there.
SLABS = 6
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
# Of kernels that keep a head in private memory.
_MAX_HEAD_SIZE = 512


@dataclass(frozen=True)
class PagedOp(Op):
    """An op on the keys and values of one layer in a cache.

    `step` int32 `[T, 3]` says of each token its number, its sequence (-1: it is none) and its place
    there; `table` int32 `[sequences, pages]` has the numbers of each sequence's pages. Each slab
    is `[pages, pitch]`, float32, float16 or bfloat16: a page number counts through the slabs. A
    page has, from `layer * kv_num_heads` heads on, those of this layer: PAGE keys as
    `[head_size, PAGE]`, then values as `[PAGE, head_size]`.
    """

    num_heads: int = 1
    kv_num_heads: int = 1
    head_size: int = 1
    layer: int = 0

    @property
    def first_slab(self) -> int:
        """Where the slabs stand among the inputs."""
        raise NotImplementedError

    @property
    def head_elements(self) -> int:
        """Elements of a head in a page."""
        return 2 * PAGE * self.head_size

    def check_cache(self, inputs: Types) -> list[TensorType]:
        """The types of the slabs, once all inputs fit.

        Raises:
            ShapeError: One does not.
        """
        if not 1 <= self.head_size <= _MAX_HEAD_SIZE or self.head_size % 4:
            raise ShapeError(
                f"{self.name}: heads of {self.head_size}; expected 4 to {_MAX_HEAD_SIZE} elements, "
                "a multiple of 4."
            )
        if min(self.num_heads, self.kv_num_heads) < 1 or self.num_heads % self.kv_num_heads:
            raise ShapeError(
                f"{self.name}: {self.num_heads} heads are no multiple of {self.kv_num_heads}."
            )
        if self.layer < 0:
            raise ShapeError(f"{self.name}: layer {self.layer}; it is 0 or more.")
        for index, last in ((1, 3), (2, None)):
            found = need(inputs, index, self)
            if found.dtype is not DType.INT32 or not is_matrix(found, last):
                raise ShapeError(
                    f"{self.name}: input {index} is {found}; expected int32 [n, {last}]."
                )
        slabs = [need(inputs, self.first_slab + s, self) for s in range(SLABS)]
        least = (self.layer + 1) * self.kv_num_heads * self.head_elements
        for slab in slabs:
            pitch = None if slab.shape is None else slab.shape[-1]
            fits = not isinstance(pitch, int) or pitch >= least
            if slab.dtype not in _FLOATS or not is_matrix(slab, None) or not fits:
                raise ShapeError(f"{self.name}: a slab {slab}; expected floats [pages, {least}].")
            if slab.dtype is not slabs[0].dtype:
                raise ShapeError(f"{self.name}: slabs of {slab.dtype} and {slabs[0].dtype}.")
        return slabs

    def check_rows(self, found: TensorType, width: Dim, steps: TensorType) -> None:
        """Checks a float32 matrix with a row for each token.

        Raises:
            ShapeError: It is none.
        """
        rows = None if found.shape is None else found.shape[0]
        counted = None if steps.shape is None else steps.shape[0]
        other = rows is not None and counted is not None and differ(rows, counted)
        if found.dtype is not DType.FLOAT32 or not is_matrix(found, width) or other:
            raise ShapeError(f"{self.name}: {found} for steps {steps}; expected [T, {width}].")

    def check_vector(self, inputs: Types, index: int, size: int) -> None:
        """Checks an optional float32 vector.

        Raises:
            ShapeError: It is none of that size.
        """
        found = inputs[index]
        wrong = found is not None and (
            found.dtype is not DType.FLOAT32
            or (found.shape is not None and (len(found.shape) != 1 or differ(found.shape[0], size)))
        )
        if wrong:
            raise ShapeError(f"{self.name}: input {index} is {found}; expected float32 [{size}].")

    def defines(self, node: Node) -> dict[str, Define]:
        """Macros of common/pages.clh."""
        slab = node.arg(self.first_slab)
        sizes = {"PAGE": PAGE, "S_D": self.head_size, "S_DV": self.head_size}
        return {**sizes, "CACHE_T": slab.dtype.cl, "CACHE": slab.dtype.storage}

    def arguments(self, node: Node, first: int, slabs: Sequence[Any]) -> dict[str, Any]:
        """What PAGES declares.

        Args:
            first: Where the step stands among the inputs.
        """
        step, table = node.arg(first), node.arg(first + 1)
        counts = [slab.dims[0] for slab in slabs]
        named = {f"slab{s}": slab for s, slab in enumerate(slabs)}
        named |= {f"n{s}": count for s, count in enumerate(counts)}
        sequences, width = table.dims
        numbers = {
            "tokens": step.dims[0],
            "sequences": sequences,
            "width": width,
            "pitch": slabs[0].dims[1],
            "layer": self.layer * self.kv_num_heads * self.head_elements,
            "heads": self.num_heads,
            "kv_heads": self.kv_num_heads,
        }
        what, most = "a sequence, a place or a page", max(sum(counts) - 1, 0)
        status = Status(node, first + 1, what, ((0, most),), "pages of the cache")
        return {"step": step, "table": table, **named, "status": status, **numbers}

    def page(self, slabs: Sequence[Array], number: int) -> tuple[Array, Array]:
        """Views of a page's keys `[H, D, PAGE]` and values `[H, PAGE, D]` in this layer.

        Raises:
            NumberError: The cache has no page of that number.
        """
        at = number
        for slab in slabs:
            if 0 <= at < len(slab):
                first = self.layer * self.kv_num_heads * self.head_elements
                heads = slab[at, first : first + self.kv_num_heads * self.head_elements]
                parts = heads.reshape(self.kv_num_heads, 2, -1)
                size = self.head_size
                keys, values = (parts[:, 0].reshape(-1, size, PAGE), parts[:, 1])
                return keys, values.reshape(-1, PAGE, size)
            at -= len(slab)
        raise self.no_page(number, sum(map(len, slabs)))

    def place(self, step: Array, table: Array, token: int) -> tuple[Array, int] | None:
        """The row of the table for a token, and its place; None for a token of no sequence.

        Raises:
            NumberError: They lie outside the table.
        """
        _, sequence, place = map(int, step[token])
        if sequence < 0:
            return None
        sequences, pages = table.shape
        if sequence >= sequences or not 0 <= place < pages * PAGE:
            raise self.no_page(sequence if sequence >= sequences else place, sequences)
        return table[sequence], place

    def no_page(self, number: int, count: int) -> NumberError:
        """The error for a number that leads out of the cache."""
        what = "a sequence, a place or a page"
        return NumberError(self.name, 2, what, number, f"allowed are 0..{count - 1}")


def is_matrix(found: TensorType, columns: Dim | None) -> bool:
    """Whether it may have two axes, the second of that size."""
    if found.shape is None:
        return True
    if len(found.shape) != 2:
        return False
    return columns is None or not differ(found.shape[1], columns)


def visible(op: PagedOp, slabs: Sequence[Array], row: Array, keys: range) -> tuple[Array, Array]:
    """Keys and values of some places of a sequence, float64 `[H, n, D]`."""
    numbers = range(keys.start // PAGE, (keys.stop + PAGE - 1) // PAGE)
    pages = [op.page(slabs, int(row[n])) for n in numbers]
    start = keys.start - numbers.start * PAGE
    part = slice(start, start + len(keys))
    all_keys = np.concatenate([k.swapaxes(1, 2) for k, _ in pages], axis=1)
    all_values = np.concatenate([v for _, v in pages], axis=1)
    return all_keys[:, part].astype(np.float64), all_values[:, part].astype(np.float64)
