"""Finds the linker that PoCL starts for each kernel it compiles.

PoCL 3.0 runs `ld … -lgcc -lgcc_s -lc`. If the command fails, since binutils or gcc's files are
missing, PoCL ends the process. Kernels call only functions of these libraries that this process has
loaded already. Empty stub libraries therefore suffice, in a folder that is searched after the
system's folders.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import cache
from pathlib import Path

from clrt.util.files import SHIPPED

_STUBS = Path(__file__).parent / "link_stubs"
# The compiler's support library. Kernels call it for conversions that the CPU has no instruction
# for.
_COMPILER_LIBRARY = "libgcc_s.so.1"


def has_linker() -> bool:
    """Returns whether PoCL finds a linker: on the PATH, or the one that a frozen application ships.

    If the PATH has no linker, adds the folder of the shipped linker to PATH and LD_LIBRARY_PATH of
    this process. If a linker is found, adds the folder of the stub libraries to LIBRARY_PATH.
    """
    if _linker_on_path() is None:
        _append("PATH", SHIPPED / "linker")
        _append("LD_LIBRARY_PATH", SHIPPED / "linker")  # the libraries that the linker needs
    is_present = _linker_on_path() is not None
    if is_present:
        _append("LIBRARY_PATH", _STUBS)
        _load_compiler_library()
    return is_present


def _linker_on_path() -> str | None:
    # If PATH is not set, Python would search the usual folders, but PoCL does not.
    return shutil.which("ld", path=os.environ.get("PATH", ""))


def _append(variable: str, folder: Path) -> None:
    folders = [f for f in os.environ.get(variable, "").split(os.pathsep) if f]
    if folder.is_dir() and str(folder) not in folders:
        os.environ[variable] = os.pathsep.join([*folders, str(folder)])


@cache
def _load_compiler_library() -> None:
    """Loads libgcc_s with global symbols, for kernels that were linked against the stub."""
    try:
        ctypes.CDLL(_COMPILER_LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return
