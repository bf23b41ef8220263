"""Reads GGUF, the format of llama.cpp, without copying the tensors.

A GGUF file has a header of counts, metadata by key, a record per tensor, and the tensors' bytes.
Large models are split into several such files, which are read as one.

The `gguf` package is not used but by the tests: it parses field by field in Python, which takes
seconds for a vocabulary, and does not check what it reads.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.formats.gguf.block_types import BLOCK_TYPES, BlockType
from clrt.formats.gguf.decode import Bytes, Floats
from clrt.formats.gguf.metadata import ByteReader, Metadata, read_metadata
from clrt.formats.safetensors import damaged, open_weights

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_HEADER_BYTES = 24
# The least that a key with its value, and the record of a tensor, take.
_LEAST_FIELD_BYTES, _LEAST_RECORD_BYTES = 14, 25
_DEFAULT_ALIGNMENT = 32
# ggml's largest rank.
_MAX_RANK = 4
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file.

    Attributes:
        shape: Row-major: the last axis is the one that blocks lie along.
        raw: The bytes in the mapped file, read-only: [*shape[:-1], bytes per row].
        file: The file that has them, from `start` on.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    raw: Bytes = field(repr=False, compare=False)
    file: Path
    start: int

    def dequantise(self) -> Floats:
        """The values as float32, in `shape`."""
        return self.type.dequantise(self.raw).reshape(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, or all shards of a split one.

    Attributes:
        path: The file, or the first shard.
        version: Of the format: 2 or 3.
        metadata: Of the first shard, where there are several.
        tensors: By name, in the order of the files.
        files: All shards.
    """

    path: Path
    version: int
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]
    files: tuple[Path, ...]


def read_gguf(path: str | Path) -> GgufFile:
    """Opens a GGUF file. Tensors stay in the file until their bytes are used.

    Args:
        path: The file, or any shard of a split one ("name-00001-of-00003.gguf"); the others lie
            beside it.

    Raises:
        ModelError: The file or a shard is missing or damaged.
        UnsupportedError: It has a version, byte order or type that clrt does not know.
    """
    first = _read_file(Path(path))
    count = first.metadata.integer("split.count", 1)
    return first if count <= 1 else _join(first, count)


def find_gguf(folder: Path) -> list[Path]:
    """The GGUF models of a folder, of split ones the first shard. Projectors of images are none."""
    found = []
    for path in sorted(folder.glob("*.gguf")):
        shard = _SHARD.fullmatch(path.name)
        if not path.name.startswith("mmproj") and (shard is None or int(shard[2]) == 1):
            found.append(path)
    return found


