"""Ctrl-C during generation: ends the text, not the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Cancellable(Protocol):
    """Interface of a stream of generated text that a signal handler can cancel."""

    def cancel(self) -> None:
        """Requests that the stream ends soon; returns at once."""


@contextmanager
def ending_by_interrupt(stream: Cancellable) -> Iterator[None]:
    """Lets Ctrl-C cancel `stream` within the context; a second Ctrl-C raises KeyboardInterrupt.

    Cancelling is safe, while an exception in a decoder step would invalidate the KV cache of all
    sequences. Does nothing outside of the main thread.
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
