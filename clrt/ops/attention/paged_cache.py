"""What ops of a cache in pages share: its form, its arguments, and how it is read with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import NumberError, ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import Dim, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import StatusWord
from clrt.ops.attention.page_layout import FLOATS, PAGE_TOKENS, PageLayout, page_form
from clrt.ops.base import Op, Types
from clrt.ops.checks import need

# Slabs of a cache: as many times it can grow without a copy of what is there.
MAX_SLABS = 6
# Of kernels that keep a head in private memory.
_MAX_HEAD_SIZE = 512


@dataclass(frozen=True)
class PagedOp(Op):
    """An op on the keys and values of one layer in a cache.

    `step` int32 `[T, 3]` says of each token its number, its sequence (-1: it is none) and its place
    there; `table` int32 `[sequences, pages]` has the numbers of each sequence's pages. Each slab
    is `[pages, pitch]`, float32, float16 or bfloat16, or uint8 for numbers of 8 bits with their
    scales: a page number counts through the slabs. A page has, from `layer * kv_num_heads` heads
    on, those of this layer, as `PageLayout` says.
    """

    num_heads: int = 1
    kv_num_heads: int = 1
    head_size: int = 1
    layer: int = 0

    @property
    def first_slab(self) -> int:
        """Where the slabs stand among the inputs."""
        raise NotImplementedError

    def form(self, dtype: DType) -> PageLayout:
        """How a page has heads in slabs of a dtype."""
        return page_form(self.head_size, dtype)

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
        slabs = [need(inputs, self.first_slab + s, self) for s in range(MAX_SLABS)]
        for slab in slabs:
            least = (self.layer + 1) * self.kv_num_heads * self.form(slab.dtype).head_elements
            pitch = None if slab.shape is None else slab.shape[-1]
            fits = not isinstance(pitch, int) or pitch >= least
            if slab.dtype not in (*FLOATS, DType.UINT8) or not is_matrix(slab, None) or not fits:
                raise ShapeError(f"{self.name}: a slab {slab}; expected [pages, {least}] or more.")
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
        other = rows is not None and counted is not None and provably_different(rows, counted)
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
            or (
                found.shape is not None
                and (len(found.shape) != 1 or provably_different(found.shape[0], size))
            )
        )
        if wrong:
            raise ShapeError(f"{self.name}: input {index} is {found}; expected float32 [{size}].")

    def defines(self, node: Node, caps: DeviceCaps) -> dict[str, Define]:
        """Macros of common/pages.clh."""
        return self.form(node.arg(self.first_slab).dtype).defines(caps)

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
        head = self.form(node.arg(self.first_slab).dtype).head_elements
        numbers = {
            "tokens": step.dims[0],
            "sequences": sequences,
            "width": width,
            "pitch": slabs[0].dims[1],
            "layer": self.layer * self.kv_num_heads * head,
            "heads": self.num_heads,
            "kv_heads": self.kv_num_heads,
        }
        what, most = "a sequence, a place or a page", max(sum(counts) - 1, 0)
        status = StatusWord(node, first + 1, what, ((0, most),), "pages of the cache")
        return {"step": step, "table": table, **named, "status": status, **numbers}

    def page(self, slabs: Sequence[Array], number: int) -> Array:
        """A view of a page's heads in this layer, `[kv_num_heads, head_elements]`.

        Raises:
            NumberError: The cache has no page of that number.
        """
        at = number
        for slab in slabs:
            if 0 <= at < len(slab):
                size = self.form(DType.of(slab.dtype)).head_elements
                first = self.layer * self.kv_num_heads
                return slab[at, first * size : (first + self.kv_num_heads) * size].reshape(-1, size)
            at -= len(slab)
        raise self.no_page(number, sum(map(len, slabs)))

    def keep(self, slabs: Sequence[Array], number: int, place: int, k: Array, v: Array) -> None:
        """Writes a key and a value `[kv_num_heads, head_size]` to a place of a page.

        Raises:
            NumberError: The cache has no page of that number.
        """
        form = self.form(DType.of(slabs[0].dtype))
        form.keep(self.page(slabs, number), place % PAGE_TOKENS, k, v)

    def place(self, step: Array, table: Array, token: int) -> tuple[Array, int] | None:
        """The row of the table for a token, and its place; None for a token of no sequence.

        Raises:
            NumberError: They lie outside the table.
        """
        _, sequence, place = map(int, step[token])
        if sequence < 0:
            return None
        sequences, pages = table.shape
        if sequence >= sequences or not 0 <= place < pages * PAGE_TOKENS:
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
    return columns is None or not provably_different(found.shape[1], columns)


def visible(op: PagedOp, slabs: Sequence[Array], row: Array, keys: range) -> tuple[Array, Array]:
    """Keys and values of some places of a sequence, float64 `[H, n, D]`."""
    numbers = range(keys.start // PAGE_TOKENS, (keys.stop + PAGE_TOKENS - 1) // PAGE_TOKENS)
    form = op.form(DType.of(slabs[0].dtype))
    pages = [form.read(op.page(slabs, int(row[n]))) for n in numbers]
    start = keys.start - numbers.start * PAGE_TOKENS
    part = slice(start, start + len(keys))
    all_keys, all_values = (np.concatenate(p, axis=1) for p in zip(*pages, strict=True))
    return all_keys[:, part].astype(np.float64), all_values[:, part].astype(np.float64)
