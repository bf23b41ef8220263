"""Products by GPU matrix units, emulated in OpenCL C after vendor documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clrt.device import gpu_matrix_shapes
from clrt.device.caps import DeviceCaps, MatrixShape
from clrt.device.gpu_matrix_shapes import GPU_UNITS, MFMA, MMA, OPERANDS, WMMA, WMMA_12, in_c
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.kernels.gemm_gpu import FEW_ROWS, GpuGemmSplits
from clrt.kernels.gemm_matrix_unit_gpu import MatrixTileCosts, best_of, few_is_best, tiles_of
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from clrt.runtime.opencl import gpu_matrix_units
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP, all_devices, name_of, quick_device, run_plan, tolerance
from tests.ops.test_split_product import RESIDUAL, Build, floats, planned

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=name_of)
GPU = DeviceCaps(
    "Test",
    "test",
    "Test",
    "1",
    "gpu",
    compute_units=16,
    max_work_group_size=256,
    local_mem_bytes=48 << 10,
    matrix_shapes=frozenset(MMA),
)
HALVES = [u for u in GPU_UNITS if u.operands == "float16"]
MMA_BFLOAT16 = next(u for u in MMA if u.operands == "bfloat16")
EPSILON = float(np.finfo(np.float32).eps)
SMALL = {"T_M": 64, "T_N": 64}
ALWAYS = {"percent": 1000}


def skip_simulator(device: DeviceInfo, unless: bool = False) -> None:
    """Skips most tests on Oclgrind, which needs 10 s for a unit emulated in C."""
    if device.caps.simulator and not unless:
        pytest.skip("a simulator takes long")


def tunables(unit: MatrixShape, waves: int = 1) -> dict[str, Mapping[str, int]]:
    lanes = {"mfma": 64, "dpas_8": 8, "dpas_16": 16}.get(unit.instructions, 32)
    items = lanes * waves
    tile = {**SMALL, "T_ITEMS": items, "T_SPLIT_ITEMS": items}
    return {"gemm_unit_gpu": tile, "gpu_unit_gains": ALWAYS}


def unit_plan(build: Build, device: DeviceInfo, unit: MatrixShape, waves: int = 1) -> Plan:
    """Returns a plan with the unit emulated in C."""
    shapes = frozenset({in_c(unit)})
    caps = replace(device.caps, kind="gpu", matrix_shapes=shapes, compute_units=1)
    plan = planned(build.graph, caps, tunables(unit, waves))
    assert {x.kernel.entry for x in launches_of(plan.steps)} == {"gemm_unit_gpu"}
    return plan


def product(a: Array, b: Array, op: FusedMatMul | None = None, constant: bool = True) -> Build:
    build = Build()
    x, w = build.given("x", a), build.given("w", b, constant)
    operands = [] if op is None or not op.steps else [build.weight(int(b.shape[-1]))]
    if op is RESIDUAL:
        operands.append(build.given("r", floats(*a.shape[:-1], b.shape[-1])))
    build.graph.outputs = [build.apply(op or FusedMatMul(), x, w, *operands)]
    return build


def run(build: Build, plan: Plan, device: DeviceInfo) -> tuple[Array, Array]:
    """Returns the results of a device and of NumPy."""
    results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, device)
    (output,) = build.graph.outputs
    return results[output.name], build.known[output]


@pytest.mark.parametrize("unit", HALVES, ids=lambda u: u.instructions)
def test_matrix_unit_operand_layout_matches_vendor(unit: MatrixShape) -> None:
    """Two waves, sizes divisible by eight; rows and columns past the last full tile."""
    device = quick_device()
    skip_simulator(device, unless=unit in MMA)
    half = DType.FLOAT16.numpy
    m = 17 if device.caps.simulator else 41
    build = product(floats(m, 72).astype(half), floats(72, 40).astype(half))
    actual, expected = run(build, unit_plan(build, device, unit, 2), device)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance(MatMul(), expected))


@DEVICES
def test_matrix_unit_odd_sizes_match_reference(device: DeviceInfo) -> None:
    """Odd sizes, stacks of matrices; bfloat16."""
    check_stacks(device, turned=False)


def test_matrix_unit_transposed_operands_match_reference() -> None:
    skip_simulator(quick_device())
    check_stacks(quick_device(), turned=True)


def check_stacks(device: DeviceInfo, turned: bool) -> None:
    build, dtype = Build(), DType.BFLOAT16.numpy
    sizes = ((2, 35, 19), (2, 9, 35)) if turned else ((2, 19, 35), (2, 35, 9))
    x, w = (build.given(n, floats(*s).astype(dtype)) for n, s in zip("xw", sizes, strict=True))
    op = FusedMatMul(trans_a=int(turned), trans_b=int(turned))
    build.graph.outputs = [build.apply(op, x, w)]
    actual, expected = run(build, unit_plan(build, device, MMA_BFLOAT16), device)
    limit = tolerance(MatMul(), expected)
    a, b = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(a, b, rtol=0, atol=limit)


@SWEEP
@pytest.mark.parametrize("stored", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_bfloat16_terms_reach_float32_accuracy(device: DeviceInfo, stored: DType) -> None:
    """Error of each sum relative to the sum of magnitudes; values of many magnitudes."""
    skip_simulator(device, unless=stored is DType.FLOAT16)
    rng = np.random.default_rng(3)
    m, n, k = 17, 16, 64
    a = rng.standard_normal((m, k)) * np.exp(rng.uniform(-30, 30, (m, 1)))
    b = rng.standard_normal((k, n)) * np.exp(rng.uniform(-2, 2, (1, n)))
    build = product(a.astype(np.float32), b.astype(stored.numpy), RESIDUAL)
    (node,) = build.graph.nodes
    a, b = (x.astype(np.float64) for x in (build.known[node.arg(i)] for i in (0, 1)))
    plan = unit_plan(build, device, MMA_BFLOAT16)
    assert launches_of(plan.steps)[0].kernel.has("TERMS_B")
    results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, device)
    (actual,) = results.values()
    bias, residual = (build.known[node.arg(i)].astype(np.float64) for i in (2, 3))
    sizes = np.abs(a) @ np.abs(b) + np.abs(bias) + np.abs(residual)
    assert np.max(np.abs(actual - (a @ b + bias + residual)) / sizes) <= 4 * EPSILON


def test_few_rows_shared_by_work_groups_match_reference() -> None:
    device = quick_device()
    caps = replace(GPU, compute_units=64)
    build = product(floats(19, 70), floats(70, 45))
    plan = planned(build.graph, caps, {"gpu_unit_gains": ALWAYS})
    (launch,) = launches_of(plan.steps)
    assert launch.local_size and launch.global_size[1] == 3 * launch.local_size[1]
    assert launch.kernel.entry == "few_rows_gpu"
    actual, expected = run(build, plan, device)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance(MatMul(), expected))


def test_bfloat16_terms_handle_inf_nan_and_overflow() -> None:
    """Infinity, NaN, and values that overflow in a product of terms but not in the sum."""
    device, largest = quick_device(), np.finfo(np.float32).max
    skip_simulator(device)
    a, b = floats(24, 40), floats(40, 16)
    a[0, 5], a[1, 7], a[2, 9], a[3, 3] = np.inf, np.nan, largest, 2e38
    b[:, 7] *= np.float32(1e-3)
    build = product(a, b)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    actual, _ = run(build, unit_plan(build, device, MMA_BFLOAT16), device)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    kept = np.isfinite(expected)
    np.testing.assert_array_equal(actual[np.isinf(expected)], expected[np.isinf(expected)])
    sums = (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))[kept]
    assert np.all(np.abs(actual[kept].astype(np.float64) - expected[kept]) <= 8 * EPSILON * sums)


def test_matrix_unit_probe_detects_support() -> None:
    device = quick_device()
    skip_simulator(device)
    assert gpu_matrix_units.works(device.handle, in_c(MMA[0]))
    # A CPU's compiler knows no builtin of AMD's, and no mma.sync. Operands "f" of assembler
    # are the stack of x87 there, with which PoCL, 3.0 and 6.0, ends the process.
    assert not gpu_matrix_units.works(device.handle, WMMA[0])
    if device.caps.is_cpu and device.platform != "Portable Computing Language":
        assert not gpu_matrix_units.works(device.handle, MMA[0])


class NamesExtensions:
    """A device that lists extensions but has no compiler for them."""

    platform = SimpleNamespace(name="Test")
    name = driver_version = "1"

    def __init__(self, extensions: str) -> None:
        self.extensions = extensions


def test_matrix_unit_probe_results_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are cached; a damaged file and an unknown name are ignored."""
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path))
    tried: list[MatrixShape] = []

    def works(device: object, unit: MatrixShape) -> bool:
        tried.append(unit)
        return unit in (*WMMA_12, MFMA[1])

    monkeypatch.setattr(gpu_matrix_units, "works", works)
    assert gpu_matrix_units.gpu_units(NamesExtensions("cl_khr_fp16 cl_apple")) == frozenset()
    assert (
        gpu_matrix_units.gpu_units(NamesExtensions("cl_nv_x"), takes_assembler=False) == frozenset()
    )
    assert not tried
    for damage in ("", '["no unit"]', "{"):
        for path in tmp_path.rglob("*.json"):
            path.write_text(damage)
        for _ in range(2):
            assert gpu_matrix_units.gpu_units(NamesExtensions("cl_amd_x")) == set(WMMA_12)
        assert tried == [WMMA[0], *WMMA_12, MFMA[0]]
        tried.clear()


