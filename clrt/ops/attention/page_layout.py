"""Layouts of keys and values in a page of the KV cache: floats, or 8-bit integers with scales."""

from __future__ import annotations

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.cl_code import Code, Define
from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.op import Array
from clrt.kernels.quantized_panels_cpu import ROW_TAIL, WIDTH, rounded_rows
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_SCALE = np.dtype(np.float16)
# Maximum magnitude of a quantized element, stored value of the integer 0 in keys, and consecutive
# elements of a key that are stored side by side for 8-bit dot products.
_MAX, _ZERO, _DOT_ELEMS = 127, 128, 4


def page_form(head_size: int, dtype: DType) -> PageLayout:
    """Returns the layout of a head's keys and values in a page of the KV cache.

    Args:
        head_size: Elements of a head.
        dtype: Dtype of the slabs: float32, float16 or bfloat16; uint8 for 8-bit integers.
    """
    return (
        Int8PageLayout(head_size, dtype) if dtype is DType.UINT8 else PageLayout(head_size, dtype)
    )


@dataclass(frozen=True)
class PageLayout:
    """Layout of a head's keys and values in a page, stored as floats.

    Keys `[head_size, PAGE_TOKENS]` precede values `[PAGE_TOKENS, head_size]`.

    Attributes:
        head_size: Elements of a head.
        dtype: Dtype of the slabs.
    """

    head_size: int
    dtype: DType

    @property
    def head_elements(self) -> int:
        """Number of elements of the keys and values of a head in a page."""
        return 2 * PAGE_TOKENS * self.head_size

    def defines(self, caps: DeviceCaps) -> dict[str, Define]:
        """Returns the kernel macros of the layout, for common/pages.clh."""
        sizes = {
            "PAGE": PAGE_TOKENS,
            "S_D": self.head_size,
            "S_DV": self.head_size,
            "INT8_CACHE": 0,
        }
        return {**sizes, "CACHE_T": self.dtype.cl, "CACHE": self.dtype.storage}

    def keep(self, heads: Array, place: int, keys: Array, values: Array) -> None:
        """Writes the keys and values of one position, one per head, to a page.

        Args:
            heads: Memory of the page by head, `[heads, head_elements]`; written in place.
            place: Position in the page, in 0..PAGE_TOKENS - 1.
            keys: A key per head, `[heads, head_size]`.
            values: A value per head, `[heads, head_size]`.
        """
        size = PAGE_TOKENS * self.head_size
        heads[:, place:size:PAGE_TOKENS] = keys
        heads[:, size + place * self.head_size :][:, : self.head_size] = values

    def read(self, heads: Array) -> tuple[Array, Array]:
        """Reads all keys and values of a page, each `[heads, PAGE_TOKENS, head_size]`.

        Args:
            heads: Memory of the page by head, `[heads, head_elements]`.
        """
        parts = heads.reshape(len(heads), 2, -1)
        keys = parts[:, 0].reshape(-1, self.head_size, PAGE_TOKENS).swapaxes(1, 2)
        return keys, parts[:, 1].reshape(-1, PAGE_TOKENS, self.head_size)

    def rounded(self, q: Array) -> Array:
        """Returns queries `[…, head_size]` as kernels use them: unchanged for float pages."""
        return q


