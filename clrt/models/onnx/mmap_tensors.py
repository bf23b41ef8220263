"""Cuts large tensors out of a serialized model, so that protobuf does not copy them.

A file is mapped into memory and its tensors become views of the mapping: clean pages that the
system may drop and read again. While a model uses a file, it may be deleted or replaced by another
one (except on Windows, where an open mapping blocks both), but must not be written to or truncated
in place: the mapping would show the change, and access to a removed page ends the process.
"""

from __future__ import annotations

import mmap
import secrets
import sys
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from clrt.ir.op import Array

# Minimum bytes of a tensor that stays mapped: smaller ones are cheaper to copy (pages, alignment).
MIN_VIEW_BYTES = 1 << 16
# Maximum size of a protobuf message in bytes.
MAX_MODEL_BYTES = (1 << 31) - 1
# Maximum number of protobuf fields to walk, which bounds the time for files with many tiny fields,
# such as unpacked numbers.
_MAX_FIELDS = 1 << 20

# Wire types of protobuf fields.
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5

# Field number -> fields to follow in that message, on the paths to large tensors.
_Fields: TypeAlias = "Mapping[int, _Fields]"
_RAW: _Fields = {}
_TENSOR: _Fields = {TensorProto.RAW_DATA_FIELD_NUMBER: _RAW}
_ATTRIBUTE: _Fields = {AttributeProto.T_FIELD_NUMBER: _TENSOR}
_NODE: _Fields = {NodeProto.ATTRIBUTE_FIELD_NUMBER: _ATTRIBUTE}
_GRAPH: _Fields = {
    GraphProto.NODE_FIELD_NUMBER: _NODE,
    GraphProto.INITIALIZER_FIELD_NUMBER: _TENSOR,
}
_MODEL: _Fields = {ModelProto.GRAPH_FIELD_NUMBER: _GRAPH}


def cut_tensors(
    data: bytes | mmap.mmap, min_bytes: int = MIN_VIEW_BYTES
) -> tuple[bytes, dict[bytes, Array]]:
    """Replaces the raw_data of large initializers and node attributes by short tokens.

    Other bytes stay unchanged and in order, except length prefixes: protobuf accepts the shortened
    model exactly if it accepts `data`. Bytes that clrt cannot parse are copied and left to
    protobuf. Tokens contain random bytes, so that a file cannot forge one.

    Args:
        data: A serialized `ModelProto`, valid or not.
        min_bytes: Minimum size of raw_data to cut out.

    Returns:
        The shortened model; and the raw_data that each token replaces, a read-only uint8 `[size]`
        view of `data`. Nothing is cut on big-endian hosts, which have to swap the bytes of
        elements, or if `data` is too large for protobuf.
    """
    if sys.byteorder == "big" or len(data) > MAX_MODEL_BYTES:
        return bytes(data), {}
    cutter = _Cutter(data, min_bytes)
    rest = b"".join(cutter.cut(_MODEL, 0, len(data)))
    # Release the pages that reading headers brought in: the system maps up to 1 MB around each.
    if isinstance(data, mmap.mmap) and sys.platform != "win32":
        data.madvise(mmap.MADV_DONTNEED)
    return rest, cutter.views


class _UnclearError(Exception):
    """Raised for bytes that are not a valid message as far as clrt can tell; protobuf decides."""


class _Cutter:
    """Walks a serialized message and replaces large tensors by tokens (`cut_tensors`).

    Attributes:
        views: Elements of each tensor that was cut out, by token: uint8 views of `data`.

    Args:
        data: The serialized message.
        min_bytes: Minimum size of raw_data to cut out.
    """

    def __init__(self, data: bytes | mmap.mmap, min_bytes: int) -> None:
        self.views: dict[bytes, Array] = {}
        self._data = data
        self._bytes = memoryview(data)
        self._min_bytes = min_bytes
        self._secret = secrets.token_bytes(16)
        self._fields_left = _MAX_FIELDS

    def cut(self, fields: _Fields, start: int, end: int) -> list[bytes | memoryview]:
        """Returns the bytes of a message as chunks, with tokens in place of large tensors.

        Args:
            fields: Fields that lead to tensors, by number; the value of a number is such a mapping
                for the field's own message. `_RAW` if the message is a raw_data field itself.
            start: Byte offset of the message in the data.
            end: Byte offset of its end, exclusive.
        """
        if fields is _RAW:
            return [self._token(start, end)]
        chunks: list[bytes | memoryview] = []
        copied_to = pos = start
        try:
            while pos < end:
                tag, length_at = self._varint(pos, end)
                body, pos = self._body(tag & 7, length_at, end)
                inner = fields.get(tag >> 3)
                size = pos - body
                if inner is None or tag & 7 != _LEN or size < self._min_bytes:
                    continue
                shorter = self.cut(inner, body, pos)
                if (new_size := sum(map(len, shorter))) < size:
                    chunks += [self._bytes[copied_to:length_at], _to_varint(new_size), *shorter]
                    copied_to = pos
        except _UnclearError:
            pass
        return [*chunks, self._bytes[copied_to:end]]

    def _token(self, start: int, end: int) -> bytes:
        """Adds bytes `start` to `end` of the data to `views`; returns the token in their place."""
        token = self._secret + len(self.views).to_bytes(8, "little")
        self.views[token] = np.frombuffer(self._data, np.uint8, end - start, start)
        return token

    def _body(self, wire_type: int, pos: int, end: int) -> tuple[int, int]:
        """Returns the start and end of a field's body, without its length prefix.

        Args:
            wire_type: Wire type of the field (protobuf's encoding of its length).
            pos: Position after the field's tag.
            end: End of the message.

        Raises:
            _UnclearError: The field is not valid, or there are too many fields.
        """
        self._fields_left -= 1
        if wire_type == _VARINT:
            stops = (i + 1 for i in range(pos, min(pos + 10, end)) if self._bytes[i] < 0x80)
            after = next(stops, end + 1)
        elif wire_type == _LEN:
            size, pos = self._varint(pos, end)
            after = pos + size
        elif wire_type in (_I64, _I32):
            after = pos + (8 if wire_type == _I64 else 4)
        else:
            raise _UnclearError
        if after > end or self._fields_left < 0:
            raise _UnclearError
        return pos, after

    def _varint(self, pos: int, end: int) -> tuple[int, int]:
        """Returns the variable-length integer (varint) at `pos`, and the position after it.

        Raises:
            _UnclearError: The integer has more than five bytes, or reaches beyond `end`.
        """
        if pos < end and (first := self._bytes[pos]) < 0x80:  # most: without a loop
            return first, pos + 1
        value = 0
        for i in range(pos, min(pos + 5, end)):
            byte = self._bytes[i]
            value |= (byte & 0x7F) << (7 * (i - pos))
            if byte < 0x80:
                return value, i + 1
        raise _UnclearError


def _to_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
