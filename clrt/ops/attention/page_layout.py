"""How keys and values lie in a page: as floats, or as numbers of 8 bits with scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.cl_code import Code, Define
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.kernels.quantized_panels_cpu import ROW_TAIL, WIDTH, rounded_rows
from clrt.util.math import ceil_div

# Places of a page. A multiple of every vector's lanes; small, since a sequence leaves part of its
# last page empty, and pages are what sequences with one beginning share.
PAGE_TOKENS = 32
FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_SCALE = np.dtype(np.float16)
_MOST, _ZERO, _PLACES = 127, 128, 4


def page_form(head_size: int, dtype: DType) -> PageLayout:
    """How a page has its heads.

    Args:
        dtype: Of the slabs: float32, float16, bfloat16; uint8 for 8 bits.
    """
    return (
        Int8PageLayout(head_size, dtype) if dtype is DType.UINT8 else PageLayout(head_size, dtype)
    )


@dataclass(frozen=True)
class PageLayout:
    """Heads as floats: keys `[head_size, PAGE]`, then values `[PAGE, head_size]`."""

    head_size: int
    dtype: DType

    @property
    def head_elements(self) -> int:
        """Elements of the keys and values of a head in a page."""
        return 2 * PAGE_TOKENS * self.head_size

    def defines(self, caps: DeviceCaps) -> dict[str, Define]:
        """Macros of common/pages.clh."""
        sizes = {"PAGE": PAGE_TOKENS, "S_D": self.head_size, "S_DV": self.head_size, "LEVELS": 0}
        return {**sizes, "CACHE_T": self.dtype.cl, "CACHE": self.dtype.storage}

    def keep(self, heads: Array, place: int, keys: Array, values: Array) -> None:
        """Writes a key and a value `[H, D]` to a place of heads `[H, head_elements]`."""
        size = PAGE_TOKENS * self.head_size
        heads[:, place:size:PAGE_TOKENS] = keys
        heads[:, size + place * self.head_size :][:, : self.head_size] = values

    def read(self, heads: Array) -> tuple[Array, Array]:
        """The keys and values of heads `[H, head_elements]`, `[H, PAGE, D]`."""
        parts = heads.reshape(len(heads), 2, -1)
        keys = parts[:, 0].reshape(-1, self.head_size, PAGE_TOKENS).swapaxes(1, 2)
        return keys, parts[:, 1].reshape(-1, PAGE_TOKENS, self.head_size)

    def rounded(self, q: Array) -> Array:
        """Queries `[…, D]` as they are multiplied with keys."""
        return q


@dataclass(frozen=True)
class Int8PageLayout(PageLayout):
    """Heads in 8 bits.

    Keys are the columns of a panel of common/dots.clh: each block of their elements has a scale,
    which 8-bit dot products take anyway. A value has one: weights are multiplied by it before
    vectors of columns are added. Scales are float16.
    """

    @property
    def block(self) -> int:
        """Elements of a key with one scale."""
        return 16 if self.head_size % 32 else 32

    @property
    def _blocks(self) -> int:
        return ceil_div(self.head_size, self.block)

    @property
    def _record(self) -> int:
        """Bytes of a block of PAGE keys."""
        return PAGE_TOKENS * (self.block + _SCALE.itemsize)

    @property
    def head_elements(self) -> int:
        """Bytes of the keys and values of a head in a page."""
        return self._blocks * self._record + PAGE_TOKENS * (self.head_size + _SCALE.itemsize)

    @property
    def query_bytes(self) -> int:
        """Of the records of a query (ROW_RECORD in common/dots.clh)."""
        return self._blocks * (self.block + ROW_TAIL)

    def defines(self, caps: DeviceCaps) -> dict[str, Define]:
        """Macros of common/pages.clh and common/dots.clh."""
        assert PAGE_TOKENS == WIDTH
        return {
            **super().defines(caps),
            "LEVELS": 1,
            "CACHE": Code("plain"),
            "DOT_BLOCK": self.block,
            "BITS": 8,
            "ZERO": _ZERO,
            "MINIMA": 0,
            "SCALE_BYTES": _SCALE.itemsize,
            "DOTS": caps.int8_dot_isa,
        }

    def keep(self, heads: Array, place: int, keys: Array, values: Array) -> None:
        records, bytes_, scales = self._parts(heads)
        padded = np.zeros((len(keys), self._blocks * self.block))
        padded[:, : self.head_size] = keys
        levels, found = _levels(padded.reshape(len(keys), self._blocks, self.block))
        split = records[:, :, : PAGE_TOKENS * self.block].reshape(
            len(keys), self._blocks, self.block // _PLACES, PAGE_TOKENS, _PLACES
        )
        split[:, :, :, place] = (levels + _ZERO).astype(np.uint8).reshape(split[..., 0, :].shape)
        records[:, :, PAGE_TOKENS * self.block :][:, :, 2 * place : 2 * place + 2] = found.view(
            np.uint8
        )
        levels, found = _levels(values)
        bytes_[:, place] = levels.astype(np.int8).view(np.uint8)
        scales[:, 2 * place : 2 * place + 2] = found.view(np.uint8)

    def read(self, heads: Array) -> tuple[Array, Array]:
        records, bytes_, scales = self._parts(heads)
        count = len(heads)
        levels = records[:, :, : PAGE_TOKENS * self.block].reshape(
            count, self._blocks, -1, PAGE_TOKENS, _PLACES
        )
        steps = _scales(records[:, :, PAGE_TOKENS * self.block :])[:, :, None, :, None]
        keys = (levels.astype(np.float64) - _ZERO) * steps
        keys = keys.transpose(0, 3, 1, 2, 4).reshape(count, PAGE_TOKENS, -1)[:, :, : self.head_size]
        values = np.ascontiguousarray(bytes_).view(np.int8).astype(np.float64)
        return keys, values * _scales(scales)[:, :, None]

    def rounded(self, q: Array) -> Array:
        return rounded_rows(q, self.block).astype(np.float64)

    def _parts(self, heads: Array) -> tuple[Array, Array, Array]:
        """Views of the records of keys, of values and of their scales."""
        end, last = self._blocks * self._record, PAGE_TOKENS * _SCALE.itemsize
        records = heads[:, :end].reshape(len(heads), self._blocks, self._record)
        values = heads[:, end:-last].reshape(len(heads), PAGE_TOKENS, self.head_size)
        return records, values, heads[:, -last:]


def _levels(blocks: Array) -> tuple[Array, Array]:
    """Whole numbers of at most 127 for blocks `[…, n]`, in float32 as kernels do it, and the scales
    `[…, 1]`.
    """
    numbers = blocks.astype(np.float32)
    with np.errstate(all="ignore"):
        most = np.abs(numbers).max(axis=-1, keepdims=True)
        scales = (most / np.float32(_MOST)).astype(_SCALE)
        wide = scales.astype(np.float32)
        inverse = np.where(wide > 0, np.float32(1) / wide, np.float32(0))
        levels = np.rint(numbers * inverse)
    return np.clip(levels, -_MOST, _MOST), scales


def _scales(stored: Array) -> Array:
    """float64 scales of their bytes."""
    return np.ascontiguousarray(stored).view(_SCALE).astype(np.float64)
