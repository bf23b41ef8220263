"""Element types of a session's inputs and outputs in NumPy's, torch's and ONNX's terms."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from clrt.ir.dtypes import DType
from clrt.onnxruntime.exceptions import InvalidArgument
from clrt.onnxruntime.session import InferenceSession
from clrt.onnxruntime.types import NodeArg, dtype_of_type

# Types that NumPy itself lacks; as in ONNX Runtime, they have no NumPy type here.
_NOT_NUMPY = frozenset(("bfloat16", "int4", "uint4", "int2", "uint2"))


class TypeHelper:
    """Converts between ONNX Runtime's, NumPy's, torch's and ONNX's types.

    Only methods that return torch's types import torch. An unknown type raises ValueError, as in
    ONNX Runtime.
    """

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        """Returns ONNX Runtime's type of a session's input, such as "tensor(float)"."""
        return _type_of(ort_session.get_inputs(), "input", name)

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        """Returns ONNX Runtime's type of a session's output, such as "tensor(float)"."""
        return _type_of(ort_session.get_outputs(), "output", name)

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> type:
        """Returns NumPy's scalar type for a type such as "tensor(float)"; `bool` for booleans.

        Raises:
            ValueError: NumPy itself has no such type, as for "tensor(bfloat16)".
        """
        dtype = _dtype(ort_type)
        if dtype.value in _NOT_NUMPY or dtype.value.startswith("float8"):
            raise ValueError(f"{ort_type} not found in map")
        return bool if dtype is DType.BOOL else dtype.numpy.type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """Returns torch's dtype for a type such as "tensor(float)"."""
        name = _dtype(ort_type).value.replace("float8e", "float8_e")
        dtype = getattr(import_module("torch"), name, None)
        if dtype is None:
            raise ValueError(f"{ort_type} not found in map")
        return dtype

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """Converts a type such as "tensor(float)" to a number in `onnx.TensorProto.DataType`."""
        return _dtype(ort_type).onnx

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """Returns torch's dtype for a NumPy type.

        Raises:
            ValueError: The NumPy type is unknown.
        """
        try:
            dtype = DType.of(numpy_type)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{numpy_type} not found in map") from error
        return getattr(import_module("torch"), dtype.value)

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> type:
        """Returns NumPy's scalar type for a dtype of torch; `bool` for booleans.

        Raises:
            ValueError: NumPy itself has no such type, as for torch.bfloat16.
        """
        name = str(torch_type).removeprefix("torch.")
        return TypeHelper.ort_type_to_numpy_type(f"tensor({_ORT_NAMES.get(name, name)})")

    @staticmethod
    def get_io_onnx_type_map(ort_session: InferenceSession) -> dict[str, int]:
        """Returns each input's and output's number in `onnx.TensorProto.DataType`, by name."""
        return {n: TypeHelper.ort_type_to_onnx_type(t) for n, t in _types(ort_session).items()}

    @staticmethod
    def get_io_numpy_type_map(ort_session: InferenceSession) -> dict[str, type]:
        """Returns NumPy's scalar type of each input and output of a session, by name."""
        return {n: TypeHelper.ort_type_to_numpy_type(t) for n, t in _types(ort_session).items()}

    @staticmethod
    def get_io_torch_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        """Returns torch's dtype of each input and output of a session, by name."""
        return {n: TypeHelper.ort_type_to_torch_type(t) for n, t in _types(ort_session).items()}


_ORT_NAMES = {"float32": "float", "float64": "double"}


def _types(session: InferenceSession) -> dict[str, str]:
    return {arg.name: arg.type for arg in (*session.get_inputs(), *session.get_outputs())}


def _type_of(args: Sequence[NodeArg], kind: str, name: str) -> str:
    """Returns ONNX Runtime's type of an input or output, such as "tensor(float)".

    Args:
        args: Descriptions of the inputs or outputs of a session.
        kind: "input" or "output", for the error's message.
        name: Name of the input or output.

    Raises:
        ValueError: There is no input or output of that name.
    """
    for arg in args:
        if arg.name == name:
            return arg.type
    raise ValueError(f"{kind} name {name} not found")


def _dtype(ort_type: str) -> DType:
    """Returns the dtype of an ONNX Runtime type such as "tensor(float)"; raises for other types."""
    if not ort_type.startswith("tensor("):
        raise ValueError(f"{ort_type} not found in map")
    try:
        dtype = dtype_of_type(ort_type)
    except InvalidArgument as error:
        raise ValueError(f"{ort_type} not found in map") from error
    if dtype is DType.STRING:
        raise ValueError(f"{ort_type} not found in map")
    return dtype
