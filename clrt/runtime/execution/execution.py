"""One run of a bound plan: inputs fed, launches enqueued, results read, its end awaited."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from clrt.util.active_calls import ActiveCall

# How often a run looks whether those that read what is donated to it have ended.
_LOOK_S = 0.0005


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
        call: Starts it, or waits for it.
        ended: Called at its end, whatever that is.
        detached: Whether the call that started it is through with it.
        enqueued: Whether all of it is in the queue.
    """

    bound: BoundPlan
    feeds: Mapping[str, Feed]
    outputs: Mapping[str, bool]
    recorder: StepRecorder | None = None
    stop: CancellationToken = NEVER
    call: ActiveCall | None = None
    ended: Callable[[Execution], None] = lambda execution: None
    detached: bool = False
    enqueued: bool = False
    _moves: Transfers = field(init=False)
    _paced: bool = False
    _began_s: float = 0.0
    _nth: int = 0
    _error: BaseException | None = None
    _ended: bool = False
    _turn: Any = field(default_factory=RLock)

    def __post_init__(self) -> None:
        self._moves = Transfers(self.bound)

    def run(self) -> dict[str, Feed]:
        """From start to finish.

        Raises:
            NumberError: A kernel met an index, or the like, out of range.
            DeviceError: The driver fails, or has no room (OutOfMemoryError). What was enqueued
                before has ended.
            ClrtError: `stop` was requested.
        """
        self.call = self.call or ActiveCall()
        self.start()
        results = self.finish()
        self._note_seconds()
        return results

    def _note_seconds(self) -> None:
        """What it took; beside others it would have taken less."""
        bound, took = self.bound, time.perf_counter() - self._began_s
        alone = self._nth == bound.session.connection.begun
        if alone or bound.seconds_a_run is None or took < bound.seconds_a_run:
            bound.seconds_a_run = took

    def start(self) -> None:
        """Enqueues it; waits only where the plan takes long, or the host computes a step.

        Raises:
            DeviceError, ClrtError: As `run`.
        """
        bound, connection = self.bound, self.bound.session.connection
        try:
            self.stop.check()
            self._paced = bound.is_paced and self.recorder is None
            with bound.settling():
                if not bound.ready:
                    self._bind()
                while not self._begin():
                    _await_readers(self)
                if self._paced:
                    self._run_paced()
                    with connection.lock:
                        self._moves.read_back(self.outputs)
                        self.enqueued = True
        except ClrtError:
            self._fail()
            raise

    def finish(self) -> dict[str, Feed]:
        """Waits for the end, and gives the results; again, where it was asked before.

        Raises:
            NumberError, DeviceError: As `run`.
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
        """The queue that it is in."""
        return self.bound.lane

    @property
    def rank(self) -> int:
        """0 for one that is enqueued as a whole; long ones, and more so others, give way to it."""
        return 2 if self.lane.background else int(self._paced)

    @property
    def done(self) -> bool:
        """Whether the device has done all of it."""
        last = self._moves.last
        if not self.enqueued:
            return self.is_left
        if last is None or self._ended:
            return True
        status = last.command_execution_status
        return bool(status <= cl.command_execution_status.COMPLETE)

    def detach(self) -> None:
        """Has the device begin; nobody waits for the end now."""
        with self.bound.settling():
            self.lane.queue.flush()
        self.detached, self.call = True, None

    @property
    def has_ended(self) -> bool:
        """Whether its memory is free."""
        return self._ended

    @property
    def is_allocating(self) -> bool:
        """Whether its plan is not bound yet, which takes memory."""
        return not self._ended and not self.bound.ready

    @property
    def is_left(self) -> bool:
        """Whether nobody is at it: it is on its way alone, or an exception broke its call off."""
        return self.call is None or self.call.is_over

    @property
    def is_broken_off(self) -> bool:
        """Whether an exception broke it off, and left its arena in any state."""
        return not self.detached and not self._ended and self.is_left

    def await_end(self) -> None:
        """Waits for the end of a run that is left; errors are for who asks for the results.

        One that was broken off fails.
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
        """Has the plan bound; a fork waits for it."""
        connection = self.bound.session.connection
        with connection.lock:
            if connection.undrained_queues:
                connection.drain()
            connection.in_flight.add(self)
        self.bound.bind()

    def _begin(self) -> bool:
        """Feeds the inputs, and enqueues all of a plan that is not long.

        Returns:
            False where runs in other queues read what is donated; nothing is done then.
        """
        with self.bound.session.connection.lock:
            if _readers(self):
                return False
            self._feed()
            if self._paced:
                return True
            if self.recorder is not None:
                self.recorder.record_steps(self.bound, self.bound.steps, self._moves.run_host)
            else:
                self._enqueue()
            self._moves.read_back(self.outputs)
            self.enqueued = True
        return True

    def _feed(self) -> None:
        """The inputs, after what broken runs have left."""
        bound, connection = self.bound, self.bound.session.connection
        if connection.undrained_queues:
            connection.drain()
        if bound.broken:
            bound.forget_status()
        self._began_s = time.perf_counter()
        connection.in_flight.add(self)
        connection.begun += 1
        # A number that no other run began after, nor before and has not ended.
        self._nth = connection.begun if len(connection.in_flight) == 1 else 0
        bound.broken = True
        self._moves.feed(self.feeds)

    def _enqueue(self) -> None:
        moves, enqueue = self._moves, cl.enqueue_nd_range_kernel
        queue = self.lane.queue
        for step in cast(list[BoundLaunch], self.bound.steps):
            moves.last = enqueue(queue, step.kernel, step.global_size, step.local_size)

    def _run_paced(self) -> None:
        """The steps, so that the run can end between two launches."""
        bound, connection = self.bound, self.bound.session.connection
        lock, give_way = connection.lock, partial(connection.give_way, self)
        costs, moves = bound.plan.costs, self._moves
        rate = bound.expected_s / max(sum(costs), 1)
        pace = LaunchThrottle(self.lane, self.stop, give_way, rate)
        left = iter(costs)
        for step in bound.steps:
            if isinstance(step, HostStep):
                moves.run_host(step)
                pace.idle()
                self.stop.check()
                continue
            cost = next(left)
            pieces = step.pieces(pace.pieces(cost, bound.most_launch_s))
            each = -(-cost // len(pieces))
            for offset, size in pieces:
                pace.make_room(each)
                with lock:
                    event = cl.enqueue_nd_range_kernel(
                        moves.queue, step.kernel, size, step.local_size, offset
                    )
                moves.last = event
                pace.launched(event, each)
        self.stop.check()

    def _finish(self) -> None:
        with self.bound.settling():
            self._wait()
        self._moves.complete()
        self._end()

    def _wait(self) -> None:
        connection = self.bound.session.connection
        if len(connection.in_flight) == 1:
            self.lane.finish()
        elif self._moves.last is not None:
            self.lane.wait(self._moves.last)

    def _fail(self) -> None:
        """What was donated is the caller's again; what it has in it is what the run left there."""
        self._moves.drop()
        self._end()

    def _end(self) -> None:
        if self._ended:
            return
        connection = self.bound.session.connection
        connection.in_flight.discard(self)
        self._moves.end()
        self._ended, self.call = True, None
        self.ended(self)


def _await_readers(run: Execution) -> None:
    """Waits for runs in other queues that read what is donated to this one.

    Raises:
        InputError: One was interrupted for this run, and would end after it.
    """
    while readers := _readers(run):
        own = None if run.call is None else run.call.thread
        if any(r.call is not None and r.call.thread == own and not r.enqueued for r in readers):
            raise InputError(
                "A run that was interrupted for this one reads a tensor that is donated; run it "
                "once the other one has ended."
            )
        time.sleep(_LOOK_S)


def _readers(run: Execution) -> list[Execution]:
    """The runs in other queues that read what is donated to this one."""
    names = run.bound.plan.contract.donated
    if not names:
        return []
    donated = [run.feeds[n] for n in names]
    return [
        r
        for r in tuple(run.bound.session.connection.in_flight)
        if isinstance(r, Execution)
        and r.lane is not run.lane
        and not r.done
        and any(given is feed for given in r.feeds.values() for feed in donated)
    ]
