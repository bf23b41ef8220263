"""LoRA adapters in folders of Hugging Face's peft."""

from __future__ import annotations

import hashlib
from dataclasses import field
from pathlib import Path

import numpy as np

from clrt.errors import ModelError
from clrt.ir.op import Array
from clrt.models.decoders.adapters.base import AdaptedModel
from clrt.models.decoders.adapters.lora_delta import Floats, LoraDelta, TensorDelta
from clrt.models.decoders.adapters.peft_config import CONFIG, PeftConfig
from clrt.models.decoders.weights import PREFIXES, in_order, paths_of, split_name
from clrt.models.huggingface.checkpoint import Checkpoint
from clrt.models.huggingface.model_files import file_exists, read_text
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import check_link

_WEIGHTS, _TORCH = "adapter_model.safetensors", "adapter_model.bin"
_BEFORE = "base_model.model."
# Role of a tensor by the suffix after its module's name; longer suffixes come first.
_PARTS = {
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_B.bias": "added",
    ".lora_embedding_A": "rows",
    ".lora_embedding_B": "columns",
    ".lora_magnitude_vector.weight": "lengths",
    ".lora_magnitude_vector": "lengths",
    ".base_layer.weight": "weight",
    ".base_layer.bias": "bias",
    ".weight": "weight",
    ".bias": "bias",
}
_PLACES = "position_embd"


@dataclass(frozen=True)
class _Module:
    """A module of the base model (in torch's sense) that an adapter has tensors for.

    Attributes:
        name: Dotted name of the module in transformers.
        tensors: Names of the adapter's tensors by role: "down", "up", "bias", … (see `_PARTS`).
    """

    name: str
    tensors: dict[str, str] = field(default_factory=dict)


