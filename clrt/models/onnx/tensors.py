"""Converts `TensorProto` to NumPy arrays: inline, external and sparse tensors."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.mmap_arrays import owner_of, remember_file
from clrt.ir.op import Array
from clrt.models.onnx.mmap_tensors import MIN_VIEW_BYTES
from clrt.util.files import check_link, stays_below
from clrt.util.host_limits import check_host_bytes, text_array


def dtype_of(elem_type: int, where: str) -> DType:
    """Returns the dtype of an ONNX element type.

    Args:
        elem_type: Number of the element type (TensorProto.DataType).
        where: Name of the tensor or value, for messages.

    Raises:
        UnsupportedError: clrt has no such dtype (complex).
        ModelError: ONNX has no such element type.
    """
    dtype = DType.from_onnx(elem_type)
    if dtype is not None:
        return dtype
    names = onnx.TensorProto.DataType
    if elem_type == onnx.TensorProto.UNDEFINED or elem_type not in names.values():
        raise ModelError(
            f"{where} has no valid element type ({elem_type}); export the model again."
        )
    raise UnsupportedError(f"{where} has dtype {names.Name(elem_type).lower()}")


class TensorReader:
    """Reads the tensors of a model as arrays; each file of external data is mapped once.

    Arrays of external data are views of the mapped file. A tensor may start at any address, so a
    view may be misaligned: NumPy and OpenCL copies accept it, other code must check
    `flags.aligned`.

    Args:
        folder: Folder of external data; None for a model that is not from a file.
        views: raw_data of tensors that `cut_tensors` cut out, by token; None for none.
    """

    def __init__(self, folder: Path | None, views: Mapping[bytes, Array] | None = None) -> None:
        self._folder = folder
        self._views = views or {}
        self._files: dict[str, Array] = {}
        self._paths: list[Path] = []

    def hold(self, files: Mapping[str, Array]) -> None:
        """Sets bytes to read instead of files of external data.

        Args:
            files: uint8 bytes by the location (path) that the ONNX file gives for external data.
        """
        self._files.update(files)

    def array(self, tensor: onnx.TensorProto, where: str) -> Array:
        """Returns the elements of a tensor: a view if possible, else a copy.

        Args:
            tensor: The tensor, inline or external.
            where: Name of the tensor, for messages.

        Raises:
            ModelError: The elements are damaged, missing, or outside the model's folder.
            UnsupportedError: clrt does not have the dtype.
        """
        dtype = dtype_of(tensor.data_type, where)
        shape = _shape(tensor.dims, where)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(tensor, dtype, shape, where)
        # Each access to raw_data copies it.
        view = self._views.get(tensor.raw_data) if self._views else None
        try:
            if view is not None and not tensor.HasField("segment"):
                return _elements(view, dtype, tensor.data_type, shape)
            if _is_memory_layout(tensor, dtype):
                return np.frombuffer(tensor.raw_data, dtype.numpy).reshape(shape)
            array = np.asarray(numpy_helper.to_array(tensor)).reshape(shape)
            if dtype is DType.STRING:
                return text_array(array.reshape(-1).tolist(), shape)
            return array
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise ModelError(
                f"{where} is damaged: {dtype}{list(shape)} does not fit its data ({error}); "
                "export the model again."
            ) from error

    def sparse(self, tensor: onnx.SparseTensorProto, where: str) -> Array:
        """Returns the elements of a sparse tensor as a dense array.

        Args:
            tensor: The sparse tensor.
            where: Name of the tensor, for messages.

        Raises:
            ModelError: Indices are damaged or outside the shape.
            OutOfMemoryError: The dense form exceeds CLRT_HOST_LIMIT.
            UnsupportedError: clrt does not have the dtype.
        """
        values = self.array(tensor.values, where)
        indices = self.array(tensor.indices, where)
        shape = _shape(tensor.dims, where)
        check_host_bytes(math.prod(shape) * max(values.itemsize, 1), f"{where}, a sparse tensor,")
        dense = np.zeros(shape, values.dtype)
        try:
            if indices.ndim == 2:
                indices = np.ravel_multi_index(tuple(indices.T), shape)
            if values.ndim != 1 or indices.shape != values.shape:
                raise ValueError(f"{values.shape} values, {indices.shape} indices")
            if indices.size and not 0 <= indices.min() <= indices.max() < dense.size:
                raise ValueError("an index is outside the shape")
            dense.reshape(-1)[indices] = values
        except (ValueError, TypeError, IndexError) as error:
            raise ModelError(f"{where} is a damaged sparse tensor: {error}.") from error
        return dense

    def _external(
        self, tensor: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], where: str
    ) -> Array:
        """Returns the elements of a tensor whose bytes are in a file of external data.

        They are a view of the mapped file; a copy for bools, misaligned small tensors, and dtypes
        that share bytes.

        Args:
            tensor: The tensor.
            dtype: Dtype of the tensor.
            shape: Shape of the tensor.
            where: Name of the tensor, for messages.

        Raises:
            ModelError: The file is missing or too short, or the stored length does not fit.
        """
        entries = {e.key: e.value for e in tensor.external_data}
        location = entries.get("location", "")
        needed = -(-math.prod(shape) * dtype.file_bits // 8)
        offset = _number(entries, "offset", 0, where)
        length = _number(entries, "length", needed, where)
        if length != needed:
            raise ModelError(
                f"{where} is damaged: {dtype}{list(shape)} needs {needed} bytes, but '{location}' "
                f"has {length} for it; export the model again."
            )
        data = self._file(location, where)
        if offset + length > data.size:
            raise ModelError(
                f"'{location}' is truncated: {where} ends at byte {offset + length} of it, "
                f"but it has {data.size}; download or export the model again."
            )
        window = data[offset : offset + length]
        if dtype is DType.BOOL:
            flags: Array = window != 0
            return flags.reshape(shape)
        # Reads of misaligned views are slow; large tensors are only read once, for the upload.
        if 0 < length < MIN_VIEW_BYTES and window.ctypes.data % dtype.itemsize:
            window = window.copy()
        return _elements(window, dtype, tensor.data_type, shape)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of external data that were read so far."""
        return tuple(self._paths)

    def _file(self, location: str, where: str) -> Array:
        """Returns all bytes of a file of external data, mapped on first use.

        Args:
            location: Path relative to the model's folder, as in the ONNX file.
            where: Name of the tensor, for messages.

        Raises:
            ModelError: The file is missing or cannot be read.
        """
        if location not in self._files:
            path = self._resolve(location, where)
            try:
                size = path.stat().st_size
                mapped = _map_file(path) if size else np.zeros(0, np.uint8)
            except (OSError, ValueError) as error:
                raise ModelError(
                    f"'{path}', the file of {where}, cannot be read: {error}."
                ) from error
            self._files[location] = mapped
            self._paths.append(path)
        return self._files[location]

    def _resolve(self, location: str, where: str) -> Path:
        """Returns the path of a file of external data, which must lie in the model's folder.

        Args:
            location: Path relative to the model's folder, as in the ONNX file.
            where: Name of the tensor, for error messages.

        Raises:
            ModelError: The model was not read from a file, the location leads out of its folder, or
                there is no such file.
        """
        if self._folder is None:
            raise ModelError(
                f"{where} is in the external file '{location}', but the model was not read from "
                "a file; pass its path, or load it with onnx.load first."
            )
        if not location or not stays_below(location):
            raise ModelError(
                f"{where} is in '{location}', outside the model's folder; "
                "export the model with external data beside it."
            )
        path = self._folder / location
        if not os.path.isfile(path):  # Path.is_file raises for some paths
            raise ModelError(
                f"'{path}', the external file of {where}, does not exist; "
                "put it beside the model under this name."
            )
        check_link(path, self._folder)
        return path


