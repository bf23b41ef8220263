"""A plan with its kernels on a device: arguments set once, ready to run again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, cast
from weakref import ReferenceType, ref

import numpy as np

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.kernel_source import splittable_axes
from clrt.kernels.spec import (
    Buffer,
    BufferArg,
    Launch,
    PackedWeight,
    Scratch,
    StatusWord,
    numbered_arguments,
)
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep, HostStep
from clrt.plan.template import InstantiatedPlan
from clrt.runtime.execution.argument_patcher import ArgumentPatcher, BoundLaunch
from clrt.runtime.execution.launch_throttle import BACKGROUND_LAUNCH_S, LAUNCH_S, LONG_S
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.runtime.opencl.device_context import RunQueue, TrackedBuffer
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.kernel_calls import scalar_setter, to_sizes
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.weight_store import WeightStore

# Local sizes where a launch leaves them open. They are fixed, never derived from the shapes,
# because PoCL compiles a kernel anew for each local size.
_LOCAL = {
    "cpu": {1: (64,), 2: (16, 1), 3: (16, 1, 1)},
    "gpu": {1: (256,), 2: (64, 1), 3: (64, 1, 1)},
}
# The least that a device does in a second, for runs of which none was measured: floating-point
# operations of a compute unit, bytes of the device.
_LEAST_FLOPS = 5e9
_LEAST_BYTES = 1e9


BoundStep: TypeAlias = "BoundLaunch | HostStep"


@dataclass
class _External:
    """A buffer of the caller: where it is an argument, and the one of this run.

    Attributes:
        known: What the kernels have, as long as it lives: to set an argument takes half a
            microsecond, and a decoder's cache is one of all its layers.
    """

    places: list[tuple[cl.Kernel, int]] = field(default_factory=list)
    buffer: TrackedBuffer | None = None
    known: ReferenceType[TrackedBuffer] | None = None

    def set(self, buffer: TrackedBuffer) -> None:
        """Gives the kernels a buffer, unless they have it."""
        self.buffer = buffer
        if self.known is not None and self.known() is buffer:
            return
        self.known = None
        for kernel, index in self.places:
            kernel.set_arg(index, buffer)
        self.known = ref(buffer)


@dataclass(eq=False)
class BoundPlan:
    """A plan bound to an arena's memory. One run uses it at a time.

    Constants of the plan (masks, positions) are held here, weights in `weights`.

    Attributes:
        lane: The queue that it runs in.
        seconds_a_run: What the last run took that had the device for itself, or less; None before
            the first.
        broken: Whether the status words may have something of a run that was broken off.
        donor: A plan of the same template on the same arena, whose kernels it takes over.
    """

    plan: Plan
    session: DeviceSession
    weights: WeightStore
    slabs: ArenaMemory
    model_constants: frozenset[Value]
    lane: RunQueue
    seconds_a_run: float | None = None
    broken: bool = False
    donor: BoundPlan | None = None
    steps: list[BoundStep] = field(default_factory=list)
    _own: WeightStore = field(init=False)
    _status: TrackedBuffer | None = None
    _generation: int = -1
    _external: dict[Value, _External] = field(default_factory=dict)
    # The driver keeps no memory alive that the host has given it.
    _used: dict[int, TrackedBuffer] = field(default_factory=dict)
    _patcher: ArgumentPatcher | None = None
    _views: dict[Value, Array | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._own = WeightStore(self.session, self.weights.account)
        self.slabs.views[self] = self._views
        self.session.connection.owners.add(self)

    @property
    def ready(self) -> bool:
        """Whether a run allocates nothing but the outputs that stay on the device."""
        return self._generation == self.slabs.generation

    @property
    def own_bytes(self) -> int:
        """Device memory besides weights and arena."""
        return self._own.nbytes + (0 if self._status is None else self._status.nbytes)

    @property
    def takes_long(self) -> bool:
        """Whether somebody may want to end a run in its midst."""
        return self.expected_s > LONG_S

    @property
    def is_paced(self) -> bool:
        """Whether a run is enqueued in parts, with waits between them."""
        return bool(self.plan.host_steps) or self.lane.background or self.takes_long

    @property
    def expected_s(self) -> float:
        """What a run takes; a guess before the first, rather too much."""
        if self.seconds_a_run is not None:
            return self.seconds_a_run
        moved = self.plan.arena.nbytes * self.plan.launches / _LEAST_BYTES
        flops = _LEAST_FLOPS * self.session.device.caps.compute_units
        return max(moved, self.plan.flops / flops)

    @property
    def most_launch_s(self) -> float:
        """What one launch may take: watchdogs end kernels of 2 s. No CPU device has one."""
        if self.session.device.caps.is_cpu:
            return math.inf
        return BACKGROUND_LAUNCH_S if self.lane.background else LAUNCH_S

    def bind(self) -> None:
        """Sets every kernel argument; again only after the arena has moved.

        Raises:
            OutOfMemoryError: A buffer does not fit.
            KernelBuildError: A program does not compile.
        """
        if self.ready:
            return
        with self.weights.lock:
            self.slabs.reserve(self.plan.arena.slab_bytes)
            donor, self.donor = self.donor, None
            if donor is None or not self._take_over(donor):
                self._set_all()
            self._generation = self.slabs.generation

    def _set_all(self) -> None:
        """Sets the arguments of new kernels."""
        if self._status is None and self.plan.status_count:
            words = np.zeros(self.plan.status_count, np.int64)
            self._status = self.session.upload(words, self.weights.account)
        self.steps = []
        self._used.clear()
        self._external = {root: _External() for root in self.plan.external}
        for step in self.plan.steps:
            if isinstance(step, DeviceStep):
                self.steps += [self._bind_launch(launch) for launch in step.launches]
            else:
                self.steps.append(step)
        for spec in self.plan.also:
            self.weights.kernel(spec)
        if isinstance(self.plan, InstantiatedPlan):
            steps = cast(list[BoundLaunch], self.steps)
            self._patcher = ArgumentPatcher(self.plan, steps, self.slabs.generation)

    def _take_over(self, donor: BoundPlan) -> bool:
        """Takes the kernels of a plan of the same template, and sets what differs.

        The donor binds anew when it is used again.
        """
        plan, patcher = self.plan, donor._patcher
        donor._patcher, donor._generation = None, -1
        if patcher is None or not isinstance(plan, InstantiatedPlan):
            return False
        own = donor._own.hand_over(
            self._own, {value for _, _, value in cast(InstantiatedPlan, donor.plan).derived()}
        )
        self._used = {k: b for k, b in donor._used.items() if k not in own}
        self.steps, donor.steps = donor.steps, []
        self._status, donor._status = donor._status, None
        self.broken, donor.broken = donor.broken, False
        if donor.seconds_a_run is not None:  # at other sizes: it is no more than a guess
            self.seconds_a_run = donor.seconds_a_run * plan.flops / max(donor.plan.flops, 1)
        self._external = dict(zip(plan.external, donor._external.values(), strict=True))
        donor._external, donor._used = {}, {}
        steps, slabs = cast(list[BoundLaunch], self.steps), self.slabs
        patcher.patch(plan, steps, slabs.buffers, slabs.generation, self._own.get)
        self._patcher = patcher
        return True

    def release(self) -> None:
        """Lets go of all device memory; the next `bind` makes what it needs."""
        self._generation, self._patcher, self.donor = -1, None, None
        self.steps, self._status, self.broken = [], None, False
        self._used.clear()
        self._external.clear()
        self._own.clear()

    def bind_external(self, buffers: Mapping[Value, TrackedBuffer]) -> None:
        """Sets the arguments that are buffers of the caller, by root value."""
        for root, external in self._external.items():
            external.set(buffers[root])

    def forget_external(self) -> None:
        """Keeps no buffer of the caller alive."""
        for external in self._external.values():
            external.buffer = None

    def _bind_launch(self, launch: Launch) -> BoundLaunch:
        kernel = self.weights.kernel(launch.kernel)
        set_scalar = scalar_setter(kernel)
        for index, arg in numbered_arguments(launch):
            if isinstance(arg, BufferArg):
                if (external := self._external_of(arg.buffer)) is not None:
                    external.places.append((kernel, index))
                    offset = 0
                else:
                    buffer, offset = self.locate(arg.buffer)
                    if all(buffer is not slab for slab in self.slabs.buffers):
                        self._used[id(buffer)] = buffer
                    kernel.set_arg(index, buffer)
                set_scalar(index + 1, np.int32(offset + arg.offset))
            else:
                set_scalar(index, arg)
        local = launch.local_size or self._local(kernel, len(launch.global_size))
        axes = splittable_axes(launch.kernel.source)
        return BoundLaunch(
            launch.kernel.entry, kernel, to_sizes(launch.global_size, local), local, axes
        )

    def _external_of(self, buffer: Buffer) -> _External | None:
        root = self.plan.root(buffer) if isinstance(buffer, Value) else None
        return None if root is None else self._external.get(root)

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
        """The device buffer, and the element offset in it, of what is not the caller's."""
        if isinstance(buffer, StatusWord):
            assert self._status is not None
            return self._status, self.plan.statuses.index(buffer)
        if isinstance(buffer, PackedWeight):
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

    def _constants(self, value: Value) -> WeightStore:
        return self.weights if value in self.model_constants else self._own

    def bytes_of(self, value: Value) -> tuple[TrackedBuffer, int]:
        """The device buffer, and the offset in bytes, of a value, whoever's it is."""
        external = self._external_of(value)
        if external is not None:
            assert external.buffer is not None
            return external.buffer, 0
        buffer, offset = self.locate(value)
        return buffer, offset * value.dtype.itemsize

    def host_memory(self, value: Value) -> Array | None:
        """Where a value lies in the arena, as an array, where that is the host's memory."""
        if value not in self._views:
            self._views[value] = self._find_host_memory(value)
        return self._views[value]

    def _find_host_memory(self, value: Value) -> Array | None:
        if self.plan.root(value) not in self.plan.places:
            return None
        buffer, offset = self.bytes_of(value)
        if buffer.host is None:
            return None
        elements: Array = buffer.host[offset : offset + value.nbytes].view(value.dtype.numpy)
        return elements.reshape(value.dims)

    def copy_status(self) -> tuple[Array, cl.Event] | None:
        """An int64 per status, there once the event is; None where `status_words` needs none."""
        if self._status is None or self._status.host is not None:
            return None
        words = np.zeros(self.plan.status_count, np.int64)
        return words, cl.enqueue_copy(self.lane.queue, words, self._status, is_blocking=False)

    def status_words(self, copied: tuple[Array, cl.Event] | None) -> Array | None:
        """What kernels reported once the run has ended, which is then forgotten.

        Args:
            copied: From `copy_status`.

        Returns:
            An int64 per status; None where all are 0.
        """
        status, words = self._status, None
        if status is not None:
            if copied is not None:
                words, _ = copied
            else:
                assert status.host is not None
                words = status.host[: 8 * self.plan.status_count].view(np.int64)
            words = words.copy() if words.any() else None
            if words is not None:
                with self.session.lock:
                    cl.enqueue_copy(self.lane.queue, status, np.zeros_like(words))
        self.broken = False
        return words

    def settling(self) -> _Settling:
        """Around commands of a run: where one fails, says so and waits for those before it."""
        return _Settling(self)

    def break_off(self) -> None:
        """What is in the queue still uses the host's arrays and the arena: waits for it."""
        connection = self.session.connection
        with connection.lock:
            connection.undrained_queues.add(self.lane)
            self.forget_status()

    def forget_status(self) -> None:
        """Waits for the queue, and forgets what a broken run has reported."""
        copied = self.copy_status()
        self.lane.finish()
        self.status_words(copied)

    def seconds(self, entry: str) -> float:
        """How long all launches of a kernel take, one after the other, on what is in the arena."""
        with self.session.lock, self.session.commands, self.settling():
            queue = self.lane.queue
            self.bind()
            steps = [s for s in self.steps if isinstance(s, BoundLaunch) and s.entry == entry]
            queue.finish()
            start = time.perf_counter()
            for step in steps:
                cl.enqueue_nd_range_kernel(queue, step.kernel, step.global_size, step.local_size)
            queue.finish()
            return time.perf_counter() - start


class _Settling:
    """See `BoundPlan.settling`. A class, as a generator takes 1 us longer, twice a run."""

    __slots__ = ("bound",)

    def __init__(self, bound: BoundPlan) -> None:
        self.bound = bound

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        with suppress(cl.Error, MemoryError):  # the first error is the one to tell
            self.bound.break_off()
        if isinstance(error, (cl.Error, MemoryError)):
            guard = self.bound.session.guard
            raise guard.translated(error, self.bound.plan.arena.nbytes) from error
