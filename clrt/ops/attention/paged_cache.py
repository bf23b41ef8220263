"""Base class of ops on a paged KV cache: type checks, kernel arguments, NumPy access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import NumberError, ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import Dim, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.kv_cache_sizes import HEAD_SIZE_STEP, MAX_HEAD_SIZE, MAX_SLABS, PAGE_TOKENS
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import StatusWord
from clrt.ops.attention.page_layout import FLOATS, PageLayout, page_form
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class PagedOp(Op):
    """Base class of ops on the keys and values of one layer in a paged KV cache.

    Input `step`, int32 `[T, 3]`, has for each of T tokens its id, its sequence (-1 for padding) and
    its position in the sequence. Input `table`, int32 `[sequences, pages]`, has the page numbers of
    each sequence. The cache is stored in `MAX_SLABS` slabs, buffers of pages: `[pages, elements
    of a page]` of float32, float16, bfloat16, or uint8 (8-bit integers with scales). Page numbers
    count through the slabs in order. The heads of this layer start at head `layer * kv_num_heads`
    of a page, in the layout `PageLayout`.

    Attributes:
        num_heads: Number of query heads.
        kv_num_heads: Number of key and value heads, a divisor of `num_heads`.
        head_size: Elements of a head, a multiple of 4.
        layer: Index of the layer in the pages.
    """

    num_heads: int = 1
    kv_num_heads: int = 1
    head_size: int = 1
    layer: int = 0

    @property
    def first_slab(self) -> int:
        """Index of the first slab among the node's inputs."""
        raise NotImplementedError

    def form(self, dtype: DType) -> PageLayout:
        """Returns the layout of a head in the pages of slabs of `dtype`."""
        return page_form(self.head_size, dtype)

    def check_cache(self, inputs: Types) -> list[TensorType]:
        """Checks the attributes, and the inputs `step` (1), `table` (2) and the slabs.

        Args:
            inputs: Types of the node's inputs.

        Returns:
            Types of the MAX_SLABS slabs.

        Raises:
            ShapeError: An attribute is out of range, or an input has a wrong dtype or shape.
            ModelError: One of the inputs is omitted.
        """
        if not 1 <= self.head_size <= MAX_HEAD_SIZE or self.head_size % HEAD_SIZE_STEP:
            raise ShapeError(
                f"{self.name}: heads of {self.head_size}; expected a multiple of "
                f"{HEAD_SIZE_STEP} up to {MAX_HEAD_SIZE}."
            )
        if min(self.num_heads, self.kv_num_heads) < 1 or self.num_heads % self.kv_num_heads:
            raise ShapeError(
                f"{self.name}: {self.num_heads} heads are not a multiple of {self.kv_num_heads}."
            )
        if self.layer < 0:
            raise ShapeError(f"{self.name}: layer {self.layer}; expected 0 or more.")
        for index, last in ((1, 3), (2, None)):
            type_ = need(inputs, index, self)
            if type_.dtype is not DType.INT32 or not is_matrix(type_, last):
                raise ShapeError(
                    f"{self.name}: input {index} is {type_}; expected int32 [n, {last}]."
                )
        slabs = [need(inputs, self.first_slab + s, self) for s in range(MAX_SLABS)]
        for slab in slabs:
            min_pitch = (self.layer + 1) * self.kv_num_heads * self.form(slab.dtype).head_elements
            pitch = None if slab.shape is None else slab.shape[-1]
            fits = not isinstance(pitch, int) or pitch >= min_pitch
            if slab.dtype not in (*FLOATS, DType.UINT8) or not is_matrix(slab, None) or not fits:
                raise ShapeError(
                    f"{self.name}: a slab {slab}; expected [pages, {min_pitch}] or more."
                )
            if slab.dtype is not slabs[0].dtype:
                raise ShapeError(f"{self.name}: slabs of {slab.dtype} and {slabs[0].dtype}.")
        return slabs

    def check_rows(self, x: TensorType, width: Dim, steps: TensorType) -> None:
        """Checks that `x` is float32 `[tokens, width]`, with as many rows as `steps`.

        Args:
            x: Type of an input.
            width: Expected number of columns.
            steps: Type of the input `step`, `[tokens, 3]`.

        Raises:
            ShapeError: The dtype or a dim differs.
        """
        rows = None if x.shape is None else x.shape[0]
        tokens = None if steps.shape is None else steps.shape[0]
        differ = rows is not None and tokens is not None and provably_different(rows, tokens)
        if x.dtype is not DType.FLOAT32 or not is_matrix(x, width) or differ:
            raise ShapeError(f"{self.name}: {x} for steps {steps}; expected [T, {width}].")

    def check_vector(self, inputs: Types, index: int, size: int) -> None:
        """Checks that input `index` is float32 `[size]`, unless it is omitted.

        Raises:
            ShapeError: The dtype or the shape differs.
        """
        vector = inputs[index]
        wrong = vector is not None and (
            vector.dtype is not DType.FLOAT32
            or (
                vector.shape is not None
                and (len(vector.shape) != 1 or provably_different(vector.shape[0], size))
            )
        )
        if wrong:
            raise ShapeError(f"{self.name}: input {index} is {vector}; expected float32 [{size}].")

    def defines(self, node: Node, caps: DeviceCaps) -> dict[str, Define]:
        """Returns the kernel macros of the page layout, which common/pages.clh reads."""
        return self.form(node.arg(self.first_slab).dtype).defines(caps)

    def arguments(self, node: Node, first: int, slabs: Sequence[Any]) -> dict[str, Any]:
        """Returns the kernel arguments of the paged cache, which the macro PAGES declares.

        Args:
            node: Node of this op.
            first: Index of `step` among the node's inputs; `table` follows it.
            slabs: Slabs that the kernel accesses: inputs to read, outputs to write.
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
        what, most = "a sequence, a position or a page", max(sum(counts) - 1, 0)
        status = StatusWord(node, first + 1, what, ((0, most),), "pages of the cache")
        return {"step": step, "table": table, **named, "status": status, **numbers}

    def page(self, slabs: Sequence[Array], number: int) -> Array:
        """Returns a view of a page's heads in this layer, `[kv_num_heads, head_elements]`.

        Args:
            slabs: All slabs of the cache.
            number: Page number, counted through the slabs in order.

        Raises:
            NumberError: The cache has no page of that number.
        """
        i = number
        for slab in slabs:
            if 0 <= i < len(slab):
                size = self.form(DType.of(slab.dtype)).head_elements
                first = self.layer * self.kv_num_heads
                return slab[i, first * size : (first + self.kv_num_heads) * size].reshape(-1, size)
            i -= len(slab)
        raise self.no_page(number, sum(map(len, slabs)))

    def keep(self, slabs: Sequence[Array], number: int, place: int, k: Array, v: Array) -> None:
        """Writes a key and a value `[kv_num_heads, head_size]` to a page.

        Args:
            slabs: All slabs of the cache.
            number: Page number, counted through the slabs in order.
            place: Position of the token in its sequence.
            k: Key.
            v: Value.

        Raises:
            NumberError: The cache has no page of that number.
        """
        form = self.form(DType.of(slabs[0].dtype))
        form.keep(self.page(slabs, number), place % PAGE_TOKENS, k, v)

    def place(self, step: Array, table: Array, token: int) -> tuple[Array, int] | None:
        """Returns the page numbers of a token's sequence, and the token's position in the sequence.

        Returns None for a padding token, which belongs to no sequence.

        Args:
            step: Input `step`, `[tokens, 3]`.
            table: Input `table`, `[sequences, pages]`.
            token: Index of the token, a row of `step`.

        Raises:
            NumberError: The sequence or the position is outside the table.
        """
        _, sequence, position = map(int, step[token])
        if sequence < 0:
            return None
        sequences, pages = table.shape
        for number, count in ((sequence, sequences), (position, pages * PAGE_TOKENS)):
            if not 0 <= number < count:
                raise self.no_page(number, count)
        return table[sequence], position

    def no_page(self, number: int, count: int) -> NumberError:
        """Returns the error for a sequence, position or page `number` outside 0..`count` - 1."""
        what = "a sequence, a position or a page"
        return NumberError(self.name, 2, what, number, f"allowed are 0..{count - 1}")


def is_matrix(x: TensorType, columns: Dim | None) -> bool:
    """Returns whether a tensor of type `x` may be a matrix with `columns` columns.

    Args:
        x: Type, perhaps with an unknown or symbolic shape.
        columns: Expected number of columns; None allows any number.
    """
    if x.shape is None:
        return True
    if len(x.shape) != 2:
        return False
    return columns is None or not provably_different(x.shape[1], columns)


def visible(op: PagedOp, slabs: Sequence[Array], row: Array, keys: range) -> tuple[Array, Array]:
    """Reads the keys and values of n positions of a sequence from a paged cache by NumPy.

    Args:
        op: Op of the layer to read.
        slabs: All slabs of the cache.
        row: Page numbers of the sequence.
        keys: Range of n positions in the sequence, at least one.

    Returns:
        Keys and values, each float64 `[kv_num_heads, n, head_size]`.
    """
    numbers = range(keys.start // PAGE_TOKENS, (keys.stop + PAGE_TOKENS - 1) // PAGE_TOKENS)
    form = op.form(DType.of(slabs[0].dtype))
    pages = [form.read(op.page(slabs, int(row[n]))) for n in numbers]
    start = keys.start - numbers.start * PAGE_TOKENS
    part = slice(start, start + len(keys))
    all_keys, all_values = (np.concatenate(p, axis=1) for p in zip(*pages, strict=True))
    return all_keys[:, part].astype(np.float64), all_values[:, part].astype(np.float64)
