"""`BackgroundCall`: the result of a function that a thread computes meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Calls a function once in a daemon thread. Calling the object waits for the result.

    In a process that was forked before the thread was done, the function is called again.

    Args:
        function: The function. Its exceptions are raised by each call of this object.
        name: Name of the thread.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._function, self._process = function, os.getpid()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def __call__(self) -> T:
        """Waits for the function; returns its result, or raises its exception."""
        if not self._results and self._process == os.getpid():
            self._thread.join()
        if self._error is not None:
            raise self._error
        if not self._results:  # a forked process does not have the thread
            self._work()
            return self()
        return self._results[0]

    def _work(self) -> None:
        try:
            self._results.append(self._function())
            del self._function  # which may hold much
        except BaseException as error:
            self._error = error
