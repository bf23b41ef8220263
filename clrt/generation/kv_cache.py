"""The pages of a cache on a device: the slabs that they lie in, and how these grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clrt.errors import OutOfMemoryError
from clrt.generation.page_pool import NOTHING, KvPagePool
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.attention.page_layout import PAGE_TOKENS
from clrt.ops.attention.paged_cache import MAX_SLABS
from clrt.runtime.execution.state import State
from clrt.runtime.opencl.row_transfers import read_rows, write_rows
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor

# The first slab has room for a context divided by this, but for so many pages at least and at most.
_FIRST_PART, _LEAST_PAGES, _MOST_PAGES = 8, 8, 64


class KvCache:
    """The pages of a cache on a device.

    Attributes:
        pool: Whose they are.
        slabs: Where they lie, each `[pages, pitch]`.

    Args:
        session: Of the device.
        dtype: Of keys and values.
        pitch: Elements of a page.
        pages: Of a sequence, at most.
        rows: Says how many sequences there may be.
        room: Says how many bytes may still be taken.
        fits: Whether so many bytes may be taken in any case.
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
        # Pages of the largest buffer that the device has.
        self._largest = max(session.device.caps.max_alloc_bytes // self.page_bytes, 1)
        self.reset()

    def reset(self) -> None:
        """Begins anew: there are no pages."""
        self.pool = KvPagePool(self._grow)
        self.slabs = [self._tensor((0, self._pitch)) for _ in range(MAX_SLABS)]
        self._grown = 0

    @property
    def lost(self) -> bool:
        """Whether a run that failed has taken the memory."""
        return any(slab.lease is None for slab in self.slabs)

    @property
    def nbytes(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.nbytes for slab in self.slabs)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return int(self._pitch * self._dtype.itemsize)

    def state(self) -> State:
        """The slabs, which a run writes to."""
        names = [(f"slab{s}", f"kept{s}") for s in range(MAX_SLABS)]
        held = {name: slab for (name, _), slab in zip(names, self.slabs, strict=True)}
        return _CacheState(dict(names), held, self.slabs)

    def read(self, pages: Sequence[int]) -> Array:
        """What pages hold, `[pages, elements]`.

        Raises:
            DeviceError: The driver fails.
        """
        made = np.empty((len(pages), self._pitch), self._dtype.numpy)
        for row, page in zip(made, pages, strict=True):
            row[:] = read_rows(*self._place(page), 1)[0]
        return made

    def restore(self, tokens: Sequence[int], pages: Array, start: int = NOTHING) -> None:
        """Takes in pages of a beginning, which then serve sequences until their room is needed.

        Args:
            tokens: PAGE for each page.
            pages: As `read` gives them.
            start: The content in front of the first page (`KvSequence.start`).

        Raises:
            OutOfMemoryError: The cache has no room for all.
        """
        held, content = self.pool.match_prefix(tokens, start)
        try:
            for index in range(len(held), len(pages)):
                held.append(self.pool.take())
                write_rows(*self._place(held[-1]), pages[index : index + 1])
                part = tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS]
                content = self.pool.register(held[-1], content, part)
        finally:
            self.pool.release(held)

    def release(self) -> None:
        """Frees the device's memory."""
        for slab in self.slabs:
            slab.release()

    def _place(self, page: int) -> tuple[DeviceTensor, int]:
        """The slab of a page, and its row there."""
        for slab in self.slabs:
            if page < slab.shape[0]:
                return slab, page
            page -= slab.shape[0]
        raise IndexError(page)

    def _tensor(self, shape: tuple[int, ...]) -> DeviceTensor:
        return self._session.tensor(shape, self._dtype)

    def _grow(self) -> int:
        """A further slab, or as much of it as memory allows; how many pages it has.

        The last one would have room for all sequences, or take all that memory allows.
        """
        if self._grown == MAX_SLABS:
            return 0
        most = self._pages * self._rows()
        pages = max(self._pages // _FIRST_PART, _LEAST_PAGES)
        pages = min(pages, _MOST_PAGES, most, self._largest)
        if self._grown or not self._fits(pages * self.page_bytes):
            held, room = self.nbytes // self.page_bytes, self._room() // self.page_bytes
            # Each slab makes the cache so many times larger.
            ratio = max((min(most, held + room) / pages) ** (1 / (MAX_SLABS - 1)), 2.0)
            pages = min(round(pages * ratio**self._grown) - held, room, self._largest)
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
    """A state whose tensors are those of a cache."""

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
