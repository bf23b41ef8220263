"""Errors that keep a file out of the index, as one sentence for users."""

from __future__ import annotations


class ProblemError(Exception):
    """A file or folder that cannot be read; the message says why."""


def os_problem(error: OSError) -> ProblemError:
    """Converts an OSError to a ProblemError."""
    return ProblemError(f"It cannot be opened: {error.strerror or error}.")
