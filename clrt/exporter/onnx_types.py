"""Types and tensors of the IR in ONNX's form."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from clrt.ir.dims import Dim, is_unknown
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, ContainerType, TensorType

_SCHEMA_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}


class Store(Protocol):
    """Where the elements of constants go."""

    def tensor(self, array: Array, name: str) -> onnx.TensorProto:
        """A tensor with these elements."""


class Inline:
    """Elements in the model itself."""

    def tensor(self, array: Array, name: str) -> onnx.TensorProto:
        """A tensor with these elements."""
        if array.dtype.kind == "U":
            array = array.astype(object)
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def type_proto(type_: TensorType, named: bool = True) -> onnx.TypeProto:
    """ONNX's form of a type.

    Args:
        named: Whether symbolic dims keep their text; without, they are left open.
    """
    if isinstance(type_, ContainerType):
        element = type_proto(type_.element, named)
        if type_.kind == "sequence":
            return onnx.helper.make_sequence_type_proto(element)
        return onnx.helper.make_optional_type_proto(element)
    if type_.shape is None:
        return onnx.helper.make_tensor_type_proto(type_.dtype.onnx, None)
    dims = [_dim(d, named) for d in type_.shape]
    return onnx.helper.make_tensor_type_proto(type_.dtype.onnx, dims)


def _dim(dim: Dim, named: bool) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return str(dim) if named and not is_unknown(dim) else None


def schema_name(type_: TensorType) -> str:
    """A type as the schemas of ONNX write it, such as `seq(tensor(float))`."""
    if isinstance(type_, ContainerType):
        kind = "seq" if type_.kind == "sequence" else "optional"
        return f"{kind}({schema_name(type_.element)})"
    return f"tensor({_SCHEMA_NAMES.get(type_.dtype, type_.dtype.value)})"
