"""The places of one arena for buffers of other sizes, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clrt.plan.arena import Arena, Interval, Place, align


@dataclass(frozen=True)
class Stack:
    """Which buffer lies on which others.

    A buffer starts where the highest of those ends that lie below it and are alive with it. So at
    any sizes buffers alive together do not overlap, and at the sizes of the arena it comes from
    none lies higher than there.

    Attributes:
        order: Buffers from the ground up.
        supports: Of each, those that it may lie on.
        slabs: Of each, the slab.
    """

    order: tuple[int, ...]
    supports: tuple[tuple[int, ...], ...]
    slabs: tuple[int, ...]

    @classmethod
    def of(cls, intervals: Sequence[Interval], arena: Arena) -> Stack:
        """The stack that an arena is."""
        places = arena.places
        order = sorted(range(len(places)), key=lambda i: (places[i].slab, places[i].offset_bytes))
        supports: list[tuple[int, ...]] = [()] * len(places)
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
            supports[index] = tuple(found)
            seen.append(index)
        return cls(tuple(order), tuple(supports), tuple(p.slab for p in places))

    def arena(self, nbytes: Sequence[int]) -> Arena:
        """Places for buffers of these sizes."""
        starts, ends = [0] * len(nbytes), [0] * len(nbytes)
        slab_bytes = [0] * (max(self.slabs, default=-1) + 1)
        for index in self.order:
            start = max([ends[i] for i in self.supports[index]], default=0)
            starts[index], ends[index] = start, start + align(nbytes[index])
            slab = self.slabs[index]
            slab_bytes[slab] = max(slab_bytes[slab], ends[index])
        places = tuple(map(Place, self.slabs, starts))
        return Arena(places, tuple(slab_bytes))
