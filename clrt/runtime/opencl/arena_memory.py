"""`ArenaMemory`: the device buffers (slabs) of an arena, which runs use one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Protocol
from weakref import WeakKeyDictionary

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.ledger import Ledger
from clrt.runtime.opencl.session import DeviceSession
from clrt.util.fast_dataclass import dataclass


class ArenaUser(Protocol):
    """Protocol for a run that uses an arena."""

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, so that the arena is free."""


@dataclass(eq=False)
class ArenaMemory:
    """Device memory of an arena, which one run uses at a time; its slabs only grow until `clear`.

    Attributes:
        account: Ledger of the model, which counts and limits the memory; None if there is none.
        buffers: One buffer for each slab.
        generation: Number of reallocations; plans bound to an older generation bind again.
        is_torn: Whether an exception interrupted a run in the arena, so that it is not reused.
        run: The last run that the arena was assigned to; None once the run has released the arena.
        views: `BoundPlan.views` by bound plan, cleared when the memory is freed. Cached, since
            creating an array takes 3 us.
    """

    session: DeviceSession
    account: Ledger | None = None
    buffers: list[TrackedBuffer] = field(default_factory=list)
    generation: int = 0
    is_torn: bool = False
    run: ArenaUser | None = None
    views: WeakKeyDictionary[object, dict[Value, Array]] = field(default_factory=WeakKeyDictionary)

    def __post_init__(self) -> None:
        self.session.connection.owners.add(self)

    @property
    def in_use(self) -> bool:
        """Whether a run that has not ended uses the arena."""
        return self.run is not None and not self.run.has_ended

    def reserve(self, sizes: Sequence[int]) -> None:
        """Grows each slab to at least a size.

        The first slab that grows and all slabs after it lose their contents.

        Args:
            sizes: Minimum size per slab in bytes.

        Raises:
            OutOfMemoryError: A slab does not fit; the slabs before it are kept.
        """
        present = self.sizes
        wanted = [max(pair) for pair in zip_longest(present, sizes, fillvalue=0)]
        same = next((i for i, n in enumerate(wanted) if present[i : i + 1] != [n]), len(wanted))
        if same == len(wanted):
            return
        # Slabs that are too small are freed first: old and new may not fit together.
        self.generation += 1
        self._forget_views()
        del self.buffers[same:]
        for size in wanted[same:]:
            self.buffers.append(self.session.allocate(size, self.account))

    @property
    def sizes(self) -> list[int]:
        """Size of each slab in bytes."""
        return [b.nbytes for b in self.buffers]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def clear(self) -> None:
        """Frees the device memory of all slabs."""
        self._forget_views()
        self.buffers.clear()
        self.generation += 1

    def _forget_views(self) -> None:
        for views in self.views.values():
            views.clear()
