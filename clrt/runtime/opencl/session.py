"""`DeviceSession`: allocates buffers, tensors and programs of a device, and pools tensor memory."""

from __future__ import annotations

import os
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.ir.dtypes import DType, native
from clrt.ir.mmap_arrays import is_mapped
from clrt.ir.op import Array
from clrt.runtime.opencl.device_context import DeviceContext, RunQueue, TrackedBuffer
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import Guard, check_process, cl, new_context
from clrt.runtime.opencl.ledger import ALLOCATING, BUDGET, Ledger
from clrt.runtime.opencl.os_memory import drop_pages
from clrt.runtime.opencl.programs import ProgramCache
from clrt.runtime.opencl.tensors import DeviceTensor, PooledBuffer
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass


@dataclass
class DeviceSession:
    """Allocates buffers and tensors on a device, and compiles its programs.

    Attributes:
        connection: OpenCL context of the device, shared with its other sessions.
        programs: Cache of compiled programs.
        twin_programs: Cache of programs for the device's twin; None if it has no twin.
        allocations: Number of buffers allocated so far.
    """

    device: DeviceInfo
    connection: DeviceContext
    programs: ProgramCache
    twin_programs: ProgramCache | None = None
    allocations: int = 0
    _ledger: Ledger = field(default_factory=Ledger)
    # Pooled buffers of released tensors, by size in bytes.
    _idle: defaultdict[int, list[_LeasedBuffer]] = field(default_factory=lambda: defaultdict(list))

    @property
    def caches(self) -> tuple[ProgramCache, ...]:
        """The caches of compiled programs, of the device and of its twin."""
        return (self.programs, *(() if self.twin_programs is None else (self.twin_programs,)))

    @property
    def context(self) -> cl.Context:
        return self.connection.context

    @property
    def queue(self) -> cl.CommandQueue:
        """OpenCL queue for commands outside of model runs; callers wait for every command."""
        return self.connection.lane.queue

    def new_lane(self, background: bool = False, on_twin: bool = False) -> RunQueue:
        """Creates a queue for the runs of a model.

        Args:
            background: Whether the model's runs give way to the runs in all other queues.
            on_twin: Whether the runs are on the device's twin, which the device must have.

        Raises:
            DeviceError: The driver fails.
        """
        with self.guard:
            queue = self.connection.new_queue(on_twin)
            return RunQueue(self.connection, queue, background, on_twin)

    @property
    def lock(self) -> Any:
        """Lock to hold while enqueuing commands, shared by all sessions of the device.

        Raises:
            DeviceError: This process is a fork in which the driver would wait forever.
        """
        return self.connection.lock

    @property
    def allocated_bytes(self) -> int:
        """Total size of the session's live buffers in bytes."""
        return self._ledger.nbytes

    @cached_property
    def commands(self) -> _DrainedCommands:
        """Context manager for commands outside of model runs; enter it while holding `lock`.

        Waits first for commands that failed runs left in a queue, and converts errors of the
        driver to clrt's.

        Raises:
            DeviceError: The driver fails.
        """
        return _DrainedCommands(self)

    @cached_property
    def guard(self) -> Guard:
        """Context manager that converts errors of the device's driver to clrt's errors."""
        caps = self.device.caps
        return Guard(str(self.device), caps.global_mem_bytes, lambda: self.allocated_bytes)

    def tensor(self, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        """Creates an uninitialised device tensor; its memory comes from, and returns to, a pool.

        A pooled buffer is reused for tensors of half of its size or more. Lengths of inputs vary,
        and each new length would otherwise add a buffer.

        Raises:
            OutOfMemoryError: The tensor does not fit.
            DeviceError: The driver fails.
        """
        size = max(prod(shape) * dtype.itemsize, 4)
        with self.lock, self.commands:
            buffer = self._pop_pooled(size)
            if buffer is None:
                buffer = self.allocate(size)
            idle = self._idle[buffer.nbytes]
        lease = PooledBuffer(buffer)
        lease.back = _LeasedBuffer(lease, idle)
        return DeviceTensor(shape, dtype, self, lease)

    def _pop_pooled(self, nbytes: int) -> TrackedBuffer | None:
        """Removes and returns the smallest pooled buffer that fits `nbytes`; None if there is none.

        Another thread may run `clear_pool` meanwhile.
        """
        fitting = [n for n, idle in list(self._idle.items()) if idle and n // 2 <= nbytes <= n]
        if fitting:
            with suppress(IndexError):  # cleared since
                return self._idle[min(fitting)].pop().buffer
        return None

    def tensor_of(self, array: Array, dtype: DType) -> DeviceTensor:
        """Creates a tensor with the elements of an array, which must already have dtype `dtype`.

        Raises:
            OutOfMemoryError: The tensor does not fit.
            DeviceError: The driver fails.
        """
        tensor = self.tensor(array.shape, dtype)
        self.fill(tensor.buffer, array)
        return tensor

    def tensor_written(
        self, shape: tuple[int, ...], dtype: DType, write: Callable[[Array], None]
    ) -> DeviceTensor:
        """Creates a tensor whose elements a function writes, in place if it is in host memory.

        Args:
            write: Fills the array passed to it, which has `shape` and `dtype` and is uninitialised.

        Raises:
            OutOfMemoryError: The tensor does not fit.
            DeviceError: The driver fails.
        """
        tensor = self.tensor(shape, dtype)
        host = tensor.buffer.host
        if host is not None:
            write(host[: tensor.nbytes].view(dtype.numpy).reshape(shape))
            return tensor
        elements = np.empty(shape, dtype.numpy)
        write(elements)
        self.fill(tensor.buffer, elements)
        return tensor

    def trim(self) -> None:
        """Frees the pooled buffers of released tensors, waiting for `lock`."""
        with self.lock:
            self.clear_pool()

    def clear_pool(self) -> None:
        """Frees the pooled buffers of released tensors, without waiting for `lock`.

        For `BUDGET`, which may call it from any thread.
        """
        self._idle.clear()

    def allocate(self, nbytes: int, account: Ledger | None = None) -> TrackedBuffer:
        """Allocates a device buffer of `nbytes`, but at least 4 bytes.

        Args:
            account: Ledger of a model, which counts the buffer against the model's limit; None for
                no model. The budget of all models counts the buffer in any case.

        Raises:
            OutOfMemoryError: The buffer does not fit, or exceeds a limit.
            DeviceError: The driver fails.
        """
        size = max(nbytes, 4)
        ledgers = [ledger for ledger in (account, BUDGET, self._ledger) if ledger is not None]
        shared = self.shares_memory
        with ALLOCATING:
            for ledger in ledgers:
                ledger.check(size)
            buffer = self._new_buffer(size, shared)
            for ledger in ledgers:
                ledger.add(buffer)
        self.allocations += 1
        return buffer

    def _new_buffer(self, size: int, shared: bool) -> TrackedBuffer:
        flags, host = cl.mem_flags.READ_WRITE, None
        try:
            if shared:
                flags, host = flags | cl.mem_flags.USE_HOST_PTR, aligned(size)
            buffer = TrackedBuffer(self.context, flags, size if host is None else 0, host)
        except (cl.Error, MemoryError) as error:
            raise self.guard.translated(error, size) from error
        buffer.host, buffer.nbytes = host, size
        return buffer

    @cached_property
    def shares_memory(self) -> bool:
        """Whether buffers created with USE_HOST_PTR alias the host memory.

        Always False for simulators and non-CPU devices. OpenCL lets a device copy the memory. So a
        test writes from the host and from the device, and checks that each sees the other's data.

        Raises:
            DeviceError: The driver fails.
        """
        if not self.device.caps.is_cpu or self.device.caps.simulator:
            return False
        with self.lock, self.commands:
            host = aligned(2 * ALIGNMENT_BYTES)
            host[:] = 1
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            buffer = cl.Buffer(self.context, flags, hostbuf=host)
            cl.enqueue_fill_buffer(self.queue, buffer, np.uint8(2), 0, ALIGNMENT_BYTES)
            self.queue.finish()
            host_sees_device = host.tolist() == [2] * ALIGNMENT_BYTES + [1] * ALIGNMENT_BYTES
            host[ALIGNMENT_BYTES:] = 3
            copy = np.empty_like(host)
            cl.enqueue_copy(self.queue, copy, buffer)
            return bool(host_sees_device and copy.tolist() == host.tolist())

    def constant(self, array: Array, account: Ledger | None = None) -> TrackedBuffer:
        """Returns a read-only device buffer with the elements of an array.

        If the device shares host memory, an aligned view of a mapped file is used in place;
        any other array is copied, and the pages of a mapped file are dropped afterwards.

        Args:
            account: Ledger that counts a copy's bytes against its limit; None for none.

        Raises:
            OutOfMemoryError: The buffer does not fit, or exceeds a limit.
            DeviceError: The driver fails.
        """
        aligned = array.nbytes > 0 and array.ctypes.data % ALIGNMENT_BYTES == 0
        if self.shares_memory and aligned and is_mapped(array):
            flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
            with self.guard:
                buffer = TrackedBuffer(self.context, flags, hostbuf=array)
            buffer.nbytes = array.nbytes
            return buffer
        buffer = self.upload(array, account)
        drop_pages(array)
        return buffer

    def upload(self, array: Array, account: Ledger | None = None) -> TrackedBuffer:
        """Allocates a device buffer and copies an array to it.

        Args:
            account: Ledger that counts the buffer's bytes against its limit; None for none.

        Raises:
            OutOfMemoryError: The buffer does not fit, or exceeds a limit.
            DeviceError: The driver fails.
        """
        buffer = self.allocate(array.nbytes, account)
        self.fill(buffer, array)
        return buffer

    def fill(self, buffer: TrackedBuffer, array: Array) -> None:
        """Copies an array to the start of a buffer, and waits for the copy.

        No enqueued command may use the buffer.
        """
        contiguous = native(array)
        if buffer.host is not None:
            buffer.host[: contiguous.nbytes] = contiguous.reshape(-1).view(np.uint8)
        elif contiguous.nbytes:
            with self.lock, self.commands:
                cl.enqueue_copy(self.queue, buffer, contiguous)


class _LeasedBuffer(weakref.ref[PooledBuffer]):
    """Weak reference to a `PooledBuffer`; added to the pool when the `PooledBuffer` is collected.

    The callback is the built-in `list.append`, which no exception can interrupt.

    Attributes:
        buffer: The device buffer, free for the next tensor once this reference is in the pool.
    """

    __slots__ = ("buffer",)

    buffer: TrackedBuffer

    def __new__(cls, lease: PooledBuffer, pool: list[_LeasedBuffer]) -> _LeasedBuffer:
        reference = super().__new__(cls, lease, pool.append)
        reference.buffer = lease.buffer
        return reference

    def __init__(self, lease: PooledBuffer, pool: list[_LeasedBuffer]) -> None:
        super().__init__(lease, pool.append)  # type: ignore[call-arg]


class _DrainedCommands:
    """Context manager for commands outside of model runs, from `DeviceSession.commands`.

    On entry, waits for commands that failed runs left in a queue; converts errors of the driver.
    """

    __slots__ = ("_session",)

    def __init__(self, session: DeviceSession) -> None:
        self._session = session

    def __enter__(self) -> None:
        connection = self._session.connection
        if connection.undrained_queues:
            with self._session.guard:
                connection.drain()

    def __exit__(self, *raised: Any) -> None:
        self._session.guard.__exit__(*raised)


def aligned(nbytes: int, new: Callable[[int, type], Array] = np.empty) -> Array:
    """Returns a new uint8[nbytes] array whose address is a multiple of `ALIGNMENT_BYTES`.

    Args:
        new: `np.empty`, or `np.zeros` for an array of zeros.
    """
    memory = new(nbytes + ALIGNMENT_BYTES, np.uint8)
    return memory[-memory.ctypes.data % ALIGNMENT_BYTES :][:nbytes]


_SESSIONS: dict[tuple[tuple[int, int], Path], DeviceSession] = {}
_SESSIONS_LOCK = RLock()


def session_for(device: DeviceInfo, cache_dir: Path | None = None) -> DeviceSession:
    """Returns the session of a device, shared by all its models so that they exchange tensors.

    A sub-device (some cores of a CPU) has a session of its own.

    Args:
        cache_dir: Folder for compiled programs; None for the default. Each folder has a session of
            its own.

    Raises:
        DeviceError: The driver fails to create a context, or does not work in this fork.
    """
    key = (device.key, cache_dir or env_vars.cache_dir())
    check_process(device, device.caps)
    with _SESSIONS_LOCK:
        if key in _SESSIONS:
            return _SESSIONS[key]
        connection = next((c for c in _connections() if c.device.key == device.key), None)
        if connection is None:
            with Guard(str(device), device.caps.global_mem_bytes):
                handles = [d.handle for d in (device, device.twin) if d is not None]
                connection = DeviceContext(device, new_context(*handles))
        programs, twins = (
            None if d is None else ProgramCache(connection.context, d.handle, d.caps, key[-1])
            for d in (device, device.twin)
        )
        assert programs is not None
        session = DeviceSession(device, connection, programs, twins)
        BUDGET.enter_pool(session.clear_pool)
        _SESSIONS[key] = session
        return session


def _connections() -> list[DeviceContext]:
    return list({id(s.connection): s.connection for s in _SESSIONS.values()}.values())


def _before_fork() -> None:
    for connection in _connections():
        connection.before_fork()


def _after_fork() -> None:
    for connection in _connections():
        connection.after_fork()


def _after_fork_in_child() -> None:
    global _SESSIONS_LOCK
    _SESSIONS_LOCK = RLock()
    for session in _SESSIONS.values():
        for programs in session.caches:
            programs.after_fork_in_child()
    for connection in _connections():
        connection.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )
