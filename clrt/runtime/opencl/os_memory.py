"""Returns memory to the operating system: pages of mapped files, and freed heap."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np

from clrt.ir.mmap_arrays import is_mapped, owner_of
from clrt.ir.op import Array


def drop_pages(array: Array) -> None:
    """Drops the resident pages of an array that is a read-only view of a mapped file.

    The next access reads the pages from the file again. Does nothing for other arrays, and on
    Windows.
    """
    if sys.platform == "win32" or not is_mapped(array):
        return
    owner = owner_of(array)
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)


def return_freed() -> None:
    """Returns freed heap memory to the operating system, by glibc's `malloc_trim`.

    Does nothing with other C libraries.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
