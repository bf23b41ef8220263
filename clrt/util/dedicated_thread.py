"""Runs a function in a separate thread, with a timeout or a larger stack: for native libraries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_stack_lock = threading.Lock()


def call_in_thread(
    call: Callable[[], T], seconds: float | None = None, stack_bytes: int | None = None
) -> T:
    """Calls a function in a daemon thread and returns its result.

    Args:
        call: The function. Its exceptions are raised in the calling thread.
        seconds: Timeout in seconds; None waits without a limit. After a timeout the thread
            continues to run.
        stack_bytes: Stack size of the thread in bytes; None for Python's default.

    Raises:
        TimeoutError: The function runs longer than `seconds`.
        RuntimeError: A thread with this stack size cannot be started.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="clrt-call")
    if stack_bytes is None:
        thread.start()
    else:
        with _stack_lock:  # the size applies to all threads started meanwhile
            before = threading.stack_size(stack_bytes)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no result after {seconds} s")
    return results[0]