# What is planned.


def entries(build: Build, caps: DeviceCaps, percent: int = 200) -> list[str]:
    plan = planned(build.graph, caps, {"gpu_unit_gains": {"percent": percent}})
    return [x.kernel.entry for x in launches_of(plan.steps)]


@pytest.mark.parametrize(
    ("stored", "rounds", "percent", "taken"),
    [
        (DType.FLOAT32, None, 200, False),
        (DType.FLOAT32, None, 720, True),
        (DType.FLOAT16, None, 599, False),
        (DType.FLOAT16, None, 600, True),
        (DType.BFLOAT16, None, 360, True),
        (DType.FLOAT16, DType.FLOAT16, 200, True),
        (DType.FLOAT32, DType.FLOAT16, 200, False),
    ],
    ids=str,
)
def test_matrix_unit_is_chosen_if_faster(
    stored: DType, rounds: DType | None, percent: int, taken: bool
) -> None:
    op = FusedMatMul(a_dtype=rounds)
    build = product(floats(512, 384), floats(384, 384).astype(stored.numpy), op)
    assert ("gemm_unit_gpu" in entries(build, GPU, percent)) is taken
    for caps in (replace(GPU, matrix_shapes=frozenset()), replace(GPU, kind="cpu")):
        assert "gemm_unit_gpu" not in entries(build, caps, percent)


