"""`OrtValue`: a tensor in host memory or on a device, or a sequence or map."""

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
    """PCI vendor IDs of device vendors."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


class OrtDevice:
    """Location of tensors: host memory ("cpu") or a device ("clrt", "cuda", "dml", "gpu", …).

    Attributes:
        name: Device type, as passed.

    Args:
        name: Device type.
        device_id: Number of the device among those of its type.
        vendor_id: PCI vendor ID; negative for none.

    Raises:
        InvalidArgument: The device type is unknown.
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
        """Creates a location from a device type and number.

        Args:
            ort_device_name: Device type, such as "cpu", "clrt" or "cuda".
            device_id: Number of the device among those of its type.
            vendor_id: PCI vendor ID; negative for none.

        Raises:
            InvalidArgument: The device type is unknown.
        """
        return OrtDevice(ort_device_name, device_id, vendor_id)

    @property
    def is_host(self) -> bool:
        """Whether the location is host memory."""
        return self.name == "cpu"

    def device_id(self) -> int:
        """Returns the number of the device among those of its type, as passed."""
        return self._id

    def device_type(self) -> int:
        """Returns ONNX Runtime's number of the device type: 0 for host memory, 1 GPU, 3 NPU."""
        return self._numbers[self.name]

    def device_vendor_id(self) -> int:
        """Returns the PCI vendor ID that was passed to the constructor; 0 if none was."""
        return self._vendor

    def device_mem_type(self) -> int:
        """Returns 0, ONNX Runtime's number for the device's default memory."""
        return 0


HOST = OrtDevice("cpu")


