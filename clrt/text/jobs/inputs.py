"""Input files of a job: found by patterns, fingerprinted to detect changes."""

from __future__ import annotations

import glob
import gzip
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from clrt.errors import InputError
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import expanded

PARQUET = (".parquet", ".pq")
JSON_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_TAIL_BYTES = 1 << 16  # Bytes at the end of a file that `InputFile.tail` hashes.
_BLOCK_BYTES = 1 << 20  # Bytes per read while skipping the rest of a long line.


@dataclass(frozen=True)
class InputFile:
    """Fingerprint of an input file.

    Attributes:
        path: Absolute path.
        size: Size in bytes.
        mtime_ns: Modification time in nanoseconds.
        tail: Digest of the file's end, which in Parquet holds the schema.
    """

    path: str
    size: int
    mtime_ns: int
    tail: str

    @classmethod
    def of(cls, path: str) -> InputFile:
        """Fingerprints a file.

        Raises:
            InputError: The file cannot be read.
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
    """Returns whether an input file of a job is Parquet, by its suffix; else it is JSON lines."""
    return path.lower().endswith(PARQUET)


def open_lines(path: str) -> BinaryIO:
    """Opens a file of JSON lines for reading, decompressed if its name ends in .gz."""
    if path.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def bounded_lines(stream: BinaryIO, max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yields the lines of a stream with bounded memory.

    Args:
        stream: Stream to read.
        max_bytes: Maximum line length in bytes; the rest of a longer line is skipped.

    Yields:
        Each line, cut to `max_bytes + 1` bytes, and its full length in bytes.
    """
    while line := stream.readline(max_bytes + 1):
        size = len(line)
        if size > max_bytes:
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(_BLOCK_BYTES)
                size += len(rest)
        yield line, size


def find_inputs(patterns: Iterable[str], output: Path) -> list[str]:
    """Returns the absolute paths of all matching files, sorted, without duplicates.

    Folders and globs match only Parquet and JSON lines that are not below `output`. Folders also
    skip names that start with `_` or `.`.

    Args:
        patterns: Files, folders, or globs with `*`, `?`, `[…]` or `**`.
        output: Folder that the job writes.

    Raises:
        InputError: A pattern matches no Parquet or JSON lines.
    """
    paths: set[str] = set()
    for pattern in patterns:
        path = str(expanded(pattern))
        if os.path.isfile(path):
            if not _is_readable(path):
                raise InputError(
                    f"'{pattern}' is neither Parquet nor JSON lines; its name must end in one of "
                    f"{', '.join(PARQUET + JSON_LINES)}."
                )
            paths.add(os.path.abspath(path))
            continue
        inside = os.path.abspath(output) + os.sep
        matches = [
            p
            for p in map(os.path.abspath, _matching(path))
            if _is_readable(p) and not p.startswith(inside)
        ]
        if not matches:
            raise InputError(
                f"'{pattern}' matches no Parquet or JSON lines files; give a file, a folder or a "
                "pattern such as 'folder/*.parquet'."
            )
        paths.update(matches)
    return sorted(paths)


def _matching(path: str) -> Iterator[str]:
    """Yields the files in a folder and its subfolders, or the files that a glob matches.

    Args:
        path: Folder or glob. Names in a folder that start with `_` or `.` are skipped.
    """
    if not os.path.isdir(path):
        yield from filter(os.path.isfile, glob.glob(path, recursive=True))
        return
    for folder, folders, names in os.walk(path):
        folders[:] = [f for f in folders if not f.startswith(("_", "."))]
        yield from (os.path.join(folder, n) for n in names if not n.startswith(("_", ".")))


def _is_readable(path: str) -> bool:
    return path.lower().endswith(PARQUET + JSON_LINES)
