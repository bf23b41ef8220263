"""`Execution`: one run of a bound plan, from copying inputs to reading results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from threading import RLock
from typing import Any, Protocol, cast

from clrt.errors import ClrtError, InputError
from clrt.plan.steps import HostStep
from clrt.runtime.execution.argument_patcher import BoundLaunch
from clrt.runtime.execution.bound_plan import BoundPlan, BoundStep
from clrt.runtime.execution.external_buffers import Feed
from clrt.runtime.execution.launch_throttle import NEVER, CancellationToken, LaunchThrottle
from clrt.runtime.execution.transfers import Transfers
from clrt.runtime.opencl.device_context import RunQueue
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.active_calls import ActiveCall
from clrt.util.fast_dataclass import dataclass

# Polling interval, in seconds, of a run that waits for other runs to read its donated inputs.
_POLL_S = 0.0005


class StepRecorder(Protocol):
    """Protocol of profilers: runs the steps of a plan and records when each of them ran."""

    def record_steps(
        self, bound: BoundPlan, steps: Sequence[BoundStep], run_host: Callable[[HostStep], None]
    ) -> None:
        """Runs every step in order, and waits for the last.

        Args:
            bound: Plan to which the steps belong.
            steps: Bound launches and host steps.
            run_host: Computes a host step.
        """


@dataclass(eq=False)
class Execution:
    """One run of a bound plan, from `start` to `finish`.

    Holds the device's lock while it enqueues commands. Waits only at the end if possible, since
    each wait wakes a thread, which takes 50 us and more on a CPU. Long plans, host steps and
    donated inputs that other runs read need more waits.

    Attributes:
        feeds: A contiguous array of the planned dtype and shape, or a tensor, per graph input. Not
            to be changed until the end; a donated tensor loses its memory.
        outputs: Names of the requested outputs, and whether each stays on the device.
        recorder: Runs the steps if a profile is requested; else None.
        stop: Cancels a long run.
        call: Call that starts the execution, or waits for it; None if there is none.
        ended: Called with the execution once it has ended, also after an error.
        detached: Whether `detach` was called: no call waits for the end.
        enqueued: Whether all commands are in the queue.
    """

    bound: BoundPlan
    feeds: Mapping[str, Feed]
    outputs: Mapping[str, bool]
    recorder: StepRecorder | None = None
    stop: CancellationToken = NEVER
    call: ActiveCall | None = None
    ended: Callable[[Execution], None] = lambda execution: None
    detached: bool = field(default=False, init=False)
    enqueued: bool = field(default=False, init=False)
    _moves: Transfers = field(init=False)
    _paced: bool = field(default=False, init=False)
    _began_s: float = field(default=0.0, init=False)
    _nth: int = field(default=0, init=False)
    _error: BaseException | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)
    _turn: Any = field(default_factory=RLock, init=False)

    def __post_init__(self) -> None:
        self._moves = Transfers(self.bound)

    def run(self) -> dict[str, Feed]:
        """Starts the execution, waits for its end and returns its outputs by name.

        Returns:
            An array, or a tensor if it stays on the device, per requested output.

        Raises:
            NumberError: A kernel found an index or length out of range.
            DeviceError: The driver fails, or is out of memory (OutOfMemoryError). Commands
                enqueued before have ended.
            ClrtError: `stop` was requested.
        """
        self.call = self.call or ActiveCall()
        self.start()
        results = self.finish()
        self._note_seconds()
        return results

    def _note_seconds(self) -> None:
        """Records the run's duration in the bound plan, for `expected_s` of later runs.

        If other runs overlapped this one, its duration is recorded only if it is a new minimum.
        """
        bound, seconds = self.bound, time.perf_counter() - self._began_s
        alone = self._nth == bound.session.connection.begun
        if alone or bound.seconds_a_run is None or seconds < bound.seconds_a_run:
            bound.seconds_a_run = seconds
        bound.note_run(seconds)

    def start(self) -> None:
        """Enqueues the run's commands.

        Waits if the plan takes long, has host steps or is profiled, or if runs in other queues
        still read a donated input.

        Raises:
            DeviceError: The driver fails, or is out of memory (OutOfMemoryError).
            ClrtError: `stop` was requested.
        """
        bound, connection = self.bound, self.bound.session.connection
        try:
            self.stop.check()
            self._paced = bound.is_paced and self.recorder is None
            with bound.draining():
                if not bound.ready:
                    self._bind()
                if bound.can_improve:
                    bound.improve()
                while not self._begin():
                    _await_readers(self)
                if not self.enqueued:
                    if self._paced:
                        self._run_paced()
                    else:
                        self._run_on_twin()
                    with connection.lock:
                        self._moves.read_back(self.outputs)
                        self.enqueued = True
        except ClrtError:
            self._fail()
            raise

    def finish(self) -> dict[str, Feed]:
        """Waits for the end of the execution and returns its results; may be called repeatedly.

        Returns:
            An array, or a tensor if it stays on the device, per requested output.

        Raises:
            NumberError: A kernel found an index or length out of range.
            DeviceError: The driver failed.
        """
        if self.detached:
            self.call = ActiveCall()
        with self._turn:
            if not self._ended:
                try:
                    self._finish()
                except Exception as error:
                    self._error = error
                    self._fail()
                    raise
            elif self._error is not None:
                raise self._error
            return self._moves.results

    @property
    def lane(self) -> RunQueue:
        """Queue that the execution runs in."""
        return self.bound.lane

    @property
    def rank(self) -> int:
        """Priority: a run waits for runs of lower rank.

        0 if its commands are enqueued all at once, 1 if in several batches, 2 for runs of a
        background model.
        """
        return 2 if self.lane.background else int(self._paced)

    @property
    def done(self) -> bool:
        """Whether the device has completed all commands of the run.

        Also True for an abandoned run: the call that enqueued its commands was interrupted.
        """
        last = self._moves.last
        if not self.enqueued:
            return self.is_left
        if last is None or self._ended:
            return True
        status = last.command_execution_status
        return bool(status <= cl.command_execution_status.COMPLETE)

    def detach(self) -> None:
        """Detaches the execution from the call that started it, after flushing the queue.

        The call can then return before the device is done; `finish` waits for the results.
        """
        with self.bound.draining():
            self.lane.queue.flush()
        self.detached, self.call = True, None

    @property
    def has_ended(self) -> bool:
        """Whether the execution has ended, so that its arena is free."""
        return self._ended

    @property
    def is_allocating(self) -> bool:
        """Whether the execution may still allocate its arena and the plan's constants.

        False once the plan is bound to this memory, or the execution has ended.
        """
        return not self._ended and not self.bound.ready

    @property
    def is_left(self) -> bool:
        """Whether no call handles the execution: after `detach`, or an exception in the call."""
        call = self.call  # read once: the thread that ends the execution sets it to None
        return call is None or call.is_over

    @property
    def is_broken_off(self) -> bool:
        """Whether an exception interrupted the execution, so that its arena may be inconsistent."""
        return not self.detached and not self._ended and self.is_left

    def await_end(self) -> None:
        """Waits for the end of an execution that no call handles (`is_left`).

        `finish` raises the errors of a detached execution. An interrupted execution fails, and its
        arena is not used again.
        """
        if self.detached:
            with suppress(Exception):
                self.finish()
            return
        with self._turn:
            if not self._ended:
                self.bound.slabs.is_torn = True
                with suppress(cl.Error, MemoryError):
                    self.bound.break_off()
                self._fail()

    def _bind(self) -> None:
        """Binds the plan, with this run marked as in flight so that a fork waits for it."""
        connection = self.bound.session.connection
        with connection.lock:
            if connection.undrained_queues:
                connection.drain()
            connection.in_flight.add(self)
        self.bound.bind()

    def _begin(self) -> bool:
        """Copies the inputs, and enqueues all commands unless the run is paced (in batches).

        Returns:
            True if the inputs were copied. False, without any effect, if runs in other queues
            still read a donated input.
        """
        bound = self.bound
        with bound.session.connection.lock:
            if bound.plan.device_io.donated and _readers(self):
                return False
            self._feed()
            # The twin computes each launch in the call that enqueues it.
            if self._paced or (bound.lane.on_twin and self.recorder is None):
                return True
            if self.recorder is not None:
                self.recorder.record_steps(bound, bound.steps, self._moves.run_host)
            else:
                self._enqueue()
            self._moves.read_back(self.outputs)
            self.enqueued = True
        return True

    def _feed(self) -> None:
        """Copies the inputs to the device, after waiting for the commands of failed runs."""
        bound, connection = self.bound, self.bound.session.connection
        if connection.undrained_queues:
            connection.drain()
        if bound.broken:
            bound.forget_status()
        self._began_s = time.perf_counter()
        connection.in_flight.add(self)
        connection.begun += 1
        # At the end of the run it equals `begun` only if no other run was in flight meanwhile.
        self._nth = connection.begun if len(connection.in_flight) == 1 else 0
        bound.broken = True
        self._moves.feed(self.feeds)

    def _enqueue(self) -> None:
        """Enqueues all launches of the plan."""
        moves, enqueue = self._moves, cl.enqueue_nd_range_kernel
        queue = self.lane.queue
        for step in cast("list[BoundLaunch]", self.bound.commands):
            moves.last = enqueue(queue, step.kernel, step.global_size, step.local_size)

    def _run_on_twin(self) -> None:
        """Computes all launches of the plan on this thread, without the lock of the device."""
        moves, enqueue, check = self._moves, cl.enqueue_nd_range_kernel, self.stop.check
        queue = self.bound.lane.queue
        for step in cast("list[BoundLaunch]", self.bound.commands):
            check()
            moves.last = enqueue(queue, step.kernel, step.global_size, step.local_size)

    def _run_paced(self) -> None:
        """Runs host steps and enqueues launches, waiting in between to limit the enqueued work.

        The run can thus be cancelled between two launches, and gives way to other runs.
        """
        bound, connection = self.bound, self.bound.session.connection
        lock, give_way = connection.lock, partial(connection.give_way, self)
        costs, moves = bound.plan.costs, self._moves
        rate = bound.expected_s / max(sum(costs), 1)
        throttle = LaunchThrottle(self.lane, self.stop, give_way, rate)
        remaining_costs = iter(costs)
        for step in bound.steps:
            if isinstance(step, HostStep):
                moves.run_host(step)
                throttle.idle()
                self.stop.check()
                continue
            cost = next(remaining_costs)
            pieces = step.pieces(throttle.pieces(cost, bound.most_launch_s))
            each = -(-cost // len(pieces))
            for offset, size in pieces:
                throttle.make_room(each)
                with lock:
                    event = cl.enqueue_nd_range_kernel(
                        moves.queue, step.kernel, size, step.local_size, offset
                    )
                moves.last = event
                throttle.launched(event, each)
        self.stop.check()

    def _finish(self) -> None:
        """Waits for the device, completes the transfers and ends the run."""
        with self.bound.draining():
            self._wait()
            words = self.bound.status_words(self._moves.status)
        self._moves.complete(words)
        self._end()

    def _wait(self) -> None:
        """Waits for the run's last command, or for the whole queue if no other run is in flight."""
        bound, last = self.bound, self._moves.last
        if len(bound.session.connection.in_flight) == 1:
            bound.lane.finish()
        elif last is not None:
            bound.lane.wait(last)

    def _fail(self) -> None:
        """Ends a failed execution; donated tensors get back their memory, overwritten or not."""
        self._moves.drop()
        self._end()

    def _end(self) -> None:
        """Marks the run as ended, once: releases its memory and calls `ended`."""
        if self._ended:
            return
        connection = self.bound.session.connection
        connection.in_flight.discard(self)
        self._moves.end()
        self._ended, self.call = True, None
        self.ended(self)


