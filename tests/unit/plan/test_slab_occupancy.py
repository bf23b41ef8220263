"""Slab occupancy: the lowest free offset, compared with a full scan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clrt.plan.slab_occupancy import LifetimeNodes, SlabOccupancy

TICKS = 32
_LIVES = st.tuples(st.integers(0, TICKS - 1), st.integers(0, TICKS - 1)).map(sorted)


@given(st.lists(st.tuples(_LIVES, st.integers(1, 9)), max_size=40))
def test_slab_allocation_uses_lowest_free_offset(wanted: list[tuple[list[int], int]]) -> None:
    slab = SlabOccupancy()
    taken: list[tuple[int, int, int, int]] = []
    for (first, last), nbytes in wanted:
        span = LifetimeNodes.from_interval(first, last, TICKS)
        beside = [(o, e) for f, t, o, e in taken if f <= last and first <= t]
        starts = (0, *(end for _, end in beside))
        lowest = min(s for s in starts if all(s + nbytes <= o or e <= s for o, e in beside))
        assert slab.lowest_free_offset(span, nbytes) == lowest
        slab.occupy(span, lowest, nbytes)
        taken.append((first, last, lowest, lowest + nbytes))


@given(_LIVES)
def test_lifetime_nodes_cover_exactly_their_ticks(life: list[int]) -> None:
    span = LifetimeNodes.from_interval(life[0], life[1], TICKS)
    leaves = [
        leaf
        for leaf in range(TICKS, 2 * TICKS)
        for up in range(TICKS.bit_length())
        if leaf >> up in span.parts
    ]
    assert leaves == [TICKS + tick for tick in range(life[0], life[1] + 1)]
    assert set(span.above) == {p >> up for p in span.parts for up in range(1, 6) if p >> up}
