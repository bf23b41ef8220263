"""What is taken of a slab, and when: finds the lowest room for a buffer in logarithmic time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Disjoint ranges of bytes in ascending order, flat: start, end, start, end, …
_Ranges = list[int]


@dataclass(frozen=True)
class LifetimeNodes:
    """A lifetime as nodes of a segment tree over ticks: node n has the children 2n and 2n + 1.

    Attributes:
        parts: The nodes that make up the lifetime.
        above: Their ancestors.
    """

    parts: tuple[int, ...]
    above: tuple[int, ...]

    @classmethod
    def of(cls, first: int, last: int, ticks: int) -> LifetimeNodes:
        """The ticks from `first` to `last` of a tree over so many."""
        low, high = first + ticks, last + ticks + 1
        parts: list[int] = []
        while low < high:
            if low & 1:
                parts.append(low)
                low += 1
            if high & 1:
                high -= 1
                parts.append(high)
            low, high = low >> 1, high >> 1
        above: set[int] = set()
        for node in parts:
            node >>= 1
            while node and node not in above:
                above.add(node)
                node >>= 1
        return cls(tuple(parts), tuple(above))


class SlabOccupancy:
    """Buffers with a lifetime and a place in one piece of memory."""

    def __init__(self) -> None:
        # By node of the tree: what is taken at some tick below it, and what is at all of them.
        self._somewhere: dict[int, _Ranges] = {}
        self._throughout: dict[int, _Ranges] = {}

    def room(self, lifetime: LifetimeNodes, nbytes: int) -> int:
        """The lowest offset from which on so many bytes are free all the time."""
        taken = [self._somewhere[n] for n in lifetime.parts if n in self._somewhere]
        taken += [self._throughout[n] for n in lifetime.above if n in self._throughout]
        return _lowest_gap(taken, nbytes)

    def take(self, lifetime: LifetimeNodes, offset: int, nbytes: int) -> None:
        """Takes bytes for that time."""
        _add(self._throughout, lifetime.parts, offset, offset + nbytes)
        _add(self._somewhere, (*lifetime.parts, *lifetime.above), offset, offset + nbytes)


def _lowest_gap(taken: Sequence[_Ranges], nbytes: int) -> int:
    """The least offset from which on so many bytes are in none of the ranges."""
    offset, free, place = 0, 0, 0
    while free < len(taken):  # so many in a row have room at the offset
        ranges = taken[place]
        index = bisect_right(ranges, offset)
        if index & 1:
            offset, free = ranges[index], 0
        elif index < len(ranges) and ranges[index] < offset + nbytes:
            offset, free = ranges[index + 1], 0
        else:
            free += 1
            place = (place + 1) % len(taken)
    return offset


def _add(held: dict[int, _Ranges], nodes: Iterable[int], start: int, end: int) -> None:
    for node in nodes:
        ranges = held.get(node)
        if ranges is None:
            held[node] = [start, end]
            continue
        low, high = bisect_left(ranges, start), bisect_right(ranges, end)
        # What touches the new range, or lies in it, becomes one with it.
        ranges[low:high] = [x for x, place in ((start, low), (end, high)) if not place & 1]
