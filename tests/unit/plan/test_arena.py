"""Arena layout: buffers alive together never overlap, and the size is near the minimum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clrt.device.caps import ALIGNMENT_BYTES, DeviceCaps
from clrt.errors import OutOfMemoryError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ops.movement.transpose import Transpose
from clrt.plan.arena import (
    Arena,
    LiveInterval,
    align,
    assign_offsets,
    live_bytes,
    one_slab_per_buffer,
)
from clrt.plan.make_plan import make_plan

intervals = st.lists(
    st.builds(
        lambda nbytes, first, length: LiveInterval(nbytes, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=24,
)


@given(intervals, st.sampled_from([6016, 1 << 20]))
def test_live_buffers_are_disjoint(wanted: list[LiveInterval], slab: int) -> None:
    arena = assign_offsets(wanted, slab)
    assert all(size <= slab for size in arena.slab_bytes)
    assert arena.nbytes >= live_bytes(wanted)
    for i, (a, p) in enumerate(zip(wanted, arena.places, strict=True)):
        assert p.offset_bytes % ALIGNMENT_BYTES == 0
        assert p.offset_bytes + align(a.nbytes) <= arena.slab_bytes[p.slab]
        for b, q in list(zip(wanted, arena.places, strict=True))[i + 1 :]:
            if a.meets(b) and p.slab == q.slab:
                apart = (
                    p.offset_bytes + align(a.nbytes) <= q.offset_bytes
                    or q.offset_bytes + align(b.nbytes) <= p.offset_bytes
                )
                assert apart


def test_chain_uses_memory_of_two_buffers() -> None:
    chain = [LiveInterval(1024, i, i + 1) for i in range(20)]
    assert assign_offsets(chain, 1 << 20).nbytes == 2048 == live_bytes(chain)


def test_buffer_ends_stay_within_2_gib() -> None:
    sizes = (3 << 30, 1 << 30, 1 << 30, 1 << 20)
    arena = assign_offsets([LiveInterval(n, 0, 1) for n in sizes], 8 << 30)
    ends = [p.offset_bytes + n for p, n in zip(arena.places, sizes, strict=True) if p.offset_bytes]
    assert ends
    assert max(ends) <= 1 << 31


@pytest.mark.parametrize("arrange", [assign_offsets, one_slab_per_buffer])
def test_buffer_larger_than_slab_is_out_of_memory(arrange: Callable[..., Arena]) -> None:
    with pytest.raises(OutOfMemoryError, match="smaller batch"):
        arrange([LiveInterval(1 << 20, 0, 1)], 1 << 16)


@pytest.mark.parametrize("simulator", [False, True])
def test_simulators_get_one_slab_per_tensor(simulator: bool) -> None:
    x, h, y = (Value(name, TensorType(DType.FLOAT32, (4, 4))) for name in "xhy")
    nodes = [Node("a", Transpose((1, 0)), [x], [h]), Node("b", Transpose((1, 0)), [h], [y])]
    caps = DeviceCaps("p", "n", "v", "1", "cpu", simulator=simulator)
    plan = make_plan(Graph("g", [x], [y], nodes), caps, lambda _: {})
    assert plan.arena.slab_bytes == ((64, 64, 64) if simulator else (2 * align(64),))
    assert len({plan.allocations[v] for v in (x, h)}) == 2
