"""Reads safetensors checkpoints as views of mapped files, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clrt.errors import ModelError, UnsupportedError
from clrt.formats.safetensors import DTYPES, SafetensorsHeader, read_header
from clrt.ir.op import Array
from clrt.models.huggingface.model_files import file_exists, read_object
from clrt.util.files import check_link

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TORCH = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_FLOATS = ("BF16", "F16", "F32", "F64")


class Checkpoint:
    """The tensors of a safetensors checkpoint, read on demand.

    Args:
        folder: Folder with model.safetensors or its sharded form; or a safetensors file.
        model_class: The transformers class to name in the message on how to convert a torch file.
    """

    def __init__(self, folder: Path, model_class: str = "AutoModel") -> None:
        self.source, files = _find_files(folder, model_class)
        self._headers = {name: h for h in map(read_header, files) for name in h.tensors}
        self._maps: dict[Path, NDArray[np.uint8]] = {}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of all tensors, by name."""
        return {name: header.tensors[name].shape for name, header in self._headers.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._headers

    def load(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
        """Returns a tensor as float32, without a copy if the file holds float32.

        Args:
            name: The tensor's name in the file.
            shape: The required shape; None allows any size of an axis.

        Returns:
            A read-only view of the mapped file, or a converted copy.

        Raises:
            ModelError: The tensor is missing or has another shape.
            UnsupportedError: The tensor's dtype is not a float type.
        """
        return self.stored(name, shape).astype(np.float32, copy=False)

    def stored(self, name: str, shape: tuple[int | None, ...]) -> Array:
        """Returns a tensor in the dtype of the file: a read-only view of the mapped file.

        A misaligned tensor is copied.

        Args:
            name: The tensor's name in the file.
            shape: The required shape; None allows any size of an axis.

        Raises:
            ModelError: The tensor is missing or has another shape.
            UnsupportedError: The tensor's dtype is not a float type.
        """
        header = self._headers.get(name)
        if header is None:
            raise ModelError(
                f"Tensor '{name}' is missing from {self.source}: the checkpoint is incomplete or "
                "does not belong to config.json; download the folder again."
            )
        _check_shape(name, header, shape)
        stored, file = header.tensors[name], header.file
        if stored.dtype not in _FLOATS:
            raise UnsupportedError(
                f"Tensor '{name}' in {file} has dtype {stored.dtype}, but clrt reads only "
                f"{', '.join(_FLOATS)}; use the unquantised checkpoint of this model."
            )
        if file not in self._maps:
            self._maps[file] = header.map()
        raw = np.asarray(self._maps[file][stored.start : stored.stop])
        return np.require(raw.view(DTYPES[stored.dtype]), requirements="A").reshape(stored.shape)


def _check_shape(name: str, header: SafetensorsHeader, shape: tuple[int | None, ...]) -> None:
    stored = header.tensors[name]
    fits = len(stored.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, stored.shape, strict=True)
    )
    if not fits:
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ModelError(
            f"Tensor '{name}' in {header.file} has shape {list(stored.shape)}, but config.json "
            f"implies [{expected}]; the two files belong to different models, download both again."
        )


def _find_files(folder: Path, model_class: str) -> tuple[Path, list[Path]]:
    """Returns the file to name in messages, and the safetensors files to read.

    Args:
        folder: Folder with model.safetensors or its sharded form; or a safetensors file.
        model_class: The transformers class to name in the message on how to convert a torch file.

    Raises:
        ModelError: A file is missing, or the folder only has torch files.
    """
    if folder.suffix == ".safetensors":
        return folder, [folder]
    single, index = folder / _SINGLE, folder / _INDEX
    if file_exists(single):
        check_link(single, folder)
        return single, [single]
    if file_exists(index):
        return index, _read_index(index)
    if any((folder / name).is_file() for name in _TORCH):
        raise ModelError(
            f"{folder} holds only a pytorch_model.bin, but clrt reads only safetensors; convert "
            "it with "
            f'python -c "from transformers import {model_class} as M; '
            f"M.from_pretrained(r'{folder}').save_pretrained(r'{folder}')\"."
        )
    raise ModelError(
        f"{folder} holds no {_SINGLE} and no {_INDEX}; download the model's weights into it."
    )


def _read_index(index: Path) -> list[Path]:
    content = read_object(index)
    try:
        names = sorted(set(content["weight_map"].values()))
        files = [index.parent / Path(name).name for name in names]
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index} is not a safetensors index ({error!r}); download it again."
        ) from error
    for file in files:
        if not file_exists(file):
            raise ModelError(f"{file} is missing, but {index} lists it; download this shard.")
        check_link(file, index.parent)
    return files
