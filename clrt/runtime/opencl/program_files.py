"""Cache entries of compiled programs on disk: one file per program, checked before use."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from clrt.errors import InputError
from clrt.util.files import atomic_write, is_private, make_cache_folder, read_regular

# Maximum size of a cache entry that is read, in bytes.
_MAX_ENTRY_BYTES = 256 << 20


def prepare(folder: Path) -> None:
    """Creates the cache folder if it does not exist.

    Raises:
        InputError: The folder cannot be created, or is open to others.
    """
    make_cache_folder(folder)
    if not _is_private_folder(folder):
        raise InputError(
            f"Other users can write to '{folder}', so clrt does not store programs "
            "there; run chmod go-w on it, or name another folder."
        )


def write(folder: Path, key: str, binary: bytes) -> None:
    """Writes a cache entry atomically.

    Args:
        folder: Cache folder, from `prepare`.
        key: Cache key of the program.
        binary: Binary of the program.

    Raises:
        InputError: The file cannot be written.
    """
    path = _path(folder, key)
    _remove_special_file(path)
    with atomic_write(path, sync=False) as stream:  # a torn entry fails its digest
        stream.write(_digest(key, binary) + binary)


def read(folder: Path, key: str) -> bytes | None:
    """Returns the program binary of a cache entry; None if it is missing, damaged or not trusted.

    An entry is trusted if no other user can write to it or its folder.
    """
    try:
        data = read_regular(_path(folder, key), _MAX_ENTRY_BYTES, private=True)
    except OSError:
        return None
    digest, binary = data[:32], data[32:]
    return binary if _is_private_folder(folder) and _digest(key, binary) == digest else None


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.clbin"


def _is_private_folder(folder: Path) -> bool:
    """Returns whether no other user can write to a folder; False if it does not exist."""
    try:
        return is_private(folder.stat())
    except OSError:
        return False


def _digest(key: str, binary: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + binary).digest()


def _remove_special_file(path: Path) -> None:
    """Removes a pipe, link or device at a cache entry's path, so that no write goes through it."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
