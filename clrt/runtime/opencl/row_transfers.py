"""Rows of a tensor on a device, read and written without the others."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.ir.op import Array
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.tensors import DeviceTensor


def read_rows(tensor: DeviceTensor, first: int, count: int) -> Array:
    """A copy of some rows, `[count, ...]`, on the host.

    Args:
        first, count: Rows along the first axis, which has them.

    Raises:
        DeviceError: The driver fails.
        InputError: The tensor was donated to a run, or released.
    """
    rows = np.empty((count, *tensor.shape[1:]), tensor.dtype.numpy)
    if rows.nbytes:
        with tensor.session.lock, tensor.session.commands:
            start = first * _pitch_bytes(tensor)
            cl.enqueue_copy(tensor.session.queue, rows, tensor.buffer, src_offset=start)
    return rows


def write_rows(tensor: DeviceTensor, first: int, rows: Array) -> None:
    """Puts rows of the tensor's dtype in the place of those from `first` on.

    Raises:
        DeviceError, InputError: As `read_rows`.
    """
    if rows.nbytes:
        with tensor.session.lock, tensor.session.commands:
            start, given = first * _pitch_bytes(tensor), np.ascontiguousarray(rows)
            cl.enqueue_copy(tensor.session.queue, tensor.buffer, given, dst_offset=start)


def _pitch_bytes(tensor: DeviceTensor) -> int:
    return prod(tensor.shape[1:]) * tensor.dtype.itemsize
