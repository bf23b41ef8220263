"""Support for frozen applications: hooks of PyInstaller, and options for Nuitka.

PyInstaller finds this folder by an entry point of the package.
"""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """Returns the folders with hooks for PyInstaller: the folder of this package."""
    return [str(Path(__file__).parent)]
