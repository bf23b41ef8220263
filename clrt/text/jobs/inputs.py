"""The files that a job reads: found by patterns, told apart by what they were when it began."""

from __future__ import annotations

import glob
import gzip
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from clrt.errors import InputError
from clrt.util.files import expanded

PARQUET = (".parquet", ".pq")
JSON_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_TAIL_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class InputFile:
    """A file, and by what a change of it is known.

    Attributes:
        path: Its absolute path.
        tail: A digest of its end, which in Parquet holds the schema.
    """

    path: str
    size: int
    mtime_ns: int
    tail: str

    @classmethod
    def of(cls, path: str) -> InputFile:
        """The file as it is now.

        Raises:
            InputError: It cannot be read.
        """
        try:
            with open(path, "rb") as stream:
                status = os.fstat(stream.fileno())
                stream.seek(max(status.st_size - _TAIL_BYTES, 0))
                tail = hashlib.blake2b(stream.read(), digest_size=8).hexdigest()
        except OSError as error:
            raise InputError(f"'{path}' cannot be read: {error.strerror}.") from error
        return cls(path, status.st_size, status.st_mtime_ns, tail)


def is_parquet(path: str) -> bool:
    """Whether a file is Parquet by its name; else it is JSON lines."""
    return path.lower().endswith(PARQUET)


def open_lines(path: str) -> BinaryIO:
    """The bytes of a file of JSON lines, unpacked."""
    if path.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def bounded_lines(stream: BinaryIO, most_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Reads lines without holding more of one than is allowed.

    Args:
        most_bytes: Longest line in bytes; of a longer one the bytes beyond are skipped.

    Returns:
        Each line, cut to `most_bytes + 1` bytes, and the bytes that it has.
    """
    while line := stream.readline(most_bytes + 1):
        size = len(line)
        if size > most_bytes:
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(_BLOCK_BYTES)
                size += len(rest)
        yield line, size


def find_inputs(patterns: Iterable[str], output: Path) -> list[str]:
    """The absolute paths of the files that patterns name, in order and each once.

    A pattern is a file, a folder, or has `*`, `?`, `[…]` or `**` of file names. Of folders and
    patterns only Parquet and JSON lines are taken, and nothing that a job wrote or that is hidden.

    Args:
        output: The folder that the job writes.

    Raises:
        InputError: A pattern names no such file.
    """
    found: set[str] = set()
    for pattern in patterns:
        path = str(expanded(pattern))
        if os.path.isfile(path):
            if not _is_readable(path):
                raise InputError(
                    f"'{pattern}' is neither Parquet nor JSON lines; its name must end in one of "
                    f"{', '.join(PARQUET + JSON_LINES)}."
                )
            found.add(os.path.abspath(path))
            continue
        inside = os.path.abspath(output) + os.sep
        here = [
            p
            for p in map(os.path.abspath, _matching(path))
            if _is_readable(p) and not p.startswith(inside)
        ]
        if not here:
            raise InputError(
                f"'{pattern}' names no Parquet or JSON lines; give a file, a folder or a pattern "
                f"such as 'folder/*.parquet'."
            )
        found.update(here)
    return sorted(found)


def _matching(path: str) -> Iterator[str]:
    """The files in a folder and those below it, or those that a pattern matches."""
    if not os.path.isdir(path):
        yield from filter(os.path.isfile, glob.glob(path, recursive=True))
        return
    for folder, folders, names in os.walk(path):
        folders[:] = [f for f in folders if not f.startswith(("_", "."))]
        yield from (os.path.join(folder, n) for n in names if not n.startswith(("_", ".")))


def _is_readable(path: str) -> bool:
    return path.lower().endswith(PARQUET + JSON_LINES)
