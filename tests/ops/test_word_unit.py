"""Products of many rows with 16-bit weights, by int16 dot products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.plan.plan import Plan
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_plan
from tests.ops.test_gemm_split_float_cpu import ALWAYS, product, work_of
from tests.ops.test_split_product import CPU, GELU, RESIDUAL, floats, kernels_of, planned

# The simulator has the dots in C.
WITH_DOTS = [d for d in all_devices() if VNNI_INT8 in d.caps.matrix_shapes or d.caps.simulator]
DEVICES = pytest.mark.parametrize("device", WITH_DOTS, ids=lambda d: d.platform.split()[0])
HALVES = pytest.mark.parametrize("stored", [DType.FLOAT16, DType.BFLOAT16], ids=str)
DOTS = replace(CPU, float_lanes=16, matrix_shapes=frozenset({VNNI_INT8}), compute_units=2)
# Two chunks of K of 65 to 128, panels of 48 columns of which two are split at once, for 16 rows.
TUNABLES = {
    "gemm_cpu": {"T_MR": 5, "T_NV": 3, "T_VW": 16, "T_KC": 64, "T_UP": 2},
    "word_unit_shares": {**ALWAYS, "most_rows": 16},
}
BLOCK = 64
# Half a level of the largest magnitude of a block, of A and of B.
A_ERROR, B_ERROR = 0.5 / 4095, 0.5 / 8191


def errors_allowed(a: Array, b: Array) -> Array:
    """Returns the error bound of each sum, with A and B rounded in blocks of K."""
    k = a.shape[-1]
    bound = np.zeros((a.shape[0], b.shape[-1]))
    for first in range(0, k, BLOCK):
        rows, columns = np.abs(a[:, first : first + BLOCK]), np.abs(b[first : first + BLOCK])
        bound += A_ERROR * rows.max(1, keepdims=True) * columns.sum(0)
        bound += B_ERROR * columns.max(0) * rows.sum(1, keepdims=True)
    return bound * 1.01


def run(a: Array, b: Array, device: DeviceInfo, stored: DType = DType.FLOAT16) -> Array:
    plan = plan_of(a, b, device.caps, stored)
    assert len(work_of(plan)) == 1
    (y,) = run_plan(plan, {"x": a}, device).values()
    return y


def plan_of(a: Array, b: Array, caps: DeviceCaps, a_dtype: DType | None) -> Plan:
    return planned(product(a, b, a_dtype=a_dtype).graph, replace(caps, compute_units=2), TUNABLES)


@DEVICES
@HALVES
@pytest.mark.parametrize(
    ("m", "n", "k"), [(9, 17, 1), (8, 50, 64), (19, 33, 100), (40, 200, 65), (33, 16, 128)], ids=str
)
def test_int16_dot_errors_stay_within_level_rounding(
    device: DeviceInfo, stored: DType, m: int, n: int, k: int
) -> None:
    a, b = floats(m, k), floats(k, n).astype(stored.numpy)
    wide = b.astype(np.float64)
    errors = np.abs(run(a, b, device, stored) - a.astype(np.float64) @ wide)
    assert np.all(errors <= errors_allowed(a, wide))


@DEVICES
def test_int16_dot_error_is_below_float16_rounding(device: DeviceInfo) -> None:
    a, b = floats(32, 192), (floats(192, 48) * np.float32(0.03)).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    halves = a.astype(np.float16).astype(np.float64) @ b.astype(np.float64)
    found, allowed = (np.sqrt(np.mean((y - exact) ** 2)) for y in (run(a, b, device), halves))
    assert found <= 1.05 * allowed


@DEVICES
@pytest.mark.parametrize("op", [RESIDUAL, GELU], ids=["residual", "gelu"])
def test_int16_dot_epilogues_match_reference(device: DeviceInfo, op: FusedMatMul) -> None:
    a, b = floats(12, 70), floats(70, 40).astype(np.float16)
    build = product(a, b, op=op, a_dtype=DType.FLOAT16)
    plan = planned(build.graph, replace(device.caps, compute_units=2), TUNABLES)
    assert len(work_of(plan)) == 1
    results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, device)
    for value in build.graph.outputs:
        bound = 1.2 * errors_allowed(a, b.astype(np.float64))  # the slope of Gelu
        assert np.all(np.abs(results[value.name] - build.known[value]) <= bound)


@DEVICES
def test_int16_dot_of_integers_is_exact(device: DeviceInfo) -> None:
    """Largest possible sums of levels: all products of maximum magnitude and equal sign."""
    a, b = np.ones((16, BLOCK), np.float32), np.ones((BLOCK, 48), np.float16)
    b[:, ::2] = -1
    np.testing.assert_allclose(run(a, b, device), a @ b.astype(np.float32), rtol=1e-6)


@DEVICES
@pytest.mark.parametrize(
    "special",
    [np.inf, -np.inf, np.nan, 1e36, 1e-38, 1e-42, 0.0],
    ids=str,
)
def test_int16_dot_handles_inf_nan_and_extreme_values(device: DeviceInfo, special: float) -> None:
    a, b = floats(19, 70), floats(70, 40).astype(np.float16)
    a[3] *= 0
    a[3, 5], a[7] = special, special
    b[:, 7] = 0
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    found = run(a, b, device)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(found[np.isinf(expected)], expected[np.isinf(expected)])
    rows = [3, 7] if np.isfinite(special) else []
    # Below the least normal number each term is rounded to a multiple of the least number.
    spacing = np.finfo(np.float32).smallest_subnormal
    atol = max(abs(special) * 1e-2, np.count_nonzero(a[7]) / 2 * spacing)
    np.testing.assert_allclose(found[rows], expected[rows], rtol=3e-4, atol=atol)


@DEVICES
def test_int16_dot_handles_inf_and_nan_weights(device: DeviceInfo) -> None:
    a, b = np.abs(floats(9, 70)), floats(70, 40).astype(np.float16)
    b[3, 5], b[4, 6], b[:, 8] = np.inf, np.nan, 0
    found = run(a, b, device)
    assert np.all(np.isposinf(found[:, 5]))
    assert np.all(np.isnan(found[:, 6]))
    assert np.all(found[:, 8] == 0)
    assert np.all(np.isfinite(np.delete(found, [5, 6], axis=1)))


def test_int16_dot_is_not_used_for_float32() -> None:
    """Neither float32 activations nor 32-bit weights use int16 dots."""
    a, b = floats(64, 128), floats(128, 96)
    assert work_of(plan_of(a, b.astype(np.float16), DOTS, DType.FLOAT16))
    assert not work_of(plan_of(a, b.astype(np.float16), DOTS, None))
    assert not work_of(plan_of(a, b, DOTS, DType.FLOAT16))
    without = replace(DOTS, matrix_shapes=frozenset())
    assert not work_of(plan_of(a, b.astype(np.float16), without, DType.FLOAT16))


def test_int16_dot_needs_32_rows_and_compiles_once() -> None:
    tunables = {"gemm_cpu": {"T_MR": 8, "T_NV": 3, "T_VW": 16}}
    kernels, by_dots = set[object](), []
    for rows in (16, 31, 32, 128, 1000):
        a, b = floats(rows, 576), floats(576, 1536).astype(np.float16)
        plan = planned(product(a, b, a_dtype=DType.FLOAT16).graph, DOTS, tunables)
        kernels |= kernels_of(plan)
        by_dots.append(bool(work_of(plan)))
    assert len(kernels) == 2  # one for less than nine rows
    assert by_dots == [False, False, True, True, True]
