"""Calls of native libraries in a thread of their own: given up after a time, or on a deep stack."""

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
        call: The function. What it raises is raised here.
        seconds: How long to wait; None waits until it ends. A thread that is given up goes on.
        stack_bytes: Size of the thread's stack; None for Python's default.

    Raises:
        TimeoutError: The function takes longer.
        RuntimeError: No thread with such a stack can be started.
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
        with _stack_lock:  # the size holds for all threads that start meanwhile
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
