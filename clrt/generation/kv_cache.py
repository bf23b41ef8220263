"""KV cache on a device: growing slabs of pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clrt.errors import OutOfMemoryError
from clrt.generation.page_pool import NOTHING, KvPagePool
from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import MAX_SLABS, PAGE_TOKENS
from clrt.ir.op import Array
from clrt.runtime.execution.state import State
from clrt.runtime.opencl.row_transfers import read_rows, write_rows
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor

# Number of pages of the first slab: the pages of a full context divided by _FIRST_SLAB_DIVISOR,
# clamped to the other two. Later slabs grow the cache as it fills.
_FIRST_SLAB_DIVISOR, _MIN_FIRST_PAGES, _MAX_FIRST_PAGES = 8, 8, 64


class KvCache:
    """Keys and values of sequences on a device, in pages that are allocated in slabs.

    Attributes:
        pool: Page allocator.
        slabs: Device tensors of pages, each `[pages, pitch]`. They are allocated one after the
            other; slabs not yet needed have 0 pages.

    Args:
        session: Session of the device.
        dtype: Dtype of keys and values.
        pitch: Elements per page.
        pages: Maximum number of pages of a sequence.
        rows: Returns the maximum number of sequences and encoder inputs.
        room: Returns the number of bytes by which the cache may grow.
        fits: Returns whether a number of bytes certainly fits; cheaper than `room`.
    """

    def __init__(
        self,
        session: DeviceSession,
        dtype: DType,
        pitch: int,
        pages: int,
        rows: Callable[[], int],
        room: Callable[[], int],
        fits: Callable[[int], bool],
    ) -> None:
        self._session, self._dtype, self._pitch = session, dtype, pitch
        self._pages, self._rows, self._room, self._fits = pages, rows, room, fits
        # Maximum number of pages in a buffer of the device.
        self._largest = max(session.device.caps.max_alloc_bytes // self.page_bytes, 1)
        self.reset()

    def reset(self) -> None:
        """Empties the cache: drops all slabs and creates an empty page pool."""
        self.pool = KvPagePool(self._grow)
        self.slabs = [self._tensor((0, self._pitch)) for _ in range(MAX_SLABS)]
        self._grown = 0

    @property
    def lost(self) -> bool:
        """Whether a failed run left a slab without memory, so that the cache must be reset."""
        return any(slab.lease is None for slab in self.slabs)

    @property
    def nbytes(self) -> int:
        """Total size of all slabs in bytes, with unused pages."""
        return sum(slab.nbytes for slab in self.slabs)

    @property
    def page_bytes(self) -> int:
        """Size of a page in bytes."""
        return int(self._pitch * self._dtype.itemsize)

    def state(self) -> State:
        """Returns the slabs as a state: a run updates input `slab0` in place to output `kept0`."""
        names = [(f"slab{s}", f"kept{s}") for s in range(MAX_SLABS)]
        tensors = {name: slab for (name, _), slab in zip(names, self.slabs, strict=True)}
        return _CacheState(dict(names), tensors, self.slabs)

    def read(self, pages: Sequence[int]) -> Array:
        """Reads pages from the device, an array `[pages, elements]`.

        Raises:
            DeviceError: The driver fails.
        """
        contents = np.empty((len(pages), self._pitch), self._dtype.numpy)
        for row, page in zip(contents, pages, strict=True):
            row[:] = read_rows(*self._locate(page), 1)[0]
        return contents

    def restore(self, tokens: Sequence[int], pages: Array, start: int = NOTHING) -> None:
        """Writes the pages of a token prefix to the device; the pages stay cached until evicted.

        Args:
            tokens: Prefix tokens, `PAGE_TOKENS` per page.
            pages: Pages as returned by `read`.
            start: Content id before the first page: `LONG` if keys have the LongRoPE rotary angles
                for long sequences, else `NOTHING`.

        Raises:
            OutOfMemoryError: The pages do not all fit.
        """
        restored, content = self.pool.match_prefix(tokens, start)
        try:
            for index in range(len(restored), len(pages)):
                restored.append(self.pool.allocate())
                write_rows(*self._locate(restored[-1]), pages[index : index + 1])
                part = tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS]
                content = self.pool.register(restored[-1], content, part)
        finally:
            self.pool.release(restored)

    def release(self) -> None:
        """Frees the device memory of all slabs."""
        for slab in self.slabs:
            slab.release()

    def _locate(self, page: int) -> tuple[DeviceTensor, int]:
        """Returns the slab that holds a page, and the index of the page in the slab."""
        for slab in self.slabs:
            if page < slab.shape[0]:
                return slab, page
            page -= slab.shape[0]
        raise IndexError(page)

    def _tensor(self, shape: tuple[int, ...]) -> DeviceTensor:
        return self._session.tensor(shape, self._dtype)

    def _grow(self) -> int:
        """Allocates another slab, smaller if memory is short.

        Slabs grow geometrically, so that all slabs together can hold the maximum number of
        sequences, or fill the available memory.

        Returns:
            Number of pages of the slab; 0 if no slab could be allocated.
        """
        if self._grown == MAX_SLABS:
            return 0
        max_pages = self._pages * self._rows()
        pages = max(self._pages // _FIRST_SLAB_DIVISOR, _MIN_FIRST_PAGES)
        pages = min(pages, _MAX_FIRST_PAGES, max_pages, self._largest)
        if self._grown or not self._fits(pages * self.page_bytes):
            num_pages, free_pages = self.nbytes // self.page_bytes, self._room() // self.page_bytes
            # Growth factor of the cache per slab: all of the memory is reached with the last slab.
            ratio = max(
                (min(max_pages, num_pages + free_pages) / pages) ** (1 / (MAX_SLABS - 1)), 2.0
            )
            pages = min(round(pages * ratio**self._grown) - num_pages, free_pages, self._largest)
        while pages > 0:
            try:
                self.slabs[self._grown] = self._tensor((pages, self._pitch))
            except OutOfMemoryError:
                pages //= 2
                continue
            self._grown += 1
            return pages
        return 0


class _CacheState(State):
    """State whose tensors are the slabs of a KV cache; `update` also updates the cache's slabs."""

    def __init__(
        self,
        pairs: Mapping[str, str],
        tensors: Mapping[str, DeviceTensor],
        slabs: list[DeviceTensor],
    ) -> None:
        super().__init__(pairs, tensors)
        self._slabs = slabs

    def update(self, results: Mapping[str, Any]) -> None:
        super().update(results)
        self._slabs[:] = list(self.values())
