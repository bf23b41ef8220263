"""Reuses an arena layout for new buffer sizes, without a placement search."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.plan.arena import Arena, LiveInterval
from clrt.util.background import yield_point
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class StackingOrder:
    """Says which buffers of an arena lie on which, to lay the arena out anew for other sizes.

    The order is read from a planned arena. Of two buffers of a slab whose lifetimes overlap, the
    one with the lower offset lies below the other. In a new layout, a buffer starts at the highest
    end of the buffers directly below it. So buffers alive at the same time never overlap, whatever
    their sizes. If no size has changed, no buffer has a higher offset than in the planned arena.

    Attributes:
        order: Buffer indices by ascending slab and offset in the planned arena.
        supports: For each entry of `order`, the indices of the buffers directly below it, without
            another buffer in between.
        slabs: Slab index of each buffer.
    """

    order: tuple[int, ...]
    supports: tuple[tuple[int, ...], ...]
    slabs: tuple[int, ...]

    @classmethod
    def from_arena(cls, intervals: Sequence[LiveInterval], arena: Arena) -> StackingOrder:
        """Returns the stacking order of the buffers of an arena.

        Args:
            intervals: Size and lifetime of each buffer.
            arena: Arena that was planned for `intervals`.
        """
        places = arena.places
        order = sorted(range(len(places)), key=places.__getitem__)
        supports: list[tuple[int, ...]] = []
        # Per buffer: bit mask of all buffers below it, directly or transitively.
        below = [0] * len(places)
        seen: list[int] = []
        for index in order:
            yield_point()
            if seen and places[seen[-1]].slab != places[index].slab:
                seen = []
            direct: list[int] = []
            for other in reversed(seen):
                if not below[index] >> other & 1 and intervals[other].meets(intervals[index]):
                    direct.append(other)
                    below[index] |= below[other] | 1 << other
            supports.append(tuple(direct))
            seen.append(index)
        return cls(tuple(order), tuple(supports), tuple(p.slab for p in places))

    def arena(self, aligned_bytes: Sequence[int]) -> Arena:
        """Returns the arena for buffers of new sizes in this stacking order.

        Args:
            aligned_bytes: Size of each buffer, aligned by `arena.align`.
        """
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
        return Arena(self.slabs, tuple(starts), tuple(slab_bytes))
