"""Finds the linker that PoCL starts for each kernel it compiles.

PoCL 3.0 runs `ld … -lgcc -lgcc_s -lc`, and ends the process where that fails: without binutils, and
with binutils where gcc's files are missing. The code of kernels calls nothing of these libraries
that this process has not loaded, so empty ones do: they come behind the folders of the system.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import cache
from pathlib import Path

from clrt.util.files import SHIPPED

_STUBS = Path(__file__).parent / "link_stubs"
# Conversions of numbers that the CPU has no instruction for.
_COMPILER_LIBRARY = "libgcc_s.so.1"


def has_linker() -> bool:
    """Whether PoCL finds a linker: one on the PATH, or the one that an application brings along.

    The environment of this process says afterwards where that one is, and where empty libraries
    are.
    """
    if _on_path() is None:
        _append("PATH", SHIPPED / "linker")
        _append("LD_LIBRARY_PATH", SHIPPED / "linker")  # its own libraries lie beside it
    found = _on_path() is not None
    if found:
        _append("LIBRARY_PATH", _STUBS)
        _load_compiler_library()
    return found


def _on_path() -> str | None:
    # Where PATH is not set, Python looks in the usual folders, but PoCL does not.
    return shutil.which("ld", path=os.environ.get("PATH", ""))


def _append(variable: str, folder: Path) -> None:
    folders = [f for f in os.environ.get(variable, "").split(os.pathsep) if f]
    if folder.is_dir() and str(folder) not in folders:
        os.environ[variable] = os.pathsep.join([*folders, str(folder)])


@cache
def _load_compiler_library() -> None:
    """For kernels that were linked without it, which find it only where all may use it."""
    try:
        ctypes.CDLL(_COMPILER_LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return
