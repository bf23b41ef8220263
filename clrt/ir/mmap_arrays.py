"""Arrays that are parts of mapped files."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from clrt.ir.op import Array


def is_mapped(array: Array) -> bool:
    """Whether the elements are a read-only part of a mapped file, one after the other."""
    flags = array.flags
    return not flags.writeable and flags.c_contiguous and isinstance(owner_of(array), mmap.mmap)


def owner_of(array: Array) -> Any:
    """What holds the memory of an array."""
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    return owner
