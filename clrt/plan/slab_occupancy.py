"""Occupied byte ranges of a slab over time: finds the lowest free offset for a lifetime."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from clrt.util.fast_dataclass import dataclass

# Disjoint ranges of bytes in ascending order, flat: start, end, start, end, …
_Ranges = list[int]


@dataclass(frozen=True)
class LifetimeNodes:
    """A buffer's lifetime as nodes of a segment tree over time.

    Node n has the children 2n and 2n + 1.

    Attributes:
        parts: Indices of disjoint tree nodes that together cover the lifetime.
        above: Indices of the ancestors of `parts`.
    """

    parts: tuple[int, ...]
    above: tuple[int, ...]

    @classmethod
    def from_interval(cls, first: int, last: int, ticks: int) -> LifetimeNodes:
        """Returns the tree nodes that cover a lifetime.

        Args:
            first: Index of the first memory event of the lifetime.
            last: Index of the last memory event, inclusive.
            ticks: Number of leaves of the tree, a power of 2 greater than `last`.
        """
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
    """Records which byte ranges of one slab are occupied at which times."""

    def __init__(self) -> None:
        # Tree node -> byte ranges that are occupied at some ticks below the node; and those that
        # are occupied at all of its ticks.
        self._somewhere: dict[int, _Ranges] = {}
        self._throughout: dict[int, _Ranges] = {}

    def lowest_free_offset(self, lifetime: LifetimeNodes, nbytes: int) -> int:
        """Returns the lowest offset in bytes with `nbytes` free throughout `lifetime`."""
        occupied = [self._somewhere[n] for n in lifetime.parts if n in self._somewhere]
        occupied += [self._throughout[n] for n in lifetime.above if n in self._throughout]
        return _lowest_gap(occupied, nbytes)

    def occupy(self, lifetime: LifetimeNodes, offset: int, nbytes: int) -> None:
        """Marks `nbytes` bytes, from `offset` on, as occupied during `lifetime`."""
        _add(self._throughout, lifetime.parts, offset, offset + nbytes)
        _add(self._somewhere, (*lifetime.parts, *lifetime.above), offset, offset + nbytes)


def _lowest_gap(occupied: Sequence[_Ranges], nbytes: int) -> int:
    """Returns the lowest offset in bytes at which `nbytes` are free.

    Args:
        occupied: Lists of byte ranges, none of which may overlap; a list alternates start and end,
            ascending.
        nbytes: Size in bytes.
    """
    offset, free, current = 0, 0, 0
    while free < len(occupied):  # number of lists in a row in which `offset` is free
        ranges = occupied[current]
        index = bisect_right(ranges, offset)
        if index & 1:
            offset, free = ranges[index], 0
        elif index < len(ranges) and ranges[index] < offset + nbytes:
            offset, free = ranges[index + 1], 0
        else:
            free += 1
            current = (current + 1) % len(occupied)
    return offset


def _add(tree: dict[int, _Ranges], nodes: Iterable[int], start: int, end: int) -> None:
    """Marks the bytes from `start` to `end` (exclusive) as occupied at some nodes of a tree."""
    for node in nodes:
        ranges = tree.get(node)
        if ranges is None:
            tree[node] = [start, end]
            continue
        low, high = bisect_left(ranges, start), bisect_right(ranges, end)
        # Merges the new range with the ranges that it touches or contains.
        ranges[low:high] = [x for x, index in ((start, low), (end, high)) if not index & 1]
