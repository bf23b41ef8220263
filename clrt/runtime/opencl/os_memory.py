"""Memory that goes back to the system: mapped files that were read, and what was freed."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import numpy as np

from clrt.ir.mmap_arrays import is_mapped, owner_of
from clrt.ir.op import Array

_MAPS, _DETAILED_MAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
_FILE = re.compile(rb"^(?:\S+ +){5}(/.*)$", re.MULTILINE)
# A mapping that only reads its file, none of whose pages was ever written: start, end, file.
_CLEAN = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p (?:\S+ +){3}(/.*)\n(?:[A-Z].*\n)*?Anonymous: +0 kB$",
    re.MULTILINE,
)
# Drivers' libraries are large.
_LEAST_CODE_BYTES = 1 << 20


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


def mapped_files() -> frozenset[bytes]:
    """The files that this process has mapped; none where the system does not tell."""
    with suppress(OSError):
        return frozenset(_FILE.findall(_MAPS.read_bytes()))
    return frozenset()


def drop_code(known: Set[bytes]) -> None:
    """Takes what libraries have in memory out of it, where they came after some files were mapped.

    To link a library touches most of it, and a driver of which nothing is used stays loaded. Pages
    are read again, from the system's copy of the file, where somebody needs them. Those that were
    written stay, and so do the libraries, for good: another thread must not unload one meanwhile.

    Args:
        known: The files that are left alone; where there is none, nothing is done.
    """
    if sys.platform != "linux" or not known:
        return
    kept = {file for file in mapped_files() - known if _keep_library(os.fsdecode(file))}
    advise = ctypes.CDLL(None).madvise
    with suppress(OSError):
        for start, end, file in _CLEAN.findall(_DETAILED_MAPS.read_bytes()):
            first, nbytes = int(start, 16), int(end, 16) - int(start, 16)
            if file in kept and nbytes >= _LEAST_CODE_BYTES:
                advise(ctypes.c_void_p(first), ctypes.c_size_t(nbytes), mmap.MADV_DONTNEED)


def _keep_library(file: str) -> bool:
    """Whether a file is a library that is loaded; then it stays so."""
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        ctypes.CDLL(file, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return True
    return False
