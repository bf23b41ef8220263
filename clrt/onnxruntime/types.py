"""Element types by ONNX Runtime's names, and the inputs and outputs of a session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.ir.dtypes import DType
from clrt.onnxruntime.exceptions import InvalidArgument, RuntimeException

_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
_BY_NAME = {_NAMES.get(dtype, dtype.value): dtype for dtype in DType}


def tensor_type(dtype: DType) -> str:
    """The type of a tensor: "tensor(float)"."""
    return f"tensor({_NAMES.get(dtype, dtype.value)})"


def array_type(array: np.ndarray[Any, Any]) -> str:
    """The type of the tensor that an array is; of objects it is text, as in ONNX Runtime."""
    if array.dtype.kind in "SUO":
        return tensor_type(DType.STRING)
    try:
        return tensor_type(DType.of(array.dtype.newbyteorder("=")))
    except ValueError:
        return f"tensor({array.dtype})"


def dtype_of_type(text: str) -> DType:
    """The element type in a type such as "seq(tensor(float))"."""
    found = re.search(r"tensor\((\w+)\)", text)
    if found is None or found[1] not in _BY_NAME:
        raise InvalidArgument(f"clrt has no type {text}.")
    return _BY_NAME[found[1]]


def element_type(given: Any) -> DType:
    """The element type that a NumPy type is, or a number of `onnx.TensorProto.DataType`.

    Raises:
        InvalidArgument: It is neither.
    """
    if isinstance(given, (int, np.integer)):
        dtype = DType.from_onnx(int(given))
    else:
        try:
            dtype = DType.of(np.dtype(given))
        except (TypeError, ValueError):
            dtype = None
    if dtype is None:
        raise InvalidArgument(
            f"{given!r} is no element type; pass a NumPy type, or a number of "
            "onnx.TensorProto.DataType."
        )
    if dtype is DType.STRING:
        raise RuntimeException("An OrtValue of text cannot be made; pass the array to run itself.")
    return dtype


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a session.

    Attributes:
        type: "tensor(float)", "seq(tensor(int64))", "map(string,tensor(float))", …
        shape: A size, the name of a symbolic dim or None for each axis. It is empty where the
            type has no shape.
    """

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a model's file says of it.

    Attributes:
        custom_metadata_map: The file's metadata_props.
    """

    producer_name: str
    domain: str
    version: int
    description: str
    graph_name: str
    graph_description: str
    custom_metadata_map: dict[str, str]
