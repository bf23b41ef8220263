"""Support for PyInstaller, which finds this folder by an entry point, and for Nuitka."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Returns the folders with PyInstaller's hooks for clrt and pyopencl: only this package's."""
    return [str(Path(__file__).parent)]