def test_product_with_k_0_plans() -> None:
    entries(product(floats(40, 0), floats(0, 24)), GPU)


def test_matrix_unit_split_k_kernels_depend_on_rows() -> None:
    op = FusedMatMul(a_dtype=DType.FLOAT16)
    half = floats(4096, 64).astype(DType.FLOAT16.numpy)
    for m, entry in ((FEW_ROWS, "few_rows_gpu"), (19, "gemm_unit_gpu"), (100, "gemm_unit_gpu")):
        assert entries(product(floats(m, 4096), half, op), GPU) == [entry, "join_parts"]
    halves = floats(19, 4096).astype(DType.FLOAT16.numpy)
    assert entries(product(halves, half), GPU) == ["gemm_unit_gpu"]


def test_matrix_unit_new_shape_compiles_nothing() -> None:
    op = FusedMatMul(a_dtype=DType.FLOAT16)
    kernels: set[frozenset[object]] = set()
    for rows in (1, 16, 128, 1000):
        build = product(floats(rows, 1024), floats(1024, 64).astype(DType.FLOAT16.numpy), op)
        plan = planned(build.graph, GPU, {})
        kernels.add(
            frozenset({*plan.precompiled_kernels, *(x.kernel for x in launches_of(plan.steps))})
        )
    assert len(kernels) == 1


def test_matrix_unit_tile_choice_fills_compute_units() -> None:
    assert tiles_of(1, 128, 128) == ((128, 128), (64, 64), (32, 64))
    assert tiles_of(6, 128, 128) == ((128, 64), (64, 64), (32, 64))
    assert tiles_of(1, 64, 128) == ((64, 128), (32, 64))
    for m, n, tile in ((4096, 4096, 0), (1024, 512, 1), (64, 1024, 2)):
        assert best_of(m, n, 1, 64, 1, 128, 128, line=32) == tile


@pytest.mark.parametrize(
    ("m", "n", "k", "few"),
    [
        (8, 4096, 4096, 1),
        (16, 384, 384, 1),
        (64, 384, 384, 1),
        (16, 65536, 512, 0),
        (65, 384, 384, 0),
    ],
)
def test_few_rows_kernel_is_chosen_if_tiles_leave_cores_idle(
    m: int, n: int, k: int, few: int
) -> None:
    costs, shares = MatrixTileCosts.of({}), GpuGemmSplits.of({})
    sizes = m, n, k, 1, 132, 32, 64, 853, 16, 256
    assert few_is_best(*sizes, costs=costs, shares=shares) == few


def test_matrix_unit_names_are_unique() -> None:
    assert len(set(GPU_UNITS)) == 12
    for unit in GPU_UNITS:
        assert unit.operands in OPERANDS
        assert gpu_matrix_shapes.is_in_c(in_c(unit)) and not gpu_matrix_shapes.is_in_c(unit)
        assert gpu_matrix_shapes.instructions_of(in_c(unit)) == unit.instructions
