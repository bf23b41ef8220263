"""One OpenCL context and in-order queue per device, shared by all models on it."""

from __future__ import annotations

import os
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
import pyopencl as cl

from clrt import knobs
from clrt.errors import DeviceError, OutOfMemoryError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.kernels.spec import ALIGNMENT_BYTES
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.pages import drop_pages, is_mapped
from clrt.runtime.programs import ProgramCache


class TrackedBuffer(cl.Buffer):  # type: ignore[misc]
    """A buffer that can be referred to weakly, so that its release is counted.

    Attributes:
        host: The memory that it is, uint8[size], where the device shares the host's. It may be
            touched while nothing that uses the buffer is in the queue.
        nbytes: `size`, for which the driver is not asked.
    """

    host: Array | None = None
    nbytes: int = 0


@dataclass
class Session:
    """What talks to a device.

    Attributes:
        allocated_bytes: Sum of the buffers made so far that are still alive.
        allocations: How many buffers were ever made.
    """

    device: DeviceInfo
    context: cl.Context
    queue: cl.CommandQueue
    programs: ProgramCache
    allocated_bytes: int = 0
    allocations: int = 0
    _idle: defaultdict[int, list[TrackedBuffer]] = field(default_factory=lambda: defaultdict(list))
    _lock: Any = field(default_factory=RLock)
    _process: int = field(default_factory=os.getpid)

    @property
    def lock(self) -> Any:
        """Held while work is enqueued; the queue is in-order and shared.

        Raises:
            DeviceError: This process is a fork, in which the driver would wait forever.
        """
        if self._process != os.getpid() and "stays-behind-in-forks" in self.device.caps.quirks:
            raise DeviceError(
                f"{self.device} was in use before this process was forked, and its driver does not "
                "work in forks; start processes by multiprocessing's 'spawn', or load first in "
                "the fork."
            )
        return self._lock

    @contextmanager
    def holding(self) -> Iterator[list[cl.Event] | None]:
        """What the first command waits for until all of a block are in the queue; None where the
        device is better off without.
        """
        if "interrupts-enqueuing" not in self.device.caps.quirks:
            yield None
            return
        gate = cl.UserEvent(self.context)
        try:
            yield [gate]
        finally:
            gate.set_status(cl.command_execution_status.COMPLETE)

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
        with self._lock:
            self._idle.clear()

    def allocate(self, nbytes: int) -> TrackedBuffer:
        """A device buffer.

        Raises:
            OutOfMemoryError: It does not fit.
        """
        size, flags, host = max(nbytes, 4), cl.mem_flags.READ_WRITE, None
        try:
            if self.shares_memory:
                flags, host = flags | cl.mem_flags.USE_HOST_PTR, _aligned(size)
            buffer = TrackedBuffer(self.context, flags, size if host is None else 0, host)
            buffer.host, buffer.nbytes = host, size
        except (cl.Error, MemoryError) as error:
            raise self.no_room(size) from error
        self.allocations += 1
        self.allocated_bytes += size
        weakref.finalize(buffer, self._released, size)
        return buffer

    def no_room(self, nbytes: int) -> OutOfMemoryError:
        """The error for memory that the device does not give."""
        return OutOfMemoryError(
            f"{self.device.name} has no room for {nbytes / 2**20:.1f} MiB "
            f"({self.allocated_bytes / 2**20:.1f} MiB are in use by clrt). Use a smaller batch "
            "or close models that are not needed.",
            nbytes,
            self.device.caps.global_mem_bytes,
        )

    @cached_property
    def shares_memory(self) -> bool:
        """Whether a buffer in the host's memory is that memory, which CPU devices are asked for.

        OpenCL lets a device keep a copy of it, so that this is tried out in both directions.
        """
        if not self.device.caps.is_cpu or self.device.caps.simulator:
            return False
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

    def constant(self, array: Array) -> cl.Buffer:
        """A device buffer with the elements of an array that never change.

        A CPU reads a mapped file where it is.
        """
        aligned = array.nbytes > 0 and array.ctypes.data % ALIGNMENT_BYTES == 0
        if self.shares_memory and aligned and is_mapped(array):
            flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
            return cl.Buffer(self.context, flags, hostbuf=array)
        buffer = self.upload(array)
        drop_pages(array)
        return buffer

    def upload(self, array: Array) -> cl.Buffer:
        """A device buffer with the elements of an array."""
        contiguous = np.asarray(array, order="C")
        buffer = self.allocate(contiguous.nbytes)
        if buffer.host is not None:
            buffer.host[: contiguous.nbytes] = contiguous.reshape(-1).view(np.uint8)
        elif contiguous.nbytes:
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
    with _SESSIONS_LOCK:
        sibling = next((s for (i, _), s in _SESSIONS.items() if i == device.index), None)
        lock = sibling.lock if sibling else RLock()
        if key in _SESSIONS:
            return _SESSIONS[key]
        try:
            context = sibling.context if sibling else cl.Context([device.handle])
            queue = sibling.queue if sibling else cl.CommandQueue(context, device.handle)
        except cl.Error as error:
            raise DeviceError(f"{device} gives no OpenCL context: {error}.") from error
        programs = ProgramCache(context, device.handle, device.caps, key[1])
        session = _SESSIONS[key] = Session(device, context, queue, programs, _lock=lock)
        return session


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
        return prod(self.shape) * self.dtype.itemsize

    def numpy(self) -> Array:
        """A copy of the elements on the host."""
        array = np.empty(self.shape, self.dtype.numpy)
        if array.nbytes:
            with self.session.lock:
                cl.enqueue_copy(self.session.queue, array, self.buffer)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)


def to_sizes(global_size: Sequence[int], local_size: Sequence[int]) -> tuple[int, ...]:
    """The global size rounded up to whole work-groups."""
    return tuple(-(-g // s) * s for g, s in zip(global_size, local_size, strict=True))
