"""One OpenCL context per device, shared by all sessions on it, and the queues in it."""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock
from typing import Any, Protocol

from clrt.errors import DeviceError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import check_process, cl, is_left_behind, never_release

# How long a fork waits for the end of a run, and how often it looks.
_FORK_S = 5.0
_LOOK_S = 0.001
# How often a run that gives way looks whether the other one has ended.
_GIVE_LOOK_S = 0.0005
# How often a wait looks that must not compute: every 20th of what it has waited so far.
_WAIT_LOOK_S = 0.0001
_WAIT_MOST_S = 0.005


class TrackedBuffer(cl.Buffer):  # type: ignore[misc]
    """A buffer that can be referred to weakly, so that its release is counted.

    Attributes:
        host: The memory that it is, uint8[size], where the device shares the host's. It may be
            touched while nothing that uses the buffer is in the queue.
        nbytes: `size`, for which the driver is not asked.
    """

    host: Array | None = None
    nbytes: int = 0


class InFlight(Protocol):
    """A run on its way."""

    @property
    def lane(self) -> RunQueue:
        """The queue that it is in."""

    @property
    def done(self) -> bool:
        """Whether the device has done all of it."""

    @property
    def rank(self) -> int:
        """It gives way to runs of lower ranks."""


@dataclass(eq=False)
class RunQueue:
    """An in-order queue of the context: each model has one, so that none waits for another's runs.

    Attributes:
        background: Whether its runs give way to all others.
    """

    connection: DeviceContext
    queue: cl.CommandQueue
    background: bool = False

    def __post_init__(self) -> None:
        self.connection.owners.add(self)

    def wait(self, event: cl.Event) -> None:
        """Waits for a command in the queue, and computes nothing meanwhile.

        Raises:
            cl.Error: The driver fails.
        """
        if self.connection.looks:
            self.queue.flush()
            pause = _WAIT_LOOK_S
            while event.command_execution_status > cl.command_execution_status.COMPLETE:
                time.sleep(pause)
                pause = min(pause * 1.05, _WAIT_MOST_S)
        event.wait()

    def finish(self) -> None:
        """Waits for all that is in the queue."""
        if self.connection.looks:
            self.wait(cl.enqueue_marker(self.queue))
        self.queue.finish()
        self.connection.undrained_queues.discard(self)


@dataclass(eq=False)
class DeviceContext:
    """What all sessions of a device share: a context, its queues, and who may use them.

    Attributes:
        undrained_queues: Lanes in which something may still be, from a run that was broken off.
        in_flight: The runs that have something in a queue, or will have.
        begun: How many runs ever began.
        owners: What holds objects of the driver.
        lost: Whether this process is a fork in which nothing of the driver can be used.
    """

    device: DeviceInfo
    context: cl.Context
    undrained_queues: set[RunQueue] = field(default_factory=set)
    in_flight: set[InFlight] = field(default_factory=set)
    begun: int = 0
    lost: bool = False
    owners: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    _lock: Any = field(default_factory=RLock)
    _held_at_fork: bool = False
    _process: int = field(default_factory=os.getpid)

    def new_queue(self) -> cl.CommandQueue:
        """An in-order queue.

        Raises:
            cl.Error: The driver fails.
        """
        return cl.CommandQueue(self.context, self.device.handle)

    @cached_property
    def lane(self) -> RunQueue:
        """For commands that are no run: what they leave is complete when they return."""
        return RunQueue(self, self.new_queue())

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

    @cached_property
    def looks(self) -> bool:
        """Whether a thread that waits would take a core besides those of the device."""
        device = self.device
        return device.cores is not None and "computes-while-waiting" in device.caps.quirks

    @property
    def usable(self) -> bool:
        """Whether this process can use the driver: not in some forks."""
        return not (self.lost or is_left_behind(self.device.caps))

    def drain(self) -> None:
        """Waits for what broken runs have left in any queue: it may use what is free since.

        Raises:
            cl.Error: The driver fails.
        """
        for lane in tuple(self.undrained_queues):
            lane.finish()

    def give_way(self, run: InFlight, most_s: float) -> bool:
        """Waits while a run of another lane and a lower rank is on its way.

        Args:
            most_s: For how many seconds at most, so that the run goes on beside many others.

        Returns:
            Whether there was one.
        """
        gave, end = False, time.perf_counter() + most_s
        while any(
            other.lane is not run.lane and other.rank < run.rank and not other.done
            for other in tuple(self.in_flight)
        ):
            gave = True
            if time.perf_counter() > end:
                break
            time.sleep(_GIVE_LOOK_S)
        return gave

    def before_fork(self) -> None:
        """Waits a little for the end of runs, so that the fork does not begin in their midst."""
        if "stays-behind-in-forks" in self.device.caps.quirks:
            return
        end = time.perf_counter() + _FORK_S
        while not self._held_at_fork and time.perf_counter() < end:
            if not self._lock.acquire(timeout=_FORK_S):
                return
            with suppress(cl.Error):
                if all(run.done for run in self.in_flight):
                    self._held_at_fork = True
                    return
            self._lock.release()
            time.sleep(_LOOK_S)

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
            never_release(self, *self.owners, *self.in_flight)