@dataclass(frozen=True)
class Int8PageLayout(PageLayout):
    """Layout of a head's keys and values in a page as 8-bit integers with float16 scales.

    Keys are the columns of a panel for 8-bit dot products (common/dots.clh), with a scale for each
    block of a key's elements. A value has one scale, by which kernels multiply its softmax weight
    before they sum the weighted values.
    """

    @property
    def block(self) -> int:
        """Elements of a key that share a scale."""
        return 16 if self.head_size % 32 else 32

    @property
    def _blocks(self) -> int:
        return ceil_div(self.head_size, self.block)

    @property
    def _record(self) -> int:
        """Bytes of one block of elements, with its scales, of all PAGE_TOKENS keys of a page."""
        return PAGE_TOKENS * (self.block + _SCALE.itemsize)

    @property
    def head_elements(self) -> int:
        """Number of bytes of the keys and values of a head in a page."""
        return self._blocks * self._record + PAGE_TOKENS * (self.head_size + _SCALE.itemsize)

    @property
    def query_bytes(self) -> int:
        """Bytes of a query in 8 bits, with its scales (ROW_RECORD in common/dots.clh)."""
        return self._blocks * (self.block + ROW_TAIL)

    def defines(self, caps: DeviceCaps) -> dict[str, Define]:
        """Returns the kernel macros of the layout, for common/pages.clh and common/dots.clh."""
        assert PAGE_TOKENS == WIDTH
        return {
            **super().defines(caps),
            "INT8_CACHE": 1,
            "CACHE": Code("plain"),
            "DOT_BLOCK": self.block,
            "BITS": 8,
            "ZERO_LEVEL": _ZERO,
            "HAS_MINIMA": 0,
            "SCALE_BYTES": _SCALE.itemsize,
            "DOT_ISA": caps.int8_dot_isa,
        }

    def keep(self, heads: Array, place: int, keys: Array, values: Array) -> None:
        records, bytes_, scales = self._parts(heads)
        padded = np.zeros((len(keys), self._blocks * self.block))
        padded[:, : self.head_size] = keys
        levels, steps = _quantize(padded.reshape(len(keys), self._blocks, self.block))
        split = records[:, :, : PAGE_TOKENS * self.block].reshape(
            len(keys), self._blocks, self.block // _DOT_ELEMS, PAGE_TOKENS, _DOT_ELEMS
        )
        split[:, :, :, place] = (levels + _ZERO).astype(np.uint8).reshape(split[..., 0, :].shape)
        records[:, :, PAGE_TOKENS * self.block :][:, :, 2 * place : 2 * place + 2] = steps.view(
            np.uint8
        )
        levels, steps = _quantize(values)
        bytes_[:, place] = levels.astype(np.int8).view(np.uint8)
        scales[:, 2 * place : 2 * place + 2] = steps.view(np.uint8)

    def read(self, heads: Array) -> tuple[Array, Array]:
        records, bytes_, scales = self._parts(heads)
        count = len(heads)
        levels = records[:, :, : PAGE_TOKENS * self.block].reshape(
            count, self._blocks, -1, PAGE_TOKENS, _DOT_ELEMS
        )
        steps = _scales(records[:, :, PAGE_TOKENS * self.block :])[:, :, None, :, None]
        keys = (levels.astype(np.float64) - _ZERO) * steps
        keys = keys.transpose(0, 3, 1, 2, 4).reshape(count, PAGE_TOKENS, -1)[:, :, : self.head_size]
        values = np.ascontiguousarray(bytes_).view(np.int8).astype(np.float64)
        return keys, values * _scales(scales)[:, :, None]

    def rounded(self, q: Array) -> Array:
        return rounded_rows(q, self.block).astype(np.float64)

    def _parts(self, heads: Array) -> tuple[Array, Array, Array]:
        """Returns byte views of the keys with scales, of the values, and of the values' scales.

        Args:
            heads: Memory of a page by head, uint8 `[heads, head_elements]`.
        """
        end, last = self._blocks * self._record, PAGE_TOKENS * _SCALE.itemsize
        records = heads[:, :end].reshape(len(heads), self._blocks, self._record)
        values = heads[:, end:-last].reshape(len(heads), PAGE_TOKENS, self.head_size)
        return records, values, heads[:, -last:]


def _quantize(blocks: Array) -> tuple[Array, Array]:
    """Quantizes blocks `[…, n]` to 8 bits with a scale per block, in float32, as kernels do.

    Returns:
        Integral floats in -127..127 of the same shape, and float16 scales `[…, 1]`.
    """
    numbers = blocks.astype(np.float32)
    with np.errstate(all="ignore"):
        largest = np.abs(numbers).max(axis=-1, keepdims=True)
        scales = (largest / np.float32(_MAX)).astype(_SCALE)
        wide = scales.astype(np.float32)
        inverse = np.where(wide > 0, np.float32(1) / wide, np.float32(0))
        levels = np.rint(numbers * inverse)
    return np.clip(levels, -_MAX, _MAX), scales


def _scales(stored: Array) -> Array:
    """Returns the float16 scales stored in bytes, as float64."""
    return np.ascontiguousarray(stored).view(_SCALE).astype(np.float64)
