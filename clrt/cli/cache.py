"""The command `clrt cache`: shows or clears compiled programs, plans and tuning records on disk."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from clrt.cli.console import echo, echo_json
from clrt.errors import InputError, counted
from clrt.util.env_vars import cache_dir
from clrt.util.formatting import format_bytes

# Patterns of files that clrt writes; CLRT_CACHE_DIR may name a folder with other files.
_CACHE_FILES = (
    "*.clbin",
    ".*.lock",
    "executables/*.clexe",
    "devices/*.json",
    "self-tests/*.json",
    "pocl/**/*",
)
_TUNING_RECORDS = "tuning.json"


def cache(
    clear: Annotated[
        bool,
        typer.Option("--clear", help="Remove compiled programs and plans; they are made again."),
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="With --clear: also remove results of `clrt tune`.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the folder of compiled programs, plans and tuning records, and its size.

    CLRT_CACHE_DIR names another folder.
    """
    if records and not clear:
        raise InputError("--records needs --clear; give both.")
    folder = cache_dir()
    removed = 0
    if clear:
        patterns = (*_CACHE_FILES, _TUNING_RECORDS) if records else _CACHE_FILES
        for path, _ in list(_files(folder, patterns)):
            path.unlink(missing_ok=True)
            removed += 1
    files = list(_files(folder, (*_CACHE_FILES, _TUNING_RECORDS)))
    nbytes = sum(size for _, size in files)
    if as_json:
        values = {"folder": str(folder), "files": len(files), "bytes": nbytes, "removed": removed}
        echo_json(values)
        return
    if clear:
        echo(f"{counted(removed, 'file')} removed.")
    echo(f"{folder}: {counted(len(files), 'file')}, {format_bytes(nbytes)}")


def _files(folder: Path, patterns: Iterable[str]) -> Iterator[tuple[Path, int]]:
    """Yields path and size in bytes of the regular files in a folder; links are excluded.

    Args:
        folder: The folder.
        patterns: Globs that select files.
    """
    for path in (p for pattern in patterns for p in folder.glob(pattern)):
        try:
            status = path.lstat()
        except OSError:  # another process has removed it
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status.st_size
