"""The table of a cache on a device: which pages each sequence has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from clrt.ir.dtypes import DType
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor

# At first, at most.
_COLUMNS = 4096


class PageTable:
    """A row of page numbers for each sequence; -1 where there is none.

    It has twice as many columns once a sequence has no room in them.

    Args:
        session: Of the device.
        rows: How many there are at first.
        width: Pages of a sequence, at most.
    """

    def __init__(self, session: DeviceSession, rows: int, width: int) -> None:
        self._session = session
        self._table = np.full((rows, min(width, _COLUMNS)), -1, np.int32)
        self._free = list(range(rows))
        self._there: DeviceTensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, width = self._table.shape
        return rows, width

    def take_row(self) -> int:
        """A row for a sequence; there are twice as many once all are taken."""
        if not self._free:
            more = len(self._table)
            self._table = np.concatenate([self._table, np.full_like(self._table, -1)])
            self._free = list(range(more, 2 * more))
            self._there = None
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """Ends the use of a row."""
        self._free.append(row)

    def keep(self, rows: Collection[int]) -> None:
        """Ends the use of all rows but some."""
        self._free = [row for row in range(len(self._table)) if row not in rows]
        self._there = None

    def write(self, row: int, pages: Sequence[int]) -> None:
        """Sets the pages of a row."""
        while len(pages) > self._table.shape[1]:
            self._table = np.hstack([self._table, np.full_like(self._table, -1)])
        self._table[row, : len(pages)] = pages
        self._there = None

    def on_device(self) -> DeviceTensor:
        """The table, int32; the same tensor until it changes."""
        if self._there is None:
            self._there = self._session.tensor_of(self._table, DType.INT32)
        return self._there

    def release(self) -> None:
        """Lets go of the tensor on the device."""
        self._there = None
