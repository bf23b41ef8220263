"""`clrt cache`."""

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

# What clrt writes into its folder, which CLRT_CACHE_DIR may have put among other files.
_MADE = ("*.clbin", "devices/*.json", "self-tests/*.json", "pocl/**/*")
_RECORDS = "tuning.json"


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove compiled programs; they are compiled anew.")
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="With --clear: remove what `clrt tune` measured, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show where clrt keeps compiled programs and records, and how large that is.

    CLRT_CACHE_DIR names another folder.
    """
    if records and not clear:
        raise InputError("--records says what to --clear; give both.")
    folder = cache_dir()
    removed = 0
    if clear:
        patterns = (*_MADE, _RECORDS) if records else _MADE
        for path, _ in list(_files(folder, patterns)):
            path.unlink(missing_ok=True)
            removed += 1
    left = list(_files(folder, (*_MADE, _RECORDS)))
    nbytes = sum(size for _, size in left)
    if as_json:
        values = {"folder": str(folder), "files": len(left), "bytes": nbytes, "removed": removed}
        echo_json(values)
        return
    if clear:
        echo(f"{counted(removed, 'file')} removed.")
    echo(f"{folder}: {counted(len(left), 'file')}, {format_bytes(nbytes)}")


def _files(folder: Path, patterns: Iterable[str]) -> Iterator[tuple[Path, int]]:
    """Files of clrt's in a folder with their sizes in bytes; links are none."""
    for path in (p for pattern in patterns for p in folder.glob(pattern)):
        try:
            status = path.lstat()
        except OSError:  # another process has removed it
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status.st_size
