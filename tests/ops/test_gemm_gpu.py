"""Products on GPUs: tile choice, and split K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.dtypes import DType
from clrt.kernels.gemm_gpu import FEW_ROWS, best_tile, tiles_from
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.quantized_gather import QuantizedGather
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul
from clrt.passes.device_pipeline import prepare
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep, launches_of
from clrt.plan.traffic import traffic
from tests.harness import quick_device, run_plan
from tests.ops.test_gemm_split_float_cpu import product
from tests.ops.test_split_product import GELU, RESIDUAL, Build, floats, planned

UNITS = 64


def gpu_plan(build: Build, **changes: Any) -> Plan:
    caps = replace(quick_device().caps, kind="gpu", compute_units=UNITS, **changes)
    return planned(build.graph, caps, {})


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [(1, 384, (2, 2)), (128, 384, (2, 2)), (512, 768, (4, 4)), (4096, 4096, (8, 8))],
)
def test_gemm_tile_choice_fills_compute_units(m: int, n: int, tile: tuple[int, int]) -> None:
    tiles = tiles_from(8, 8, 2)
    assert tiles == ((8, 8), (4, 4), (2, 2))
    assert tiles[best_tile(m, n, 1, UNITS, 8, 8, least=2)] == tile


def test_gemm_tiles_fit_local_memory() -> None:
    build = product(floats(500, 64), floats(64, 500))
    kinds = {}
    for kib in (16, 32):
        plan = gpu_plan(build, local_mem_bytes=kib << 10)
        kernels = {x.kernel for x in launches_of(plan.steps)} | set(plan.precompiled_kernels)
        kinds[kib] = {dict(k.defines).get("T_RM") for k in kernels if k.entry == "gemm_gpu"}
    assert kinds == {16: {"4", "2"}, 32: {"8", "4", "2"}}


def test_gemm_tiles_of_all_sizes_request_sub_group_size() -> None:
    build = product(floats(500, 64), floats(64, 500))
    for sizes, asked in (({16, 32}, "16"), ({8, 16, 32}, None), ((), None)):
        plan = gpu_plan(build, sub_group_sizes=frozenset(sizes))
        tiles = [
            k
            for k in (*plan.precompiled_kernels, launches_of(plan.steps)[0].kernel)
            if k.entry == "gemm_gpu"
        ]
        assert {dict(k.defines).get("F_SUB_GROUP") for k in tiles} == {asked}
        assert {dict(k.defines)["T_RM"] for k in tiles} == {"8", "4", "2"}


def check(build: Build, plan: Plan) -> None:
    results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, quick_device())
    for value in build.graph.outputs:
        np.testing.assert_allclose(results[value.name], build.known[value], rtol=0, atol=2e-4)


@pytest.mark.parametrize("op", [None, GELU, RESIDUAL], ids=["alone", "gelu", "residual"])
@pytest.mark.parametrize(("m", "parts", "entry"), [(3, 4, "few_rows_gpu"), (19, 8, "gemm_gpu")])
def test_gemm_split_k_matches_reference(
    m: int, parts: int, entry: str, op: FusedMatMul | None
) -> None:
    """Few work-groups would leave units idle: K is split over several, and the parts are joined."""
    build = product(floats(m, 4096), floats(4096, 50) / 8, op=op)
    plan = gpu_plan(build)
    share, joined = launches_of(plan.steps)
    assert (share.kernel.entry, joined.kernel.entry) == (entry, "join_parts")
    assert share.global_size[2] == parts
    # Kernels for the sizes of later calls: of parts, and of the whole product.
    products = {share.kernel, *(k for k in plan.precompiled_kernels if k != joined.kernel)}
    assert len(products) == (len(tiles_from(8, 8, 2)) + 1) * (1 if op is None else 2)
    check(build, plan)


def test_gemm_tiles_split_k_for_16_rows() -> None:
    build = Build()
    x, w = build.given("x", floats(16, 2048)), build.given("w", floats(1024, 2048))
    build.graph.outputs = [build.apply(FusedMatMul(trans_b=1), x, w)]
    share, joined = launches_of(gpu_plan(build).steps)
    assert (share.kernel.entry, joined.kernel.entry) == ("gemm_gpu", "join_parts")


@pytest.mark.parametrize("m", [1, 8, 9])
@pytest.mark.parametrize("last", ["n", "k"])
def test_few_rows_gemm_matches_reference(m: int, last: str) -> None:
    build = Build()
    rows = floats(2, m, 70)
    rows[0, 0, -1] = np.inf  # what is past the end counts as 0, not as NaN
    x = build.given("x", rows)
    w = build.given("w", floats(2, 70, 45) if last == "n" else floats(2, 45, 70))
    build.graph.outputs = [build.apply(FusedMatMul(trans_b=int(last == "k")), x, w)]
    plan = gpu_plan(build)
    (launch,) = launches_of(plan.steps)
    assert launch.kernel.entry == ("few_rows_gpu" if m <= FEW_ROWS else "gemm_gpu")
    check(build, plan)


@pytest.mark.parametrize("stored", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize("k", [8, 600, 2048])
@pytest.mark.parametrize("trans_a", [0, 1])
def test_few_rows_gemm_with_vector_loads_matches_reference(
    stored: DType, k: int, trans_a: int
) -> None:
    """K is a multiple of eight; long K axes are split."""
    build, m = Build(), 3
    rows = floats(m, k)
    rows[0, -1] = np.inf
    x = build.given("x", rows.T.copy() if trans_a else rows)
    w = build.given("w", floats(45, k).astype(stored.numpy))
    build.graph.outputs = [build.apply(FusedMatMul(trans_a=trans_a, trans_b=1), x, w)]
    plan = gpu_plan(build)
    launch = launches_of(plan.steps)[0]
    defines = dict(launch.kernel.defines)
    assert launch.kernel.entry == "few_rows_gpu"
    assert (defines["S_A_WIDE"], defines["S_B_WIDE"]) == (str(1 - trans_a), "1")
    check(build, plan)


@pytest.mark.parametrize(("type_", "nbytes"), [("Q4_0", 4.5 / 8), ("Q4_K", 148 / 256)])
@pytest.mark.parametrize("m", [1, 9])
def test_low_bit_weights_stay_packed(type_: str, nbytes: float, m: int) -> None:
    n, k = 96, 1024
    build = Build()
    raw = np.zeros((n, BLOCK_TYPES_BY_NAME[type_].row_bytes(k)), np.uint8)
    x, w = build.given("x", floats(m, k)), build.given("w", raw, constant=True)
    build.graph.outputs = [build.apply(QuantizedMatMul(type_, k, n), x, w)]
    plan = gpu_plan(build)
    (launch,) = launches_of(plan.steps)
    assert launch.kernel.entry == ("few_rows_gpu" if m <= FEW_ROWS else "gemm_gpu")
    assert sum(plan.uploads.values()) == n * k * nbytes


def test_tied_embedding_weight_is_uploaded_once() -> None:
    n, k, device = 96, 512, quick_device()
    caps = replace(device.caps, kind="gpu", compute_units=UNITS, matrix_shapes=frozenset())
    build = Build()
    raw = np.zeros((n, BLOCK_TYPES_BY_NAME["Q4_K"].row_bytes(k)), np.uint8)
    ids = build.given("ids", np.array([3, 5]))
    table = build.given("table", raw, constant=True)
    rows = build.apply(QuantizedGather("Q4_K", k, n), ids, table)
    build.graph.outputs = [build.apply(QuantizedMatMul("Q4_K", k, n), rows, table)]
    build.graph.output_names = ["y"]
    prepare(build.graph, caps)
    plan = planned(build.graph, caps, {})
    assert len(plan.uploads) == 1
    gather = next(s for s in plan.steps if isinstance(s, DeviceStep))
    moved = traffic(gather.nodes, gather.launches[0])
    assert moved.written == 2 * k * 4 and moved.read == moved.written + ids.nbytes
