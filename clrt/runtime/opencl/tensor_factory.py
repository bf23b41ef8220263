"""Arrays of NumPy, and of whatever speaks DLPack, to tensors on a device."""

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
    """A tensor on a device, with the elements of an array.

    Args:
        array: A NumPy array, or what NumPy makes one of: a list, a number, a tensor.
        dtype: Of the tensor, as NumPy or `TensorSpec.dtype` has it; None takes that of the array,
            and for Python's floats float32.
        device: As in `clrt.load`.

    Raises:
        InputError: It is no array, or of a dtype that has no tensors.
        DeviceError: The device is absent, or its driver fails.
        OutOfMemoryError: There is no room on the device.
    """
    try:
        wanted = None if dtype is None else np.dtype(dtype)
        elements = np.asarray(array, wanted)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"It is no array, {str(error).rstrip('.')}; pass one of NumPy.") from error
    if wanted is None and elements.dtype == np.float64 and isinstance(array, float | Sequence):
        elements = elements.astype(np.float32)
    return _placed(elements, device)


def from_dlpack(array: Any, *, device: str | int | None = None) -> DeviceTensor:
    """A tensor on a device, with a copy of the elements of another library's array.

    Args:
        array: Anything that has `__dlpack__` and lies in the host's memory.
        device: As in `clrt.load`.

    Raises:
        InputError: It does not speak DLPack, lies on another device, or NumPy lacks its dtype.
        DeviceError: The device is absent, or its driver fails.
        OutOfMemoryError: There is no room on the device.
    """
    try:
        elements = np.from_dlpack(array)
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(
            f"NumPy does not read a {type(array).__name__} by DLPack, {str(error).rstrip('.')}; "
            "copy it to the host's memory, in a dtype that NumPy has."
        ) from error
    return _placed(elements, device)


def _placed(elements: Array, device: str | int | None) -> DeviceTensor:
    try:
        elements = native(elements)
        dtype = DType.of(elements.dtype)
    except ValueError:
        dtype = DType.STRING
    if dtype is DType.STRING:
        raise InputError(f"Devices have no tensors of {elements.dtype}; pass numbers.")
    return session_for(choose_device(device)).tensor_of(elements, dtype)