def run_and_hold(bound: BoundPlan, feeds: Mapping[str, Feed]) -> None:
    """Runs a plan, and keeps its inputs and device outputs, so that its launches can be repeated.

    An ordinary run returns this memory to a pool at its end, although kernel arguments still refer
    to the memory.

    Args:
        bound: Plan to run; its attribute `held` is set to the tensors that are kept.
        feeds: Array or device tensor per input of the plan, by name.

    Raises:
        OutOfMemoryError: A tensor does not fit.
        DeviceError: The driver fails.
    """
    session, contract = bound.session, bound.plan.device_io
    tensors = {
        value.name: feed
        if isinstance(feed := feeds[value.name], DeviceTensor)
        else session.tensor_of(feed, value.dtype)
        for value in bound.plan.graph.inputs
        if value.name in contract.device_inputs
    }
    outputs = dict.fromkeys(contract.device_outputs, True)
    results = Execution(bound, {**feeds, **tensors}, outputs).run()
    kept = [*tensors.values(), *results.values()]
    bound.held = [tensor for tensor in kept if isinstance(tensor, DeviceTensor)]


def _await_readers(run: Execution) -> None:
    """Waits for runs in other queues that read tensors donated to `run`.

    Raises:
        InputError: A signal handler that interrupted one of the reading runs started `run`, so
            that waiting would never end.
    """
    while readers := _readers(run):
        thread = None if run.call is None else run.call.thread
        calls = [r.call for r in readers if not r.enqueued]
        if any(call is not None and call.thread == thread for call in calls):
            raise InputError(
                "A donated tensor is still read by the run that this one interrupted; repeat this "
                "run after the other one has ended."
            )
        time.sleep(_POLL_S)


def _readers(run: Execution) -> list[Execution]:
    """Returns the unfinished runs in other queues that read tensors donated to `run`."""
    donated = [run.feeds[n] for n in run.bound.plan.device_io.donated]
    return [
        r
        for r in tuple(run.bound.session.connection.in_flight)
        if isinstance(r, Execution)
        and r.lane is not run.lane
        and not r.done
        and any(feed is tensor for feed in r.feeds.values() for tensor in donated)
    ]
