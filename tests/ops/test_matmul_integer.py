"""MatMulInteger by 8-bit dot products."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.device.caps import VNNI_INT8
from clrt.ir.op import Array
from clrt.ops.matmul.matmul_integer import MatMulInteger
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_plan
from tests.ops.test_split_product import Build, planned

# The simulator has the dots in C.
WITH_DOTS = [d for d in all_devices() if VNNI_INT8 in d.caps.matrix_shapes or d.caps.simulator]
DEVICES = pytest.mark.parametrize("device", WITH_DOTS, ids=lambda d: d.platform.split()[0])


def levels(dtype: str, *dims: int) -> Array:
    """Returns random values of a dtype, including its minimum and maximum."""
    info = np.iinfo(dtype)
    drawn = np.random.default_rng(sum(dims)).integers(info.min, info.max + 1, dims)
    found = drawn.astype(dtype)
    found.flat[:2] = info.min, info.max
    return found


def product(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Build:
    build = Build()
    inputs = [build.given("a", a), build.given("b", b, constant=True)]
    inputs.append(None if a_zero is None else build.given("a_zero", a_zero))
    inputs.append(None if b_zero is None else build.given("b_zero", b_zero, constant=True))
    while inputs[-1] is None:
        inputs.pop()
    build.graph.outputs = [build.apply(MatMulInteger(), *inputs)]
    return build


def kernels(plan: Plan) -> set[str]:
    return {x.kernel.entry for x in launches_of(plan.steps)}


@DEVICES
@pytest.mark.parametrize("a_type", ["int8", "uint8"])
@pytest.mark.parametrize("b_type", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("dims", "n", "zeros"),
    [((1, 1), 1, "none"), ((3, 5), 33, "one"), ((2, 9, 70), 40, "columns"), ((13,), 7, "one")],
    ids=str,
)
def test_matmul_integer_is_exact(
    device: DeviceInfo, a_type: str, b_type: str, dims: tuple[int, ...], n: int, zeros: str
) -> None:
    a, b = levels(a_type, *dims), levels(b_type, dims[-1], n)
    a_zero = None if zeros == "none" else levels(a_type, 3)[2].reshape(())
    b_zero = {"none": None, "one": levels(b_type, 2)[1:], "columns": levels(b_type, n)}[zeros]
    build = product(a, b, a_zero, b_zero)
    plan = planned(build.graph, device.caps)
    assert kernels(plan) == {"gemm_bytes_cpu"}
    (found,) = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, device).values()
    np.testing.assert_array_equal(found, build.known[build.graph.outputs[0]])


@DEVICES
def test_matmul_integer_row_zero_points_use_other_kernel(device: DeviceInfo) -> None:
    """One zero point for each row of A."""
    build = product(levels("uint8", 4, 6), levels("int8", 6, 5), levels("uint8", 4), None)
    plan = planned(build.graph, device.caps)
    assert "gemm_bytes_cpu" not in kernels(plan)
    (found,) = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, device).values()
    np.testing.assert_array_equal(found, build.known[build.graph.outputs[0]])
