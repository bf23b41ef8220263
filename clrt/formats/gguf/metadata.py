"""Metadata of GGUF files: values by key, decoded on first access."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from clrt.errors import ModelError
from clrt.formats.safetensors import damaged

# An array is a tuple of strings, or a read-only one-dimensional NumPy array of numbers.
MetadataValue: TypeAlias = "bool | int | float | str | tuple[str, ...] | NDArray[Any]"
V = TypeVar("V")

# Maximum length of a key, as the format defines it, and of a tensor's name.
_MAX_NAME_BYTES = (1 << 16) - 1
# Maximum number of strings in an array: each costs time, even if it is empty.
_MAX_TEXTS = 1 << 24
# Type codes of values: string, array, and the dtypes of numbers.
_TEXT, _ARRAY = 8, 9
_DTYPES: Mapping[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class ByteReader:
    """Reads integers and strings from a file's bytes in order, with bounds checks.

    Args:
        file: Path of the file, for messages.
        data: All bytes of the file.
        at: Offset of the next byte to read.
    """

    def __init__(self, file: Path, data: memoryview, at: int) -> None:
        self.file, self.data, self.at = file, data, at

    @property
    def left(self) -> int:
        """Number of bytes not yet read."""
        return len(self.data) - self.at

    def skip(self, nbytes: int, what: str) -> int:
        """Skips bytes; returns the offset of the first one.

        Args:
            nbytes: Number of bytes to skip.
            what: Name of the skipped field, for the message: "the value of 'general.name'".

        Raises:
            ModelError: The file has fewer bytes left.
        """
        if nbytes > self.left:
            raise damaged(self.file, f"it ends within {what}")
        self.at += nbytes
        return self.at - nbytes

    def u32(self, what: str) -> int:
        """Reads a 32-bit unsigned integer.

        Args:
            what: Name of the integer, for error messages.

        Raises:
            ModelError: The file ends too early.
        """
        return int(_U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        """Reads a 64-bit unsigned integer.

        Args:
            what: Name of the integer, for error messages.

        Raises:
            ModelError: The file ends too early.
        """
        return int(_U64.unpack_from(self.data, self.skip(8, what))[0])

    def count(self, min_bytes: int, what: str) -> int:
        """Reads the number of items that follow.

        Args:
            min_bytes: Minimum size of an item in bytes.
            what: Name of the items, in the plural.

        Raises:
            ModelError: The rest of the file is too short for that many items.
        """
        count = self.u64(f"the number of {what}")
        if count * min_bytes > self.left:
            raise damaged(self.file, f"it has no room for the {count} {what} that it announces")
        return count

    def name(self, what: str) -> str:
        """Reads a string: a key, or the name of a tensor.

        Args:
            what: Kind of the name, for error messages.

        Raises:
            ModelError: The string is empty, too long or not UTF-8.
        """
        size = self.u64(what)
        if not 0 < size <= _MAX_NAME_BYTES:
            raise damaged(self.file, f"{what} has {size} bytes")
        start = self.skip(size, what)
        try:
            return str(self.data[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise damaged(self.file, f"{what} is not UTF-8") from error

    def skip_texts(self, count: int, what: str) -> None:
        """Skips `count` strings.

        Args:
            what: Name of the strings, for error messages.

        Raises:
            ModelError: The file ends too early.
        """
        data, at, unpack = self.data, self.at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, IndexError, OverflowError) as error:
            raise damaged(self.file, f"it ends within {what}") from error
        self.skip(at - self.at, what)


class _FieldSpan(NamedTuple):
    """Type and byte range of a metadata value.

    Attributes:
        kind: Type code of the value; of its elements if it is an array.
        elements: Number of elements of an array; -1 for a single value.
        start: Byte offset of the value in the file.
        stop: Byte offset of its end, exclusive.
    """

    kind: int
    elements: int
    start: int
    stop: int


class Metadata(Mapping[str, MetadataValue]):
    """Metadata of a GGUF file: a mapping that decodes each value on first access.

    Opening a file skips a vocabulary of 256,000 strings in 30 ms; Python strings are created only
    when the value is read.

    Attributes:
        file: Path of the GGUF file, for messages.
    """

    def __init__(self, file: Path, data: memoryview, spans: Mapping[str, _FieldSpan]) -> None:
        self.file = file
        self._data = data
        self._spans = spans
        self._values: dict[str, MetadataValue] = {}

    def __getitem__(self, key: str) -> MetadataValue:
        if key not in self._values:
            self._values[key] = self._decode(key, self._spans[key])
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def text(self, key: str, default: str | None = None) -> str:
        """Returns the string under a key; `default` if the key is missing.

        Raises:
            ModelError: The key is missing and there is no default, or the value has another type.
        """
        return self._typed(key, default, "a text", lambda v: v if isinstance(v, str) else None)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Returns the bool under a key; `default` if the key is missing.

        Raises:
            ModelError: The key is missing and there is no default, or the value has another type.
        """
        return self._typed(key, default, "a bool", lambda v: v if isinstance(v, bool) else None)

    def integer(self, key: str, default: int | None = None) -> int:
        """Returns the integer under a key; `default` if the key is missing.

        Raises:
            ModelError: The key is missing and there is no default, or the value has another type.
        """
        return self._typed(key, default, "an integer", lambda v: v if type(v) is int else None)

    def number(self, key: str, default: float | None = None) -> float:
        """Returns the integer or float under a key as a float; `default` if the key is missing.

        Raises:
            ModelError: The key is missing and there is no default, or the value has another type.
        """
        return self._typed(
            key, default, "a number", lambda v: float(v) if type(v) in (int, float) else None
        )

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Returns the array of strings under a key; `default` if the key is missing.

        Raises:
            ModelError: The key is missing and there is no default, or the value has another type.
        """
        return self._typed(
            key, default, "an array of texts", lambda v: v if isinstance(v, tuple) else None
        )

    def numbers(self, key: str, default: NDArray[Any] | None = None) -> NDArray[Any]:
        """Returns the array under a key, in the file's dtype; `default` if the key is missing.

        Raises:
            ModelError: The key is missing and there is no default, or the value has another type.
        """
        return self._typed(
            key, default, "an array of numbers", lambda v: v if isinstance(v, np.ndarray) else None
        )

    def _typed(self, key: str, default: V | None, what: str, cast: Callable[[Any], V | None]) -> V:
        """Returns the value under a key, checked and converted; `default` if the key is missing.

        Args:
            key: Key of the value.
            default: Value if the key is missing; None if the key is required.
            what: Expected type, for error messages: "an integer".
            cast: Converts the value; returns None for a value of another type.

        Raises:
            ModelError: The key is missing and there is no default, or the value has another type.
        """
        if key not in self:
            if default is not None:
                return default
            raise ModelError(
                f"{self.file} has no metadata '{key}'; convert the model again with a newer "
                "llama.cpp."
            )
        value = self[key]
        result = cast(value)
        if result is None:
            raise ModelError(
                f"The metadata '{key}' of {self.file} is {_described(value)} and not {what}; "
                "convert the model again with a newer llama.cpp."
            )
        return result

    def _decode(self, key: str, span: _FieldSpan) -> MetadataValue:
        """Decodes the value of a key.

        Args:
            span: Type and byte range of the value.
        """
        kind, count, start, stop = span
        if kind == _TEXT:
            texts = self._texts(key, max(count, 1), start, stop)
            return texts[0] if count < 0 else texts
        dtype = np.dtype("u1") if kind == 7 else _DTYPES[kind]
        numbers = np.frombuffer(self._data[start:stop], dtype)
        if kind == 7:
            numbers = numbers != 0
        if count < 0:
            value: bool | int | float = numbers[0].item()
            return value
        aligned = np.array(numbers)
        aligned.flags.writeable = False
        return aligned

    def _texts(self, key: str, count: int, start: int, stop: int) -> tuple[str, ...]:
        """Decodes one or several strings, which are in bytes `start` to `stop` of the file.

        Args:
            key: Key of the strings, for messages.
            count: Number of strings.
            start: Byte offset of the first string.
            stop: Byte offset of the end of the last string, exclusive; `start` if there is none.

        Raises:
            ModelError: A string is not UTF-8.
        """
        data, at, unpack = bytes(self._data[start:stop]), 0, _U64.unpack_from
        strings = []
        try:
            for _ in range(count if stop > start else 0):
                end = at + 8 + unpack(data, at)[0]
                strings.append(data[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError as error:
            what = f"text {len(strings)} of the metadata '{key}' is not UTF-8"
            raise damaged(self.file, what) from error
        return tuple(strings)


def _described(value: MetadataValue) -> str:
    if isinstance(value, tuple):
        return "an array of texts"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return {str: "a text", bool: "a bool", int: "an integer", float: "a float"}[type(value)]


def read_metadata(cursor: ByteReader, count: int) -> Metadata:
    """Reads metadata entries of a GGUF file; values are located but not decoded.

    Args:
        cursor: Reader at the first entry.
        count: Number of entries.

    Raises:
        ModelError: A key or a value is damaged, or a key is repeated.
    """
    spans: dict[str, _FieldSpan] = {}
    for index in range(count):
        key = cursor.name(f"the key of metadata {index}")
        if key in spans:
            raise damaged(cursor.file, f"the key '{key}' is there twice")
        spans[key] = _skip_value(cursor, f"the metadata '{key}'")
    return Metadata(cursor.file, cursor.data, spans)


def _skip_value(cursor: ByteReader, what: str) -> _FieldSpan:
    """Skips the next metadata value; returns its type and byte range.

    Args:
        cursor: Reader at the value.
        what: Name of the value, for error messages.

    Raises:
        ModelError: The value is damaged.
    """
    kind, count = cursor.u32(what), -1
    if kind == _ARRAY:
        kind, count = cursor.u32(what), cursor.u64(what)
        if kind == _ARRAY:
            raise damaged(cursor.file, f"{what} is an array of arrays, which no reader takes")
    start = cursor.at
    if kind == _TEXT:
        if count > min(cursor.left // 8, _MAX_TEXTS):
            raise damaged(cursor.file, f"{what} announces {count} texts")
        cursor.skip_texts(1 if count < 0 else count, what)
    elif kind in _DTYPES:
        cursor.skip(_DTYPES[kind].itemsize * (1 if count < 0 else count), what)
    else:
        raise damaged(cursor.file, f"{what} has the unknown type {kind}")
    return _FieldSpan(kind, count, start, cursor.at)
