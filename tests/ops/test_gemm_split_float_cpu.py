"""float32 products by a CPU's bfloat16 matrix unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.device.caps import AMX_BFLOAT16, DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.kernels.gemm_small_m_cpu import MOST_ROWS
from clrt.kernels.spec import BufferArg
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_plan, tolerance
from tests.ops.test_split_product import (
    CPU,
    GELU,
    RESIDUAL,
    Build,
    feed_forward,
    floats,
    kernels_of,
    planned,
)

# The simulator has the unit's C code.
WITH_UNIT = [d for d in all_devices() if AMX_BFLOAT16 in d.caps.matrix_shapes or d.caps.simulator]
DEVICES = pytest.mark.parametrize("device", WITH_UNIT, ids=lambda d: d.platform.split()[0])
AMX = replace(CPU, float_lanes=16, matrix_shapes=frozenset({AMX_BFLOAT16}), compute_units=2)
# Two chunks of K of 50 to 64, panels of 48 columns of which two are split at once.
# The unit takes all products, of 32 rows at once.
ALWAYS = {"most_rows": 32, "least_rows": 1, "least_k": 1, "least_n": 1, "least_millions": 0}
SMALL = {
    "gemm_cpu": {"T_MR": 5, "T_NV": 3, "T_VW": 16, "T_KC": 32, "T_UP": 2},
    "matrix_unit_shares": ALWAYS,
}
NARROW = {
    "gemm_cpu": {"T_MR": 8, "T_NV": 1, "T_VW": 16, "T_KC": 64, "T_UP": 2},
    "matrix_unit_shares": ALWAYS,
}
EPSILON = float(np.finfo(np.float32).eps)


def work_of(plan: Plan) -> list[int]:
    """Returns the number of pieces of each product that use the unit."""
    launches = [x for s in plan.steps if isinstance(s, DeviceStep) for x in s.launches]
    units = ("USE_AMX", "USE_INT16_DOT")
    products = [x for x in launches if any(map(x.kernel.has, units))]
    numbers = [[a for a in x.args if not isinstance(a, BufferArg)][-2:] for x in products]
    return [int(pieces) for pieces, columns in numbers if columns]


def caps_of(device: DeviceInfo) -> DeviceCaps:
    return replace(device.caps, matrix_shapes=frozenset({AMX_BFLOAT16}), compute_units=2)


def check(build: Build, device: DeviceInfo, products: int = 1) -> None:
    # A simulator takes half a minute for each product.
    for tunables in (SMALL,) if device.caps.simulator else (SMALL, NARROW):
        plan = planned(build.graph, caps_of(device), tunables)
        assert len(work_of(plan)) == products
        results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, device)
        for value in build.graph.outputs:
            expected = build.known[value]
            bound = 2 * tolerance(MatMul(), expected)
            np.testing.assert_allclose(results[value.name], expected, rtol=0, atol=bound)


def product(
    a: Array,
    b: Array,
    constant: bool = True,
    trans_a: int = 0,
    op: FusedMatMul | None = None,
    a_dtype: DType | None = None,
) -> Build:
    build = Build()
    x, w = build.given("x", a), build.given("w", b, constant)
    operands = [] if op is None else [build.weight(int(b.shape[-1]))]
    if op is RESIDUAL:
        operands.append(build.given("r", floats(*a.shape[:-1], b.shape[-1])))
    product = replace(op or FusedMatMul(trans_a=trans_a), a_dtype=a_dtype)
    build.graph.outputs = [build.apply(product, x, w, *operands)]
    return build


def _rows(device: DeviceInfo, rows: int, terms: int) -> int:
    """Returns fewer rows on the simulator, which holds 15 KB for each term of a launch."""
    return min(rows, 60_000 // terms) if device.caps.simulator else rows


@DEVICES
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 17, 1), (31, 17, 31), (33, 50, 40), (40, 200, 33), (70, 16, 64)], ids=str
)
def test_split_float_gemm_matches_reference(device: DeviceInfo, m: int, n: int, k: int) -> None:
    m = _rows(device, m, n * k)
    check(product(floats(m, k), floats(k, n), op=RESIDUAL), device)
    if device.caps.simulator:
        return
    for op in (None, GELU):
        check(product(floats(m, k), floats(k, n), op=op), device)


@DEVICES
def test_split_float_gemm_of_stacked_matrices_matches_reference(device: DeviceInfo) -> None:
    check(product(floats(2, 3, 5, 20), floats(3, 20, 33), constant=False), device)
    check(product(floats(3, 20, 5), floats(3, 20, 33), trans_a=1), device)


@DEVICES
@pytest.mark.parametrize("stored", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_split_float_gemm_with_16_bit_weights_matches_reference(
    device: DeviceInfo, stored: DType
) -> None:
    rows = MOST_ROWS + 1  # fewer rows do without the unit
    check(product(floats(rows, 40), floats(40, 50).astype(stored.numpy)), device)


@DEVICES
def test_split_float_gemm_before_layer_norm_matches_reference(device: DeviceInfo) -> None:
    rows = 66 if device.caps.simulator else 100  # see _rows; more than two times _MOST_ROWS
    check(feed_forward((rows, 5), 50, 20, LayerNormalization()), device, products=2)


@DEVICES
def test_split_float_gemm_handles_inf_nan_and_overflow(device: DeviceInfo) -> None:
    """Infinity, NaN, and values that overflow in a product of terms but not in the sum."""
    largest = np.finfo(np.float32).max
    cases = ((np.inf, -np.inf), (np.nan, 1), (largest, -largest), (2e38, 1e-42))
    for specials in cases[:1] if device.caps.simulator else cases:
        a, b = floats(40, 33), floats(33, 50)
        a[3, 5], a[39, 32] = specials
        b[:, 7] *= np.float32(1e-3)
        b[32, 40] = np.inf if np.isinf(specials[0]) else 0
        with np.errstate(over="ignore", invalid="ignore"):
            expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
        plan = planned(product(a, b).graph, caps_of(device), SMALL)
        (actual,) = run_plan(plan, {"x": a}, device).values()
        # Terms of 1e38 leave errors of 1e31 beside them, and may be in float32's last binade.
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        kept = np.isfinite(expected)
        np.testing.assert_array_equal(actual[np.isinf(expected)], expected[np.isinf(expected)])
        errors = np.abs(actual[kept].astype(np.float64) - expected[kept])
        sums = (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))[kept]
        assert np.all(errors <= 8 * EPSILON * sums)


@DEVICES
def test_split_float_gemm_reaches_float32_accuracy(device: DeviceInfo) -> None:
    """Error of each sum relative to the sum of magnitudes; values of many magnitudes."""
    rng = np.random.default_rng(3)
    m, n, k = (33, 16, 64) if device.caps.simulator else (200, 100, 1000)
    a, b = (
        (rng.standard_normal(dims) * np.exp(rng.uniform(-30, 30, sizes))).astype(np.float32)
        for dims, sizes in (((m, k), (m, 1)), ((k, n), (1, n)))
    )
    plan = planned(product(a, b).graph, caps_of(device), NARROW)
    (actual,) = run_plan(plan, {"x": a}, device).values()
    a, b = a.astype(np.float64), b.astype(np.float64)
    errors = np.abs(actual - a @ b) / (np.abs(a) @ np.abs(b))
    # The unit rounds sums of 32 terms, its C code each of them.
    assert np.max(errors) <= (4 if device.caps.simulator else 2) * EPSILON
    assert np.sqrt(np.mean(errors**2)) <= EPSILON / 2


def test_only_large_products_use_bfloat16_unit() -> None:
    def pieces(caps: DeviceCaps, m: int, n: int, k: int) -> list[int]:
        return work_of(planned(product(floats(m, k), floats(k, n)).graph, caps))

    assert pieces(AMX, 1024, 768, 768)
    assert pieces(AMX, 128, 3072, 768)
    assert not pieces(AMX, 64, 3072, 768)
    assert not pieces(AMX, 128, 384, 384)
    assert not pieces(replace(AMX, matrix_shapes=frozenset()), 1024, 768, 768)
    assert not pieces(replace(AMX, float_lanes=8), 1024, 768, 768)


def test_amx_gemm_uses_every_core() -> None:
    caps = replace(AMX, compute_units=6)
    for m, n in ((1024, 768), (512, 2304), (500, 1000)):
        (pieces,) = work_of(planned(product(floats(m, 768), floats(768, n)).graph, caps))
        assert pieces >= 6


def test_split_float_gemm_new_shape_compiles_nothing() -> None:
    kernels = set[object]()
    for rows in (1, 16, 128, 1000):
        build = feed_forward((rows, 384), 1536, 384, LayerNormalization())
        kernels |= kernels_of(planned(build.graph, AMX))
    assert len(kernels) == 2


def test_split_float_gemm_scratch_is_independent_of_rows() -> None:
    b = floats(768, 768)

    def scratch(rows: int) -> int:
        plan = planned(product(floats(rows, 768), b).graph, AMX)
        return plan.arena.nbytes - 2 * rows * 768 * 4

    assert scratch(16384) <= scratch(4096) + 4096
