"""Static memory planning: assigns buffers offsets in slabs, so that live buffers never overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.errors import OutOfMemoryError
from clrt.kernels.spec import INDEXED_BYTES
from clrt.plan.slab_occupancy import LifetimeNodes, SlabOccupancy
from clrt.util.background import yield_point
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class LiveInterval:
    """A buffer's size and lifetime.

    Attributes:
        nbytes: Size in bytes, before alignment.
        first: Index of the first step, or memory event, that accesses the buffer.
        last: Index of the last step, or memory event, that accesses the buffer.
    """

    nbytes: int
    first: int
    last: int

    def meets(self, other: LiveInterval) -> bool:
        """Returns whether the lifetimes of two buffers overlap."""
        return self.first <= other.last and other.first <= self.last


class Allocation(NamedTuple):
    """Location of a buffer: slab index and byte offset in the slab."""

    slab: int
    offset_bytes: int


@dataclass(frozen=True)
class Arena:
    """A memory layout of buffers.

    Attributes:
        slabs: Slab index of each buffer, in the order of the `LiveInterval`s of the buffers.
        offsets: Offset in bytes of each buffer in its slab.
        slab_bytes: Size of each slab in bytes, by slab index.
    """

    slabs: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    slab_bytes: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[Allocation, ...]:
        """Allocation of each buffer."""
        return tuple(map(Allocation, self.slabs, self.offsets))

    @property
    def nbytes(self) -> int:
        """Total size of the slabs in bytes."""
        return sum(self.slab_bytes)


def align(nbytes: int) -> int:
    """Rounds a buffer size up to a multiple of `ALIGNMENT_BYTES`; 0 becomes `ALIGNMENT_BYTES`."""
    return max(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES


def live_bytes(intervals: Sequence[LiveInterval]) -> int:
    """Returns the peak of live bytes: the largest total aligned size of buffers alive in one step.

    This is a lower bound of the size of an arena for the buffers.

    Args:
        intervals: Size and lifetime of each buffer.
    """
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


def one_slab_per_buffer(intervals: Sequence[LiveInterval], max_slab_bytes: int) -> Arena:
    """Assigns each buffer its own slab of exactly its size, for simulators.

    A simulator can then detect every access out of a tensor's bounds. Separate slabs also prevent
    false reports of uninitialised memory: if the host writes to a part of a buffer, Oclgrind
    forgets which other bytes of the buffer were initialised.

    Args:
        intervals: Size and lifetime of each buffer.
        max_slab_bytes: Maximum size of one device allocation, in bytes.

    Raises:
        OutOfMemoryError: One buffer is larger than `max_slab_bytes`.
    """
    _check_sizes(intervals, max_slab_bytes)
    slabs = tuple(range(len(intervals)))
    return Arena(slabs, (0,) * len(slabs), tuple(i.nbytes for i in intervals))


def assign_offsets(intervals: Sequence[LiveInterval], max_slab_bytes: int) -> Arena:
    """Assigns offsets greedily: each buffer at the lowest offset free throughout its lifetime.

    Buffers are placed by descending size. This order wastes memory on chains of equal buffers, so
    if the result exceeds the peak of live bytes, an order by first use is tried too, and the
    smaller arena is returned.

    Args:
        intervals: Size and lifetime of each buffer.
        max_slab_bytes: Maximum size of one device allocation, in bytes.

    Raises:
        OutOfMemoryError: One buffer is larger than `max_slab_bytes`.
    """
    _check_sizes(intervals, max_slab_bytes)
    indices = range(len(intervals))
    origin = min((i.first for i in intervals), default=0)
    ticks = 1 << max((i.last - origin for i in intervals), default=0).bit_length()
    lifetimes = [
        LifetimeNodes.from_interval(i.first - origin, i.last - origin, ticks) for i in intervals
    ]
    by_size = sorted(indices, key=lambda i: (-intervals[i].nbytes, intervals[i].first))
    arena = _place(intervals, lifetimes, by_size, max_slab_bytes)
    if arena.nbytes == live_bytes(intervals):
        return arena
    by_start = sorted(indices, key=lambda i: (intervals[i].first, -intervals[i].nbytes))
    other = _place(intervals, lifetimes, by_start, max_slab_bytes)
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
    lifetimes: Sequence[LifetimeNodes],
    order: Sequence[int],
    max_slab_bytes: int,
) -> Arena:
    """Places buffers one by one, each at the lowest free offset of the first slab that fits.

    Args:
        intervals: Size and lifetime of each buffer.
        lifetimes: Each lifetime as nodes of a segment tree.
        order: Buffer indices in the order of placement.
        max_slab_bytes: Maximum size of one device allocation, in bytes.
    """
    max_bytes = min(max_slab_bytes, INDEXED_BYTES)
    slabs: list[SlabOccupancy] = []
    sizes: list[int] = []
    slab_of, offset_of = [0] * len(intervals), [0] * len(intervals)
    for index in order:
        yield_point()
        size, lifetime = align(intervals[index].nbytes), lifetimes[index]
        for slab in range(len(slabs) + 1):
            if slab == len(slabs):
                slabs.append(SlabOccupancy())
                sizes.append(0)
            offset = slabs[slab].lowest_free_offset(lifetime, size)
            if not offset or offset + size <= max_bytes:
                slabs[slab].occupy(lifetime, offset, size)
                slab_of[index], offset_of[index] = slab, offset
                sizes[slab] = max(sizes[slab], offset + size)
                break
    return Arena(tuple(slab_of), tuple(offset_of), tuple(sizes))
