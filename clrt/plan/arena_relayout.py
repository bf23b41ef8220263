"""The places of one arena for buffers of other sizes, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clrt.plan.arena import Allocation, Arena, LiveInterval


@dataclass(frozen=True)
class StackingOrder:
    """Which buffer lies on which others.

    A buffer starts where the highest of those ends that lie below it and are alive with it. So at
    any sizes buffers alive together do not overlap, and at the sizes of the arena it comes from
    none lies higher than there.

    Attributes:
        order: Buffers from the ground up.
        supports: In this order, of each those that it may lie on.
        slabs: By buffer, the slab.
    """

    order: tuple[int, ...]
    supports: tuple[tuple[int, ...], ...]
    slabs: tuple[int, ...]

    @classmethod
    def of(cls, intervals: Sequence[LiveInterval], arena: Arena) -> StackingOrder:
        """The stack that an arena is."""
        places = arena.places
        order = sorted(range(len(places)), key=lambda i: (places[i].slab, places[i].offset_bytes))
        supports: list[tuple[int, ...]] = []
        below = [0] * len(places)  # as bits: all that a buffer lies on, at whatever remove
        seen: list[int] = []
        for index in order:
            if seen and places[seen[-1]].slab != places[index].slab:
                seen = []
            found: list[int] = []
            for other in reversed(seen):
                if not below[index] >> other & 1 and intervals[other].meets(intervals[index]):
                    found.append(other)
                    below[index] |= below[other] | 1 << other
            supports.append(tuple(found))
            seen.append(index)
        return cls(tuple(order), tuple(supports), tuple(p.slab for p in places))

    def arena(self, aligned_bytes: Sequence[int]) -> Arena:
        """Places for buffers of these sizes, as `align` gives them."""
        ends = [0] * len(aligned_bytes)
        starts = ends.copy()
        for index, supports in zip(self.order, self.supports, strict=True):
            start = 0
            for support in supports:
                if ends[support] > start:
                    start = ends[support]
            starts[index], ends[index] = start, start + aligned_bytes[index]
        slab_bytes = [0] * (max(self.slabs, default=-1) + 1)
        for slab, end in zip(self.slabs, ends, strict=True):
            if end > slab_bytes[slab]:
                slab_bytes[slab] = end
        return Arena(tuple(map(Allocation, self.slabs, starts)), tuple(slab_bytes))
