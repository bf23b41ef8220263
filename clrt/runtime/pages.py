"""Memory that goes back to the system: mapped files that were read, and what was freed."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

from clrt.ir.mapped import is_mapped, owner_of
from clrt.ir.op import Array


def drop_pages(array: Array) -> None:
    """Takes the pages of a read-only view of a mapped file out of memory.

    They are read from the file again where somebody needs them. Other arrays are left alone.
    """
    if sys.platform == "win32" or not is_mapped(array):
        return
    owner = owner_of(array)
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)


def return_freed() -> None:
    """Gives the system what this process has freed, where its allocator would keep it: glibc's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
