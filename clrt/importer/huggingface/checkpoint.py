"""Reads safetensors checkpoints without torch, as views of the mapped files.

A safetensors file is an 8-byte little-endian header length, a JSON header that gives each
tensor's dtype, shape and byte range, and the tensors' bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from clrt.errors import ModelError, UnsupportedError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LFS_MARK = b"version https://git-lfs"

_FLOATS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class _Stored:
    """Where one tensor lies: its file, dtype code, shape and absolute byte range."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Checkpoint:
    """The tensors of a model folder, loaded on demand as float32.

    Args:
        folder: The folder that holds model.safetensors or its sharded form.
        model_class: The transformers class to name in the advice on converting a torch file.
    """

    def __init__(self, folder: Path, model_class: str = "AutoModel") -> None:
        self.source, files = _find_files(folder, model_class)
        self._tensors = {name: entry for file in files for name, entry in _read_header(file)}
        self._maps: dict[Path, NDArray[np.uint8]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def load(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
        """Returns a tensor as float32, without a copy where the file already holds float32.

        Args:
            name: The tensor's name in the file.
            shape: The shape it must have; None leaves an axis free.

        Returns:
            A read-only view of the mapped file, or a converted copy.

        Raises:
            ModelError: The tensor is missing or has another shape.
            UnsupportedError: The tensor is not stored as floating point numbers.
        """
        stored = self._tensors.get(name)
        if stored is None:
            raise ModelError(
                f"Tensor '{name}' is missing from {self.source}: the checkpoint is incomplete or "
                "of another model than config.json describes; download the folder again."
            )
        _check_shape(name, stored, shape)
        return self._read(name, stored)

    def _read(self, name: str, stored: _Stored) -> NDArray[np.float32]:
        dtype = _FLOATS.get(stored.dtype)
        if dtype is None:
            raise UnsupportedError(
                f"Tensor '{name}' in {stored.file} has dtype {stored.dtype}, but clrt reads only "
                f"{', '.join(sorted(_FLOATS))}; take the unquantised checkpoint of this model."
            )
        if stored.file not in self._maps:
            self._maps[stored.file] = np.memmap(stored.file, dtype=np.uint8, mode="r")
        raw = np.asarray(self._maps[stored.file][stored.start : stored.stop])
        typed = np.require(raw.view(dtype), requirements="A").reshape(stored.shape)
        return typed.astype(np.float32, copy=False)


def _check_shape(name: str, stored: _Stored, shape: tuple[int | None, ...]) -> None:
    fits = len(stored.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, stored.shape, strict=True)
    )
    if not fits:
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ModelError(
            f"Tensor '{name}' in {stored.file} has shape {list(stored.shape)}, but config.json "
            f"asks for [{expected}]; the two files are not of the same model, download both again."
        )


def _find_files(folder: Path, model_class: str) -> tuple[Path, list[Path]]:
    """Returns the file to name in messages and the safetensors files to read."""
    single, index = folder / _SINGLE, folder / _INDEX
    if single.is_file():
        return single, [single]
    if index.is_file():
        return index, _read_index(index)
    if any((folder / name).is_file() for name in _TORCH):
        raise ModelError(
            f"{folder} holds only a pytorch_model.bin, and clrt reads safetensors; convert it with "
            f'python -c "from transformers import {model_class} as M; '
            f"M.from_pretrained(r'{folder}').save_pretrained(r'{folder}')\"."
        )
    raise ModelError(
        f"{folder} holds no {_SINGLE} and no {_INDEX}; download the model's weights into it."
    )


def _read_index(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [index.parent / Path(name).name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index} is not a safetensors index ({error!r}); download it again."
        ) from error
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file} is missing, but {index} lists it; download this shard.")
    return files


def _read_header(file: Path) -> Iterator[tuple[str, _Stored]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(len(_LFS_MARK))
        if start == _LFS_MARK:
            raise ModelError(
                f"{file} is a Git LFS pointer and not the weights; run 'git lfs pull' beside it."
            )
        length = int.from_bytes(start[:8], "little")
        if size < 8 or length > size - 8:
            raise _damaged(file, "it is shorter than its header says")
        stream.seek(8)
        text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        entries = [(name, _entry(file, 8 + length, spec)) for name, spec in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, f"its header cannot be read, {error!r}") from error
    for name, entry in entries:
        _check_range(name, entry, size)
        yield name, entry


def _entry(file: Path, base: int, spec: dict[str, Any]) -> _Stored:
    start, stop = (base + int(offset) for offset in spec["data_offsets"])
    return _Stored(file, str(spec["dtype"]), tuple(int(n) for n in spec["shape"]), start, stop)


def _check_range(name: str, entry: _Stored, size: int) -> None:
    if not 8 <= entry.start <= entry.stop <= size:
        raise _damaged(entry.file, f"tensor '{name}' lies outside it")
    dtype = _FLOATS.get(entry.dtype)
    if dtype and entry.stop - entry.start != math.prod(entry.shape) * dtype.itemsize:
        raise _damaged(entry.file, f"tensor '{name}' has not the bytes its shape asks for")


def _damaged(file: Path, why: str) -> ModelError:
    return ModelError(f"{file} is damaged: {why}; download it again.")
