"""Ctrl-C while a text comes: it ends the text and not the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Cancellable(Protocol):
    """What can be ended from a signal's handler."""

    def cancel(self) -> None:
        """Asks for its end."""


@contextmanager
def ending_by_interrupt(stream: Cancellable) -> Iterator[None]:
    """While the block runs, Ctrl-C ends the text; a second one raises KeyboardInterrupt.

    An exception in the middle of a step would cost the cache of all texts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        stream.cancel()

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
