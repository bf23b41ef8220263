"""Bytes of device buffers that are alive."""

from __future__ import annotations

from weakref import ref

from clrt.runtime.connection import TrackedBuffer


class Ledger:
    """Counts the bytes of buffers for as long as they live.

    There is no counter, which an exception between two lines would leave wrong for ever: entries
    are those of living buffers, and built-in methods add and remove them.
    """

    def __init__(self) -> None:
        self._sizes: dict[ref[TrackedBuffer], int] = {}

    @property
    def nbytes(self) -> int:
        """The sum of all."""
        return sum(self._sizes.values())

    def add(self, buffer: TrackedBuffer) -> None:
        """Counts a buffer until it is garbage."""
        self._sizes[ref(buffer, self._sizes.pop)] = buffer.nbytes
