"""OrtValue: a tensor in the host's memory or on a device, or a sequence or map."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import Any, ClassVar

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.dtypes import DType, native
from clrt.ir.op import Array
from clrt.onnxruntime import exceptions
from clrt.onnxruntime.exceptions import (
    InvalidArgument,
    RuntimeException,
    of_run,
)
from clrt.onnxruntime.providers import GPU_TYPES, device_of_type
from clrt.onnxruntime.types import array_type, dtype_of_type, element_type, tensor_type
from clrt.runtime.opencl.session import session_for
from clrt.runtime.opencl.tensors import DeviceTensor

_SPARSE = "clrt has no sparse tensors; pass the dense array, which runs of ONNX Runtime take too."


class OrtDeviceVendorId(IntEnum):
    """Who made a device, by their PCI numbers."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtDevice:
    """A place for tensors: the host's memory ("cpu") or a device ("clrt", "cuda", "dml", "gpu").

    Attributes:
        name: The type as it was given.
    """

    _numbers: ClassVar = {"cpu": 0, "npu": 3, "cann": 3, "clrt": 1, **dict.fromkeys(GPU_TYPES, 1)}

    def __init__(self, name: str, device_id: int = 0, vendor_id: int = -1) -> None:
        if name not in self._numbers:
            raise InvalidArgument(f"Unsupported device type: {name}")
        self.name = name
        self._id = device_id
        self._vendor = max(int(vendor_id), 0)

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """A place by its type and number.

        Raises:
            InvalidArgument: There is no such type.
        """
        return OrtDevice(ort_device_name, device_id, vendor_id)

    @property
    def is_host(self) -> bool:
        """Whether it is the host's memory."""
        return self.name == "cpu"

    def device_id(self) -> int:
        """Its number among those of its type."""
        return self._id

    def device_type(self) -> int:
        """0 for the host's memory, 1 for a GPU."""
        return self._numbers[self.name]

    def device_vendor_id(self) -> int:
        """Who made it; 0 if that was not said."""
        return self._vendor

    def device_mem_type(self) -> int:
        """0: its own memory."""
        return 0


HOST = OrtDevice("cpu")


