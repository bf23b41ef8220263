"""The metadata of a GGUF file: values by key, decoded when they are first asked for."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from clrt.errors import ModelError
from clrt.formats.safetensors import damaged

# Arrays are tuples of texts, or one-dimensional arrays of numbers, which are read-only.
MetadataValue: TypeAlias = "bool | int | float | str | tuple[str, ...] | NDArray[Any]"
V = TypeVar("V")

# The format's own limit of keys. Names of tensors get the same.
_MAX_NAME_BYTES = (1 << 16) - 1
# A string costs time even where it is empty.
_MAX_TEXTS = 1 << 24
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
    """Reads a file's bytes in order, and never past their end.

    Args:
        file: For messages.
        data: All bytes of the file.
        at: The offset of the first byte to read.
    """

    def __init__(self, file: Path, data: memoryview, at: int) -> None:
        self.file, self.data, self.at = file, data, at

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        return len(self.data) - self.at

    def skip(self, nbytes: int, what: str) -> int:
        """Passes bytes. Returns where they start.

        Args:
            what: What they are, for the message: "the value of 'general.name'".

        Raises:
            ModelError: The file has fewer.
        """
        if nbytes > self.left:
            raise damaged(self.file, f"it ends within {what}")
        self.at += nbytes
        return self.at - nbytes

    def u32(self, what: str) -> int:
        """The next unsigned integer of 32 bits."""
        return int(_U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        """The next unsigned integer of 64 bits."""
        return int(_U64.unpack_from(self.data, self.skip(8, what))[0])

    def count(self, least_bytes: int, what: str) -> int:
        """A number of things that follow and take so many bytes each, or more.

        Raises:
            ModelError: The file has no room for as many.
        """
        count = self.u64(f"the number of {what}")
        if count * least_bytes > self.left:
            raise damaged(self.file, f"it has no room for the {count} {what} that it announces")
        return count

    def name(self, what: str) -> str:
        """The next string: a key, or the name of a tensor.

        Raises:
            ModelError: It is empty, too long or no UTF-8.
        """
        size = self.u64(what)
        if not 0 < size <= _MAX_NAME_BYTES:
            raise damaged(self.file, f"{what} has {size} bytes")
        start = self.skip(size, what)
        try:
            return str(self.data[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise damaged(self.file, f"{what} is no UTF-8") from error

    def skip_texts(self, count: int, what: str) -> None:
        """Passes that many strings."""
        data, at, unpack = self.data, self.at, _U64.unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, IndexError, OverflowError) as error:
            raise damaged(self.file, f"it ends within {what}") from error
        self.skip(at - self.at, what)


class _FieldPlace(NamedTuple):
    """Where a value lies.

    Attributes:
        kind: The code of its type, or of its elements' type.
        elements: How many an array has; -1 where it is none.
    """

    kind: int
    elements: int
    start: int
    stop: int


class Metadata(Mapping[str, MetadataValue]):
    """What a GGUF file says of its model.

    A vocabulary of 256,000 strings is passed over when the file is opened, which takes 30 ms, and
    made into Python strings when somebody asks for it.

    Attributes:
        file: For messages.
    """

    def __init__(self, file: Path, data: memoryview, places: Mapping[str, _FieldPlace]) -> None:
        self.file = file
        self._data = data
        self._places = places
        self._values: dict[str, MetadataValue] = {}

    def __getitem__(self, key: str) -> MetadataValue:
        if key not in self._values:
            self._values[key] = self._decode(key, self._places[key])
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def text(self, key: str, default: str | None = None) -> str:
        """A string; `default` where the key is missing.

        Raises:
            ModelError: It is missing and there is no default, or it is something else; as below.
        """
        return self._typed(key, default, "a text", lambda v: v if isinstance(v, str) else None)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A truth value, as `text`."""
        return self._typed(key, default, "a bool", lambda v: v if isinstance(v, bool) else None)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer, as `text`."""
        return self._typed(key, default, "an integer", lambda v: v if type(v) is int else None)

    def number(self, key: str, default: float | None = None) -> float:
        """An integer or a float, as `text`."""
        return self._typed(
            key, default, "a number", lambda v: float(v) if type(v) in (int, float) else None
        )

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """An array of strings, as `text`."""
        return self._typed(
            key, default, "an array of texts", lambda v: v if isinstance(v, tuple) else None
        )

    def numbers(self, key: str, default: NDArray[Any] | None = None) -> NDArray[Any]:
        """An array of numbers in the dtype of the file, as `text`."""
        return self._typed(
            key, default, "an array of numbers", lambda v: v if isinstance(v, np.ndarray) else None
        )

    def _typed(self, key: str, default: V | None, what: str, take: Callable[[Any], V | None]) -> V:
        if key not in self:
            if default is not None:
                return default
            raise ModelError(
                f"{self.file} has no metadata '{key}'; convert the model again with a newer "
                "llama.cpp."
            )
        value = self[key]
        taken = take(value)
        if taken is None:
            raise ModelError(
                f"The metadata '{key}' of {self.file} is {_described(value)} and not {what}; "
                "convert the model again with a newer llama.cpp."
            )
        return taken

    def _decode(self, key: str, place: _FieldPlace) -> MetadataValue:
        kind, count, start, stop = place
        if kind == _TEXT:
            texts = self._texts(key, max(count, 1), start, stop)
            return texts[0] if count < 0 else texts
        dtype = np.dtype("u1") if kind == 7 else _DTYPES[kind]
        found = np.frombuffer(self._data[start:stop], dtype)
        if kind == 7:
            found = found != 0
        if count < 0:
            value: bool | int | float = found[0].item()
            return value
        made = np.array(found)  # aligned
        made.flags.writeable = False
        return made

    def _texts(self, key: str, count: int, start: int, stop: int) -> tuple[str, ...]:
        data, at, unpack = bytes(self._data[start:stop]), 0, _U64.unpack_from
        made = []
        try:
            for _ in range(count if stop > start else 0):
                end = at + 8 + unpack(data, at)[0]
                made.append(data[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError as error:
            what = f"text {len(made)} of the metadata '{key}' is no UTF-8"
            raise damaged(self.file, what) from error
        return tuple(made)


def _described(value: MetadataValue) -> str:
    if isinstance(value, tuple):
        return "an array of texts"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return {str: "a text", bool: "a bool", int: "an integer", float: "a float"}[type(value)]


def read_metadata(cursor: ByteReader, count: int) -> Metadata:
    """Finds where each value lies, and passes all.

    Raises:
        ModelError: A key or a value is damaged, or a key is there twice.
    """
    places: dict[str, _FieldPlace] = {}
    for index in range(count):
        key = cursor.name(f"the key of metadata {index}")
        if key in places:
            raise damaged(cursor.file, f"the key '{key}' is there twice")
        places[key] = _place(cursor, f"the metadata '{key}'")
    return Metadata(cursor.file, cursor.data, places)


def _place(cursor: ByteReader, what: str) -> _FieldPlace:
    """Where the next value lies."""
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
    return _FieldPlace(kind, count, start, cursor.at)