class PeftAdapter:
    """A LoRA or DoRA adapter in a folder of peft; implements `Adapter`.

    Attributes:
        path: The folder.
        ties: Whether changes of the embeddings also apply to a tied head.

    Args:
        path: The folder.
        model: Base model of the adapter.

    Raises:
        ModelError: A file is missing or damaged, or a value of adapter_config.json is wrong.
        UnsupportedError: The adapter is not a LoRA adapter, or uses an unsupported option.
    """

    def __init__(self, path: Path, model: AdaptedModel) -> None:
        self.path, self._model = path, model
        self._config = PeftConfig(path)
        self.ties = self._config.ties
        file = path / _WEIGHTS
        if not file_exists(file) and file_exists(path / _TORCH):
            raise ModelError(
                f"{path} has its weights in {_TORCH}, but clrt reads only safetensors; load it "
                "with peft, and save it again with safe_serialization=True."
            )
        if not file_exists(file):
            raise ModelError(f"{file} is missing; download the adapter's {_WEIGHTS}.")
        check_link(file, path)
        self._checkpoint = Checkpoint(file)
        self._shapes = self._checkpoint.shapes
        self._left = set(self._shapes)
        self._modules: dict[str, _Module] = {}
        for tensor in self._shapes:
            self._enter(tensor)

    def _enter(self, tensor: str) -> None:
        """Assigns the adapter's tensor of name `tensor` to its module, if the suffix is known."""
        end = next((e for e in _PARTS if tensor.endswith(e)), None)
        if end is not None:
            name = tensor.removesuffix(end).removeprefix(_BEFORE)
            self._modules.setdefault(name, _Module(name)).tensors[_PARTS[end]] = tensor

    def unused(self) -> list[str]:
        """Returns the sorted names of the adapter's tensors that no call of `change` has used."""
        return sorted(self._left)

    def digest(self) -> bytes:
        """Returns a 16-byte hash of the adapter's configuration and weights."""
        hasher = hashlib.blake2b(read_text(self.path / CONFIG).encode(), digest_size=16)
        hasher.update(np.memmap(self.path / _WEIGHTS, np.uint8, mode="r").data)
        return hasher.digest()

    def adds_to(self, name: str) -> bool:
        """Returns whether the adapter adds a vector to a bias.

        Args:
            name: Name of the bias, which the base model may lack.
        """
        module = self._module(name, 0)
        return module is not None and name.endswith(".bias") and "added" in module.tensors

    def changes(self, name: str) -> bool:
        """Returns whether the adapter changes a matrix of the base model.

        Args:
            name: Name of the base model's matrix. Of the matrices of experts, only the first one is
                looked up.
        """
        module = self._module(name, 0)
        return module is not None and not module.tensors.keys().isdisjoint(
            ("down", "up", "rows", "columns", "weight")
        )

    def change(self, name: str, shape: tuple[int, ...], index: int = 0) -> TensorDelta | None:
        """Returns the adapter's change of a tensor of the base model; None if there is no change.

        Args:
            name: Name of the base model's tensor.
            shape: Shape of the base model's matrix or vector.
            index: Index of the expert if the tensor is the matrix of an expert; else 0.

        Raises:
            ModelError: A tensor of the adapter has an unexpected shape or numbers that are not
                finite, or one of the two matrices of a product is missing.
        """
        module = self._module(name, index)
        if module is None:
            return None
        if name.endswith(".bias"):
            value, added = (self._rows(module, part, name, shape) for part in ("bias", "added"))
            if added is not None:
                added = added * np.float32(self._config.scale(module.name))
            delta = TensorDelta(value, added=added)
        elif len(shape) == 1:
            value = self._rows(module, "weight", name, shape)
            if value is not None:
                value = self._model.shifted(name, value, from_gguf=False)
            delta = TensorDelta(value)
        else:
            delta = TensorDelta(
                self._value(module, name, shape), self._product(module, name, shape)
            )
        return delta if delta else None

    def _module(self, name: str, index: int) -> _Module | None:
        """Returns the adapter's module for a tensor of the base model; None if it has none.

        Args:
            name: Name of the base model's tensor.
            index: Index of the expert if the tensor is the matrix of an expert; else 0.
        """
        key, layer = split_name(name)
        for path in paths_of(self._model.family, key):
            for prefix in PREFIXES:
                module = self._modules.get(f"{prefix}{path.format(layer, index)}")
                if module is not None:
                    return module
        return None

    def _value(self, module: _Module, name: str, shape: tuple[int, ...]) -> Floats | None:
        """Returns the matrix with which the adapter replaces a matrix of the base model.

        Args:
            module: The adapter's module for the matrix.
            name: Name of the base model's matrix.
            shape: Shape of the base model's matrix.

        Returns:
            float32, rows and columns as in the base model; None if the adapter does not replace it.
        """
        if self._model.family.transposed and name.startswith("blk."):
            value = self._read(module, "weight", shape[::-1])
            return None if value is None else value.T
        return self._rows(module, "weight", name, shape)

    def _product(self, module: _Module, name: str, shape: tuple[int, ...]) -> LoraDelta | None:
        """Returns the low-rank product that the adapter adds to a matrix; None if it adds none.

        Args:
            module: The adapter's module for the matrix.
            name: Name of the base model's matrix.
            shape: Shape of the base model's matrix.

        Raises:
            ModelError: One of the two matrices of the product is missing, or has another shape.
        """
        has, (rows, columns) = module.tensors, shape
        is_table = "rows" in has or "columns" in has
        names = ("columns", "rows") if is_table else ("down", "up")
        if not has.keys() & set(names):
            return None
        for part in names:
            if part not in has:
                other = next(has[p] for p in names if p in has)
                raise ModelError(
                    f"{self.path} has '{other[:200]}' without the other matrix of its product; "
                    "download the adapter again."
                )
        rank = self._config.rank(module.name)
        if is_table:
            places = self._stored_rows(name, rows)
            left = self._read(module, "rows", (rank, places))
            right = self._read(module, "columns", (columns, rank))
            assert left is not None and right is not None
            up, down = self._ordered(left.T, name), right.T
        else:
            left = self._rows(module, "up", name, (rows, rank))
            right = self._read(module, "down", (rank, columns))
            assert left is not None and right is not None
            up, down = left, right
        lengths = self._lengths(module, name, columns if is_table else rows, is_table)
        return LoraDelta(up, down, self._config.scale(module.name), lengths, of_columns=is_table)

    def _lengths(self, module: _Module, name: str, count: int, of_columns: bool) -> Floats | None:
        """Returns DoRA's norms of the rows or columns of a matrix; None for a LoRA adapter.

        Args:
            module: The adapter's module for the matrix.
            name: Name of the base model's matrix.
            count: Number of norms: rows or columns of the matrix.
            of_columns: Whether to return norms of columns; if not, of rows.

        Raises:
            ModelError: The DoRA adapter has no norms for this matrix.
        """
        if not self._config.is_dora:
            return None
        read = self._read(module, "lengths", (count,)) if of_columns else None
        lengths = read if of_columns else self._rows(module, "lengths", name, (count,))
        if lengths is None:
            raise ModelError(
                f"{self.path} is declared a DoRA adapter, but has no lora_magnitude_vector of "
                f"'{module.name[:200]}'; download the adapter again."
            )
        return lengths

    def _rows(self, module: _Module, part: str, name: str, shape: tuple[int, ...]) -> Floats | None:
        """Returns a tensor of the adapter with its rows in the order of the base model's rows.

        Args:
            module: The adapter's module for the tensor.
            part: Role of the adapter's tensor: "up", "weight", … (see `_PARTS`).
            name: Name of the base model's tensor that is changed.
            shape: Expected shape, with the base model's number of rows.

        Returns:
            float32; None if the module has no tensor of the role `part`.
        """
        tensor = self._read(module, part, (self._stored_rows(name, shape[0]), *shape[1:]))
        return None if tensor is None else self._ordered(tensor, name)

    def _stored_rows(self, name: str, rows: int) -> int:
        """Returns the number of rows that transformers stores for a tensor of the base model.

        This is `rows`, except for position embeddings of families that store further rows before
        the row of position 0.

        Args:
            name: Name of the base model's tensor.
            rows: Number of rows that clrt uses.
        """
        return rows + (self._model.family.first_place if name.startswith(_PLACES) else 0)

    def _ordered(self, array: Array, name: str) -> Array:
        """Returns an adapter's tensor with its rows in the order of the base model's tensor.

        Args:
            array: The adapter's tensor, `[rows, …]`.
            name: Name of the base model's tensor. For position embeddings, rows before the row of
                position 0 are dropped.
        """
        model = self._model
        if name.startswith(_PLACES):
            array = array[model.family.first_place :]
        array = in_order(array, split_name(name)[0], model.family, model.decoder)
        return model.reordered(name, array, from_gguf=False)

    def _read(self, module: _Module, part: str, shape: tuple[int, ...]) -> Floats | None:
        """Returns a tensor of the adapter as float32; None if the module has no such tensor.

        Args:
            module: The adapter's module.
            part: Role of the tensor: "down", "up", … (see `_PARTS`).
            shape: Expected shape.

        Raises:
            ModelError: The tensor has another shape, or numbers that are not finite.
        """
        tensor = module.tensors.get(part)
        if tensor is None:
            return None
        stored_shape = self._shapes[tensor]
        if stored_shape != shape:
            base = f", such as '{self._config.base}'" if self._config.base else ""
            raise ModelError(
                f"Tensor '{tensor[:200]}' of {self.path} has the shape {list(stored_shape)}, and "
                f"{self._model.path} needs {list(shape)}; the adapter is for another model{base}."
            )
        self._left.discard(tensor)
        array = self._checkpoint.load(tensor, shape)
        if not np.isfinite(array).all():
            raise ModelError(
                f"Tensor '{tensor[:200]}' of {self.path} has non-finite numbers; download the "
                "adapter again."
            )
        return array
