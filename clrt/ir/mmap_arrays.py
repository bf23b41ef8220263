"""Detects arrays whose memory is a mapped file."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from clrt.ir.op import Array


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
