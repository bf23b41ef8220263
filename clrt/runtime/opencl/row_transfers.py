"""Reads and writes some rows of a device tensor."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.ir.op import Array
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.tensors import DeviceTensor


def read_rows(tensor: DeviceTensor, first: int, count: int) -> Array:
    """Copies rows `[first, first + count)` of a tensor to the host, as an array `[count, ...]`.

    Args:
        first: Index of the first row along axis 0; the range is not checked.
        count: Number of rows.

    Raises:
        DeviceError: The driver fails.
        InputError: The tensor was donated to a run, or released.
    """
    rows = np.empty((count, *tensor.shape[1:]), tensor.dtype.numpy)
    if rows.nbytes:
        with tensor.session.lock, tensor.session.commands:
            start = first * _row_bytes(tensor)
            cl.enqueue_copy(tensor.session.queue, rows, tensor.buffer, src_offset=start)
    return rows


def write_rows(tensor: DeviceTensor, first: int, rows: Array) -> None:
    """Overwrites rows `[first, first + len(rows))` of a tensor.

    Args:
        first: Index of the first row along axis 0; the range is not checked.
        rows: New rows, of the tensor's dtype and row shape.

    Raises:
        DeviceError: The driver fails.
        InputError: The tensor was donated to a run, or released.
    """
    if rows.nbytes:
        with tensor.session.lock, tensor.session.commands:
            start, contiguous = first * _row_bytes(tensor), np.ascontiguousarray(rows)
            cl.enqueue_copy(tensor.session.queue, tensor.buffer, contiguous, dst_offset=start)


def _row_bytes(tensor: DeviceTensor) -> int:
    return prod(tensor.shape[1:]) * tensor.dtype.itemsize
