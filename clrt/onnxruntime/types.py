"""ONNX Runtime's names of types, and descriptions of a session's inputs, outputs and metadata."""

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
    """Returns ONNX Runtime's name of a tensor type, such as "tensor(float)" for float32."""
    return f"tensor({_NAMES.get(dtype, dtype.value)})"


def array_type(array: np.ndarray[Any, Any]) -> str:
    """Returns ONNX Runtime's name of an array's type, such as "tensor(float)".

    An array of Python objects counts as "tensor(string)", as in ONNX Runtime.
    """
    if array.dtype.kind in "SUO":
        return tensor_type(DType.STRING)
    try:
        return tensor_type(DType.of(array.dtype.newbyteorder("=")))
    except ValueError:
        return f"tensor({array.dtype})"


def dtype_of_type(text: str) -> DType:
    """Returns the dtype of the tensor in a type such as "tensor(float)" or "seq(tensor(float))".

    Raises:
        InvalidArgument: The type has no tensor, or its element type is unknown.
    """
    match = re.search(r"tensor\((\w+)\)", text)
    if match is None or match[1] not in _BY_NAME:
        raise InvalidArgument(f"clrt has no type {text}.")
    return _BY_NAME[match[1]]


def element_type(given: Any) -> DType:
    """Converts a NumPy type, or a number in `onnx.TensorProto.DataType`, to a dtype.

    Raises:
        InvalidArgument: `given` is no element type.
        RuntimeException: `given` is the string type, which OrtValues do not support.
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
            f"{given!r} is not an element type; pass a NumPy type, or a number of "
            "onnx.TensorProto.DataType."
        )
    if dtype is DType.STRING:
        raise RuntimeException(
            "An OrtValue of text is not supported; pass the array directly to run."
        )
    return dtype


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Description of an input or output of a session.

    Attributes:
        name: Name of the input or output.
        type: Type such as "tensor(float)", "seq(tensor(int64))" or "map(string,tensor(float))".
        shape: For each axis its size, the name of its symbolic dim, or None for an unknown size;
            empty if the type has no shape.
    """

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """Metadata of an ONNX file.

    Attributes:
        producer_name: Name of the tool that wrote the file.
        domain: Namespace of the model.
        version: Version of the model.
        description: Description of the model.
        graph_name: Name of the graph.
        graph_description: Description of the graph.
        custom_metadata_map: The file's `metadata_props`.
    """

    producer_name: str
    domain: str
    version: int
    description: str
    graph_name: str
    graph_description: str
    custom_metadata_map: dict[str, str]
