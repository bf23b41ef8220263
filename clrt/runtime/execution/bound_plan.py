"""`BoundPlan`: a plan whose kernels and arguments are set on a device, ready to run repeatedly."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast
from weakref import ReferenceType, ref

import numpy as np

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.kernel_source import splittable_axes
from clrt.kernels.spec import (
    Buffer,
    BufferArg,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
    StatusWord,
)
from clrt.plan.plan import MIN_BUFFER_BYTES, Plan
from clrt.plan.steps import DeviceStep, HostStep
from clrt.plan.template import InstantiatedPlan
from clrt.runtime.execution.argument_patcher import ArgumentPatcher, BoundLaunch
from clrt.runtime.execution.compile_requests import request_programs
from clrt.runtime.execution.launch_throttle import BACKGROUND_LAUNCH_S, LAUNCH_S, LONG_S
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.runtime.opencl.device_context import RunQueue, TrackedBuffer
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.kernel_calls import scalar_setter, to_sizes
from clrt.runtime.opencl.model_programs import ModelPrograms
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.runtime.opencl.weight_store import WeightStore
from clrt.util.background import BACKGROUND
from clrt.util.fast_dataclass import dataclass
from clrt.util.gc_control import gc_disabled

if TYPE_CHECKING:
    from clrt.runtime.execution.launch_rows import LaunchRows

# Number of runs after which rows of launches are joined, and duration in seconds that these runs
# must not reach: compiling the rows takes seconds, and saves up to 2 us a launch.
_RUNS_BEFORE_ROWS = 32
_MAX_ROWS_S = 0.002
# Default local sizes, by device kind and number of dimensions, of launches that specify none. They
# are never derived from shapes, because PoCL recompiles a kernel for each local size.
_DEFAULT_LOCAL_SIZES = {
    "cpu": {1: (64,), 2: (16, 1), 3: (16, 1, 1)},
    "gpu": {1: (256,), 2: (64, 1), 3: (64, 1, 1)},
}
# Low rates that estimate the duration of a plan's first run: floating-point operations per second
# of a compute unit, and bytes per second of the device.
_MIN_FLOPS = 5e9
_MIN_BYTES_PER_S = 1e9


BoundStep: TypeAlias = "BoundLaunch | HostStep"


@dataclass
class _External:
    """An external value of a plan: kernel arguments that refer to it, and its current buffer.

    Attributes:
        places: Kernels and argument indices that refer to the value.
        buffer: Buffer of the current run; None between runs.
        known: Buffer that the arguments are set to, referenced weakly. If a run has the same
            buffer, the arguments are not set again; setting one takes half a microsecond.
    """

    places: list[tuple[cl.Kernel, int]] = field(default_factory=list)
    buffer: TrackedBuffer | None = None
    known: ReferenceType[TrackedBuffer] | None = None

    def set(self, buffer: TrackedBuffer) -> None:
        """Sets the kernel arguments to a buffer, unless the buffer is set already."""
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

    Holds the plan's own constants (masks, positions); the model's constants are in
    `weights`.

    Attributes:
        weights: Constants of the model, shared by its plans.
        slabs: Memory of the arena.
        model_constants: Values whose buffers are in `weights`.
        lane: Queue in which the plan runs.
        seconds_a_run: Duration in seconds of the last run that did not overlap other runs, or of a
            faster run since. None before the first run, unless estimated from `donor`.
        broken: Whether the status words may hold reports of a run that failed.
        donor: Plan of the same template on the same arena, whose kernels `bind` reuses; or None.
        tiers: Whether kernels may come from quickly compiled programs, if those of `weights` do.
        steps: Launches with their arguments set, and host steps, in order.
        commands: Launches of runs that are neither paced nor profiled: `steps`, with one launch in
            place of each row of launches that was joined.
        runs: Number of completed runs, without those of other threads that nobody waited for.
        held: Inputs and outputs kept by `run_and_hold`, for launches that are repeated outside of a
            run to measure their time.
        views: While the plan is bound, arrays that share the memory of its inputs and outputs in
            the arena; without values that the host cannot access, or that are not in the arena.
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
    tiers: bool = True
    steps: list[BoundStep] = field(default_factory=list)
    commands: list[BoundStep] = field(default_factory=list)
    runs: int = 0
    held: list[DeviceTensor] = field(default_factory=list)
    views: dict[Value, Array] = field(default_factory=dict)
    _own: WeightStore = field(init=False)
    _has_waits: bool = field(init=False)
    _status: TrackedBuffer | None = None
    _generation: int = -1
    _external: dict[Value, _External] = field(default_factory=dict)
    # `id()` of a buffer -> buffer of a constant. The driver does not keep the host memory of such
    # buffers alive, so this plan does.
    _used: dict[int, TrackedBuffer] = field(default_factory=dict)
    _patcher: ArgumentPatcher | None = None
    # Indices in `steps` of launches whose program was compiled quickly, by kernel; and
    # `ModelTiers.changes` when they were last compared with the model's programs.
    _quick: dict[KernelSpec, list[int]] = field(default_factory=dict)
    _changes: int = 0
    _rows: LaunchRows | None = None
    # Whether `improve` is to join rows, or to drop those that are there.
    _rows_due: bool = False
    # Duration in seconds of the shortest run since `commands` changed.
    _least_s: float = math.inf

    def __post_init__(self) -> None:
        self._own = WeightStore(self.session, self.weights.account)
        self._has_waits = self.lane.background or bool(self.plan.host_steps)
        self.slabs.views[self] = self.views
        self.session.connection.owners.add(self)

    @property
    def programs(self) -> ModelPrograms:
        """Compiled programs for the device that the plan runs on."""
        twin = self.weights.twin_programs
        return twin if twin is not None and self.lane.on_twin else self.weights.programs

    @property
    def ready(self) -> bool:
        """Whether the plan is bound: runs then allocate only outputs that stay on the device."""
        return self._generation == self.slabs.generation

    @property
    def own_bytes(self) -> int:
        """Device memory of the plan's constants and status words, in bytes."""
        return self._own.nbytes + (0 if self._status is None else self._status.nbytes)

    @property
    def takes_long(self) -> bool:
        """Whether a run is expected to exceed `LONG_S`, so that users may want to cancel it."""
        return self.expected_s > LONG_S

    @property
    def is_paced(self) -> bool:
        """Whether runs enqueue their launches in several batches, with waits between them."""
        return self._has_waits or self.takes_long

    @property
    def expected_s(self) -> float:
        """Expected duration of the plan's runs in seconds; a high estimate before the first run."""
        seconds = self.seconds_a_run
        if seconds is None and self.donor is not None:
            seconds = self._seconds_like(self.donor)
        if seconds:
            return seconds
        memory_s = self.plan.arena.nbytes * self.plan.launches / _MIN_BYTES_PER_S
        flops = _MIN_FLOPS * self.session.device.caps.compute_units
        return max(memory_s, self.plan.flops / flops)

    def _seconds_like(self, donor: BoundPlan) -> float | None:
        """Estimates the duration of a run in seconds from that of another plan of the template.

        None if the other plan has not run yet.
        """
        seconds = donor.seconds_a_run
        return None if seconds is None else seconds * self.plan.flops / max(donor.plan.flops, 1)

    @property
    def most_launch_s(self) -> float:
        """Maximum duration of one launch in seconds; longer launches are split.

        Infinite on CPU devices. Watchdogs of GPUs kill kernels after 2 s.
        """
        if self.session.device.caps.is_cpu:
            return math.inf
        return BACKGROUND_LAUNCH_S if self.lane.background else LAUNCH_S

    def bind(self) -> None:
        """Allocates the arena and sets every kernel argument, unless the plan is bound already.

        Raises:
            OutOfMemoryError: A buffer does not fit.
            KernelBuildError: A program does not compile.
        """
        if self.ready:
            return
        with self.weights.lock:
            self.slabs.reserve(self.plan.arena.slab_bytes)
            donor, self.donor = self.donor, None
            if donor is None or not self._reuse_kernels(donor):
                self._bind_all()
            for value in (*self.plan.graph.inputs, *self.plan.graph.outputs):
                if value not in self.views and (view := self._view(value)) is not None:
                    self.views[value] = view
            self._generation = self.slabs.generation

    @gc_disabled
    def _bind_all(self) -> None:
        """Creates a kernel object for each launch, and sets its arguments."""
        tiers = self.programs.tiers
        self._changes, self._quick = tiers.changes, {}
        if self._status is None and self.plan.status_count:
            words = np.zeros(self.plan.status_count, np.int64)
            self._status = self.session.upload(words, self.weights.account)
        self.commands = self.steps = []
        self._rows = None
        self._used.clear()
        self._external = {root: _External() for root in self.plan.external}
        if self._may_be_quick:
            locals_ = _DEFAULT_LOCAL_SIZES["cpu"]
            request_programs(self.plan, self.programs.cache, tiers, locals_)
        for step in self.steps_to_bind():
            if isinstance(step, Launch):
                bound = self._bind_launch(step)
                if self._may_be_quick and tiers.is_quick(step.kernel):
                    self._quick.setdefault(step.kernel, []).append(len(self.steps))
                self.steps.append(bound)
            else:
                self.steps.append(step)
        if not self._may_be_quick:
            for spec in self.plan.precompiled_kernels:
                self.programs.kernel(spec)
        if isinstance(self.plan, InstantiatedPlan):
            steps = cast(list[BoundLaunch], self.steps)
            self._patcher = ArgumentPatcher(self.plan, steps, self.slabs.generation)

    def steps_to_bind(self) -> Iterator[Launch | HostStep]:
        """Yields the launches and host steps of the plan in execution order."""
        if isinstance(self.plan, InstantiatedPlan):
            yield from self.plan.numbered_launches()
            return
        for step in self.plan.steps:
            if isinstance(step, DeviceStep):
                yield from step.launches
            else:
                yield step

    @property
    def _may_be_quick(self) -> bool:
        return self.tiers and self.programs.tiers.enabled

    @property
    def can_improve(self) -> bool:
        """Whether `improve` may find optimized programs, or rows of launches to join or to drop."""
        if not self._quick:
            return self._rows_due or (self._rows is not None and self._rows.has_new)
        return self.programs.tiers.changes != self._changes or not self._may_be_quick

    @property
    def quick_launches(self) -> frozenset[int]:
        """Indices in `steps` of the launches whose program was compiled without optimization."""
        return frozenset(index for indices in self._quick.values() for index in indices)

    def improve(self) -> None:
        """Replaces kernels of quickly compiled programs by those of optimized ones, if there.

        Call it between two runs. If the plan may not be quick (any more), it compiles them. If all
        kernels are optimized, joins at most one more row of launches.

        Raises:
            KernelBuildError: A program does not compile.
        """
        if not self._quick:
            with self.weights.lock:
                self._improve_rows()
            return
        tiers, waits = self.programs.tiers, self._may_be_quick
        with self.weights.lock:
            self._changes = tiers.changes
            ready = [s for s in self._quick if not (waits and tiers.is_quick(s))]
            if not waits:
                for spec in (*ready, *self.plan.precompiled_kernels):
                    self.programs.kernel(spec)
            launches = list(self.steps_to_bind())
            indices = [index for spec in ready for index in self._quick[spec]]
            self.forget_kernels({id(cast(BoundLaunch, self.steps[i]).kernel) for i in indices})
            for index in indices:
                self.steps[index] = self._bind_launch(cast(Launch, launches[index]))
            for spec in ready:
                del self._quick[spec]
            if self._patcher is not None:
                plan, steps = cast(InstantiatedPlan, self.plan), cast(list[BoundLaunch], self.steps)
                self._patcher = ArgumentPatcher(plan, steps, self.slabs.generation)

    def note_run(self, seconds: float) -> None:
        """Counts a run; after many short ones, lets `improve` join rows of launches.

        Also lets it drop rows with which runs are slower. The plan may be in another run already.

        Args:
            seconds: Duration of the run.
        """
        self.runs += 1
        self._least_s = min(self._least_s, seconds)
        if self.runs % _RUNS_BEFORE_ROWS:
            return
        rows = self._rows
        if rows is not None:
            self._rows_due = rows.are_slower(self._least_s)
        elif self._may_join and self._least_s < _MAX_ROWS_S:
            BACKGROUND.submit(partial(_let_join, ref(self)))

    @property
    def _may_join(self) -> bool:
        """Whether rows of launches may be joined: on CPUs, in runs that enqueue all at once."""
        is_cpu = self.session.device.caps.is_cpu
        return is_cpu and self._may_be_quick and not self._quick and not self._has_waits

    def _improve_rows(self) -> None:
        """Finds rows of launches, joins one more of them, or drops all, as is due."""
        is_due, self._rows_due = self._rows_due, False
        if self._rows is None:
            if is_due:
                from clrt.runtime.execution.launch_rows import LaunchRows  # see `_let_join`

                rows = LaunchRows(self, self._least_s)
                rows.request()
                self._rows = rows
            return
        if is_due:
            self.forget_kernels(self._rows.kernels)
            self._rows.drop()
        self.commands = [*self._rows.join(self)]
        self._least_s = math.inf

    def forget_kernels(self, kernels: Collection[int]) -> None:
        """Stops setting the arguments of kernel objects that are no longer used.

        Args:
            kernels: `id` of each kernel object.
        """
        for external in self._external.values():
            external.places = [place for place in external.places if id(place[0]) not in kernels]
            external.known = None

    def _reuse_kernels(self, donor: BoundPlan) -> bool:
        """Takes over the kernels of a plan of the same template, and sets arguments that differ.

        Args:
            donor: Plan on the same arena, which must bind again before its next run.

        Returns:
            Whether kernels were taken over. False if either plan has no template: the donor then
            keeps its kernels.
        """
        plan, patcher = self.plan, donor._patcher
        donor._patcher, donor._generation = None, -1
        if patcher is None or not isinstance(plan, InstantiatedPlan):
            return False
        donor_ids = donor._own.hand_over(
            self._own, set(cast(InstantiatedPlan, donor.plan).derived.values())
        )
        self._used = {k: b for k, b in donor._used.items() if k not in donor_ids}
        if donor._rows is not None:
            donor.forget_kernels(donor._rows.kernels)
            donor._rows = None
        self.commands = self.steps = donor.steps
        donor.commands = donor.steps = []
        self._quick, donor._quick = donor._quick, {}
        self._changes = donor._changes
        self._status, donor._status = donor._status, None
        self.broken, donor.broken = donor.broken, False
        self.seconds_a_run = self._seconds_like(donor) or self.seconds_a_run
        self._external = dict(zip(plan.external, donor._external.values(), strict=True))
        donor._external, donor._used = {}, {}
        steps, slabs = cast(list[BoundLaunch], self.steps), self.slabs
        patcher.patch(plan, steps, slabs.buffers, slabs.generation, self._own.get)
        self._patcher = patcher
        return True

    def release(self) -> None:
        """Frees the plan's own constants, status words and kernels; the next `bind` restores them.

        Memory of the arena and the model's weights stays.
        """
        self._generation, self._patcher, self.donor = -1, None, None
        self.steps, self._status, self.broken, self._quick = [], None, False, {}
        self.commands, self._rows = self.steps, None
        self._used.clear()
        self._external.clear()
        self._own.clear()

    def bind_external(self, buffers: Mapping[Value, TrackedBuffer]) -> None:
        """Sets the kernel arguments that refer to external values.

        Args:
            buffers: Buffer of each external value that owns memory; views of it have no entry.
        """
        for root, external in self._external.items():
            external.set(buffers[root])

    def forget_external(self) -> None:
        """Drops the references to the buffers of external values; called at the end of a run."""
        for external in self._external.values():
            external.buffer = None

    def _bind_launch(self, launch: Launch) -> BoundLaunch:
        programs = self.programs
        make = programs.tiered_kernel if self._may_be_quick else programs.kernel
        kernel = make(launch.kernel)
        self.set_arguments(kernel, launch)
        local = launch.local_size or self._default_local_size(kernel, len(launch.global_size))
        axes = splittable_axes(launch.kernel.source)
        return BoundLaunch(
            launch.kernel.entry, kernel, to_sizes(launch.global_size, local), local, axes
        )

    def set_arguments(self, kernel: cl.Kernel, launch: Launch, first: int = 0) -> int:
        """Sets a kernel's arguments to those of a launch; returns the index of the next argument.

        Args:
            first: OpenCL index of the launch's first argument.
        """
        set_scalar = scalar_setter(kernel)
        index = first
        for arg in launch.args:
            if isinstance(arg, BufferArg):
                if (external := self._external_of(arg.buffer)) is not None:
                    external.places.append((kernel, index))
                    external.known = None
                    offset = 0
                else:
                    buffer, offset = self.locate(arg.buffer)
                    if all(buffer is not slab for slab in self.slabs.buffers):
                        self._used[id(buffer)] = buffer
                    kernel.set_arg(index, buffer)
                set_scalar(index + 1, np.int32(offset + arg.offset))
                index += 2
            else:
                set_scalar(index, arg)
                index += 1
        return index

    def place(self, arg: BufferArg) -> tuple[int, int]:
        """Returns the size in bytes of an argument's device buffer, and its offset in elements."""
        if self._external_of(arg.buffer) is not None:
            return max(cast(Value, arg.buffer).nbytes, MIN_BUFFER_BYTES), arg.offset
        buffer, offset = self.locate(arg.buffer)
        return buffer.nbytes, offset + arg.offset

    def local_size(self, launch: Launch) -> tuple[int, ...]:
        """Returns the work-items per work-group of a launch on a CPU, per dimension."""
        return launch.local_size or _DEFAULT_LOCAL_SIZES["cpu"][len(launch.global_size)]

    def _external_of(self, buffer: Buffer) -> _External | None:
        root = self.plan.root(buffer) if isinstance(buffer, Value) else None
        return None if root is None else self._external.get(root)

    def _default_local_size(self, kernel: cl.Kernel, dims: int) -> tuple[int, ...]:
        """Returns the local size for a launch that specifies none.

        Args:
            kernel: Kernel to launch, whose registers may limit the size.
            dims: Number of dimensions of the launch, 1 to 3.
        """
        if self.session.device.caps.is_cpu:
            return _DEFAULT_LOCAL_SIZES["cpu"][dims]
        first, *others = _DEFAULT_LOCAL_SIZES["gpu"][dims]
        # The kernel's registers limit the size of work-groups; rounded down to a power of two.
        limit = kernel.get_work_group_info(
            cl.kernel_work_group_info.WORK_GROUP_SIZE, self.programs.cache.device
        )
        return (min(first, 1 << limit.bit_length() - 1), *others)

    def locate(self, buffer: Buffer) -> tuple[TrackedBuffer, int]:
        """Returns where a plan's buffer is in device memory: device buffer and element offset.

        Args:
            buffer: Value, packed weight, scratch or status word of the plan; not an external value.
        """
        if isinstance(buffer, StatusWord):
            assert self._status is not None
            return self._status, self.plan.status_index(buffer)
        if isinstance(buffer, PackedWeight):
            return self._constants(buffer.value).get(buffer), 0
        if isinstance(buffer, Value):
            root = self.plan.root(buffer)
            if root.is_constant:
                return self._constants(root).get(root), 0
            place, dtype = self.plan.allocations[root], buffer.dtype
        else:
            assert isinstance(buffer, Scratch)
            place, dtype = self.plan.allocations[buffer], buffer.dtype
        return self.slabs.buffers[place.slab], place.offset_bytes // dtype.itemsize

    def _constants(self, value: Value) -> WeightStore:
        return self.weights if value in self.model_constants else self._own

    def bytes_of(self, value: Value) -> tuple[TrackedBuffer, int]:
        """Returns the device buffer that holds a value, and the value's byte offset in it."""
        external = self._external_of(value)
        if external is not None:
            assert external.buffer is not None
            return external.buffer, 0
        buffer, offset = self.locate(value)
        return buffer, offset * value.dtype.itemsize

    def _view(self, value: Value) -> Array | None:
        """Returns an array that shares a value's memory; None for values that `views` omits."""
        place = self.plan.allocations.get(self.plan.root(value))
        if place is None:
            return None
        buffer, offset = self.slabs.buffers[place.slab], place.offset_bytes
        if buffer.host is None:
            return None
        return np.ndarray(value.dims, value.dtype.numpy, buffer.host, offset)

    def copy_status(self) -> tuple[Array, cl.Event] | None:
        """Enqueues a copy of the plan's status words to the host.

        Returns:
            An int64 array and the event of its copy; None if the plan has no status words or the
            host reads them directly.
        """
        if self._status is None or self._status.host is not None:
            return None
        words = np.zeros(self.plan.status_count, np.int64)
        return words, cl.enqueue_copy(self.lane.queue, words, self._status, is_blocking=False)

    def status_words(self, copied: tuple[Array, cl.Event] | None) -> Array | None:
        """Reads the status words after a run has ended, and resets them to 0.

        Args:
            copied: Result of `copy_status`, its copy completed; None if the host reads directly.

        Returns:
            An int64 per status word; None if all are 0.
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

    def draining(self) -> _DrainOnError:
        """Returns a context manager for the code that enqueues a run's commands.

        If an exception leaves the block, the context manager waits for the commands enqueued so
        far, and converts errors of the driver to clrt's errors.
        """
        return _DrainOnError(self)

    def break_off(self) -> None:
        """Waits, after a failure, for the queue's commands, which use host arrays and the arena.

        Also resets the status words.
        """
        connection = self.session.connection
        with connection.lock:
            connection.undrained_queues.add(self.lane)
            self.forget_status()

    def forget_status(self) -> None:
        """Waits for the queue's commands, and resets the status words, after a run that failed."""
        copied = self.copy_status()
        self.lane.finish()
        self.status_words(copied)

    def seconds(self, entry: str) -> float:
        """Measures the plan's launches of one kernel, in sequence, with the arena's current data.

        The plan must have been run by `run_and_hold` last, which keeps the kernels' buffers.

        Args:
            entry: Entry point of the kernel.

        Returns:
            Seconds for all of its launches together.
        """
        with self.session.lock, self.session.commands, self.draining():
            queue = self.lane.queue
            self.bind()
            steps = [s for s in self.steps if isinstance(s, BoundLaunch) and s.entry == entry]
            queue.finish()
            start = time.perf_counter()
            for step in steps:
                cl.enqueue_nd_range_kernel(queue, step.kernel, step.global_size, step.local_size)
            queue.finish()
            return time.perf_counter() - start


def _let_join(reference: ref[BoundPlan]) -> None:
    """Lets the next run of a bound plan join rows, after importing what that needs (5 ms)."""
    import_module("clrt.runtime.execution.launch_rows")
    bound = reference()
    if bound is not None:
        bound._rows_due = True


class _DrainOnError:
    """Context manager that waits for a plan's queue if an exception leaves its block.

    Returned by `BoundPlan.draining`. A class, since a generator takes 1 us longer, twice per run.
    """

    __slots__ = ("bound",)

    def __init__(self, bound: BoundPlan) -> None:
        self.bound = bound

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        with suppress(cl.Error, MemoryError):  # the first error is the one to report
            self.bound.break_off()
        if isinstance(error, (cl.Error, MemoryError)):
            guard = self.bound.session.guard
            raise guard.translated(error, self.bound.plan.arena.nbytes) from error
