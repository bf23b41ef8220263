"""Runs plans: buffers made once, arguments bound once, one enqueue per launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from clrt.errors import InputError
from clrt.ir.graph import Value
from clrt.ir.op import Array, StoredElements
from clrt.kernels.spec import Buffer, BufferArg, KernelSpec, Launch, Packed, Scratch, Status
from clrt.ops.base import Op
from clrt.ops.blaming import Blaming
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep, HostStep, Region
from clrt.plan.traffic import traffic
from clrt.runtime.driver import cl, never_release
from clrt.runtime.pace import LONG_S, Pace, Stop
from clrt.runtime.pages import drop_pages
from clrt.runtime.session import DeviceTensor, Session, TrackedBuffer, to_sizes

Feed: TypeAlias = "Array | DeviceTensor"

# Local sizes where a launch leaves them open. They are fixed, never derived from the shapes,
# because PoCL compiles a kernel anew for each local size.
_LOCAL = {
    "cpu": {1: (64,), 2: (16, 1), 3: (16, 1, 1)},
    "gpu": {1: (256,), 2: (64, 1), 3: (64, 1, 1)},
}
# Launches that are held back together (`Session.holding`): a few tens of us of enqueuing.
_HELD = 32
# The least that a device does in a second, for runs of which none was measured: floating-point
# operations of a compute unit, bytes of the device.
_LEAST_FLOPS = 5e9
_LEAST_BYTES = 1e9


@dataclass(eq=False)
class Weights:
    """What one model keeps: each constant, or packed form of it, once, and its programs.

    Attributes:
        programs: Those of its kernels, which other models share.
    """

    session: Session
    programs: dict[KernelSpec, cl.Program] = field(default_factory=dict)
    _buffers: dict[tuple[Value, str], TrackedBuffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session.connection.owners.add(self)

    def get(self, source: Value | Packed) -> TrackedBuffer:
        """The buffer of a constant or of its packed form; made at the first call."""
        value = source.value if isinstance(source, Packed) else source
        layout = source.layout if isinstance(source, Packed) else ""
        key = (value, layout)
        if key not in self._buffers:
            self._buffers[key] = self._make(source, value, layout)
        return self._buffers[key]

    def _make(self, source: Value | Packed, value: Value, layout: str) -> TrackedBuffer:
        known = value.type.known
        if isinstance(known, StoredElements) and known.layout == layout:
            return self.session.constant(known.array)
        array = value.numbers
        if array is None:
            raise InputError(f"'{value.name}' is no constant")
        if not isinstance(source, Packed):
            return self.session.constant(array)
        packed = source.pack(array)
        assert packed.nbytes == source.nbytes, source.layout
        buffer = self.session.upload(packed)
        drop_pages(array)
        return buffer

    @property
    def sizes(self) -> dict[tuple[Value, str], int]:
        """Bytes of each buffer, by constant and packed layout."""
        return {key: b.nbytes for key, b in self._buffers.items()}

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())

    def kernel(self, spec: KernelSpec) -> cl.Kernel:
        """A new kernel object."""
        return self.session.programs.kernel(spec, self.programs)

    def clear(self) -> None:
        """Frees the device memory."""
        self._buffers.clear()


@dataclass(eq=False)
class Slabs:
    """The arena's device memory, shared by all plans of a model; it only grows.

    Attributes:
        generation: Counts reallocations: plans bound to an older one bind again.
        views: Inputs and outputs of plans as arrays, where the host has this memory: to find one
            takes 3 us.
    """

    session: Session
    buffers: list[TrackedBuffer] = field(default_factory=list)
    generation: int = 0
    views: WeakKeyDictionary[Value, Array | None] = field(default_factory=WeakKeyDictionary)

    def __post_init__(self) -> None:
        self.session.connection.owners.add(self)

    def reserve(self, sizes: Sequence[int]) -> None:
        """Makes every slab at least as large as asked for.

        Raises:
            OutOfMemoryError: One does not fit; the slabs before it are kept.
        """
        held = self.sizes
        wanted = [max(pair) for pair in zip_longest(held, sizes, fillvalue=0)]
        same = next((i for i, n in enumerate(wanted) if held[i : i + 1] != [n]), len(wanted))
        if same == len(wanted):
            return
        # What is too small goes first: there may be no room for both.
        self.generation += 1
        self.views.clear()
        del self.buffers[same:]
        for size in wanted[same:]:
            self.buffers.append(self.session.allocate(size))

    @property
    def sizes(self) -> list[int]:
        """Bytes of each slab."""
        return [b.nbytes for b in self.buffers]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def clear(self) -> None:
        """Frees the device memory."""
        self.views.clear()
        self.buffers.clear()
        self.generation += 1


@dataclass(frozen=True)
class Enqueue:
    """A kernel with its arguments set."""

    entry: str
    kernel: cl.Kernel
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


class StepRecorder(Protocol):
    """What runs the steps of a plan in place of the executor, to see when they run."""

    def record_steps(
        self,
        bound: BoundPlan,
        steps: Sequence[Enqueue | HostStep],
        run_host: Callable[[HostStep], None],
    ) -> None:
        """Runs every step, in order, and waits for the last."""


@dataclass(eq=False)
class BoundPlan:
    """A plan with its kernels, ready to run again and again.

    Plan constants (masks, positions) are held here, weights in `weights`.
    """

    plan: Plan
    session: Session
    weights: Weights
    slabs: Slabs
    model_constants: frozenset[Value]
    stop: Stop = field(default_factory=Stop)
    _steps: list[Enqueue | HostStep] = field(default_factory=list)
    _own: Weights = field(init=False)
    _status: TrackedBuffer | None = None
    _generation: int = -1
    _copies: list[cl.Event] = field(default_factory=list)
    _seconds: float | None = None
    _costs: tuple[int, ...] = ()
    _broken: bool = False

    def __post_init__(self) -> None:
        self._own = Weights(self.session)
        self.session.connection.owners.add(self)

    def run(
        self,
        feeds: Mapping[str, Feed],
        outputs: Mapping[str, bool],
        recorder: StepRecorder | None = None,
    ) -> dict[str, Feed]:
        """Runs the plan.

        Args:
            feeds: A contiguous array of the planned dtype and shape per graph input.
            outputs: Names of the wanted outputs, and whether each stays on the device.
            recorder: Runs the steps where a profile is wanted.

        Raises:
            NumberError: A kernel met an index, or the like, out of range.
            DeviceError: The driver fails, or has no room (OutOfMemoryError). What was enqueued
                before has ended.
            ClrtError: `stop` was requested.
        """
        connection = self.session.connection
        with connection.lock, self._whole():
            if self.stop.requested:
                self.stop.check()
            if connection.unfinished:
                connection.settle()
            if self._broken:
                self._take_status()
            self._bind()
            start = time.perf_counter()
            connection.unfinished = self._broken = True
            # Nothing waits before the end: each wait wakes a thread, 50 us and more on a CPU.
            for value in self.plan.graph.inputs:
                self._feed(value, feeds[value.name])
            if recorder is None:
                self._run_steps()
            else:
                recorder.record_steps(self, self._steps, self._run_host)
            values = zip(self.plan.graph.output_names, self.plan.graph.outputs, strict=True)
            wanted = [(name, value) for name, value in values if name in outputs]
            results = {n: self._keep(v) if outputs[n] else self._read(v) for n, v in wanted}
            self._finish()
            for name, value in wanted:
                result, host = results[name], self._host_memory(value)
                if isinstance(result, np.ndarray) and host is not None:
                    result[...] = host
            connection.used_s = time.perf_counter()
            self._seconds = connection.used_s - start
        return results

    @property
    def ready(self) -> bool:
        """Whether a run allocates nothing but the outputs that stay on the device."""
        return self._generation == self.slabs.generation

    @property
    def own_bytes(self) -> int:
        """Device memory besides weights and arena."""
        return self._own.nbytes + (0 if self._status is None else self._status.nbytes)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Says clearly where the driver fails, and waits for what was enqueued before."""
        try:
            yield
        except BaseException as error:
            with suppress(cl.Error, MemoryError):  # the first error is the one to tell
                self._break_off()
            if isinstance(error, (cl.Error, MemoryError)):
                guard, nbytes = self.session.guard, self.plan.arena.nbytes
                raise guard.translated(error, nbytes) from error
            raise
        finally:
            self._copies.clear()

    def _break_off(self) -> None:
        """What is in the queue still uses this call's arrays and the arena: waits for it."""
        if self.session.connection.settle(*self._copies, *self.slabs.buffers):
            self._take_status()
        else:
            never_release(self._status)
            self._status = None
            self.slabs.clear()

    def _run_steps(self) -> None:
        if self._takes_long():
            self._run_long()
            return
        queue, enqueue = self.session.queue, cl.enqueue_nd_range_kernel
        held = 0
        with self.session.connection.holding() as gate:
            for step in self._steps[:_HELD]:
                if isinstance(step, HostStep):
                    break
                enqueue(queue, step.kernel, step.global_size, step.local_size, wait_for=gate)
                held += 1
        for step in self._steps[held:]:
            if isinstance(step, HostStep):
                self._run_host(step)
            else:
                enqueue(queue, step.kernel, step.global_size, step.local_size)

    def _takes_long(self) -> bool:
        """Whether somebody may want to end a run in its midst; a guess before the first."""
        if self._seconds is None:
            launches = [x for s in self.plan.steps if isinstance(s, DeviceStep) for x in s.launches]
            moved = self.plan.arena.nbytes * len(launches) / _LEAST_BYTES
            flops = _LEAST_FLOPS * self.session.device.caps.compute_units
            self._seconds = max(moved, sum(x.flops for x in launches) / flops)
        return self._seconds > LONG_S

    def _run_long(self) -> None:
        """The steps, so that the run can end between two launches."""
        if not self._costs:
            steps = (s for s in self.plan.steps if isinstance(s, DeviceStep))
            pairs = [(s.nodes, x) for s in steps for x in s.launches]
            self._costs = tuple(1 + x.flops + traffic(n, x).nbytes for n, x in pairs)
        queue, costs = self.session.queue, iter(self._costs)
        pace = Pace(queue, self.stop)
        for step in self._steps:
            if isinstance(step, HostStep):
                self._run_host(step)
                self.stop.check()
                continue
            event = cl.enqueue_nd_range_kernel(
                queue, step.kernel, step.global_size, step.local_size
            )
            pace.launched(event, next(costs))

    def seconds(self, entry: str) -> float:
        """How long all launches of a kernel take, one after the other, on what is in the arena."""
        with self.session.using(), self._whole():
            queue = self.session.queue
            self._bind()
            steps = [s for s in self._steps if isinstance(s, Enqueue) and s.entry == entry]
            queue.finish()
            start = time.perf_counter()
            for step in steps:
                cl.enqueue_nd_range_kernel(queue, step.kernel, step.global_size, step.local_size)
            queue.finish()
            return time.perf_counter() - start

    def _bind(self) -> None:
        """Sets every kernel argument; again only after the arena has moved."""
        if self.ready:
            return
        self.slabs.reserve(self.plan.arena.slab_bytes)
        if self._status is None and self.plan.statuses:
            self._status = self.session.upload(np.zeros(len(self.plan.statuses), np.int64))
        self._steps = []
        for step in self.plan.steps:
            if isinstance(step, DeviceStep):
                self._steps += [self._bind_launch(launch) for launch in step.launches]
                for spec in step.also if isinstance(step, Region) else ():
                    self.weights.kernel(spec)
            else:
                self._steps.append(step)
        self._generation = self.slabs.generation

    def _bind_launch(self, launch: Launch) -> Enqueue:
        kernel = self.weights.kernel(launch.kernel)
        # set_arg tries every other kind of argument before a scalar: 6 us each, 15 a launch.
        set_scalar = getattr(kernel, "_set_arg_buf", kernel.set_arg)
        index = 0
        for arg in launch.args:
            if isinstance(arg, BufferArg):
                buffer, offset = self.locate(arg.buffer)
                kernel.set_arg(index, buffer)
                set_scalar(index + 1, np.int32(offset + arg.offset))
                index += 2
            else:
                set_scalar(index, arg)
                index += 1
        local = launch.local_size or self._local(kernel, len(launch.global_size))
        return Enqueue(launch.kernel.entry, kernel, to_sizes(launch.global_size, local), local)

    def _local(self, kernel: cl.Kernel, dims: int) -> tuple[int, ...]:
        """The local size where a launch leaves it open."""
        if self.session.device.caps.is_cpu:
            return _LOCAL["cpu"][dims]
        first, *others = _LOCAL["gpu"][dims]
        # What the kernel's registers leave room for; a power of two, as work-groups are wanted.
        most = kernel.get_work_group_info(
            cl.kernel_work_group_info.WORK_GROUP_SIZE, self.session.device.handle
        )
        return (min(first, 1 << most.bit_length() - 1), *others)

    def locate(self, buffer: Buffer) -> tuple[TrackedBuffer, int]:
        """The device buffer, and the element offset in it."""
        if isinstance(buffer, Status):
            assert self._status is not None
            return self._status, self.plan.statuses.index(buffer)
        if isinstance(buffer, Packed):
            return self._constants(buffer.value).get(buffer), 0
        if isinstance(buffer, Value):
            root = self.plan.root(buffer)
            if root.is_constant:
                return self._constants(root).get(root), 0
            place, dtype = self.plan.places[root], buffer.dtype
        else:
            assert isinstance(buffer, Scratch)
            place, dtype = self.plan.places[buffer], buffer.dtype
        return self.slabs.buffers[place.slab], place.offset_bytes // dtype.itemsize

    def _constants(self, value: Value) -> Weights:
        return self.weights if value in self.model_constants else self._own

    def _feed(self, value: Value, feed: Feed) -> None:
        if value not in self.plan.places or feed.nbytes == 0:
            return
        queue = self.session.queue
        if not isinstance(feed, DeviceTensor) and (host := self._host_memory(value)) is not None:
            host[...] = feed
            return
        target, offset = self._bytes_of(value)
        if isinstance(feed, DeviceTensor):
            cl.enqueue_copy(queue, target, feed.buffer, dst_offset=offset, byte_count=feed.nbytes)
        else:
            self._copies.append(
                cl.enqueue_copy(queue, target, feed, dst_offset=offset, is_blocking=False)
            )

    def _bytes_of(self, value: Value) -> tuple[TrackedBuffer, int]:
        buffer, offset = self.locate(value)
        return buffer, offset * value.dtype.itemsize

    def _host_memory(self, value: Value) -> Array | None:
        """Where a value lies, as an array, where that is the host's memory."""
        views = self.slabs.views
        if value not in views:
            views[value] = self._find_host_memory(value)
        return views[value]

    def _find_host_memory(self, value: Value) -> Array | None:
        if self.plan.root(value) not in self.plan.places:
            return None
        buffer, offset = self._bytes_of(value)
        if buffer.host is None:
            return None
        elements: Array = buffer.host[offset : offset + value.nbytes].view(value.dtype.numpy)
        return elements.reshape(value.dims)

    def _read(self, value: Value, *, wait: bool = False) -> Array:
        """An array for the elements; they are there after `wait`, or `run` sees to it."""
        array = np.empty(value.dims, value.dtype.numpy)
        if array.nbytes and (wait or self._host_memory(value) is None):
            buffer, offset = self._bytes_of(value)
            queue = self.session.queue
            self._copies.append(
                cl.enqueue_copy(queue, array, buffer, src_offset=offset, is_blocking=wait)
            )
        return array

    def _write(self, value: Value, array: Array) -> None:
        if array.nbytes:
            buffer, offset = self._bytes_of(value)
            cl.enqueue_copy(self.session.queue, buffer, array, dst_offset=offset)

    def _keep(self, value: Value) -> DeviceTensor:
        buffer, offset = self._bytes_of(value)
        kept = self.session.tensor(value.dims, value.dtype)
        if kept.nbytes:
            cl.enqueue_copy(
                self.session.queue, kept.buffer, buffer, src_offset=offset, byte_count=kept.nbytes
            )
        return kept

    def _run_host(self, step: HostStep) -> None:
        node = step.node
        assert isinstance(node.op, Op)
        inputs = [
            None if v is None else v.numbers if v.numbers is not None else self._read(v, wait=True)
            for v in node.inputs
        ]
        with Blaming(node):
            results = node.op.compute(*inputs)
        for value, array in zip(node.outputs, results, strict=False):
            self._write(value, np.asarray(array, value.dtype.numpy, order="C"))

    def _finish(self) -> None:
        """Waits, and raises what a kernel reported."""
        words = self._take_status()
        if words.any():
            first = int(np.flatnonzero(words)[0])
            raise self.plan.statuses[first].error(words[first])

    def _take_status(self) -> Array:
        """Waits; gives an int64 per status, what kernels reported, which is then forgotten."""
        queue, status = self.session.queue, self._status
        words = np.zeros(len(self.plan.statuses), np.int64)
        if status is not None and status.host is None:
            self._copies.append(cl.enqueue_copy(queue, words, status, is_blocking=False))
        self.session.connection.finish()
        if status is not None and status.host is not None:
            words = status.host[: words.nbytes].view(np.int64).copy()
        if words.any():
            cl.enqueue_copy(queue, status, np.zeros_like(words))
        self._broken = False
        return words
