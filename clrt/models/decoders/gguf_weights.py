"""The tensors of a GGUF file as a WeightSource."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.formats.gguf.file import GgufFile, GgufTensor
from clrt.ir.op import Array
from clrt.models.decoders.weight_source import QuantizedMatrix

_REMEDY = "download the model again, or convert it with a newer llama.cpp."
_STACKED = 3  # number of axes of a tensor with all experts


class GgufWeights:
    """The tensors of a GGUF file as a WeightSource.

    Attributes:
        path: The file, for messages.

    Args:
        file: The opened file.
        names: The file's name by clrt's name, for tensors of a layer whose two names differ:
            `{"ffn_gate_up": "ffn_up"}`.
    """

    def __init__(self, file: GgufFile, names: Mapping[str, str]) -> None:
        self._file, self._names = file, names
        self.path = file.path
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self._file.tensors

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns a tensor as float32, float16 or bfloat16; quantised ones are dequantised.

        Numerics: quantised matrices of experts become float16, for half the memory.

        Raises:
            ModelError: The tensor is missing, has another shape, or does not hold floats.
        """
        tensor = self._tensor(name, shape)
        if tensor.type.dtype is not None:
            return self._plain(tensor)
        if len(shape) != _STACKED:
            return tensor.dequantise()
        experts = np.empty(shape, np.float16)
        for index, raw in enumerate(tensor.raw):
            experts[index] = tensor.type.dequantise(raw)
        return experts

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        """Returns a matrix as stored: quantised, or as float32, float16 or bfloat16.

        The file may store a matrix of one row as a vector.

        Raises:
            ModelError: The matrix is missing, has another shape, or does not hold floats.
        """
        vector = rows == 1 and self._axes(name) == 1
        tensor = self._tensor(name, (columns,) if vector else (rows, columns))
        if tensor.type.dtype is not None:
            return self._plain(tensor).reshape(rows, columns)
        return QuantizedMatrix(tensor.type.name, tensor.raw.reshape(rows, -1))

    def check_all_read(self) -> None:
        """Checks that all tensors of the file were read. Call it once the graph is built.

        Raises:
            UnsupportedError: A tensor is unused, so the graph may lack a part of the model.
        """
        unread = sorted(self._file.tensors.keys() - self._read)
        if unread:
            others = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            raise UnsupportedError(
                f"{self.path} has the tensor '{unread[0][:80]}'{others}, which clrt does not use "
                "for in a model of this architecture; use another conversion of the model, or "
                "update clrt."
            )

    def _stored(self, name: str) -> str:
        return stored_name(name, self._names)

    def _axes(self, name: str) -> int:
        """Returns the rank of a tensor; 0 if the file lacks it."""
        tensor = self._file.tensors.get(self._stored(name))
        return 0 if tensor is None else len(tensor.shape)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        """Returns a tensor of the file and marks it as read.

        Args:
            name: clrt's name of the tensor.
            shape: Expected shape.

        Raises:
            ModelError: The tensor is missing, or has another shape.
        """
        stored = self._stored(name)
        tensor = self._file.tensors.get(stored)
        if tensor is None:
            raise ModelError(f"{self.path} has no tensor '{stored}'; {_REMEDY}")
        if tensor.shape != shape:
            raise ModelError(
                f"Tensor '{stored}' of {tensor.file} has the shape {list(tensor.shape)}, but the "
                f"metadata implies {list(shape)}; {_REMEDY}"
            )
        self._read.add(stored)
        return tensor

    def _plain(self, tensor: GgufTensor) -> Array:
        """Returns an unquantised tensor: a view of the file if aligned, else a copy.

        Numerics: float64 becomes float32.

        Raises:
            ModelError: The tensor does not hold floats.
        """
        dtype = tensor.type.dtype
        assert dtype is not None
        if np.issubdtype(dtype, np.integer):
            raise ModelError(
                f"Tensor '{tensor.name}' of {tensor.file} has the type {tensor.type.name}, and "
                f"weights are floats; {_REMEDY}"
            )
        array = np.require(tensor.raw.reshape(-1).view(dtype), requirements="A")
        array = array.reshape(tensor.shape)
        return array.astype(np.float32) if dtype == np.float64 else array


def stored_name(name: str, names: Mapping[str, str]) -> str:
    """Returns the name in a GGUF file of the tensor that clrt calls `name`.

    Args:
        name: clrt's name of the tensor.
        names: The file's name by clrt's name, for tensors of a layer whose two names differ:
            `{"ffn_gate_up": "ffn_up"}` turns "blk.3.ffn_gate_up.weight" into "blk.3.ffn_up.weight".
    """
    path, _, kind = name.rpartition(".")
    layer, dot, part = path.rpartition(".")
    return f"{layer}{dot}{names.get(part, part)}.{kind}"
