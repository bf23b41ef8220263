"""A run on its way: what `submit` gives."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from threading import Lock, Thread
from typing import Any, Protocol

from clrt.errors import CancelledError, InputError, NumberError, RunTimeoutError
from clrt.ir.graph import Graph
from clrt.ops.base import RuntimeValue
from clrt.plan.index_error_origin import traced
from clrt.runtime.execution.execution import Execution
from clrt.runtime.execution.launch_throttle import CancellationToken
from clrt.runtime.execution.request import RunRequest

# How often a wait with a timeout looks: the device tells no time when it will be done.
_LOOK_S = 0.0005


class Pending(Protocol):
    """What will have the outputs of a run."""

    def done(self) -> bool:
        """Whether `result` waits for nothing."""

    def result(self, timeout: float | None = None) -> Mapping[str, RuntimeValue]:
        """The outputs, or the error.

        Raises:
            TimeoutError: It is not done after `timeout` seconds.
        """


@dataclass(frozen=True)
class Enqueued:
    """A run that is on the device in whole.

    Attributes:
        there: Outputs for which nothing is computed.
        graph: The model's.
    """

    execution: Execution
    there: Mapping[str, RuntimeValue]
    graph: Graph

    def done(self) -> bool:
        """Whether `result` waits for nothing."""
        return self.execution.done

    def result(self, timeout: float | None = None) -> Mapping[str, RuntimeValue]:
        """The outputs.

        Raises:
            TimeoutError, NumberError, DeviceError: As `Run.wait`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while end is not None and not self.execution.done:
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(_LOOK_S)
        try:
            return {**self.there, **self.execution.finish()}
        except NumberError as error:
            raise traced(error, self.graph) from error


class Run:
    """A run of a model on its way, from `Model.submit`.

    `await` it, or take its `future`, where more than one thing is waited for. The arrays that went
    into it stay as they are until it is done. Who drops it before lets it go on.
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
        """Whether `wait` gives its results, or its error, at once."""
        return self._pending.done()

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The outputs, as `Model.run` returns them.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.

        Raises:
            RunTimeoutError: It is not done by then, and goes on.
            CancelledError: It was cancelled before its end.
            ClrtError: As `Model.run`.
        """
        _check_seconds(timeout)
        try:
            results = self._pending.result(timeout)
        except FutureTimeout as error:  # another class than TimeoutError before Python 3.11
            raise RunTimeoutError(
                f"The run is not done after {timeout} seconds; wait on, or cancel it."
            ) from error
        return self._request.for_user(results)

    def wait_or_stop(self, timeout: float) -> dict[str, Any]:
        """The outputs, or the end of the run; see `Model.run`.

        Raises:
            RunTimeoutError: It is not done after so many seconds.
            ClrtError: As `wait`.
        """
        try:
            return self.wait(timeout)
        except (RunTimeoutError, KeyboardInterrupt) as error:
            self._stop.requested = True
            if self._request.donated:  # they are the caller's again when this ends
                with suppress(CancelledError):
                    return self.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
            raise RunTimeoutError(
                f"The run was not done after {timeout} seconds, and is given up; allow it more "
                "time, or run a smaller batch."
            ) from error

    def future(self) -> Future[dict[str, Any]]:
        """The outputs as a future, for `concurrent.futures.wait` and callbacks.

        To cancel the future cancels the run.
        """
        with self._lock:
            if self._future is None:
                self._future = Future()
                self._future.add_done_callback(self._follow)
                if isinstance(self._pending, Future):
                    self._pending.add_done_callback(self._fulfil)
                else:  # the device tells no thread when it is done
                    Thread(target=self._fulfil, args=(self._pending,), name="clrt-wait").start()
            return self._future

    def _follow(self, future: Future[dict[str, Any]]) -> None:
        if future.cancelled():
            self._stop.requested = True

    def _fulfil(self, pending: Pending) -> None:
        """Gives the future what came of the run."""
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
        import asyncio  # a tenth of what it takes to import clrt

        future = asyncio.wrap_future(self.future())
        try:
            return await future
        except asyncio.CancelledError:
            if self._request.donated:  # they are the caller's again when this ends
                await asyncio.to_thread(self.cancel)
            raise

    def cancel(self) -> None:
        """Ends it between two launches, and returns when the device has done those before.

        A run that is on the device in whole, of at most 50 ms, goes to its end.
        """
        self._stop.requested = True
        with suppress(Exception):
            self._pending.result()


def _check_seconds(timeout: float | None) -> None:
    if timeout is not None and not (isinstance(timeout, Real) and timeout >= 0):
        raise InputError(f"timeout is {timeout!r}; it is a number of seconds, or None.")
