"""Reading ONNX files: the protobuf, and tensors kept in files beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array


def read_model(source: str | Path | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """The parsed model, and the folder its external data lies in.

    Raises:
        ModelError: No such file, or it is no valid ONNX; the message says which.
    """
    if isinstance(source, onnx.ModelProto):
        return source, None
    if isinstance(source, bytes):
        return _parse(source, "The bytes given"), None
    path = Path(source)
    if not path.exists():
        raise ModelError(f"There is no file '{path}'; check the path.")
    if not path.is_file():
        raise ModelError(f"'{path}' is no file; pass an .onnx file or a Hugging Face folder.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror}.") from error
    return _parse(data, f"'{path}'"), path.parent


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        kind = "a text file" if _is_text(data) else "truncated or not an ONNX model"
        raise ModelError(
            f"{what} cannot be parsed as ONNX: it is {kind}. Export it again."
        ) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{what} has no ONNX graph: it is empty or not an ONNX model.")
    return model


def _is_text(data: bytes) -> bool:
    head = data[:512]
    try:
        return (
            (bool(head) and head.decode("utf-8").isprintable()) or (b"\n" in head and b"\0" not in head)
        )
    except UnicodeDecodeError:
        return False


def read_tensor(tensor: onnx.TensorProto, folder: Path | None) -> Array:
    """The elements of a tensor, from the model or from a file beside it (memory-mapped).

    Raises:
        ModelError: The file is missing or too short, or its path leads outside the folder.
        UnsupportedError: clrt has no such dtype.
    """
    code = tensor.data_type
    try:
        dtype = DType.of(onnx.helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, ValueError) as error:
        name = onnx.TensorProto.DataType.Name(code)
        raise UnsupportedError(f"tensor '{tensor.name}' has dtype {name.lower()}") from error
    if not external_data_helper.uses_external_data(tensor):
        try:
            return numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"Tensor '{tensor.name}' is damaged: its data does not fill {list(tensor.dims)}."
            ) from error
    return _external(tensor, dtype, folder)


def _external(tensor: onnx.TensorProto, dtype: DType, folder: Path | None) -> Array:
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location = facts.get("location", "")
    if folder is None:
        raise ModelError(
            f"Tensor '{tensor.name}' lies in the file '{location}', but the model was given without "
            "its folder; load it by its path."
        )
    root = folder.resolve()
    path = (root / location).resolve()
    if Path(location).is_absolute() or not path.is_relative_to(root):
        raise ModelError(
            f"Tensor '{tensor.name}' points to '{location}', outside the model's folder; "
            "clrt does not follow it."
        )
    if not path.is_file():
        raise ModelError(
            f"Tensor '{tensor.name}' needs the external data file '{location}', which is not in "
            f"'{folder}'; put it beside the model."
        )
    try:
        offset = int(facts.get("offset", 0))
    except ValueError as error:
        raise ModelError(f"Tensor '{tensor.name}' has a damaged external data offset.") from error
    count = int(np.prod(tensor.dims, dtype=np.int64))
    nbytes = count * dtype.itemsize
    size = path.stat().st_size
    if offset < 0 or count < 0 or offset + nbytes > size:
        raise ModelError(
            f"External data file '{location}' has {size} bytes, but tensor '{tensor.name}' needs "
            f"bytes {offset}..{offset + nbytes}; the file is truncated."
        )
    if count == 0:
        return np.zeros(tuple(tensor.dims), dtype.numpy)
    return np.memmap(path, dtype.numpy, "r", offset, tuple(tensor.dims))
