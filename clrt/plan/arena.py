"""Places buffers with known lifetimes in slabs so that those alive together never overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.errors import OutOfMemoryError
from clrt.kernels.spec import INDEXED_BYTES
from clrt.plan.slab_occupancy import LifetimeNodes, SlabOccupancy


@dataclass(frozen=True)
class LiveInterval:
    """A buffer to place: its size and the first and last step that touch it."""

    nbytes: int
    first: int
    last: int

    def meets(self, other: LiveInterval) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


class Allocation(NamedTuple):
    """Where a buffer lies."""

    slab: int
    offset_bytes: int


@dataclass(frozen=True)
class Arena:
    """Places in the order of the intervals, and the size of each slab."""

    places: tuple[Allocation, ...]
    slab_bytes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(self.slab_bytes)


def align(nbytes: int) -> int:
    """The bytes a buffer takes in an arena (at least one unit)."""
    return max(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES


def live_bytes(intervals: Sequence[LiveInterval]) -> int:
    """The largest sum of aligned sizes alive at one step: no arena can be smaller."""
    change: dict[int, int] = {}
    for interval in intervals:
        size = align(interval.nbytes)
        change[interval.first] = change.get(interval.first, 0) + size
        change[interval.last + 1] = change.get(interval.last + 1, 0) - size
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


def separate(intervals: Sequence[LiveInterval], max_slab_bytes: int) -> Arena:
    """Each buffer in a slab of its own, to the byte: what a simulator needs.

    It then sees each access outside a tensor, and takes no tensor for uninitialised: Oclgrind
    forgets all else that it knows of a buffer when the host writes to a part of it.

    Raises:
        OutOfMemoryError: One buffer is larger than a slab may be.
    """
    _check_sizes(intervals, max_slab_bytes)
    places = tuple(Allocation(slab, 0) for slab in range(len(intervals)))
    return Arena(places, tuple(i.nbytes for i in intervals))


def assign_offsets(intervals: Sequence[LiveInterval], max_slab_bytes: int) -> Arena:
    """Greedy by size: the largest first, each at the lowest offset that is free all its life.

    The order by size alone loses where many equal buffers chain. So where it takes more than is
    alive at once, an order by start is tried as well, and the smaller arena is taken.

    Raises:
        OutOfMemoryError: One buffer is larger than a slab may be.
    """
    _check_sizes(intervals, max_slab_bytes)
    indices = range(len(intervals))
    begin = min((i.first for i in intervals), default=0)
    ticks = 1 << max((i.last - begin for i in intervals), default=0).bit_length()
    spans = [LifetimeNodes.of(i.first - begin, i.last - begin, ticks) for i in intervals]
    by_size = sorted(indices, key=lambda i: (-intervals[i].nbytes, intervals[i].first))
    arena = _place(intervals, spans, by_size, max_slab_bytes)
    if arena.nbytes == live_bytes(intervals):
        return arena
    by_start = sorted(indices, key=lambda i: (intervals[i].first, -intervals[i].nbytes))
    other = _place(intervals, spans, by_start, max_slab_bytes)
    return min(arena, other, key=lambda a: a.nbytes)


def _check_sizes(intervals: Sequence[LiveInterval], max_slab_bytes: int) -> None:
    largest = max((align(i.nbytes) for i in intervals), default=0)
    if largest > max_slab_bytes:
        raise OutOfMemoryError(
            f"A buffer of {largest / 2**20:.0f} MiB is needed, and the device allocates at most "
            f"{max_slab_bytes / 2**20:.0f} MiB at once. Use a smaller batch or sequence.",
            largest,
            max_slab_bytes,
        )


def _place(
    intervals: Sequence[LiveInterval],
    spans: Sequence[LifetimeNodes],
    order: Sequence[int],
    max_slab_bytes: int,
) -> Arena:
    largest = min(max_slab_bytes, INDEXED_BYTES)
    slabs: list[SlabOccupancy] = []
    sizes: list[int] = []
    places: dict[int, Allocation] = {}
    for index in order:
        size, span = align(intervals[index].nbytes), spans[index]
        for slab in range(len(slabs) + 1):
            if slab == len(slabs):
                slabs.append(SlabOccupancy())
                sizes.append(0)
            offset = slabs[slab].room(span, size)
            if not offset or offset + size <= largest:
                slabs[slab].take(span, offset, size)
                places[index] = Allocation(slab, offset)
                sizes[slab] = max(sizes[slab], offset + size)
                break
    return Arena(tuple(places[i] for i in range(len(intervals))), tuple(sizes))
