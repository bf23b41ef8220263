"""The checksum of compiled models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import xxhash

from clrt.errors import ModelError
from clrt.formats.safetensors import SafetensorsHeader, Table, damaged
from clrt.ir.op import Array
from clrt.util.files import atomic_write

# Maximum size in bytes of a file whose digest is checked while it is opened. Larger files are
# checked in a thread, because reading them takes longer than mapping them.
_MAX_SYNCHRONOUS_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


class DigestCheck:
    """Verifies the checksum of a compiled model: on creation, or in a thread if the file is large.

    Calling the object waits for the thread. The file is read in chunks, not through a memory
    mapping, whose pages would count as memory of the process.

    Args:
        header: Header of the compiled model's file.

    Raises:
        ModelError: The file is damaged. For a large file, only calling the object raises it.
    """

    def __init__(self, header: SafetensorsHeader) -> None:
        self._header, self._process = header, os.getpid()
        self._error: ModelError | None = None
        self._done = False
        if header.file.stat().st_size <= _MAX_SYNCHRONOUS_BYTES:
            self._work()
            self()
        else:
            self._thread = Thread(target=self._work, name="clrt-check", daemon=True)
            self._thread.start()

    def __call__(self) -> None:
        """Waits until the checksum is verified.

        In a process that was forked before the thread was done, verifies the checksum itself.

        Raises:
            ModelError: The file is damaged.
        """
        if not self._done and self._process == os.getpid():
            self._thread.join()
        if not self._done:  # a forked process does not have the thread
            self._work()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        """Computes the checksum of the file.

        Records an error for `__call__` if the checksum differs from the stored one, or the file
        cannot be read.
        """
        header = self._header
        metadata = dict(header.metadata)
        expected, digest = metadata.pop("digest", ""), xxhash.xxh3_128()
        chunk = memoryview(bytearray(_CHUNK_BYTES))
        try:
            with header.file.open("rb", buffering=0) as stream:
                stream.seek(header.data_start)
                while count := stream.readinto(chunk):
                    digest.update(chunk[:count])
        except OSError as error:
            self._error = ModelError(f"'{header.file}' cannot be read: {error.strerror}.")
        start = header.data_start
        entries = {
            name: {
                "dtype": e.dtype,
                "shape": e.shape,
                "data_offsets": (e.start - start, e.stop - start),
            }
            for name, e in header.tensors.items()
        }
        digest.update(canonical(metadata, entries))
        if self._error is None and digest.hexdigest() != expected:
            self._error = damaged(header.file, "its checksum is wrong")
        self._done = True


def write_with_digest(
    path: Path,
    metadata: dict[str, str],
    tensors: Mapping[str, Callable[[], Array]],
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    sync: bool = True,
) -> None:
    """Writes a safetensors file whose metadata get the checksum that `DigestCheck` verifies.

    If that fails, `path` is unchanged.

    Args:
        metadata: Metadata strings without "digest".
        tensors: Returns the elements of each tensor, by name; called twice, so that the elements
            of one tensor are in memory at a time.
        progress: Called with (bytes written, total bytes).
        sync: Whether to wait until the file is on the disk.

    Raises:
        InputError: The file cannot be written.
    """
    table, digest = Table(dict(metadata)), xxhash.xxh3_128()
    for name, elements in tensors.items():
        for part in table.add(name, elements()):
            digest.update(part)
    digest.update(canonical(table.metadata, table.entries))
    table.metadata["digest"] = digest.hexdigest()
    written = Table({})
    with atomic_write(path, sync=sync) as stream:
        stream.write(table.encode())
        for name, elements in tensors.items():
            for part in written.add(name, elements()):
                stream.write(part)
            progress(written.data_bytes, table.data_bytes)


def canonical(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    """Returns the header of a compiled model as the bytes that its checksum covers.

    Args:
        metadata: Metadata strings without "digest".
        entries: Dtype, shape and data offsets of each tensor by name.

    Returns:
        `metadata` and `entries` as JSON with sorted keys.
    """
    return json.dumps([metadata, entries], sort_keys=True).encode()


def text_digest(parts: Sequence[str]) -> str:
    """Returns a digest of texts."""
    return xxhash.xxh3_128("\0".join(parts).encode()).hexdigest()


def digest_of(files: Sequence[Path]) -> str:
    """Returns a digest of the content of files; a file that cannot be read counts as empty."""
    digest = xxhash.xxh3_128()
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    for file in files:
        digest.update(f"\0{file.name}\0".encode())
        with suppress(OSError), file.open("rb", buffering=0) as stream:
            while count := stream.readinto(chunk):
                digest.update(chunk[:count])
    return digest.hexdigest()
