"""Faults that make a report fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .checks import MOST_STEPS


@dataclass(frozen=True)
class Faults:
    """Lines of text, each a fault.

    Attributes:
        errors: Programs that do not compile.
        misfits: Programs that spill registers or have a stack.
        refused: Launches that devices would refuse.
        slow: Programs whose main loop is below its floor.
        idle: Launches that idle cores, without a stated reason.
        long: Kernels with a loop of too many steps.
        worse: Figures that got worse.
    """

    errors: Sequence[str] = field(default=())
    misfits: Sequence[str] = field(default=())
    refused: Sequence[str] = field(default=())
    slow: Sequence[str] = field(default=())
    idle: Sequence[str] = field(default=())
    long: Sequence[str] = field(default=())
    worse: Sequence[str] = field(default=())

    def titled(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yields (title, lines) of each kind of fault."""
        yield "Programs that do not compile", self.errors
        yield "Programs that spill registers or have a stack", self.misfits
        yield "Launches that devices would refuse", self.refused
        yield "Main loops below their floors", self.slow
        yield "Launches that leave cores idle for no reason given", self.idle
        yield f"Loops of more than {MOST_STEPS:,} steps in a work-item", self.long
        yield "Figures that got worse", self.worse

    def lines(self) -> Iterator[str]:
        """Yields all faults."""
        for _, lines in self.titled():
            yield from lines
