"""A WeightSource that merges adapters into the weights of a model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from clrt.errors import ModelError
from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.formats.gguf.encode import Q8_0_ELEMENTS, pack_q8_0
from clrt.ir.op import Array
from clrt.models.decoders.adapters.base import AdaptedModel
from clrt.models.decoders.adapters.gguf import GgufAdapter
from clrt.models.decoders.adapters.lora_delta import (
    Changes,
    Floats,
    Rows,
    TensorDelta,
    merged_rows,
    merged_vector,
)
from clrt.models.decoders.adapters.peft import PeftAdapter
from clrt.models.decoders.adapters.peft_config import CONFIG
from clrt.models.decoders.half_precision import in_half
from clrt.models.decoders.weight_source import QuantizedMatrix, WeightSource

_HEAD, _EMBEDDINGS = "output.weight", "token_embd.weight"


class Adapter(Protocol):
    """Interface of an opened LoRA adapter, which changes tensors of a base model.

    `PeftAdapter` documents the methods.

    Attributes:
        path: Folder or file of the adapter.
        ties: Whether changes of the embeddings also apply to a tied head.
    """

    path: Path
    ties: bool

    def unused(self) -> list[str]: ...

    def digest(self) -> bytes: ...

    def adds_to(self, name: str) -> bool: ...

    def changes(self, name: str) -> bool: ...

    def change(self, name: str, shape: tuple[int, ...], index: int = 0) -> TensorDelta | None: ...


def open_adapter(path: Path, model: AdaptedModel) -> Adapter:
    """Opens a LoRA adapter.

    Args:
        path: A folder saved by Hugging Face's peft, or a GGUF file.
        model: Base model of the adapter.

    Raises:
        ModelError: The adapter is missing, damaged, or of another model.
        UnsupportedError: clrt cannot merge this kind of adapter.
    """
    if os.path.isdir(path):  # Path.is_dir raises for some paths
        return PeftAdapter(path, model)
    if path.suffix == ".gguf" and os.path.isfile(path):
        return GgufAdapter(path, model)
    if not os.path.exists(path):
        raise ModelError(f"No adapter '{path}' exists; give a folder of peft's, or a GGUF file.")
    raise ModelError(
        f"'{path}' is not an adapter; give the folder that contains {CONFIG}, or a file that ends "
        "in .gguf."
    )


class AdaptedWeights:
    """The weights of a model with adapters merged in as they are read.

    This class is a WeightSource. A tied head becomes a separate matrix if an adapter changes the
    head, or changes embeddings without `Adapter.ties`, as in peft.

    Numerics: sums are computed in float32. Changed float32 matrices stay float32. Changed 16-bit
    matrices become float16: bfloat16 has steps 8 times as large, so a small change would be mostly
    rounded away. Changed quantised matrices become Q8_0, which takes half the memory of float16;
    its error is 0.6 % of the weights' standard deviation (that of 4-bit types is 8 %).

    Args:
        source: The weights of the model.
        adapters: (weight, adapter) pairs; a change is multiplied by the weight, so 1 applies an
            adapter fully.
    """

    def __init__(self, source: WeightSource, adapters: Sequence[tuple[float, Adapter]]) -> None:
        self._source, self._adapters = source, adapters

    def __contains__(self, name: str) -> bool:
        if name in self._source:
            return True
        if name == _HEAD:
            return self._splits_head
        return any(adapter.adds_to(name) for _, adapter in self._adapters)

    @property
    def _splits_head(self) -> bool:
        """Whether adapters give a tied head other weights than the embeddings."""
        return any(
            adapter.changes(_HEAD) or (adapter.changes(_EMBEDDINGS) and not adapter.ties)
            for _, adapter in self._adapters
        )

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns a tensor of the model with the adapters' changes.

        A tensor that no adapter changes is returned as stored.

        Args:
            name: llama.cpp's name of the tensor. An adapter may add a bias that the model lacks.
            shape: Expected shape; `[experts, rows, columns]` for the matrices of all experts.

        Raises:
            ModelError: The tensor is missing, has another shape, or an adapter is of another model.
        """
        if len(shape) == 3:
            return self._experts(name, shape)
        changes = self._changes(name, shape)
        if not changes:
            return self._source.load(name, shape)
        missing = name not in self._source
        base = np.zeros(shape, np.float32) if missing else self._source.load(name, shape)
        if len(shape) == 1:
            vector = merged_vector(base.astype(np.float32, copy=False), changes)
            return self._finite(name, vector)
        return self._merged(name, base, (shape[0], shape[1]), changes)

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        """Returns a matrix of the model with the adapters' changes.

        A matrix that no adapter changes is returned as stored. A changed quantised matrix becomes
        Q8_0. If its rows cannot be split into blocks of Q8_0, it becomes float16, or float32 if a
        number exceeds float16.

        Args:
            name: llama.cpp's name of the matrix.
            rows: Expected number of rows.
            columns: Expected number of columns.

        Raises:
            ModelError: The tensor is missing, has another shape, or an adapter is of another model.
        """
        shape = rows, columns
        changes = self._changes(name, shape)
        stored = _EMBEDDINGS if name == _HEAD and name not in self._source else name
        base = self._source.matrix(stored, *shape)
        if not changes:
            return base
        if not isinstance(base, QuantizedMatrix):
            return self._merged(name, base, shape, changes)
        merged = self._rows(name, base, shape, changes)
        if columns % Q8_0_ELEMENTS:
            return _assemble(merged, shape, np.dtype(np.float16))
        return QuantizedMatrix("Q8_0", np.concatenate([pack_q8_0(part) for part in merged]))

    def _changes(self, name: str, shape: tuple[int, ...], index: int = 0) -> Changes:
        """Returns (weight, change) of each adapter that changes a tensor; [] if none does.

        Args:
            name: llama.cpp's name of the tensor.
            shape: Expected shape, without the axis of experts.
            index: Index of the expert if the tensor is the matrix of an expert; else 0.
        """
        changes = []
        for factor, adapter in self._adapters:
            change = adapter.change(name, shape, index)
            if change is None and name == _HEAD and adapter.ties and name not in self._source:
                change = adapter.change(_EMBEDDINGS, shape)
            if change is not None:
                changes.append((factor, change))
        return changes

    def _experts(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns the matrices of all experts with the adapters' changes.

        Args:
            name: llama.cpp's name of the tensor that holds all matrices.
            shape: (experts, rows, columns).
        """
        base = self._source.load(name, shape)
        inner = shape[1], shape[2]
        each = [self._changes(name, inner, index) for index in range(shape[0])]
        if not any(each):
            return base
        parts: list[Iterable[Floats]] = [
            self._rows(name, matrix, inner, changes) if changes else [_to_float32(matrix)]
            for matrix, changes in zip(base, each, strict=True)
        ]
        flat = shape[0] * shape[1], shape[2]
        return _assemble(chain.from_iterable(parts), flat, base.dtype).reshape(shape)

    def _merged(self, name: str, matrix: Array, shape: tuple[int, int], changes: Changes) -> Array:
        return _assemble(self._rows(name, matrix, shape, changes), shape, matrix.dtype)

    def _rows(
        self, name: str, matrix: Array | QuantizedMatrix, shape: tuple[int, int], changes: Changes
    ) -> Iterator[Floats]:
        """Yields the rows of a matrix with the changes of adapters, float32, in chunks.

        Args:
            name: Name of the matrix, for messages.
            matrix: The unchanged matrix.
            shape: (rows, columns) of the matrix.
            changes: (weight, change) of each adapter.

        Raises:
            ModelError: A merged number is not finite in float32.
        """
        return (self._finite(name, part) for part in merged_rows(_rows(matrix), shape, changes))

    def _finite(self, name: str, array: Floats) -> Floats:
        """Returns a merged tensor unchanged, after checking its numbers.

        Raises:
            ModelError: A number is not finite.
        """
        if not np.isfinite(array).all():
            paths = " and ".join(str(adapter.path) for _, adapter in self._adapters)
            raise ModelError(
                f"Tensor '{name}' becomes non-finite by merging {paths}; download the adapter "
                "again, or use a smaller factor."
            )
        return array

    def check_all_used(self) -> None:
        """Checks that all tensors of the adapters were merged. Call it once the graph is built.

        Raises:
            ModelError: A tensor of an adapter was not used.
        """
        for _, adapter in self._adapters:
            unused = adapter.unused()
            if unused:
                others = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
                raise ModelError(
                    f"{adapter.path} has the tensor '{unused[0][:200]}'{others}, which matches no "
                    "tensor of this model; use an adapter of this model, or merge it with the "
                    "tool that created it."
                )

    def digest(self) -> bytes:
        """Returns a 16-byte hash of the contents and weights of the adapters."""
        hasher = hashlib.blake2b(digest_size=16)
        for factor, adapter in self._adapters:
            hasher.update(repr(factor).encode() + adapter.digest())
        return hasher.digest()


def _to_float32(matrix: Array) -> Floats:
    return matrix.astype(np.float32, copy=False)


def _rows(matrix: Array | QuantizedMatrix) -> Rows:
    """Returns a function that reads a slice of rows of a matrix as float32."""
    if isinstance(matrix, QuantizedMatrix):
        type_, raw = BLOCK_TYPES_BY_NAME[matrix.type], matrix.raw
        return lambda part: type_.dequantise(raw[part])
    return lambda part: _to_float32(matrix[part])


def _assemble(parts: Iterable[Floats], shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Concatenates chunks of rows into a float16 matrix; float32 if a number exceeds float16.

    Args:
        parts: Consecutive chunks of rows.
        shape: (rows, columns) of the matrix.
        dtype: Dtype of the unchanged matrix; the result is float32 if this is float32.
    """
    narrow = dtype != np.float32
    matrix = np.empty(shape, np.float16 if narrow else np.float32)
    at = 0
    for part in parts:
        fitting = in_half(part) if narrow else part
        if fitting.dtype != matrix.dtype:
            matrix, narrow = matrix.astype(np.float32), False
        matrix[at : at + len(part)] = fitting
        at += len(part)
    return matrix
