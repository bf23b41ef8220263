"""`DeviceContext`: the OpenCL context of a device, shared by its sessions, and its queues."""

from __future__ import annotations

import time
import weakref
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from threading import RLock
from typing import Any, Protocol

from clrt.errors import DeviceError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import check_process, cl, is_left_behind, never_release
from clrt.util.fast_dataclass import dataclass

# Maximum time that a fork waits for runs to end, and its polling interval, both in seconds.
_FORK_S = 5.0
_FORK_POLL_S = 0.001
# Polling interval, in seconds, of a run that waits for another run to end (`give_way`).
_GIVE_WAY_POLL_S = 0.0005
# First and longest polling interval, in seconds, of a wait that must not occupy a core. Intervals
# grow by 5 %, so that a wait overshoots by about a 20th.
_MIN_WAIT_POLL_S = 0.0001
_MAX_WAIT_POLL_S = 0.005


class TrackedBuffer(cl.Buffer):  # type: ignore[misc]
    """An OpenCL buffer that supports weak references, by which ledgers notice its release.

    Attributes:
        host: The buffer's memory as uint8[nbytes], if the device shares host memory; else None.
            Access it only while no enqueued command uses the buffer.
        nbytes: Size in bytes; unlike `size`, reading it does not query the driver.
    """

    host: Array | None = None
    nbytes: int = 0


class InFlight(Protocol):
    """Protocol for a run that was enqueued and may not have ended."""

    @property
    def lane(self) -> RunQueue:
        """The queue that holds the run's commands."""

    @property
    def done(self) -> bool:
        """Whether the device has completed all commands of the run."""

    @property
    def rank(self) -> int:
        """Rank of the run: it waits for runs of lower rank (higher priority) in other queues."""


@dataclass(eq=False)
class RunQueue:
    """An in-order OpenCL queue for runs.

    Each model has a queue of its own, so that it does not wait for another model's runs.

    Attributes:
        background: Whether runs in this queue give way to the runs in all other queues.
        on_twin: Whether the queue is of the device's twin, which computes a launch in the call that
            enqueues it.
    """

    connection: DeviceContext
    queue: cl.CommandQueue
    background: bool = False
    on_twin: bool = False

    def __post_init__(self) -> None:
        self.connection.owners.add(self)

    def wait(self, event: cl.Event) -> None:
        """Waits for a command in the queue.

        Polls if the driver's own wait would occupy another CPU core (`DeviceContext.looks`).

        Args:
            event: Event of the command.

        Raises:
            cl.Error: The driver fails.
        """
        if self.connection.looks:
            self.queue.flush()
            pause = _MIN_WAIT_POLL_S
            while event.command_execution_status > cl.command_execution_status.COMPLETE:
                time.sleep(pause)
                pause = min(pause * 1.05, _MAX_WAIT_POLL_S)
        event.wait()

    def finish(self) -> None:
        """Waits for all commands in the queue."""
        if self.connection.looks:
            self.wait(cl.enqueue_marker(self.queue))
        self.queue.finish()
        self.connection.undrained_queues.discard(self)


@dataclass(eq=False)
class DeviceContext:
    """The OpenCL context of a device, with its lock and queues, shared by all its sessions.

    Attributes:
        device: The device.
        context: OpenCL context of the device.
        undrained_queues: Queues that may hold commands of runs that failed.
        in_flight: Runs that have commands in a queue, or are about to.
        begun: Number of runs begun so far.
        lost: Whether this process is a fork that cannot use the driver.
        owners: Python objects that hold objects of the driver, referenced weakly.
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
    _is_forked: bool = False

    def new_queue(self, on_twin: bool = False) -> cl.CommandQueue:
        """Creates an in-order OpenCL queue of the device, or of its twin, in the context.

        Raises:
            cl.Error: The driver fails.
        """
        device = self.device.twin if on_twin else self.device
        assert device is not None
        return cl.CommandQueue(self.context, device.handle)

    @cached_property
    def lane(self) -> RunQueue:
        """Queue for commands outside of model runs; callers wait for every command."""
        return RunQueue(self, self.new_queue())

    @property
    def lock(self) -> Any:
        """Lock to hold while enqueuing commands.

        Raises:
            DeviceError: This process is a fork in which the driver would wait forever.
        """
        if self._is_forked:
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
        """Whether waits poll, because the driver's own wait would occupy another CPU core.

        True for CPU sub-devices of drivers that compute in the waiting thread.
        """
        device = self.device
        return device.cores is not None and "computes-while-waiting" in device.caps.quirks

    @property
    def usable(self) -> bool:
        """Whether this process can use the driver; False in forks in which it does not work."""
        return not (self.lost or is_left_behind(self.device.caps))

    def drain(self) -> None:
        """Waits for all commands that failed runs left in any queue.

        These commands may use memory that has been freed since.

        Raises:
            cl.Error: The driver fails.
        """
        for lane in tuple(self.undrained_queues):
            lane.finish()

    def give_way(self, run: InFlight, most_s: float) -> bool:
        """Waits while a run of lower rank (higher priority) is in flight in another queue.

        Args:
            run: The run that waits.
            most_s: Maximum wait in seconds, so that `run` makes progress beside many other runs.

        Returns:
            Whether there was a run to wait for.
        """
        waited, end = False, time.perf_counter() + most_s
        while any(
            other.lane is not run.lane and other.rank < run.rank and not other.done
            for other in tuple(self.in_flight)
        ):
            waited = True
            if time.perf_counter() > end:
                break
            time.sleep(_GIVE_WAY_POLL_S)
        return waited

    def before_fork(self) -> None:
        """Prepares for a fork of this process: waits for runs to end, then acquires the lock.

        Returns without the lock if runs are still in progress after `_FORK_S` seconds. Does nothing
        for drivers that do not work in forks at all.
        """
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
            time.sleep(_FORK_POLL_S)

    def after_fork(self) -> None:
        """Releases, in the parent process, the lock if `before_fork` acquired it."""
        if self._held_at_fork:
            self._held_at_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Prepares the context for use in a forked child process.

        Releases the lock if `before_fork` acquired it. Else runs were in flight: the driver is
        marked unusable in this process, and its objects are never freed, since threads of the
        parent process may have held their locks.
        """
        self._is_forked = True
        if self._held_at_fork:
            self.after_fork()
        else:
            self.lost = True
            never_release(self, *self.owners, *self.in_flight)
