"""Reads and writes safetensors files without copying their tensors.

A safetensors file is an 8-byte little-endian header length, a JSON header that gives each
tensor's dtype, shape and byte range, and the tensors' bytes. The `safetensors` package copies what
it reads into NumPy, writes from memory only, and aligns to 8 bytes.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.errors import ModelError
from clrt.ir.mmap_arrays import owner_of, remember_file
from clrt.util.fast_dataclass import dataclass

Array = NDArray[Any]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LFS_MARK = b"version https://git-lfs"
# Alignment of the first tensor in bytes; each further one starts at a multiple of ALIGNMENT_BYTES,
# so that devices can read the mapped file in place.
_PAGE_BYTES = 4096
# Name prefix of tensors that only pad the file.
PADDING = "padding/"
# Maximum size of a header in bytes, as the format defines it.
MAX_HEADER_BYTES = 100_000_000
# Maximum rank of a NumPy array.
_MAX_RANK = 64
# Maximum length of a reason in a message: it may quote names as long as the file.
_MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True)
class Entry:
    """Header entry of a tensor in a safetensors file.

    Attributes:
        dtype: Dtype code, such as "F32".
        shape: Shape of the tensor.
        start: Byte offset of the tensor in the file.
        stop: Byte offset of its end, exclusive.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """The header of a safetensors file.

    Attributes:
        file: The file.
        tensors: The tensors by name.
        metadata: Text metadata by key.
        data_start: Offset in bytes of the first tensor.
    """

    file: Path
    tensors: Mapping[str, Entry]
    metadata: Mapping[str, str]
    data_start: int

    def map(self) -> NDArray[np.uint8]:
        """Returns all bytes of the file, memory-mapped read-only."""
        data = np.memmap(self.file, np.uint8, mode="r")
        remember_file(owner_of(data), self.file)
        return data


