"""Ledgers of live device buffers, with a limit in bytes: per model, and for all models."""

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
    """Protocol for a run that reserves memory in a ledger before it allocates the memory."""

    @property
    def is_allocating(self) -> bool:
        """Whether the run may still allocate memory."""


class Ledger:
    """Sums the sizes of live device buffers, and checks the sum against a limit.

    The sum is computed from a dict of live buffers, which single built-in calls update. An
    exception at any point, such as KeyboardInterrupt, could leave a counter wrong instead.

    Attributes:
        limit: Maximum number of bytes; None for no limit.
        name: Name of the function or option that sets the limit, for messages.
    """

    def __init__(self, limit: int | None = None, name: str = "") -> None:
        self.limit, self.name = limit, name
        self._sizes: dict[ref[TrackedBuffer], int] = {}
        # Weak: only the caller keeps an ended run, and so its results, alive.
        self._claims: list[tuple[ref[Claimant], int]] = []

    @property
    def nbytes(self) -> int:
        """Total size of the live buffers in bytes."""
        return sum(self._sizes.values())

    @property
    def left(self) -> float:
        """Bytes of the limit that are neither allocated nor claimed.

        Negative if the limit is exceeded, infinite if there is none.
        """
        if self.limit is None:
            return math.inf
        self._claims = [c for c in self._claims if (run := c[0]()) and run.is_allocating]
        return self.limit - self.nbytes - sum(nbytes for _, nbytes in self._claims)

    def claim(self, run: Claimant, nbytes: int) -> None:
        """Reserves `nbytes` that a run will allocate, until `run.is_allocating` is False."""
        if self.limit is not None and nbytes:
            self._claims = [*self._claims, (ref(run), nbytes)]

    def check(self, nbytes: int) -> None:
        """Checks that another buffer of `nbytes` fits within the limit.

        Raises:
            OutOfMemoryError: The buffer would exceed the limit.
        """
        if self.limit is not None and self.nbytes + nbytes > self.limit:
            left = max(self.limit - self.nbytes, 0)
            raise OutOfMemoryError(
                f"A buffer of {format_bytes(nbytes)} exceeds the limit: {self.name} allows "
                f"{format_bytes(self.limit)}, of which {format_bytes(left)} are left.",
                nbytes,
                left,
            )

    def add(self, buffer: TrackedBuffer) -> None:
        """Counts a buffer towards the sum until it is garbage-collected."""
        self._sizes[ref(buffer, self._sizes.pop)] = buffer.nbytes


class MemoryHolder(Protocol):
    """Protocol for an owner of device memory (a model) that can free it for other owners."""

    @property
    def used_s(self) -> float:
        """Time at which the owner's memory was last used, in seconds of `time.perf_counter`."""

    @property
    def is_busy(self) -> bool:
        """Whether a run of another thread uses the owner's memory, and will release some of it."""

    def give_up(self, *, weights: bool) -> None:
        """Frees memory that no run uses.

        Args:
            weights: True to free weights and arenas; does nothing while a run of the owner is in
                progress. False to free only the arenas that no run uses.
        """


class MemoryBudget(Ledger):
    """Ledger of the device memory of all models together.

    Attributes:
        changes: Wakes the threads that wait until other models release memory.
        epoch: Object that each `note_change` replaces. A thread that kept the earlier object can
            thus notice that memory was released since.
    """

    def __init__(self) -> None:
        super().__init__(None, "set_memory_budget")
        self.changes = Waiters()
        self.epoch = object()
        self._holders: WeakSet[MemoryHolder] = WeakSet()
        self._pools: list[Callable[[], None]] = []

    def note_change(self) -> None:
        """Wakes the threads that wait for memory, so that they check the budget again."""
        self.epoch = object()
        self.changes.wake()

    def enter(self, holder: MemoryHolder) -> None:
        """Registers an owner of memory, referenced weakly, from which `reclaim` may free memory."""
        self._holders.add(holder)

    def enter_pool(self, clear: Callable[[], None]) -> None:
        """Registers a function that frees pooled buffers; `check` calls it if memory is short."""
        self._pools.append(clear)

    def check(self, nbytes: int) -> None:
        """Checks that another buffer of `nbytes` fits; if it does not, first frees pooled buffers.

        Raises:
            OutOfMemoryError: The buffer would exceed the limit.
        """
        if self.limit is not None and self.nbytes + nbytes > self.limit:
            self.clear_pools()
        super().check(nbytes)

    def reclaim(self, nbytes: int, holder: MemoryHolder | None = None) -> bool:
        """Frees unused memory until `nbytes` are left, least recently used owner first.

        Frees idle arenas of every owner first, then weights, which the next run uploads again.
        The caller must not hold the lock of a model.

        Args:
            nbytes: Number of bytes needed.
            holder: Owner that needs the memory; memory of this owner is not freed. None to free
                memory of all owners.

        Returns:
            Whether `nbytes` are left now.
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
        """Returns whether an owner other than `holder` is busy, so that memory will be released."""
        return any(other.is_busy for other in self._holders if other is not holder)

    def clear_pools(self) -> None:
        """Frees the pooled buffers of released tensors on all devices."""
        for clear in tuple(self._pools):
            clear()


BUDGET = MemoryBudget()
# Lock that makes the check of the limits, the allocation and its entries in the ledgers atomic.
ALLOCATING: Any = RLock()
