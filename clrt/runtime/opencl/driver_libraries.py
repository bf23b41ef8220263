"""Loads OpenCL drivers' libraries during imports, and drops code pages that only linking used."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import re
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from threading import Thread

from clrt.runtime.opencl.icd_loader import intel_library, is_restricted, load_library
from clrt.util.gc_control import import_module

_MAPS, _DETAILED_MAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
_FILE = re.compile(rb"^(?:\S+ +){5}(/.*)$", re.MULTILINE)
# Matches a private, read-only file mapping without written pages: start address, end address, file.
_CLEAN = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p (?:\S+ +){3}(/.*)\n(?:[A-Z].*\n)*?Anonymous: +0 kB$",
    re.MULTILINE,
)
# Minimum size of a mapping that `drop_code` drops, in bytes: drivers' libraries are large.
_MIN_CODE_BYTES = 1 << 20

# Modules that `clrt.load` imports, with all extension modules among them: to load one, a thread
# waits for the linker's lock.
_DRIVER = "clrt.runtime.opencl.driver"
_LINKED = (_DRIVER, "hashlib", "heapq", "json", "ml_dtypes", "mmap", "queue", "uuid", "xxhash")

# Thread of `map_ahead`, and the files that were mapped before it began.
_mapping: Thread | None = None
_known: frozenset[bytes] = frozenset()


def map_ahead() -> None:
    """Starts a thread that loads the libraries of drivers for CPUs that pip installed.

    Imports clrt's extension modules first, in this thread, since they need the linker's lock.
    Linking takes 40 ms, while other threads can import Python modules. Calls no OpenCL function:
    after one, a driver may not work in forked processes. Does nothing after the first call, on
    systems other than Linux, and if OCL_ICD_VENDORS restricts the ICD loader to one library.
    """
    global _mapping
    if _mapping is not None or sys.platform != "linux" or is_restricted():
        return
    for name in _LINKED:
        with suppress(ImportError):  # the user of the module says why
            import_module(name)
    thread = Thread(target=_map, name="clrt-libraries")  # ended at exit
    with suppress(RuntimeError):  # no more threads: the libraries are loaded later
        thread.start()
        _mapping = thread
        os.register_at_fork(before=thread.join)  # the child would wait for the linker's lock


def _map() -> None:
    """Records the files that are mapped, then loads the libraries of drivers."""
    global _known
    _known = mapped_files()
    for library in _cpu_drivers():
        with suppress(OSError):
            load_library(str(library))


def _cpu_drivers() -> Iterator[Path]:
    """Yields the libraries of Intel's runtime and of PoCL, if pip installed them."""
    library = intel_library()
    if library is not None:
        yield library
    spec = importlib.util.find_spec("pyopencl")
    if spec is not None and spec.origin is not None:
        yield from (Path(spec.origin).parent / ".libs").glob("libpocl*.so*")


def files_before_drivers() -> frozenset[bytes]:
    """Returns the files that were mapped before any driver's library; waits for `map_ahead`.

    Call it before the ICD loader's first call.
    """
    if _mapping is None:
        return mapped_files()
    _mapping.join()
    return _known


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
