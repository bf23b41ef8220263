"""`Run`: an asynchronous run of a model, as `Model.submit` returns it."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from numbers import Real
from threading import Lock, Thread
from typing import Any, Protocol

from clrt.errors import CancelledError, InputError, NumberError, RunTimeoutError
from clrt.ir.graph import Graph
from clrt.ir.runtime_values import RuntimeValue
from clrt.runtime.execution.execution import Execution
from clrt.runtime.execution.graph_run import explained
from clrt.runtime.execution.launch_throttle import CancellationToken
from clrt.runtime.execution.request import RunRequest
from clrt.util.fast_dataclass import dataclass
from clrt.util.renamed import renamed

# Polling interval, in seconds, of a wait with a timeout: OpenCL waits have none.
_POLL_S = 0.0005


class Pending(Protocol):
    """Protocol for future outputs of a run: an `Enqueued` run, or a worker thread's `Future`."""

    def done(self) -> bool:
        """Returns whether `result` would return or raise without waiting."""

    def result(self, timeout: float | None = None) -> Mapping[str, RuntimeValue]:
        """Waits for the outputs and returns them by name, or raises the run's error.

        Args:
            timeout: Maximum wait in seconds; None for no limit.

        Raises:
            TimeoutError: The run is not done after `timeout` seconds.
        """


@dataclass(frozen=True)
class Enqueued:
    """A run whose commands are all in the device's queue.

    Attributes:
        execution: Detached execution that computes the outputs not in `available`.
        available: Outputs that need no computation, by name.
        graph: Graph that runs, for error messages.
    """

    execution: Execution
    available: Mapping[str, RuntimeValue]
    graph: Graph

    def done(self) -> bool:
        """Returns whether `result` would return or raise without waiting."""
        return self.execution.done

    def result(self, timeout: float | None = None) -> Mapping[str, RuntimeValue]:
        """Waits for the outputs and returns them by name.

        Args:
            timeout: Maximum wait in seconds; None for no limit.

        Raises:
            TimeoutError: The run is not done after `timeout` seconds.
            InputError: A kernel found an index or length out of range.
            DeviceError: The driver failed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while end is not None and not self.execution.done:
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(_POLL_S)
        try:
            return {**self.available, **self.execution.finish()}
        except NumberError as error:
            raise explained(error, self.graph) from error


@renamed(wait_or_stop="wait_or_cancel")
class Run:
    """An asynchronous run of a model, from `Model.submit`.

    `await` it, call `wait`, or use its `future` to wait for several runs. Do not change the input
    arrays until it is done. Dropping the object does not cancel the run.
    """

    def __init__(self, pending: Pending, stop: CancellationToken, request: RunRequest) -> None:
        self._pending = pending
        self._stop = stop
        self._request = request
        self._future: Future[dict[str, Any]] | None = None
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<clrt.Run {'done' if self.done else 'on its way'}>"

    @property
    def done(self) -> bool:
        """Whether the run has ended: `wait` would return, or raise the run's error, at once."""
        return self._pending.done()

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits for the outputs and returns them by name, as `Model.run` does.

        Args:
            timeout: Maximum wait in seconds; None for no limit.

        Raises:
            RunTimeoutError: The run is not done after `timeout` seconds; it continues.
            CancelledError: The run was cancelled before its end.
            InputError: `timeout` is invalid, or an index or length was out of range.
            ClrtError: The run failed, for example out of memory.
        """
        _check_seconds(timeout)
        try:
            results = self._pending.result(timeout)
        except FutureTimeout as error:  # another class than TimeoutError before Python 3.11
            raise RunTimeoutError(
                f"The run is not done after {timeout} seconds; wait longer, or cancel it."
            ) from error
        return self._request.for_user(results)

    def wait_or_cancel(self, timeout: float) -> dict[str, Any]:
        """Waits for the outputs; cancels the run if the wait times out or is interrupted.

        Args:
            timeout: Maximum wait in seconds.

        Raises:
            RunTimeoutError: The run was not done after `timeout` seconds.
            ClrtError: The run failed, or was cancelled.
        """
        try:
            return self.wait(timeout)
        except (RunTimeoutError, KeyboardInterrupt) as error:
            self._stop.requested = True
            if self._request.donated:  # wait: the end of the run returns them to the caller
                with suppress(CancelledError):
                    return self.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
            raise RunTimeoutError(
                f"The run exceeded its timeout of {timeout} seconds and was cancelled; allow more "
                "time, or run a smaller batch."
            ) from error

    def future(self) -> Future[dict[str, Any]]:
        """Returns the outputs as a future, for `concurrent.futures.wait` and callbacks.

        Cancelling the future cancels the run.
        """
        with self._lock:
            if self._future is None:
                self._future = Future()
                self._future.add_done_callback(self._cancel_with)
                if isinstance(self._pending, Future):
                    self._pending.add_done_callback(self._fulfil)
                else:  # a thread has to wait for the device
                    Thread(target=self._fulfil, args=(self._pending,), name="clrt-wait").start()
            return self._future

    def _cancel_with(self, future: Future[dict[str, Any]]) -> None:
        if future.cancelled():
            self._stop.requested = True

    def _fulfil(self, pending: Pending) -> None:
        """Waits for the run, and sets the result or exception of `future` from it.

        Args:
            pending: Future outputs of the run.
        """
        assert self._future is not None
        try:
            results = self._request.for_user(pending.result())
        except BaseException as error:
            if self._future.set_running_or_notify_cancel():
                self._future.set_exception(error)
        else:
            if self._future.set_running_or_notify_cancel():
                self._future.set_result(results)

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self._awaited().__await__()

    async def _awaited(self) -> dict[str, Any]:
        """Awaits the results; if cancelled with donated inputs, waits for the end of the run."""
        import asyncio  # takes a tenth of the time to import clrt

        future = asyncio.wrap_future(self.future())
        try:
            return await future
        except asyncio.CancelledError:
            if self._request.donated:  # wait: the end of the run returns them to the caller
                await asyncio.to_thread(self.cancel)
            raise

    def cancel(self) -> None:
        """Cancels the run between two launches, and waits for the launches already enqueued.

        A run whose launches were all enqueued at once, which takes at most 50 ms, completes.
        """
        self._stop.requested = True
        with suppress(Exception):
            self._pending.result()


def _check_seconds(timeout: float | None) -> None:
    if timeout is not None and not (isinstance(timeout, Real) and timeout >= 0):
        raise InputError(f"timeout is {timeout!r}; expected a number of seconds, or None.")
