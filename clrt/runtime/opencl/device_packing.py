"""Packs weights on the device, a block of rows per launch."""

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

# Minimum size in bytes of a weight to pack on the device: the host packs a smaller one in less time
# than the device's program takes to compile.
_MIN_BYTES = 2 << 20
# Bytes of rows packed per launch, so that they stay in the caches.
_CHUNK_BYTES = 4 << 20


def packs(source: PackedWeight, session: DeviceSession, account: Ledger | None = None) -> bool:
    """Returns whether the device can pack a weight within the memory limits.

    False for weights below `_MIN_BYTES`: the host packs such a weight faster than a packing kernel
    compiles. Also False for simulators.

    Args:
        source: Weight, and the layout to pack it in.
        session: Session of the device.
        account: Ledger of the model, whose limit must leave space for the packed weight and a
            chunk of unpacked rows; None if the model has none.
    """
    known, simulator = source.value.type.known_elements, session.device.caps.simulator
    if source.rows is None or simulator or not _MIN_BYTES <= source.nbytes < INDEXED_BYTES:
        return False
    ledgers = [BUDGET] if account is None else [BUDGET, account]
    needed = source.nbytes + _chunk_bytes(source.rows)
    if any(x.limit is not None and x.limit - x.nbytes < needed for x in ledgers):
        return False
    if isinstance(known, ConcatenatedRows):
        return all(part.flags.c_contiguous for part in known.parts)
    if isinstance(known, PackedConstant):  # packed in another layout
        return True
    return isinstance(known, np.ndarray) and known.flags.c_contiguous


def pack(
    source: PackedWeight,
    session: DeviceSession,
    kernel_of: Callable[[KernelSpec], cl.Kernel],
    account: Ledger | None = None,
) -> TrackedBuffer:
    """Packs a weight on the device and returns its buffer; call it only if `packs` is true.

    Args:
        source: Weight, and the layout to pack it in.
        session: Session of the device.
        kernel_of: Creates a kernel object from its specification.
        account: Ledger that counts the allocated bytes against its limit; None for none.

    Raises:
        OutOfMemoryError: The packed weight or a chunk of rows does not fit.
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
    # Axes of size 1 may precede the rows, such as the directions axis of recurrent nets.
    matrices = tuple([p.reshape(-1, rows.row_bytes // dtype.itemsize) for p in parts])
    elements = ConcatenatedRows(matrices, dtype.numpy)
    step = _chunk_rows(rows)
    packed = session.allocate(source.nbytes, account)
    unpacked = session.allocate(_chunk_bytes(rows), account)
    operands = Scratch(0, rows.dtype), Scratch(0, rows.dtype)
    for first in range(0, rows.rows, step):
        end = min(first + step, rows.rows)
        chunk = elements.rows(first, end)
        session.fill(unpacked, chunk)
        drop_pages(chunk)
        launch = rows.emit(*operands, first, end)
        buffers = dict(zip(operands, (unpacked, packed), strict=True))
        _run(launch, kernel_of(launch.kernel), session, buffers)
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
    """Sets the arguments of a kernel, enqueues one launch, and waits for it.

    Args:
        buffers: Device buffer by operand of the launch.
    """
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
