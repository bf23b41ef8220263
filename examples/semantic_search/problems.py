"""What keeps a file out of the index, as one sentence for its user."""

from __future__ import annotations


class ProblemError(Exception):
    """A file or folder that cannot be read; the message says why."""


def os_problem(error: OSError) -> ProblemError:
    """The problem that an error of the operating system stands for."""
    return ProblemError(f"It cannot be opened: {error.strerror or error}.")
