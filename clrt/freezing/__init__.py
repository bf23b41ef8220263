"""Support for PyInstaller, which finds this folder by an entry point, and for Nuitka."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Returns the folder of PyInstaller's hooks for clrt and pyopencl."""
    return [str(Path(__file__).parent)]
