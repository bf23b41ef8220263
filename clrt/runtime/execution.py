"""One run of a bound plan: inputs fed, launches enqueued, results read, its end awaited."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Protocol, cast

import numpy as np

from clrt.errors import DeviceError
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ops.base import Op
from clrt.ops.blaming import Blaming
from clrt.plan.steps import HostStep
from clrt.runtime.bound_plan import BoundPlan, BoundStep
from clrt.runtime.connection import TrackedBuffer
from clrt.runtime.driver import cl
from clrt.runtime.leases import Feed, Leases
from clrt.runtime.pace import NEVER, Pace, Stop
from clrt.runtime.patcher import Enqueue
from clrt.runtime.tensors import DeviceTensor

# Launches that are held back together (`Connection.holding`): a few tens of us of enqueuing.
_HELD = 32


class StepRecorder(Protocol):
    """What runs the steps of a plan in place of an execution, to see when they run."""

    def record_steps(
        self, bound: BoundPlan, steps: Sequence[BoundStep], run_host: Callable[[HostStep], None]
    ) -> None:
        """Runs every step, in order, and waits for the last."""


@dataclass(eq=False)
class Execution:
    """One run of a bound plan, from `start` to `finish`.

    The device's lock is held while commands are enqueued. Nothing waits before the end, but for
    long plans and host steps: each wait wakes a thread, 50 us and more on a CPU.

    Attributes:
        feeds: A contiguous array of the planned dtype and shape, or a tensor, per graph input.
            They stay as they are until the end; a donated tensor is used up.
        outputs: Names of the wanted outputs, and whether each stays on the device.
        recorder: Runs the steps where a profile is wanted.
        stop: Ends a long run before its time.
        ended: Called once at its end, whatever that is.
        thread: That it was made by.
        detached: Whether it is enqueued and nobody waits for it now.
    """

    bound: BoundPlan
    feeds: Mapping[str, Feed]
    outputs: Mapping[str, bool]
    recorder: StepRecorder | None = None
    stop: Stop = NEVER
    ended: Callable[[Execution], None] = lambda execution: None
    thread: int = field(default_factory=get_ident)
    detached: bool = False
    _results: dict[str, Feed] = field(default_factory=dict)
    _wanted: list[tuple[str, Value]] = field(default_factory=list)
    _leases: Leases | None = None
    _slabs: Sequence[TrackedBuffer] = ()
    _events: list[cl.Event] = field(default_factory=list)
    _queue: cl.CommandQueue | None = None
    _last: cl.Event | None = None
    _status: tuple[Array, cl.Event] | None = None
    _began_s: float = 0.0
    _error: BaseException | None = None
    _enqueued: bool = False
    _ended: bool = False
    _turn: Lock = field(default_factory=Lock)

    def run(self) -> dict[str, Feed]:
        """From start to finish.

        Raises:
            NumberError: A kernel met an index, or the like, out of range.
            DeviceError: The driver fails, or has no room (OutOfMemoryError). What was enqueued
                before has ended.
            ClrtError: `stop` was requested.
        """
        self.start()
        results = self.finish()
        self.bound.seconds_a_run = time.perf_counter() - self._began_s
        return results

    def start(self) -> None:
        """Enqueues it; waits only where the plan takes long, or the host computes a step.

        Raises:
            DeviceError, ClrtError: As `run`.
        """
        bound, connection = self.bound, self.bound.session.connection
        try:
            self.stop.check()
            is_paced = bound.plan.host_steps or bound.takes_long
            with bound.settling(self):
                with connection.lock:
                    self._begin()
                    if self.recorder is not None:
                        self.recorder.record_steps(bound, bound.steps, self._run_host)
                    elif not is_paced:
                        self._enqueue()
                    if self.recorder is not None or not is_paced:
                        self._read_back()
                        return
                self._run_paced()
                with connection.lock:
                    self._read_back()
        except BaseException:
            self._fail()
            raise

    def finish(self) -> dict[str, Feed]:
        """Waits for the end, and gives the results; again, where it was asked before.

        Raises:
            NumberError, DeviceError: As `run`.
        """
        self.detached = False
        with self._turn:
            if not self._ended:
                try:
                    self._finish()
                except BaseException as error:
                    self._error = error
                    self._fail()
                    raise
            elif self._error is not None:
                raise self._error
            return self._results

    @property
    def done(self) -> bool:
        """Whether the device has done all of it."""
        if self._last is None or not self._enqueued or self._ended:
            return self._enqueued
        status = self._last.command_execution_status
        return bool(status <= cl.command_execution_status.COMPLETE)

    def detach(self) -> None:
        """Has the device begin; nobody waits for the end now."""
        with self.bound.settling(self):
            self.bound.session.queue.flush()
        self.detached = True

    def await_end(self) -> None:
        """Waits for the end; what went wrong is told to who asks for the results."""
        with suppress(Exception):
            self.finish()

    def _begin(self) -> None:
        """Takes the memory that it needs, and feeds the inputs."""
        bound, connection = self.bound, self.bound.session.connection
        if connection.unfinished:
            connection.settle()
        if bound.broken:
            bound.forget_status()
        bound.bind()
        self._slabs = tuple(bound.slabs.buffers)  # which the driver does not keep alive
        if bound.plan.external:
            self._leases = Leases(bound.plan, bound.session)
            bound.bind_external(self._leases.take(self.feeds))
        self._began_s = connection.used_s = time.perf_counter()
        self._queue = bound.session.queue
        connection.in_flight.add(self)
        bound.broken = True
        for value in bound.plan.graph.inputs:
            self._feed(value, self.feeds[value.name])

    def _feed(self, value: Value, feed: Feed) -> None:
        bound, queue = self.bound, self.bound.session.queue
        is_external = self._leases is not None and value in self._leases.by_root
        if feed.nbytes == 0 or not (is_external or value in bound.plan.places):
            return
        if isinstance(feed, DeviceTensor):
            target, offset = bound.bytes_of(value)
            if target is not feed.buffer:
                size = feed.nbytes
                cl.enqueue_copy(queue, target, feed.buffer, dst_offset=offset, byte_count=size)
            return
        if not is_external and (host := bound.host_memory(value)) is not None:
            host[...] = feed
            return
        target, offset = bound.bytes_of(value)
        self._note(cl.enqueue_copy(queue, target, feed, dst_offset=offset, is_blocking=False))

    def _note(self, event: cl.Event) -> None:
        """Keeps the event of a copy, which keeps the host's array."""
        self._last = event
        self._events.append(event)

    def _enqueue(self) -> None:
        queue, enqueue = self._queue, cl.enqueue_nd_range_kernel
        steps = cast(list[Enqueue], self.bound.steps)
        with self.bound.session.connection.holding() as gate:
            for step in steps[:_HELD]:
                self._last = enqueue(
                    queue, step.kernel, step.global_size, step.local_size, wait_for=gate
                )
        for step in steps[_HELD:]:
            self._last = enqueue(queue, step.kernel, step.global_size, step.local_size)

    def _run_paced(self) -> None:
        """The steps, so that the run can end between two launches."""
        bound, lock = self.bound, self.bound.session.connection.lock
        costs, pace = iter(bound.plan.costs), Pace(self._queue, self.stop)
        for step in bound.steps:
            if isinstance(step, HostStep):
                self._run_host(step)
                self.stop.check()
                continue
            with lock:
                event = cl.enqueue_nd_range_kernel(
                    self._queue, step.kernel, step.global_size, step.local_size
                )
            self._last = event
            pace.launched(event, next(costs))

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
            elements = np.asarray(array, value.dtype.numpy, order="C")
            if elements.nbytes:
                buffer, offset = self.bound.bytes_of(value)
                cl.enqueue_copy(self._queue, buffer, elements, dst_offset=offset)

    def _read_back(self) -> None:
        """Enqueues what brings the results where they are wanted, and what kernels reported."""
        graph = self.bound.plan.graph
        values = zip(graph.output_names, graph.outputs, strict=True)
        self._wanted = [(name, value) for name, value in values if name in self.outputs]
        for name, value in self._wanted:
            keeps = self.outputs[name]
            self._results[name] = self._keep(value) if keeps else self._read(value)
        self._status = self.bound.copy_status()
        if self._status is not None:
            self._note(self._status[1])
        if self._leases is not None:
            self._leases.use_up()
        self._enqueued = True

    def _keep(self, value: Value) -> DeviceTensor:
        """A tensor for a value: where it was computed, or a copy."""
        there = None if self._leases is None else self._leases.claim(value)
        if there is not None:
            return there
        bound, session = self.bound, self.bound.session
        kept = session.tensor(value.dims, value.dtype)
        if kept.nbytes:
            buffer, offset = bound.bytes_of(value)
            size = kept.nbytes
            self._note(
                cl.enqueue_copy(
                    self._queue, kept.buffer, buffer, src_offset=offset, byte_count=size
                )
            )
        return kept

    def _read(self, value: Value, *, wait: bool = False) -> Array:
        """An array for the elements, which are there after `wait`, or at the end."""
        array = np.empty(value.dims, value.dtype.numpy)
        if array.nbytes and (wait or self.bound.host_memory(value) is None):
            buffer, offset = self.bound.bytes_of(value)
            self._note(
                cl.enqueue_copy(self._queue, array, buffer, src_offset=offset, is_blocking=wait)
            )
        return array

    def _finish(self) -> None:
        bound = self.bound
        with bound.settling(self):
            self._wait()
            words = bound.status_words(self._status)
        if words is not None:
            first = int(np.flatnonzero(words)[0])
            raise bound.plan.statuses[first].error(words[first])
        for name, value in self._wanted:
            result = self._results[name]
            if isinstance(result, np.ndarray):
                host = bound.host_memory(value)
                if host is not None:
                    result[...] = host
        self._end()

    def _wait(self) -> None:
        connection = self.bound.session.connection
        if self._queue is not connection.queue:
            raise DeviceError(
                f"{connection.device} did not end a run that another one broke off with; run it "
                "again."
            )
        if len(connection.in_flight) == 1:
            connection.finish()
        elif self._last is not None:
            self._last.wait()

    def _fail(self) -> None:
        """What was donated is the caller's again; what it has in it is what the run left there."""
        if self._leases is not None:
            self._leases.give_back()
        self._results = {}
        self._end()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        connection = self.bound.session.connection
        connection.in_flight.discard(self)
        connection.used_s = time.perf_counter()
        if self._leases is not None:
            self.bound.forget_external()
            self._leases.end()
        self._events, self._slabs = [], ()
        self._last = None
        self.ended(self)
