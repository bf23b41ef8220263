"""Opens GGUF files, the format of llama.cpp, or sharded sets, without copying the tensors.

A GGUF file has a header of counts, metadata by key, a record per tensor, and the tensors' bytes.

Only the tests use the `gguf` package: it parses field by field in Python, which takes seconds for a
vocabulary, and does not check what it reads.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import NoReturn

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.formats.gguf.block_type import BlockType, Bytes, Floats
from clrt.formats.gguf.block_types import BLOCK_TYPES
from clrt.formats.gguf.metadata import ByteReader, Metadata, read_metadata
from clrt.formats.safetensors import damaged, open_weights
from clrt.util.fast_dataclass import dataclass

GGUF_SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_HEADER_BYTES = 24
# Minimum size in bytes of a metadata entry, and of a tensor's record: they bound the counts in a
# header by the size of the file.
_MIN_FIELD_BYTES, _MIN_RECORD_BYTES = 14, 25
# Alignment of tensors in bytes if the metadata has none.
_DEFAULT_ALIGNMENT = 32
# Maximum rank of a tensor in ggml, llama.cpp's tensor library.
_MAX_RANK = 4
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file.

    Attributes:
        name: Name in the file.
        type: Block type.
        shape: Row-major shape; blocks are along the last axis.
        raw: Encoded bytes, a read-only view of the mapped file: [*shape[:-1], bytes per row].
        file: The file, or the shard, that contains the tensor.
        start: Byte offset of the tensor in the file.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    raw: Bytes = field(repr=False, compare=False)
    file: Path
    start: int

    def dequantise(self) -> Floats:
        """Returns the tensor's elements as float32, in `shape`."""
        return self.type.dequantise(self.raw).reshape(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, or all shards of a sharded one.

    Attributes:
        path: The file, or the first shard.
        version: Format version: 2 or 3.
        metadata: Metadata of the file, or of the first shard.
        tensors: Tensors by name, in file order.
        files: The file, or all shards.
    """

    path: Path
    version: int
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]
    files: tuple[Path, ...]


def read_gguf(path: str | Path) -> GgufFile:
    """Opens a GGUF file and maps it into memory; tensor bytes are read on first access.

    Args:
        path: The file, or any shard of a sharded one ("name-00001-of-00003.gguf") with the others
            in the same folder.

    Raises:
        ModelError: The file or a shard is missing or damaged.
        UnsupportedError: The version, byte order or a tensor type is not supported.
    """
    first = _read_file(Path(path))
    count = first.metadata.integer("split.count", 1)
    return first if count <= 1 else _join(first, count)


def find_gguf(folder: Path) -> list[Path]:
    """Returns the paths of the GGUF models in a folder, without image projectors.

    For a sharded model, the path of the first shard is returned.
    """
    models = []
    for path in sorted(folder.glob("*.gguf")):
        shard = _SHARD.fullmatch(path.name)
        if not path.name.startswith("mmproj") and (shard is None or int(shard[2]) == 1):
            models.append(path)
    return models


def shards_of(path: Path) -> list[Path]:
    """Returns the files of a GGUF model by their names: `path`, or all shards of a sharded one.

    Returns [] if a file is missing.

    Args:
        path: The file, or any shard.
    """
    name = _SHARD.fullmatch(path.name)
    files = [path]
    if name is not None:
        files = sorted(path.parent.glob(f"{glob.escape(name[1])}-*-of-{name[3]}.gguf"))
        files = files if len(files) == int(name[3]) else []
    return files if all(map(os.path.isfile, files)) else []


def _join(any_shard: GgufFile, count: int) -> GgufFile:
    """Opens all shards of a sharded file.

    Args:
        any_shard: One of the shards.
        count: Number of shards.

    Raises:
        ModelError: A shard is missing, damaged or of another model.
    """
    name = _SHARD.fullmatch(any_shard.path.name)
    if name is None or int(name[3]) != count:
        raise ModelError(
            f"{any_shard.path} is one of {count} shards, and its name does not end in "
            f"'-00001-of-{count:05}.gguf' or the like; restore the names of the shards."
        )
    tensors: dict[str, GgufTensor] = {}
    shards: list[GgufFile] = []
    for index in range(count):
        file = any_shard.path.with_name(f"{name[1]}-{index + 1:05}-of-{count:05}.gguf")
        if not os.path.exists(file):
            raise ModelError(
                f"{file} is missing: it is shard {index + 1} of {count} of {any_shard.path}; "
                "download it, too."
            )
        shard = _read_file(file)
        declared = (shard.metadata.integer("split.no"), shard.metadata.integer("split.count"))
        if declared != (index, count):
            raise damaged(
                file, f"its header says that it is shard {declared[0] + 1} of {declared[1]}"
            )
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
    """Opens one GGUF file; if it is a shard of a model, the other shards are not opened."""
    with open_weights(path) as (stream, size):
        start = stream.read(8)
        if start[:4] != _MAGIC:
            raise ModelError(
                f"{path} is not a GGUF file: it does not start with 'GGUF'; download it again, or "
                "name another."
            )
        if size < _HEADER_BYTES:
            raise damaged(path, "it ends within its header")
        version = int.from_bytes(start[4:], "little")
        if version not in _VERSIONS:
            _refuse_version(path, version)
        mapped = np.memmap(stream, np.uint8, mode="r")
    cursor = ByteReader(path, mapped.data, len(start))
    tensor_count = cursor.count(_MIN_RECORD_BYTES, "tensors")
    metadata = read_metadata(cursor, cursor.count(_MIN_FIELD_BYTES, "metadata keys"))
    tensors = _read_tensors(cursor, tensor_count, _alignment(metadata), np.asarray(mapped))
    return GgufFile(path, version, metadata, tensors, (path,))


def _refuse_version(path: Path, version: int) -> NoReturn:
    if version & 0xFFFF == 0:
        raise UnsupportedError(
            f"{path} is a big-endian GGUF file, and clrt reads little-endian ones; use the "
            "little-endian file of the model."
        )
    raise UnsupportedError(
        f"{path} has version {version} of GGUF, and clrt reads 2 and 3; convert the model again "
        "with a newer llama.cpp, or update clrt."
    )


def _alignment(metadata: Metadata) -> int:
    """Returns the alignment of a GGUF file's tensor offsets, in bytes.

    Raises:
        ModelError: The alignment is not a power of two.
    """
    alignment = metadata.integer("general.alignment", _DEFAULT_ALIGNMENT)
    if alignment <= 0 or alignment & (alignment - 1):
        raise damaged(metadata.file, f"its 'general.alignment' is {alignment}, not a power of two")
    return alignment


def _read_tensors(
    cursor: ByteReader, count: int, alignment: int, mapped: Bytes
) -> Mapping[str, GgufTensor]:
    """Reads the tensor records of a GGUF file; returns tensors by name.

    Args:
        cursor: Reader at the first record.
        count: Number of records.
        alignment: Alignment of tensor offsets, in bytes.
        mapped: All bytes of the file.

    Raises:
        ModelError: A record is damaged, a name is repeated, or a tensor is outside the file or
            overlaps another.
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
                f"the offset {offset} of tensor '{name}' is not a multiple of {alignment}",
            )
        tensors[name] = _tensor(cursor.file, name, shape, code, base + offset, mapped)
    _check_apart(cursor.file, list(tensors.values()))
    return tensors


