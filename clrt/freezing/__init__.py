"""For tools that freeze applications. PyInstaller finds this folder by an entry point."""

from __future__ import annotations

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """The folder of PyInstaller's hook for clrt."""
    return [str(Path(__file__).parent)]
