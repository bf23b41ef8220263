"""Process-wide default for reports on programs that are compiled in the background."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]

default_progress: Progress | None = None
"""Called with (done, total) for models without an `on_progress` of their own; commands set it."""


def progress_text(done: int, total: int) -> str:
    """Returns a message for (done, total), such as "compiling 12 of 54 kernels …"."""
    return f"compiling {min(done + 1, total)} of {total} kernels in the background"
