"""A run on its way: what `submit` gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from clrt.errors import NumberError
from clrt.ir.graph import Graph
from clrt.ops.base import Held
from clrt.plan.origins import traced
from clrt.runtime.execution import Execution
from clrt.runtime.pace import Stop

# How often a wait with a timeout looks: the device tells no time when it will be done.
_LOOK_S = 0.0005


class Pending(Protocol):
    """What will have the outputs of a run."""

    def done(self) -> bool:
        """Whether `result` waits for nothing."""

    def result(self, timeout: float | None = None) -> Mapping[str, Held]:
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
    there: Mapping[str, Held]
    graph: Graph

    def done(self) -> bool:
        """Whether `result` waits for nothing."""
        return self.execution.done

    def result(self, timeout: float | None = None) -> Mapping[str, Held]:
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

    The arrays that went into it stay as they are until it is done. Who drops it before lets it
    go on.
    """

    def __init__(
        self,
        pending: Pending,
        stop: Stop,
        for_user: Callable[[Mapping[str, Held]], dict[str, Any]],
    ) -> None:
        self._pending = pending
        self._stop = stop
        self._for_user = for_user

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
            TimeoutError: It is not done by then, and goes on.
            CancelledError: It was cancelled before its end.
            ClrtError: As `Model.run`.
        """
        try:
            results = self._pending.result(timeout)
        except futures.TimeoutError as error:  # another class than TimeoutError before Python 3.11
            raise TimeoutError(f"The run is not done after {timeout} seconds.") from error
        return self._for_user(results)

    def cancel(self) -> None:
        """Ends it between two launches, and returns when the device has done those before.

        A run that is on the device in whole, of at most 50 ms, goes to its end.
        """
        self._stop.requested = True
        with suppress(Exception):
            self._pending.result()
