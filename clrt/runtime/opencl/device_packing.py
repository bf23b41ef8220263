"""Weights that the device packs itself, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clrt.ir.op import Array, ConcatenatedRows, PackedConstant, TracedConstant
from clrt.kernels.spec import (
    INDEXED_BYTES,
    BufferArg,
    DevicePacking,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
    numbered_arguments,
)
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.kernel_calls import scalar_setter, to_sizes
from clrt.runtime.opencl.ledger import BUDGET, Ledger
from clrt.runtime.opencl.os_memory import drop_pages
from clrt.runtime.opencl.session import DeviceSession

# A smaller weight is packed by the host before the program for it is there.
_LEAST_BYTES = 2 << 20
# Rows that are packed at once: they are in the caches.
_CHUNK_BYTES = 4 << 20


def packs(source: PackedWeight, session: DeviceSession, account: Ledger | None = None) -> bool:
    """Whether the device packs a weight: not where a limit leaves no room for the rows besides."""
    known, simulator = source.value.type.known_elements, session.device.caps.simulator
    if source.rows is None or simulator or not _LEAST_BYTES <= source.nbytes < INDEXED_BYTES:
        return False
    ledgers = [BUDGET] if account is None else [BUDGET, account]
    needed = source.nbytes + _chunk_bytes(source.rows)
    if any(x.limit is not None and x.limit - x.nbytes < needed for x in ledgers):
        return False
    if isinstance(known, ConcatenatedRows):
        return all(part.flags.c_contiguous for part in known.parts)
    if isinstance(known, PackedConstant):  # in the layout of another device
        return True
    return isinstance(known, np.ndarray) and known.flags.c_contiguous


def pack(
    source: PackedWeight,
    session: DeviceSession,
    kernel_of: Callable[[KernelSpec], cl.Kernel],
    account: Ledger | None = None,
) -> TrackedBuffer:
    """The buffer of a weight that the device packs.

    Args:
        kernel_of: Makes a kernel object.
        account: As in `DeviceSession.allocate`.

    Raises:
        OutOfMemoryError: There is no room for it.
        DeviceError: The driver fails.
    """
    rows, known = source.rows, source.value.type.known_elements
    assert rows is not None and known is not None and not isinstance(known, TracedConstant)
    if isinstance(known, PackedConstant):
        parts: tuple[Array, ...] = (known.elements,)
        drop_pages(known.array)
    else:
        parts = known.parts if isinstance(known, ConcatenatedRows) else (known,)
    dtype = source.value.dtype
    # Axes of one element may lie before the rows, as that of directions in recurrent nets.
    matrices = tuple([p.reshape(-1, rows.row_bytes // dtype.itemsize) for p in parts])
    elements = ConcatenatedRows(matrices, dtype.numpy)
    step = _chunk_rows(rows)
    packed = session.allocate(source.nbytes, account)
    given = session.allocate(_chunk_bytes(rows), account)
    names = Scratch(0, rows.dtype), Scratch(0, rows.dtype)
    for first in range(0, rows.rows, step):
        end = min(first + step, rows.rows)
        chunk = elements.rows(first, end)
        session.fill(given, chunk)
        drop_pages(chunk)
        launch = rows.emit(*names, first, end)
        _run(
            launch,
            kernel_of(launch.kernel),
            session,
            dict(zip(names, (given, packed), strict=True)),
        )
    for part in parts:
        drop_pages(part)
    return packed


def _chunk_rows(rows: DevicePacking) -> int:
    return max(_CHUNK_BYTES // rows.row_bytes // rows.row_multiple, 1) * rows.row_multiple


def _chunk_bytes(rows: DevicePacking) -> int:
    return min(_chunk_rows(rows), rows.rows) * rows.row_bytes


def _run(
    launch: Launch, kernel: cl.Kernel, session: DeviceSession, buffers: dict[Scratch, TrackedBuffer]
) -> None:
    """Runs one launch to its end."""
    set_scalar = scalar_setter(kernel)
    for index, arg in numbered_arguments(launch):
        if isinstance(arg, BufferArg):
            assert isinstance(arg.buffer, Scratch)
            kernel.set_arg(index, buffers[arg.buffer])
            set_scalar(index + 1, np.int32(arg.offset))
        else:
            set_scalar(index, arg)
    assert launch.local_size is not None
    size = to_sizes(launch.global_size, launch.local_size)
    with session.lock, session.commands:
        cl.enqueue_nd_range_kernel(session.queue, kernel, size, launch.local_size)
        session.queue.finish()