def read_header(file: Path) -> SafetensorsHeader:
    """Reads the header of a safetensors file; checks the shapes and byte ranges in it.

    Dtype codes that clrt does not know are accepted.

    Raises:
        ModelError: The file is damaged, or a Git LFS pointer.
    """
    with open_weights(file) as (stream, size):
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise damaged(file, "it is shorter than its header says")
        text = stream.read(length)
    try:
        header = parse_json(text)
        if not isinstance(header, dict):
            raise TypeError("it is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise TypeError("its __metadata__ is not text by name")
        tensors = {name: _entry(8 + length, name, spec) for name, spec in header.items()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(file, f"its header cannot be read, {error!r}") from error
    _check_ranges(file, tensors, 8 + length, size)
    return SafetensorsHeader(file, tensors, metadata, 8 + length)


@contextmanager
def open_weights(file: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Context manager that opens a weight file: yields its stream and its size in bytes.

    Raises:
        ModelError: The file cannot be read, or is a pipe, a device or a Git LFS pointer.
    """
    try:
        try:
            status = file.stat()
        except ValueError as error:  # the path contains a NUL
            raise ModelError(f"'{file}' cannot be read: {error}.") from error
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ModelError(f"'{file}' is a pipe or a device; models are read from files.")
        with file.open("rb") as stream:
            if stream.read(len(_LFS_MARK)) == _LFS_MARK:
                raise ModelError(
                    f"{file} is a Git LFS pointer and not the weights; run 'git lfs pull' "
                    "beside it."
                )
            stream.seek(0)
            yield stream, status.st_size
    except OSError as error:
        raise ModelError(f"'{file}' cannot be read: {error.strerror}.") from error


def damaged(file: Path, why: str) -> ModelError:
    """Returns the error for a damaged file.

    Args:
        why: The reason, as a clause.
    """
    shown = why if len(why) <= _MAX_MESSAGE_CHARS else f"{why[:_MAX_MESSAGE_CHARS]}…"
    return ModelError(f"{file} is damaged: {shown}; download or convert it again.")


def parse_json(text: str | bytes) -> Any:
    """Parses JSON text.

    Raises:
        ValueError: The text is not JSON, or an object in it repeats a key.
        RecursionError: The text nests too deep.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict, from its (key, value) pairs; rejects repeated keys.

    Raises:
        ValueError: A key is repeated.
    """
    items = dict(pairs)
    if len(items) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{key[:100]!r} is there twice")
            seen.add(key)
    return items


@dataclass
class Table:
    """The header of a safetensors file to be written; tensors are added in file order.

    Attributes:
        metadata: Text metadata.
        entries: Header entries by tensor name.
        data_bytes: Bytes of the tensors so far, including padding.
    """

    metadata: dict[str, str]
    entries: dict[str, Any] = field(default_factory=dict)
    data_bytes: int = 0

    def add(self, name: str, array: Array) -> Iterator[memoryview]:
        """Adds a tensor to the header; yields the bytes of the tensor to write to the file.

        Padding follows if the next tensor would not be aligned. A tensor of a dtype that the format
        lacks is stored as uint8, with the bytes of an element as the last axis.
        """
        raw = np.asarray(array, order="C")
        if raw.dtype not in _CODES:
            raw = raw.reshape(*raw.shape, 1).view(np.uint8)
        self._enter(name, _CODES[raw.dtype], raw.shape, raw.nbytes)
        yield raw.reshape(-1).view(np.uint8).data
        # The format allows no holes, so the padding is a tensor, too.
        if gap := -self.data_bytes % ALIGNMENT_BYTES:
            self._enter(f"{PADDING}{name}", "U8", (gap,), gap)
            yield memoryview(bytes(gap))

    def _enter(self, name: str, code: str, shape: tuple[int, ...], nbytes: int) -> None:
        """Adds a header entry for a tensor that is stored after all present tensors.

        Args:
            name: Name of the tensor.
            code: Dtype code, such as "F32".
            shape: Shape of the tensor.
            nbytes: Size of the tensor in bytes.
        """
        offsets = (self.data_bytes, self.data_bytes + nbytes)
        self.entries[name] = {"dtype": code, "shape": shape, "data_offsets": offsets}
        self.data_bytes += nbytes

    def encode(self) -> bytes:
        """Returns the encoded header, padded so that the first tensor is page-aligned."""
        table = {"__metadata__": self.metadata, **self.entries}
        text = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _PAGE_BYTES)
        return len(text).to_bytes(8, "little") + text


def _entry(base: int, name: str, spec: Any) -> Entry:
    """Checks the types in a tensor's JSON header entry, and converts it.

    Args:
        base: Byte offset in the file of the first tensor; offsets in the header start there.
        name: Name of the tensor.
        spec: JSON value of the entry.

    Raises:
        TypeError: The entry has other keys or types than the format demands.
        ValueError: The shape has too many axes.
    """
    if not isinstance(spec, dict) or spec.keys() != {"dtype", "shape", "data_offsets"}:
        raise TypeError(f"tensor {name[:100]!r} must have dtype, shape and data_offsets only")
    dtype, shape, offsets = spec["dtype"], spec["shape"], spec["data_offsets"]
    numbers = [shape, offsets]
    if not isinstance(dtype, str) or not all(map(_are_sizes, numbers)) or len(offsets) != 2:
        raise TypeError(f"tensor {name[:100]!r} has no valid dtype, shape or data_offsets")
    if len(shape) > _MAX_RANK:
        raise ValueError(f"tensor {name[:100]!r} has {len(shape)} axes")
    start, stop = offsets
    return Entry(dtype, tuple(shape), base + start, base + stop)


def _are_sizes(items: Any) -> bool:
    """Returns whether a value is a list of integers from 0 to 2^63 - 1; bools do not count."""
    return isinstance(items, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in items)


def _check_ranges(file: Path, tensors: Mapping[str, Entry], base: int, size: int) -> None:
    """Checks that each byte range has the size of its tensor, and that ranges fill the file.

    The size is not checked for dtype codes that clrt does not know.

    Args:
        tensors: Header entries by tensor name.
        base: Offset in bytes of the first tensor.
        size: Size of the file in bytes.

    Raises:
        ModelError: A range is outside the file, overlaps another, has a wrong size or leaves a gap.
    """
    at = base
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if not base <= entry.start <= entry.stop <= size:
            raise damaged(file, f"tensor '{name[:100]}' is outside the file")
        if entry.start != at:
            what = "overlaps the one before it" if entry.start < at else "has a hole before it"
            raise damaged(file, f"tensor '{name[:100]}' {what}")
        at = entry.stop
        dtype = DTYPES.get(entry.dtype)
        if dtype and entry.stop - entry.start != math.prod(entry.shape) * dtype.itemsize:
            raise damaged(file, f"tensor '{name[:100]}' does not have the bytes its shape needs")
    if at != size:
        raise damaged(file, f"{size - at} bytes at its end belong to no tensor")
