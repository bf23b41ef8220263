"""Bytes of device buffers that are alive, and how many there may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import RLock
from typing import Any, Protocol
from weakref import WeakSet, ref

from clrt.errors import OutOfMemoryError
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.util.active_calls import Waiters
from clrt.util.formatting import format_bytes


class Claimant(Protocol):
    """A run that is about to allocate."""

    @property
    def is_allocating(self) -> bool:
        """Whether it may not have all of its memory yet."""


class Ledger:
    """Counts the bytes of buffers for as long as they live, within a limit.

    There is no counter, which an exception between two lines would leave wrong for ever: entries
    are those of living buffers, and built-in methods add and remove them.

    Attributes:
        limit: The most bytes; None for no limit.
        name: What sets the limit, for messages.
    """

    def __init__(self, limit: int | None = None, name: str = "") -> None:
        self.limit, self.name = limit, name
        self._sizes: dict[ref[TrackedBuffer], int] = {}
        # Weak: a run's results are the caller's alone once it has ended.
        self._claims: list[tuple[ref[Claimant], int]] = []

    @property
    def nbytes(self) -> int:
        """The sum of all."""
        return sum(self._sizes.values())

    @property
    def left(self) -> float:
        """Bytes that nobody has or is about to allocate; below 0 where that is over the limit."""
        if self.limit is None:
            return math.inf
        self._claims = [c for c in self._claims if (run := c[0]()) and run.is_allocating]
        return self.limit - self.nbytes - sum(nbytes for _, nbytes in self._claims)

    def claim(self, run: Claimant, nbytes: int) -> None:
        """Counts what a run is about to allocate, until it has or has ended."""
        if self.limit is not None and nbytes:
            self._claims = [*self._claims, (ref(run), nbytes)]

    def check(self, nbytes: int) -> None:
        """Whether a further buffer may be made.

        Raises:
            OutOfMemoryError: It would exceed the limit.
        """
        if self.limit is not None and self.nbytes + nbytes > self.limit:
            left = max(self.limit - self.nbytes, 0)
            raise OutOfMemoryError(
                f"A buffer of {format_bytes(nbytes)} does not fit: {self.name} allows "
                f"{format_bytes(self.limit)}, of which {format_bytes(left)} are left.",
                nbytes,
                left,
            )

    def add(self, buffer: TrackedBuffer) -> None:
        """Counts a buffer until it is garbage."""
        self._sizes[ref(buffer, self._sizes.pop)] = buffer.nbytes


class MemoryHolder(Protocol):
    """What has device memory that others may need more."""

    @property
    def used_s(self) -> float:
        """When it was last used, by `time.perf_counter`."""

    @property
    def is_busy(self) -> bool:
        """Whether a run uses its memory, and will give some of it up."""

    def give_up(self, *, weights: bool) -> None:
        """Frees what no run uses; the weights only if asked for, and if there is no run."""


class MemoryBudget(Ledger):
    """The device memory of all models together.

    Attributes:
        changes: Threads that wait for memory of others.
        epoch: Another object once a run has begun or ended.
    """

    def __init__(self) -> None:
        super().__init__(None, "set_memory_budget")
        self.changes = Waiters()
        self.epoch = object()
        self._holders: WeakSet[MemoryHolder] = WeakSet()
        self._pools: list[Callable[[], None]] = []

    def note_change(self) -> None:
        """Has those look again that wait for memory."""
        self.epoch = object()
        self.changes.wake()

    def enter(self, holder: MemoryHolder) -> None:
        """Takes part in `reclaim`."""
        self._holders.add(holder)

    def enter_pool(self, clear: Callable[[], None]) -> None:
        """Has a function that frees unused buffers called before anything is refused."""
        self._pools.append(clear)

    def check(self, nbytes: int) -> None:
        """As `Ledger.check`; pooled buffers go before."""
        if self.limit is not None and self.nbytes + nbytes > self.limit:
            self.clear_pools()
        super().check(nbytes)

    def reclaim(self, nbytes: int, holder: MemoryHolder | None = None) -> bool:
        """Frees what others have and do not use, longest unused first, until so much is left.

        Of each first what runs have left, and then weights, which its next run uploads again.
        Call it without a lock of a model.

        Returns:
            Whether there is so much now.
        """
        others = sorted((h for h in self._holders if h is not holder), key=lambda h: h.used_s)
        self.clear_pools()
        for weights in (False, True):
            for other in others:
                if self.left >= nbytes:
                    return True
                other.give_up(weights=weights)
        return self.left >= nbytes

    def is_shared(self, holder: MemoryHolder) -> bool:
        """Whether another model will give memory up."""
        return any(other.is_busy for other in self._holders if other is not holder)

    def clear_pools(self) -> None:
        """Frees the buffers of tensors that nobody has any more."""
        for clear in tuple(self._pools):
            clear()


BUDGET = MemoryBudget()
# Held from a check to the entry of the buffer that it was for.
ALLOCATING: Any = RLock()