def _join(given: GgufFile, count: int) -> GgufFile:
    """All shards of a split file as one.

    Args:
        given: Any of them.

    Raises:
        ModelError: A shard is missing, damaged or of another model.
    """
    name = _SHARD.fullmatch(given.path.name)
    if name is None or int(name[3]) != count:
        raise ModelError(
            f"{given.path} is one of {count} shards, and its name does not end in "
            f"'-00001-of-{count:05}.gguf' or the like; give the shards their names again."
        )
    tensors: dict[str, GgufTensor] = {}
    shards: list[GgufFile] = []
    for index in range(count):
        file = given.path.with_name(f"{name[1]}-{index + 1:05}-of-{count:05}.gguf")
        if not os.path.exists(file):
            raise ModelError(
                f"{file} is missing: it is shard {index + 1} of {count} of {given.path}; download "
                "it, too."
            )
        shard = _read_file(file)
        have = (shard.metadata.integer("split.no"), shard.metadata.integer("split.count"))
        if have != (index, count):
            raise damaged(file, f"it says that it is shard {have[0] + 1} of {have[1]}")
        if twice := tensors.keys() & shard.tensors.keys():
            raise damaged(file, f"another shard has the tensor '{min(twice)}', too")
        tensors |= shard.tensors
        shards.append(shard)
    first = shards[0]
    total = first.metadata.integer("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise damaged(first.path, f"its shards have {len(tensors)} tensors and not {total}")
    files = tuple(p.path for p in shards)
    return GgufFile(first.path, first.version, first.metadata, tensors, files)


def _read_file(path: Path) -> GgufFile:
    """One file, also where it is a shard."""
    with open_weights(path) as (stream, size):
        start = stream.read(8)
        if start[:4] != _MAGIC:
            raise ModelError(
                f"{path} is no GGUF file: it does not start with 'GGUF'; download it again, or "
                "name another."
            )
        if size < _HEADER_BYTES:
            raise damaged(path, "it ends within its header")
        version = int.from_bytes(start[4:], "little")
        if version not in _VERSIONS:
            _refuse_version(path, version)
        mapped = np.memmap(stream, np.uint8, mode="r")
    cursor = ByteReader(path, mapped.data, len(start))
    tensor_count = cursor.count(_LEAST_RECORD_BYTES, "tensors")
    metadata = read_metadata(cursor, cursor.count(_LEAST_FIELD_BYTES, "metadata keys"))
    tensors = _read_tensors(cursor, tensor_count, _alignment(metadata), np.asarray(mapped))
    return GgufFile(path, version, metadata, tensors, (path,))


def _refuse_version(path: Path, version: int) -> NoReturn:
    if version & 0xFFFF == 0:
        raise UnsupportedError(
            f"{path} is a big-endian GGUF file, and clrt reads little-endian ones; take the one "
            "for other machines."
        )
    raise UnsupportedError(
        f"{path} has version {version} of GGUF, and clrt reads 2 and 3; convert the model again "
        "with a newer llama.cpp, or update clrt."
    )


def _alignment(metadata: Metadata) -> int:
    """What the offsets of tensors are multiples of."""
    alignment = metadata.integer("general.alignment", _DEFAULT_ALIGNMENT)
    if alignment <= 0 or alignment & (alignment - 1):
        raise damaged(metadata.file, f"its 'general.alignment' is {alignment}, no power of two")
    return alignment


def _read_tensors(
    cursor: ByteReader, count: int, alignment: int, mapped: Bytes
) -> Mapping[str, GgufTensor]:
    """The tensors, by the records that follow.

    Raises:
        ModelError: One is damaged, there twice, outside the file or over another.
    """
    records: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(count):
        name = cursor.name(f"the name of tensor {index}")
        if name in records:
            raise damaged(cursor.file, f"the tensor '{name}' is there twice")
        what = f"the record of tensor '{name}'"
        rank = cursor.u32(what)
        if rank > _MAX_RANK:
            raise damaged(cursor.file, f"tensor '{name}' has {rank} axes")
        dims = tuple(cursor.u64(what) for _ in range(rank))
        records[name] = dims[::-1], cursor.u32(what), cursor.u64(what)
    base = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, (shape, code, offset) in records.items():
        if offset % alignment:
            raise damaged(
                cursor.file,
                f"the offset {offset} of tensor '{name}' is no multiple of {alignment}",
            )
        tensors[name] = _tensor(cursor.file, name, shape, code, base + offset, mapped)
    _check_apart(cursor.file, list(tensors.values()))
    return tensors


def _tensor(
    file: Path, name: str, shape: tuple[int, ...], code: int, start: int, mapped: Bytes
) -> GgufTensor:
    kind = BLOCK_TYPES.get(code)
    if kind is None:
        raise UnsupportedError(
            f"Tensor '{name}' in {file} has the type {code}, which clrt does not know; take the "
            "model in another quantisation, such as Q4_K_M, or update clrt."
        )
    columns = shape[-1] if shape else 1
    if 0 in shape:
        raise damaged(file, f"tensor '{name}' has no elements, {list(shape)}")
    if columns % kind.elements:
        raise damaged(
            file,
            f"tensor '{name}' has rows of {columns} elements, which blocks of {kind.elements} "
            f"({kind.name}) do not divide",
        )
    row_bytes = kind.row_bytes(columns)
    stop = start + math.prod(shape[:-1]) * row_bytes
    if stop > len(mapped):
        raise damaged(file, f"tensor '{name}' lies outside it: {list(shape)} of {kind.name}")
    raw = mapped[start:stop].reshape(*shape[:-1], row_bytes)
    return GgufTensor(name, kind, shape, raw, file, start)


def _check_apart(file: Path, tensors: Sequence[GgufTensor]) -> None:
    """Checks that no two tensors share bytes.

    Raises:
        ModelError: Two do.
    """
    stop, before = 0, ""
    for tensor in sorted(tensors, key=lambda t: t.start):
        if tensor.start < stop:
            raise damaged(file, f"tensor '{tensor.name}' overlaps '{before}'")
        stop, before = tensor.start + tensor.raw.nbytes, tensor.name
