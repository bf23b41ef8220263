"""Creates device tensors from NumPy arrays and from arrays of DLPack producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clrt.errors import InputError
from clrt.ir.dtypes import DType, native
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import choose_device
from clrt.runtime.opencl.session import session_for
from clrt.runtime.opencl.tensors import DeviceTensor


def tensor(
    array: Any,
    dtype: DType | np.dtype[Any] | type | str | None = None,
    *,
    device: str | int | None = None,
) -> DeviceTensor:
    """Creates a tensor on a device with the elements of an array.

    Args:
        array: A NumPy array, or anything `np.asarray` converts: a list, a number, a tensor.
        dtype: Dtype of the tensor, as NumPy or `TensorSpec.dtype` spells it; None for the array's
            own dtype, or float32 for Python floats.
        device: "auto", "cpu", "gpu", part of a platform or device name, or a device's index; None
            reads CLRT_DEVICE, and defaults to "auto".

    Raises:
        InputError: `array` cannot be converted, or devices do not support its dtype.
        DeviceError: The device is absent, or its driver fails.
        OutOfMemoryError: The tensor does not fit on the device.
    """
    try:
        wanted = None if dtype is None else np.dtype(dtype)
        elements = np.asarray(array, wanted)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).rstrip(".")
        raise InputError(f"This cannot become a tensor: {reason}; pass a NumPy array.") from error
    if wanted is None and elements.dtype == np.float64 and isinstance(array, float | Sequence):
        elements = elements.astype(np.float32)
    return _upload(elements, device)


def from_dlpack(array: Any, *, device: str | int | None = None) -> DeviceTensor:
    """Creates a tensor on a device with a copy of another library's array.

    Args:
        array: An object with `__dlpack__` in host memory.
        device: "auto", "cpu", "gpu", part of a platform or device name, or a device's index; None
            reads CLRT_DEVICE, and defaults to "auto".

    Raises:
        InputError: `array` does not support DLPack, is not in host memory, or NumPy lacks its
            dtype.
        DeviceError: The device is absent, or its driver fails.
        OutOfMemoryError: The tensor does not fit on the device.
    """
    try:
        elements = np.from_dlpack(array)
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(
            f"NumPy cannot read a {type(array).__name__} by DLPack, {str(error).rstrip('.')}; "
            "copy it to the host's memory, in a dtype that NumPy has."
        ) from error
    return _upload(elements, device)


def _upload(elements: Array, device: str | int | None) -> DeviceTensor:
    """Copies an array to a device; raises for dtypes without device support."""
    try:
        elements = native(elements)
        dtype = DType.of(elements.dtype)
    except ValueError:
        dtype = DType.STRING
    if dtype is DType.STRING:
        raise InputError(f"Devices do not support dtype {elements.dtype}; pass numbers.")
    return session_for(choose_device(device)).tensor_of(elements, dtype)
