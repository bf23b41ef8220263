"""Arena relayout: no overlap at new sizes, no higher offsets at the original sizes."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from clrt.plan.arena import Arena, LiveInterval, align, assign_offsets
from clrt.plan.arena_relayout import StackingOrder

_SPANS = st.tuples(
    st.integers(0, 40), st.integers(0, 12), st.integers(0, 5000), st.integers(0, 9000)
)


def _overlap(intervals: list[LiveInterval], arena: Arena) -> bool:
    def meet(a: int, b: int) -> bool:
        p, q = arena.places[a], arena.places[b]
        return (
            intervals[a].meets(intervals[b])
            and p.slab == q.slab
            and p.offset_bytes < q.offset_bytes + align(intervals[b].nbytes)
            and q.offset_bytes < p.offset_bytes + align(intervals[a].nbytes)
        )

    return any(meet(a, b) for a, b in combinations(range(len(intervals)), 2))


@given(st.lists(_SPANS, max_size=40), st.sampled_from([1 << 14, 1 << 31]))
def test_relayout_for_new_sizes_has_no_overlap(
    spans: list[tuple[int, int, int, int]], slab: int
) -> None:
    before = [LiveInterval(size, first, first + length) for first, length, size, _ in spans]
    after = [LiveInterval(size, first, first + length) for first, length, _, size in spans]
    arena = assign_offsets(before, slab)
    stack = StackingOrder.from_arena(before, arena)
    again = stack.arena([align(i.nbytes) for i in before])
    assert not _overlap(before, again)
    assert all(
        new.slab == old.slab and new.offset_bytes <= old.offset_bytes
        for new, old in zip(again.places, arena.places, strict=True)
    )
    other = stack.arena([align(i.nbytes) for i in after])
    assert not _overlap(after, other)
    for where, interval in zip(other.places, after, strict=True):
        assert where.offset_bytes + align(interval.nbytes) <= other.slab_bytes[where.slab]
