"""Products on GPUs: which tiles they take, and parts of K."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.kernels.gemm_gpu import best_tile, tiles_from
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from tests.harness import quick_device, run_plan
from tests.ops.test_matrix_unit import product
from tests.ops.test_split_product import GELU, RESIDUAL, Build, floats, planned

UNITS = 64


def gpu_plan(build: Build) -> Plan:
    caps = replace(quick_device().caps, kind="gpu", compute_units=UNITS)
    return planned(build.graph, caps, {})


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [(1, 384, (2, 2)), (128, 384, (2, 2)), (512, 768, (4, 4)), (4096, 4096, (8, 8))],
)
def test_tiles_leave_no_unit_idle(m: int, n: int, tile: tuple[int, int]) -> None:
    tiles = tiles_from(8, 8)
    assert tiles == ((8, 8), (4, 4), (2, 2))
    assert tiles[best_tile(m, n, 1, UNITS, 8, 8)] == tile


@pytest.mark.parametrize("op", [None, GELU, RESIDUAL], ids=["alone", "gelu", "residual"])
def test_parts_of_a_deep_product(op: FusedMatMul | None) -> None:
    """Few tiles are made by the work-groups of several parts, and these joined."""
    build = product(floats(3, 1024), floats(1024, 50), op=op)
    plan = gpu_plan(build)
    share, joined = launches_of(plan.steps)
    assert (share.kernel.entry, joined.kernel.entry) == ("gemm_gpu", "join_parts")
    assert share.global_size[2] == 4
    # Kernels for the sizes of later calls, in each tile: of parts, and of the whole product.
    spare = [k for k in plan.also if k.entry == "gemm_gpu"]
    assert len({*spare, share.kernel}) == len(tiles_from(8, 8)) * (1 if op is None else 2)
    results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, quick_device())
    for value in build.graph.outputs:
        np.testing.assert_allclose(results[value.name], build.known[value], rtol=0, atol=2e-4)