class OrtValue:
    """Value of an input or output of a run: a tensor, sequence, map or empty optional.

    Args:
        held: The value: an array (shared, not copied), a device tensor, a list, a dict or None.
        type_: Type of a value that is not a tensor, such as "seq(tensor(float))"; else "".
        device: Location of the value, as the program named it.
    """

    def __init__(self, held: Any, type_: str = "", device: OrtDevice = HOST) -> None:
        self.held = held
        self._type = type_
        self._device = device

    @classmethod
    def ortvalue_from_numpy(
        cls, data: Array, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Creates a tensor that shares an array's memory, or a copy of the array on a device.

        Args:
            data: The array; on the host it is copied, too, if it is not contiguous or in another
                byte order.
            device_type: "cpu" for host memory, or a device type such as "clrt" or "cuda".
            device_id: Number of the device among those of its type.
            vendor_id: PCI vendor ID, without effect.

        Raises:
            RuntimeException: `data` is not an array or has strings, or the device does not exist.
            InvalidArgument: The device type is unknown.
        """
        if not isinstance(data, np.ndarray) or data.dtype.kind in "SUO":
            raise RuntimeException(
                "Creation of OrtValues is currently only supported from non-string numpy arrays"
            )
        return cls._placed(native(data), OrtDevice(device_type, device_id, vendor_id))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """Creates a tensor that reinterprets an array's memory as another dtype, such as bfloat16.

        Args:
            data: The array.
            onnx_element_type: Number of the dtype in `onnx.TensorProto.DataType`.

        Raises:
            InvalidArgument: The number is not that of a dtype.
            RuntimeException: The element types differ in size, or the dtype is the string type.
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
        """Creates a tensor of zeros in host memory or on a device.

        Args:
            shape: Shape of the tensor.
            element_type: A NumPy type or a number in `onnx.TensorProto.DataType`.
            device_type: "cpu" for host memory, or a device type such as "clrt" or "cuda".
            device_id: Number of the device among those of its type.
            vendor_id: PCI vendor ID, without effect.

        Raises:
            RuntimeException: The device does not exist.
            InvalidArgument: The element type or the device type is unknown.
        """
        array = np.zeros(tuple(shape), _numpy_of(element_type))
        return cls._placed(array, OrtDevice(device_type, device_id, vendor_id))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: object) -> OrtValue:
        """Raises an error: clrt has no sparse tensors.

        Raises:
            NotImplemented: Always.
        """
        raise exceptions.NotImplemented(_SPARSE)

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Creates a tensor that shares the memory of another library's tensor in host memory.

        Args:
            data: An object that supports DLPack (`__dlpack__`).
        """
        return cls(np.from_dlpack(data))

    @classmethod
    def _placed(cls, array: Array, device: OrtDevice) -> OrtValue:
        """Creates an OrtValue of an array: in host memory without a copy, or copied to a device."""
        if device.is_host:
            return cls(array)
        try:
            info = device_of_type(device.name, device.device_id())
            tensor = session_for(info).tensor_of(array, DType.of(array.dtype))
        except ClrtError as error:
            raise RuntimeException(f"Can't allocate memory on '{device.name}': {error}") from error
        return cls(tensor, "", device)

    def data_ptr(self) -> int:
        """Returns the address of the tensor's elements in host memory.

        Raises:
            RuntimeException: The value is not a tensor, or is on a device: OpenCL has no addresses.
        """
        if not isinstance(self.held, np.ndarray):
            raise RuntimeException(
                "This OrtValue has no address: it is not a tensor in host memory."
            )
        return int(self.held.ctypes.data)

    def device_name(self) -> str:
        """Returns the device type of the value's location, such as "cpu" or "cuda"."""
        return self._device.name

    def shape(self) -> list[int]:
        """Returns the shape of the tensor that this OrtValue holds.

        Raises:
            RuntimeException: The value is not a tensor.
        """
        return list(self._tensor().shape)

    def data_type(self) -> str:
        """Returns ONNX Runtime's type of the value, such as "tensor(float)"."""
        if isinstance(self.held, DeviceTensor):
            return tensor_type(self.held.dtype)
        return array_type(self.held) if isinstance(self.held, np.ndarray) else self._type

    def element_type(self) -> int:
        """Returns the value's element type as a number in `onnx.TensorProto.DataType`."""
        return dtype_of_type(self.data_type()).onnx

    def tensor_size_in_bytes(self) -> int:
        """Returns the size of the tensor's elements in bytes.

        Raises:
            RuntimeException: The value is not a tensor.
        """
        tensor = self._tensor()
        return prod(tensor.shape) * dtype_of_type(self.data_type()).itemsize

    def has_value(self) -> bool:
        """Returns False for an optional without a value, else True."""
        return self.held is not None

    def is_tensor(self) -> bool:
        """Returns whether the value is a tensor, in host memory or on a device."""
        return isinstance(self.held, (np.ndarray, DeviceTensor))

    def is_sparse_tensor(self) -> bool:
        """Returns False: there are no sparse tensors."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Returns whether the value is a sequence of tensors."""
        return isinstance(self.held, list) and self._type.startswith("seq(tensor")

    def as_sparse_tensor(self) -> Any:
        """Raises an error: clrt has no sparse tensors.

        Raises:
            NotImplemented: Always.
        """
        raise exceptions.NotImplemented(_SPARSE)

    def numpy(self) -> Array:
        """Returns the elements: the array itself in host memory, or a copy from the device.

        Raises:
            RuntimeException: The value is not a tensor.
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
        """Overwrites the tensor's elements by an array's elements, of the same number and type.

        Raises:
            RuntimeException: The size or type differs, or the value is not a tensor.
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
    """List of OrtValues: the type that `run_with_ortvaluevector` appends outputs to."""

    def push_back(self, value: OrtValue) -> None:
        """Appends an OrtValue."""
        self.append(value)


class SparseTensor:
    """ONNX Runtime's sparse tensor, which clrt lacks: its constructor raises NotImplemented."""

    def __init__(self, *_: object) -> None:
        raise exceptions.NotImplemented(_SPARSE)

    @classmethod
    def sparse_coo_from_numpy(cls, *_: object) -> SparseTensor:
        """Raises an error: clrt has no sparse tensors.

        Raises:
            NotImplemented: Always.
        """
        return cls()

    @classmethod
    def sparse_csr_from_numpy(cls, *_: object) -> SparseTensor:
        """Raises an error: clrt has no sparse tensors.

        Raises:
            NotImplemented: Always.
        """
        return cls()


def _numpy_of(given: Any) -> np.dtype[Any]:
    return element_type(given).numpy


def at_address(address: int, shape: Sequence[int], given: Any) -> Array:
    """Returns an array over host memory at an address, without a copy.

    Args:
        address: Address of the elements, which must stay valid while the array is used.
        shape: Shape of the array.
        given: Element type: a NumPy type or a number in `onnx.TensorProto.DataType`.

    Raises:
        InvalidArgument: The element type is unknown.
    """
    dtype = _numpy_of(given)
    size = prod(shape) * dtype.itemsize
    memory = memoryview((ctypes.c_ubyte * size).from_address(address)) if size else bytearray()
    return np.frombuffer(memory, dtype).reshape(tuple(shape))