def _tensor(
    file: Path, name: str, shape: tuple[int, ...], code: int, start: int, mapped: Bytes
) -> GgufTensor:
    """Returns a tensor of a GGUF file as a view of the mapped file.

    Args:
        code: Number of the block type.
        start: Byte offset in the file.
        mapped: All bytes of the file.

    Raises:
        ModelError: The size does not fit the block type, or the tensor is outside the file.
        UnsupportedError: The block type is not supported.
    """
    kind = BLOCK_TYPES.get(code)
    if kind is None:
        raise UnsupportedError(
            f"Tensor '{name}' in {file} has the unknown type {code}; use the "
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
        raise damaged(file, f"tensor '{name}' is outside the file: {list(shape)} of {kind.name}")
    raw = mapped[start:stop].reshape(*shape[:-1], row_bytes)
    return GgufTensor(name, kind, shape, raw, file, start)


def _check_apart(file: Path, tensors: Sequence[GgufTensor]) -> None:
    """Checks that no two tensors overlap in a GGUF file.

    Raises:
        ModelError: Two tensors overlap.
    """
    stop, before = 0, ""
    for tensor in sorted(tensors, key=lambda t: t.start):
        if tensor.start < stop:
            raise damaged(file, f"tensor '{tensor.name}' overlaps '{before}'")
        stop, before = tensor.start + tensor.raw.nbytes, tensor.name