class OrtValue:
    """What goes into a run, or comes out of it.

    Args:
        held: An array, which is not copied, a tensor on a device, a list or a dict.
        type_: Its type, where that is none of a tensor.
    """

    def __init__(self, held: Any, type_: str = "", device: OrtDevice = HOST) -> None:
        self.held = held
        self._type = type_
        self._device = device

    @classmethod
    def ortvalue_from_numpy(
        cls, data: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor of an array: its memory itself, or a copy of it on a device.

        Raises:
            RuntimeException: It is no array, one of text, or there is no such device.
        """
        if not isinstance(data, np.ndarray) or data.dtype.kind in "SUO":
            raise RuntimeException(
                "Creation of OrtValues is currently only supported from non-string numpy arrays"
            )
        return cls._placed(native(data), OrtDevice(device_type, device_id, vendor_id))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """A tensor of another element type over the memory of an array, such as bfloat16.

        Raises:
            RuntimeException: Their elements have not the same size.
        """
        dtype = element_type(onnx_element_type)
        if dtype.itemsize != data.itemsize:
            raise RuntimeException(
                f"Elements of {data.itemsize} bytes cannot be read as {dtype}, which has "
                f"{dtype.itemsize}."
            )
        return cls(native(data).view(dtype.numpy))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A tensor of zeros.

        Raises:
            RuntimeException: There is no such device.
            InvalidArgument: There is no such element type.
        """
        array = np.zeros(tuple(shape), _numpy_of(element_type))
        return cls._placed(array, OrtDevice(device_type, device_id, vendor_id))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: object) -> OrtValue:
        """Is not there.

        Raises:
            NotImplemented: Always.
        """
        raise exceptions.NotImplemented(_SPARSE)

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """A tensor over the memory of another library's, which it shares."""
        return cls(np.from_dlpack(data))

    @classmethod
    def _placed(cls, array: Array, device: OrtDevice) -> OrtValue:
        if device.is_host:
            return cls(array)
        try:
            info = device_of_type(device.name, device.device_id())
            tensor = session_for(info).tensor_of(array, DType.of(array.dtype))
        except ClrtError as error:
            raise RuntimeException(f"Can't allocate memory on '{device.name}': {error}") from error
        return cls(tensor, "", device)

    def data_ptr(self) -> int:
        """The address of the elements.

        Raises:
            RuntimeException: They are on a device, where OpenCL gives no address, or it is none.
        """
        if not isinstance(self.held, np.ndarray):
            raise RuntimeException("This OrtValue has no address: it is no tensor of the host's.")
        return int(self.held.ctypes.data)

    def device_name(self) -> str:
        """The type of the device that it lies on: "cpu", or as it was given."""
        return self._device.name

    def shape(self) -> list[int]:
        """The sizes of the tensor.

        Raises:
            RuntimeException: It is no tensor.
        """
        return list(self._tensor().shape)

    def data_type(self) -> str:
        """Its type: "tensor(float)"."""
        if isinstance(self.held, DeviceTensor):
            return tensor_type(self.held.dtype)
        return array_type(self.held) if isinstance(self.held, np.ndarray) else self._type

    def element_type(self) -> int:
        """The number of the element type in `onnx.TensorProto.DataType`."""
        return dtype_of_type(self.data_type()).onnx

    def tensor_size_in_bytes(self) -> int:
        """What the elements take."""
        tensor = self._tensor()
        return prod(tensor.shape) * dtype_of_type(self.data_type()).itemsize

    def has_value(self) -> bool:
        """Whether it is an optional without a value."""
        return self.held is not None

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self.held, (np.ndarray, DeviceTensor))

    def is_sparse_tensor(self) -> bool:
        """Whether it is a sparse tensor; none is."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return isinstance(self.held, list) and self._type.startswith("seq(tensor")

    def as_sparse_tensor(self) -> Any:
        """Is not there.

        Raises:
            NotImplemented: Always.
        """
        raise exceptions.NotImplemented(_SPARSE)

    def numpy(self) -> Array:
        """The elements: the host's memory itself, or a copy from the device.

        Raises:
            RuntimeException: It is no tensor.
            EPFail: The device fails.
        """
        tensor = self._tensor()
        if isinstance(tensor, np.ndarray):
            return tensor
        try:
            return tensor.numpy()
        except ClrtError as error:
            raise of_run(error) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is None or array.dtype == dtype:
            return array.copy() if copy else array
        if copy is False:
            raise InvalidArgument(f"{array.dtype} as {np.dtype(dtype)} needs a copy.")
        return array.astype(dtype)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.numpy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.numpy().__dlpack_device__()
        return int(kind), number

    def update_inplace(self, data: Array) -> None:
        """Gives the tensor the elements of an array of the same size and type.

        Raises:
            RuntimeException: It is of another.
        """
        array = native(np.asarray(data))
        if array.nbytes != self.tensor_size_in_bytes() or array_type(array) != self.data_type():
            raise RuntimeException(
                "The input size of numpy arrays does not match the size of the OrtValue: it is "
                f"{array_type(array)} {list(array.shape)}, not {self.data_type()} {self.shape()}."
            )
        tensor = self._tensor()
        array = array.reshape(tensor.shape)
        if isinstance(tensor, np.ndarray):
            np.copyto(tensor, array)
        else:
            self.held = tensor.session.tensor_of(array, tensor.dtype)

    def _tensor(self) -> Array | DeviceTensor:
        if not isinstance(self.held, (np.ndarray, DeviceTensor)):
            raise RuntimeException(
                f"Only OrtValues that are Tensors are currently supported; this is {self._type}."
            )
        return self.held


class OrtValueVector(list[OrtValue]):
    """OrtValues in order, as runs by vectors take them."""

    def push_back(self, value: OrtValue) -> None:
        """Puts a value behind the others."""
        self.append(value)


class SparseTensor:
    """Is not there: clrt has no sparse tensors."""

    def __init__(self, *_: object) -> None:
        raise exceptions.NotImplemented(_SPARSE)

    @classmethod
    def sparse_coo_from_numpy(cls, *_: object) -> SparseTensor:
        """Is not there.

        Raises:
            NotImplemented: Always.
        """
        return cls()

    @classmethod
    def sparse_csr_from_numpy(cls, *_: object) -> SparseTensor:
        """Is not there.

        Raises:
            NotImplemented: Always.
        """
        return cls()


def _numpy_of(given: Any) -> np.dtype[Any]:
    return element_type(given).numpy


def at_address(address: int, shape: Sequence[int], given: Any) -> Array:
    """The elements at an address of the host's memory, which must stay valid.

    Raises:
        InvalidArgument: There is no such element type.
    """
    dtype = _numpy_of(given)
    size = prod(shape) * dtype.itemsize
    memory = memoryview((ctypes.c_ubyte * size).from_address(address)) if size else bytearray()
    return np.frombuffer(memory, dtype).reshape(tuple(shape))
