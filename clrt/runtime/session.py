"""One OpenCL context and in-order queue per device, shared by all models on it."""

from __future__ import annotations

import os
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from clrt import knobs
from clrt.errors import DeviceError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.kernels.spec import ALIGNMENT_BYTES
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.driver import Guard, check_process, cl, is_left_behind, never_release
from clrt.runtime.pages import drop_pages, is_mapped
from clrt.runtime.programs import ProgramCache

# How long a fork waits for the end of a run.
_FORK_S = 5.0


class TrackedBuffer(cl.Buffer):  # type: ignore[misc]
    """A buffer that can be referred to weakly, so that its release is counted.

    Attributes:
        host: The memory that it is, uint8[size], where the device shares the host's. It may be
            touched while nothing that uses the buffer is in the queue.
        nbytes: `size`, for which the driver is not asked.
    """

    host: Array | None = None
    nbytes: int = 0


@dataclass(eq=False)
class Connection:
    """What all sessions of a device share: a context, an in-order queue, and who may use it.

    Attributes:
        unfinished: Whether something may still be in the queue, from a run that was broken off.
        used_s: When a run last ended: `time.perf_counter`.
        owners: What holds objects of the driver.
        lost: Whether this process is a fork in which nothing of the driver can be used.
    """

    device: DeviceInfo
    context: cl.Context
    queue: cl.CommandQueue
    unfinished: bool = False
    used_s: float = 0.0
    lost: bool = False
    owners: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    _lock: Any = field(default_factory=RLock)
    _gate: cl.UserEvent | None = None
    _held_at_fork: bool = False
    _process: int = field(default_factory=os.getpid)

    @property
    def lock(self) -> Any:
        """Held while work is enqueued.

        Raises:
            DeviceError: This process is a fork, in which the driver would wait for ever.
        """
        if os.getpid() != self._process:
            self._check_fork()
        return self._lock

    def _check_fork(self) -> None:
        check_process(self.device, self.device.caps)
        if self.lost:
            raise DeviceError(
                f"{self.device} was running a model when this process was forked, which its driver "
                "does not survive; start processes by multiprocessing's 'spawn'."
            )

    @property
    def usable(self) -> bool:
        """Whether this process can use the driver: not in some forks."""
        return not (self.lost or is_left_behind(self.device.caps))

    @contextmanager
    def holding(self) -> Iterator[list[cl.Event] | None]:
        """What the first command waits for until all of a block are in the queue; None where the
        device is better off without.
        """
        if "interrupts-enqueuing" not in self.device.caps.quirks:
            yield None
            return
        self._gate = gate = cl.UserEvent(self.context)
        try:
            yield [gate]
        finally:
            self._open_gate()

    def _open_gate(self) -> None:
        """Lets go what is held, if anything is."""
        if self._gate is not None:
            self._gate.set_status(cl.command_execution_status.COMPLETE)
            self._gate = None

    def idle_s(self) -> float:
        """For how many seconds no run has been on the device."""
        return 0.0 if self.unfinished else time.perf_counter() - self.used_s

    def finish(self) -> None:
        """Waits for all that is in the queue."""
        self.queue.finish()
        self.unfinished = False

    def settle(self, *used: object) -> bool:
        """Waits for what a broken run has left in the queue, and never for ever.

        Args:
            used: What is in use by it.

        Returns:
            Whether the queue is empty now. Else there is a new one, and the old one keeps what it
            uses for good: it waits for an event that the driver does not let happen.

        Raises:
            cl.Error: The driver fails here, too.
        """
        try:
            self._open_gate()
        except cl.Error:
            assert self._gate is not None
            if self._gate.command_execution_status != cl.command_execution_status.COMPLETE:
                never_release(self.queue, self._gate, used)
                self.queue = cl.CommandQueue(self.context, self.device.handle)
                self._gate, self.unfinished = None, False
                return False
            self._gate = None  # it failed after it was open
        self.finish()
        return True

    def before_fork(self) -> None:
        """Waits a little for the end of a run, so that the fork does not begin in its midst."""
        if "stays-behind-in-forks" not in self.device.caps.quirks:
            self._held_at_fork = self._lock.acquire(timeout=_FORK_S)

    def after_fork(self) -> None:
        """In the process that was forked."""
        if self._held_at_fork:
            self._held_at_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """In the fork: what threads of the driver may have held there is neither used nor freed."""
        if self._held_at_fork:
            self.after_fork()
        else:
            self.lost = True
            never_release(self, *self.owners)