def _is_memory_layout(tensor: onnx.TensorProto, dtype: DType) -> bool:
    """Returns whether a tensor's raw_data can be used as an array's memory, without conversion."""
    if not tensor.HasField("raw_data") or tensor.HasField("segment") or sys.byteorder == "big":
        return False
    return dtype is not DType.STRING and dtype.file_bits == 8 * dtype.itemsize


def _elements(raw: Array, dtype: DType, code: int, shape: tuple[int, ...]) -> Array:
    """Returns the elements in the raw bytes of a tensor.

    Args:
        raw: uint8 `[bytes]`.
        dtype: Dtype of the elements.
        code: ONNX's number of the dtype.
        shape: Shape of the tensor.

    Returns:
        A view of `raw`; an unpacked copy if several elements share a byte.
    """
    if dtype.file_bits == 8 * dtype.itemsize:
        return raw.view(dtype.numpy).reshape(shape)
    packed = onnx.TensorProto(data_type=code, dims=shape, raw_data=raw.tobytes())
    return np.asarray(numpy_helper.to_array(packed))


def _shape(dims: Iterable[int], where: str) -> tuple[int, ...]:
    shape = tuple(dims)
    if shape and min(shape) < 0:
        raise ModelError(f"{where} is damaged: its shape is {list(shape)}; export the model again.")
    return shape


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key) or str(default)
    # int() accepts any number of digits, "1_0" and " 1".
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ModelError(f"{where} is damaged: its external {key} is '{text[:40]}'.")
    return int(text)


def _map_file(path: Path) -> Array:
    """Returns all bytes of a file, memory-mapped read-only."""
    data = np.memmap(path, np.uint8, "r")
    remember_file(owner_of(data), path)
    return np.asarray(data)
