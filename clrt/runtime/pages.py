"""Memory-mapped weights: the pages are given back once the device has its copy."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

from clrt.ir.op import Array


def drop_pages(array: Array) -> None:
    """Takes the pages of a read-only view of a mapped file out of memory.

    They are read from the file again where somebody needs them. Other arrays are left alone.
    """
    if sys.platform == "win32" or not is_mapped(array):
        return
    owner = _owner(array)
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)


def is_mapped(array: Array) -> bool:
    """Whether the elements are a read-only part of a mapped file, one after the other."""
    flags = array.flags
    return not flags.writeable and flags.c_contiguous and isinstance(_owner(array), mmap.mmap)


def _owner(array: Array) -> Any:
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    return owner
