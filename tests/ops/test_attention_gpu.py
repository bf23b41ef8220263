"""Attention on GPUs: tile choice, and splits over the keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.kernels.attention_gpu import split_count, takes_few
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of
from tests import plans
from tests.harness import plan_graph, quick_device, run_plan, sample_graph
from tests.ops.samples import Sample
from tests.passes.helpers import graph_of

UNITS = 32


@pytest.mark.parametrize(
    ("rows", "pairs", "few", "parts"),
    [(1, 8, 1, 8), (4, 8, 1, 8), (128, 2, 1, 4), (128, 12, 0, 1), (512, 12, 0, 1), (1, 256, 1, 1)],
)
def test_attention_split_fills_all_compute_units(
    rows: int, pairs: int, few: int, parts: int
) -> None:
    assert takes_few(rows, pairs, 2 * UNITS, 8, 4) == few
    assert not few or split_count(rows, pairs, 4 * UNITS, 8, 1024 // (2 * 64)) == parts


def test_attention_new_shape_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans come from the template of another shape if they use the same kernels."""
    gpu = replace(plans.CPU, kind="gpu", compute_units=UNITS)
    gpu = replace(gpu, max_work_group_size=256, local_mem_bytes=1 << 15)
    monkeypatch.setattr(plans, "CPU", gpu)
    op = "clrt.FusedAttention{num_heads=2, kv_num_heads=2, head_size=16, v_head_size=16}"
    inputs = "%q: float32[B,S,32], %k: float32[B,T,32]"
    graph = graph_of(f"%y: float32[B,S,32] = {op}(%q, %k, %k)", inputs)
    sizes = [{"B": 1, "S": s, "T": t} for s, t in ((1, 1000), (2, 1001), (9, 4000), (1, 20))]
    assert plans.count_alike(graph, sizes) == 3
    sizes.append({"B": 8, "S": 500, "T": 500})
    made = [plans.plan(specialise(graph, s)) for s in sizes]
    kernels = [{x.kernel for x in launches_of(p.steps)} | set(p.precompiled_kernels) for p in made]
    assert all(k == kernels[0] for k in kernels)


@pytest.mark.parametrize(
    ("queries", "keys", "room", "entries"),
    [
        (2, 300, 320, [("fused_attention_gpu", 1), ("attention_joined", None)]),
        (300, 300, 300, [("fused_attention_gpu", 4)]),
    ],
    ids=["parts", "tiles"],
)
def test_attention_parts_and_tiles_match_reference(
    queries: int, keys: int, room: int, entries: list[tuple[str, int | None]]
) -> None:
    """Tile sizes of real devices, with two query heads per key head, in a cache."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, 4, queries, 64)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 2, room, 64)).astype(np.float32)
    lengths = np.array([keys, keys - 99])
    k[0, :, keys:], v[0, :, keys:] = np.nan, np.nan  # what must not be read
    op = FusedAttention.plain(4, 64, kv_num_heads=2, is_causal=True, at_end=True, softcap=5.0)
    sample = Sample(op, (q, k, v, None, lengths))
    device = quick_device()
    caps = replace(device.caps, kind="gpu", compute_units=2 if queries > 2 else UNITS)
    plan = plan_graph(sample_graph(sample), caps, {})
    launches = launches_of(plan.steps)
    rows = [dict(x.kernel.defines).get("T_RQ") for x in launches]
    found = [(x.kernel.entry, r and int(r)) for x, r in zip(launches, rows, strict=True)]
    assert found == entries
    # Kernels for the sizes of later calls: tiles of few and of many rows, parts, and the join.
    assert len({x.kernel for x in launches} | set(plan.precompiled_kernels)) == 4
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(sample.inputs) if a is not None}
    (result,) = run_plan(plan, feeds, device).values()
    (expected,) = op.reference(q, np.nan_to_num(k), np.nan_to_num(v), None, lengths)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2e-5)


def test_attention_tiles_fit_local_memory() -> None:
    op = FusedAttention.plain(4, 64, is_causal=True)
    q = np.zeros((1, 300, 256), np.float32)
    found = {}
    for kib in (8, 16, 32):
        caps = replace(plans.CPU, kind="gpu", max_work_group_size=256, local_mem_bytes=kib << 10)
        plan = plan_graph(sample_graph(Sample(op, (q, q, q))), caps, {})
        kernels = {x.kernel for x in launches_of(plan.steps)} | set(plan.precompiled_kernels)
        found[kib] = {dict(k.defines).get("T_RQ") for k in kernels} - {None}
    assert found == {8: set(), 16: {"2", "1"}, 32: {"4", "1"}}
