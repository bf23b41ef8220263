"""Arrays whose memory is a mapped file: detects them, and finds their place in the file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from clrt.ir.op import Array

# Absolute path of each file that is mapped as a whole.
_FILES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def remember_file(mapping: mmap.mmap, path: Path) -> None:
    """Records of which file a mapping is, for `file_range`.

    Args:
        mapping: Mapping of the whole file.
    """
    _FILES[mapping] = str(path.absolute())


def file_range(array: Array) -> tuple[str, int, int] | None:
    """Returns where an array lies in a mapped file: (absolute path, first byte, end).

    None if the array is no contiguous view of a mapping that `remember_file` knows.
    """
    owner = owner_of(array)
    path = _FILES.get(owner) if isinstance(owner, mmap.mmap) else None
    if path is None or not is_mapped(array):
        return None
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    return path, start, start + array.nbytes


def is_mapped(array: Array) -> bool:
    """Returns whether an array is a read-only, contiguous section of a memory-mapped file."""
    flags = array.flags
    return not flags.writeable and flags.c_contiguous and isinstance(owner_of(array), mmap.mmap)


def owner_of(array: Array) -> Any:
    """Returns the object that owns the memory of an array or memoryview."""
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    return owner
