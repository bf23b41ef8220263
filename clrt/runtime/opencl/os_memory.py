"""Returns memory to the operating system: pages of mapped files, and freed heap."""

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
# Matches a private, read-only file mapping without written pages: start address, end address, file.
_CLEAN = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p (?:\S+ +){3}(/.*)\n(?:[A-Z].*\n)*?Anonymous: +0 kB$",
    re.MULTILINE,
)
# Minimum size of a mapping that `drop_code` drops, in bytes: drivers' libraries are large.
_MIN_CODE_BYTES = 1 << 20


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


def mapped_files() -> frozenset[bytes]:
    """Returns the paths of the files that this process has mapped.

    Empty if the system does not list them in /proc.
    """
    with suppress(OSError):
        return frozenset(_FILE.findall(_MAPS.read_bytes()))
    return frozenset()


def drop_code(known: Set[bytes]) -> None:
    """Drops the resident code pages of libraries that were loaded since `known` was read.

    Linking touches most pages of a library, and unused drivers stay loaded. The next access reads
    the pages from the page cache again. Pages that were written are kept. The libraries are pinned
    in the process, so that no other thread unloads one meanwhile.

    Args:
        known: Paths of files mapped before, from `mapped_files`: their pages are kept. If empty,
            no pages are dropped.
    """
    if sys.platform != "linux" or not known:
        return
    pinned = {file for file in mapped_files() - known if _keep_library(os.fsdecode(file))}
    advise = ctypes.CDLL(None).madvise
    with suppress(OSError):
        for start, end, file in _CLEAN.findall(_DETAILED_MAPS.read_bytes()):
            first, nbytes = int(start, 16), int(end, 16) - int(start, 16)
            if file in pinned and nbytes >= _MIN_CODE_BYTES:
                advise(ctypes.c_void_p(first), ctypes.c_size_t(nbytes), mmap.MADV_DONTNEED)


def _keep_library(file: str) -> bool:
    """Prevents a loaded library from being unloaded; returns False if `file` is not one."""
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        ctypes.CDLL(file, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return True
    return False