@dataclass
class Session:
    """What talks to a device.

    Attributes:
        allocated_bytes: Sum of the buffers made so far that are still alive.
        allocations: How many buffers were ever made.
    """

    device: DeviceInfo
    connection: Connection
    programs: ProgramCache
    allocated_bytes: int = 0
    allocations: int = 0
    _idle: defaultdict[int, list[TrackedBuffer]] = field(default_factory=lambda: defaultdict(list))

    @property
    def context(self) -> cl.Context:
        return self.connection.context

    @property
    def queue(self) -> cl.CommandQueue:
        return self.connection.queue

    @property
    def lock(self) -> Any:
        """Held while work is enqueued; see `Connection.lock`."""
        return self.connection.lock

    @contextmanager
    def using(self) -> Iterator[None]:
        """Around commands that are no run: their turn, their errors, and nothing from before.

        Raises:
            DeviceError: The driver fails, or does not work in this fork.
        """
        with self.lock, self.guard:
            if self.connection.unfinished:
                self.connection.settle()
            yield

    @cached_property
    def guard(self) -> Guard:
        """Around what calls the driver."""
        caps = self.device.caps
        return Guard(str(self.device), caps.global_mem_bytes, lambda: self.allocated_bytes)

    def tensor(self, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        """An uninitialised tensor; its memory comes from, and goes back to, a pool.

        A buffer serves tensors down to half of its size, or each new length would add one.
        """
        tensor = DeviceTensor(shape, dtype, self, None)
        size = max(tensor.nbytes, 4)
        fitting = (n for n, idle in self._idle.items() if idle and n // 2 <= size <= n)
        pooled = min(fitting, default=None)
        tensor.buffer = self.allocate(size) if pooled is None else self._idle[pooled].pop()
        weakref.finalize(tensor, self._idle[tensor.buffer.nbytes].append, tensor.buffer)
        return tensor

    def trim(self) -> None:
        """Frees the pooled buffers that no tensor uses."""
        with self.lock:
            self._idle.clear()

    def allocate(self, nbytes: int) -> TrackedBuffer:
        """A device buffer.

        Raises:
            OutOfMemoryError: It does not fit.
            DeviceError: The driver fails.
        """
        size, flags, host = max(nbytes, 4), cl.mem_flags.READ_WRITE, None
        try:
            if self.shares_memory:
                flags, host = flags | cl.mem_flags.USE_HOST_PTR, _aligned(size)
            buffer = TrackedBuffer(self.context, flags, size if host is None else 0, host)
        except (cl.Error, MemoryError) as error:
            raise self.guard.translated(error, size) from error
        buffer.host, buffer.nbytes = host, size
        self.allocations += 1
        self.allocated_bytes += size
        weakref.finalize(buffer, self._released, size)
        return buffer

    @cached_property
    def shares_memory(self) -> bool:
        """Whether a buffer in the host's memory is that memory, which CPU devices are asked for.

        OpenCL lets a device keep a copy of it, so that this is tried out in both directions.

        Raises:
            DeviceError: The driver fails.
        """
        if not self.device.caps.is_cpu or self.device.caps.simulator:
            return False
        with self.using():
            host = _aligned(2 * ALIGNMENT_BYTES)
            host[:] = 1
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            buffer = cl.Buffer(self.context, flags, hostbuf=host)
            cl.enqueue_fill_buffer(self.queue, buffer, np.uint8(2), 0, ALIGNMENT_BYTES)
            self.queue.finish()
            written = host.tolist() == [2] * ALIGNMENT_BYTES + [1] * ALIGNMENT_BYTES
            host[ALIGNMENT_BYTES:] = 3
            seen = np.empty_like(host)
            cl.enqueue_copy(self.queue, seen, buffer)
            return bool(written and seen.tolist() == host.tolist())

    def _released(self, nbytes: int) -> None:
        self.allocated_bytes -= nbytes

    def constant(self, array: Array) -> TrackedBuffer:
        """A device buffer with the elements of an array that never change.

        A CPU reads a mapped file where it is.
        """
        aligned = array.nbytes > 0 and array.ctypes.data % ALIGNMENT_BYTES == 0
        if self.shares_memory and aligned and is_mapped(array):
            flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
            with self.guard:
                there = TrackedBuffer(self.context, flags, hostbuf=array)
            there.nbytes = array.nbytes
            return there
        buffer = self.upload(array)
        drop_pages(array)
        return buffer

    def upload(self, array: Array) -> TrackedBuffer:
        """A device buffer with the elements of an array."""
        contiguous = np.asarray(array, order="C")
        buffer = self.allocate(contiguous.nbytes)
        if buffer.host is not None:
            buffer.host[: contiguous.nbytes] = contiguous.reshape(-1).view(np.uint8)
        elif contiguous.nbytes:
            with self.using():
                cl.enqueue_copy(self.queue, buffer, contiguous)
        return buffer


def _aligned(nbytes: int) -> Array:
    """uint8[nbytes] where any device takes it."""
    memory = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    return memory[-memory.ctypes.data % ALIGNMENT_BYTES :][:nbytes]


_SESSIONS: dict[tuple[int, Path], Session] = {}
_SESSIONS_LOCK = RLock()


def session_for(device: DeviceInfo, cache_dir: Path | None = None) -> Session:
    """The session of a device; models on one device share it, so tensors pass between them.

    Raises:
        DeviceError: The driver gives no context, or does not work in this fork.
    """
    key = (device.index, cache_dir or knobs.cache_dir())
    check_process(device, device.caps)
    with _SESSIONS_LOCK:
        if key in _SESSIONS:
            return _SESSIONS[key]
        connection = next((c for c in _connections() if c.device.index == device.index), None)
        if connection is None:
            with Guard(str(device), device.caps.global_mem_bytes):
                context = cl.Context([device.handle])
                connection = Connection(device, context, cl.CommandQueue(context, device.handle))
        programs = ProgramCache(
            connection.context, device.handle, device.caps, key[1], connection.idle_s
        )
        session = _SESSIONS[key] = Session(device, connection, programs)
        return session


def _connections() -> list[Connection]:
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
        session.programs.after_fork_in_child()
    for connection in _connections():
        connection.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )


@dataclass(eq=False)
class DeviceTensor:
    """A tensor that stays on the device, from `run(device_outputs=True)`.

    It can be an input of any model on the same device. Its memory is used again once it is
    garbage collected.
    """

    shape: tuple[int, ...]
    dtype: DType
    session: Session = field(repr=False)
    buffer: cl.Buffer = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize

    def numpy(self) -> Array:
        """A copy of the elements on the host.

        Raises:
            DeviceError: The driver fails, or does not work in this fork.
        """
        with self.session.using():
            array = np.empty(self.shape, self.dtype.numpy)
            if array.nbytes:
                cl.enqueue_copy(self.session.queue, array, self.buffer)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)


def to_sizes(global_size: Sequence[int], local_size: Sequence[int]) -> tuple[int, ...]:
    """The global size rounded up to whole work-groups."""
    return tuple(-(-g // s) * s for g, s in zip(global_size, local_size, strict=True))
