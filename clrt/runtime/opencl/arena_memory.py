"""The device memory of arenas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol
from weakref import WeakKeyDictionary

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.ledger import Ledger
from clrt.runtime.opencl.session import DeviceSession


class ArenaUser(Protocol):
    """A run in an arena."""

    @property
    def has_ended(self) -> bool:
        """Whether the arena is free again."""


@dataclass(eq=False)
class ArenaMemory:
    """Device memory of an arena, which one run uses at a time; it only grows.

    Attributes:
        account: Counts the memory, and limits it.
        generation: Counts reallocations: plans bound to an older one bind again.
        run: The run that it was taken for last; None once that has given it back.
        is_torn: Whether an exception broke off a run in it: it is not used again.
        views: By bound plan, its inputs and outputs as arrays, where the host has this memory: to
            find one takes 3 us.
    """

    session: DeviceSession
    account: Ledger | None = None
    buffers: list[TrackedBuffer] = field(default_factory=list)
    generation: int = 0
    is_torn: bool = False
    run: ArenaUser | None = None
    views: WeakKeyDictionary[object, dict[Value, Array | None]] = field(
        default_factory=WeakKeyDictionary
    )

    def __post_init__(self) -> None:
        self.session.connection.owners.add(self)

    @property
    def in_use(self) -> bool:
        """Whether its run has not ended."""
        return self.run is not None and not self.run.has_ended

    def reserve(self, sizes: Sequence[int]) -> None:
        """Makes every slab at least as large as asked for.

        Raises:
            OutOfMemoryError: One does not fit; the slabs before it are kept.
        """
        held = self.sizes
        wanted = [max(pair) for pair in zip_longest(held, sizes, fillvalue=0)]
        same = next((i for i, n in enumerate(wanted) if held[i : i + 1] != [n]), len(wanted))
        if same == len(wanted):
            return
        # What is too small goes first: there may be no room for both.
        self.generation += 1
        self._forget_views()
        del self.buffers[same:]
        for size in wanted[same:]:
            self.buffers.append(self.session.allocate(size, self.account))

    @property
    def sizes(self) -> list[int]:
        """Bytes of each slab."""
        return [b.nbytes for b in self.buffers]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def clear(self) -> None:
        """Frees the device memory."""
        self._forget_views()
        self.buffers.clear()
        self.generation += 1

    def _forget_views(self) -> None:
        for views in self.views.values():
            views.clear()
