"""Page table of a KV cache: the pages of each sequence, on host and device."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from clrt.ir.dtypes import DType
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor

# Maximum initial number of columns (KV pages per sequence); the table grows beyond it on demand.
_MAX_INITIAL_COLUMNS = 4096


class PageTable:
    """Page numbers of sequences and encoder inputs, one row per owner: int32 `[rows, columns]`.

    Unused columns hold -1. The number of rows or columns doubles if there are too few.

    Args:
        session: Session of the device.
        rows: Initial number of rows.
        width: Maximum number of pages of a sequence.
    """

    def __init__(self, session: DeviceSession, rows: int, width: int) -> None:
        self._session = session
        self._table = np.full((rows, min(width, _MAX_INITIAL_COLUMNS)), -1, np.int32)
        self._free = list(range(rows))
        self._device_table: DeviceTensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(number of rows, number of columns) of the table."""
        rows, width = self._table.shape
        return rows, width

    def take_row(self) -> int:
        """Allocates a row and returns its index; doubles the number of rows if all are in use."""
        if not self._free:
            more = len(self._table)
            self._table = np.concatenate([self._table, np.full_like(self._table, -1)])
            self._free = list(range(more, 2 * more))
            self._device_table = None
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """Frees a row, given by its index."""
        self._free.append(row)

    def keep(self, rows: Collection[int]) -> None:
        """Frees all rows except those with the indices `rows`."""
        self._free = [row for row in range(len(self._table)) if row not in rows]
        self._device_table = None

    def write(self, row: int, pages: Sequence[int]) -> None:
        """Writes page numbers to the first columns of a row; later columns stay unchanged."""
        while len(pages) > self._table.shape[1]:
            self._table = np.hstack([self._table, np.full_like(self._table, -1)])
        self._table[row, : len(pages)] = pages
        self._device_table = None

    def on_device(self) -> DeviceTensor:
        """Returns the table as an int32 device tensor; the same tensor until the table changes."""
        if self._device_table is None:
            self._device_table = self._session.tensor_of(self._table, DType.INT32)
        return self._device_table

    def release(self) -> None:
        """Frees the device tensor of the table."""
        self._device_table = None
