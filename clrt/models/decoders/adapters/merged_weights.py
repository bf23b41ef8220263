"""A source of weights with what adapters change of them."""

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
    """What a file of an adapter makes of tensors. The methods are those of `PeftAdapter`."""

    path: Path
    ties: bool

    def unused(self) -> list[str]: ...

    def digest(self) -> bytes: ...

    def adds_to(self, name: str) -> bool: ...

    def changes(self, name: str) -> bool: ...

    def change(self, name: str, shape: tuple[int, ...], index: int = 0) -> TensorDelta | None: ...


def open_adapter(path: Path, model: AdaptedModel) -> Adapter:
    """An adapter of a model: a folder of peft's, or a GGUF file.

    Raises:
        ModelError: It is missing, damaged, or of another model.
        UnsupportedError: It is of a kind that clrt does not merge.
    """
    if os.path.isdir(path):  # where Path's raises, False
        return PeftAdapter(path, model)
    if path.suffix == ".gguf" and os.path.isfile(path):
        return GgufAdapter(path, model)
    if not os.path.exists(path):
        raise ModelError(f"No adapter '{path}' exists; give a folder of peft's, or a GGUF file.")
    raise ModelError(
        f"'{path}' is no adapter; give the folder that has {CONFIG}, or a file that ends in .gguf."
    )


class AdaptedWeights:
    """The weights of a model with adapters merged into them, as they are read.

    A head that is the embeddings becomes a matrix of its own where an adapter changes one of both
    alone, as it does in peft.

    Numerics: sums are made in float32. Matrices of float32 stay so. Those of 16 bits become
    float16, whose steps are an eighth of bfloat16's: most of a small change would be rounded away.
    Quantised ones become Q8_0: half the memory of float16, and an error of 0.6 % of a weight's
    deviation, where 4 bits have 8 % themselves.

    Args:
        source: The weights of the model.
        adapters: How much counts of each; 1 for all.
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
        """Whether an adapter changes one alone of embeddings and head."""
        return any(
            adapter.changes(_HEAD) or (adapter.changes(_EMBEDDINGS) and not adapter.ties)
            for _, adapter in self._adapters
        )

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """A tensor with its changes.

        Raises:
            ModelError: As `WeightSource.load`, or an adapter is of another model.
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
        """A matrix with its changes; quantised ones become Q8_0.

        Raises:
            ModelError: As `load`.
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
            return _kept(merged, shape, np.dtype(np.float16))
        return QuantizedMatrix("Q8_0", np.concatenate([pack_q8_0(part) for part in merged]))

    def _changes(self, name: str, shape: tuple[int, ...], index: int = 0) -> Changes:
        found = []
        for factor, adapter in self._adapters:
            change = adapter.change(name, shape, index)
            if change is None and name == _HEAD and adapter.ties and name not in self._source:
                change = adapter.change(_EMBEDDINGS, shape)
            if change is not None:
                found.append((factor, change))
        return found

    def _experts(self, name: str, shape: tuple[int, ...]) -> Array:
        """The matrices of all experts; each may have changes of its own."""
        base = self._source.load(name, shape)
        inner = shape[1], shape[2]
        each = [self._changes(name, inner, index) for index in range(shape[0])]
        if not any(each):
            return base
        parts: list[Iterable[Floats]] = [
            self._rows(name, matrix, inner, changes) if changes else [_wide(matrix)]
            for matrix, changes in zip(base, each, strict=True)
        ]
        flat = shape[0] * shape[1], shape[2]
        return _kept(chain.from_iterable(parts), flat, base.dtype).reshape(shape)

    def _merged(self, name: str, matrix: Array, shape: tuple[int, int], changes: Changes) -> Array:
        return _kept(self._rows(name, matrix, shape, changes), shape, matrix.dtype)

    def _rows(
        self, name: str, matrix: Array | QuantizedMatrix, shape: tuple[int, int], changes: Changes
    ) -> Iterator[Floats]:
        """The rows of a matrix with its changes, in chunks.

        Raises:
            ModelError: A number is beyond float32.
        """
        return (self._finite(name, part) for part in merged_rows(_rows(matrix), shape, changes))

    def _finite(self, name: str, array: Floats) -> Floats:
        if not np.isfinite(array).all():
            paths = " and ".join(str(adapter.path) for _, adapter in self._adapters)
            raise ModelError(
                f"Tensor '{name}' has numbers that are not finite once {paths} is merged into it; "
                "download the adapter again, or take less of it."
            )
        return array

    def check_all_used(self) -> None:
        """Checks that all of the adapters is merged, once a graph is built.

        Raises:
            ModelError: One has a tensor that fits nothing.
        """
        for _, adapter in self._adapters:
            left = adapter.unused()
            if left:
                others = f" and {len(left) - 1} more" if len(left) > 1 else ""
                raise ModelError(
                    f"{adapter.path} has the tensor '{left[0][:200]}'{others}, which fits nothing "
                    "in this model; take the adapter of this model, or merge it by what made it."
                )

    def digest(self) -> bytes:
        """Tells the adapters, and what counts of each, apart from others."""
        made = hashlib.blake2b(digest_size=16)
        for factor, adapter in self._adapters:
            made.update(repr(factor).encode() + adapter.digest())
        return made.digest()


def _wide(matrix: Array) -> Floats:
    return matrix.astype(np.float32, copy=False)


def _rows(matrix: Array | QuantizedMatrix) -> Rows:
    """The rows of a matrix as float32."""
    if isinstance(matrix, QuantizedMatrix):
        type_, raw = BLOCK_TYPES_BY_NAME[matrix.type], matrix.raw
        return lambda part: type_.dequantise(raw[part])
    return lambda part: _wide(matrix[part])


def _kept(parts: Iterable[Floats], shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Rows that come in parts, as they are kept.

    Args:
        dtype: What they were before.
    """
    narrow = dtype != np.float32
    made = np.empty(shape, np.float16 if narrow else np.float32)
    at = 0
    for part in parts:
        fitting = in_half(part) if narrow else part
        if fitting.dtype != made.dtype:
            made, narrow = made.astype(np.float32), False
        made[at : at + len(part)] = fitting
        at += len(part)
    return made
