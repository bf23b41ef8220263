"""common/math.clh: error bounds over each function's whole domain, scalar and vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest

from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Op
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import CPU
from clrt.ops.pointwise.table import (
    Cos,
    Erf,
    Exp,
    Gelu,
    Log,
    Mish,
    Pow,
    Sigmoid,
    Sin,
    Softplus,
    Tan,
    Tanh,
)
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, plan_graph, run_plan

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40], np.float32)
SMALLEST = float(np.finfo(np.float32).tiny)
ON = [
    pytest.param(device, width, id=f"{device.platform.split()[0]}-{width}")
    for device in all_devices()
    for width in ((1, 8, 16) if device.caps.is_cpu else (1,))
]


@dataclass(frozen=True)
class Expm1(Pointwise):
    """exp(x) - 1, which ops use for negative numbers only."""

    expr = Code("@expm1({0})")


@dataclass(frozen=True)
class Log1p(Pointwise):
    """log(1 + x), which ops use between 0 and 1 only."""

    expr = Code("@log1p({0})")


def _every(count: int) -> Array:
    """Returns floats spread evenly over all bit patterns, both signs."""
    bits = np.linspace(0, 0x7F7FFFFF, count // 2).astype(np.uint32)
    positive = bits.view(np.float32)
    return np.concatenate([positive, -positive])


def _dense(low: float, high: float) -> Array:
    """Returns floats between two bounds: evenly spread, and small ones by bit patterns."""
    small = _every(100_000)
    small = small[(np.abs(small) < 1) & (small > low) & (small < high)]
    return np.concatenate([np.linspace(low, high, 200_000).astype(np.float32), small])


def _angles() -> Array:
    """Returns floats of every magnitude, and neighbours of multiples of pi / 2."""
    near = (np.arange(1, 100_000) * (math.pi / 2)).astype(np.float32)
    return np.concatenate([_every(200_000), _dense(-9, 9), near, np.nextafter(near, np.float32(0))])


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(function, otypes=[np.float64])


def _gelu(x: Array) -> Array:
    return np.asarray(x * _each(math.erfc)(-x * math.sqrt(0.5)) / 2)


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


@dataclass(frozen=True)
class Case:
    """Math function, domain and error bound.

    Attributes:
        ulp: Error bound in units of the last place of the result, or of x if `of_x`: GELU adds
            numbers of the size of x.
    """

    op: Op
    exact: Callable[[Array], Array]
    domain: Array
    ulp: float
    of_x: bool = False

    @cached_property
    def results(self) -> Array:
        """Exact results over the domain without 0, computed once for all devices and widths."""
        with np.errstate(all="ignore"):
            return self.exact(self.domain[self.domain != 0].astype(np.float64))


CASES = [
    Case(Exp(), np.exp, _dense(-104, 88.7), 2),
    Case(Expm1(), np.expm1, _dense(-104, 88.7), 3),
    Case(Tanh(), np.tanh, _dense(-30, 30), 4),
    Case(Erf(), _each(math.erf), _dense(-5, 5), 4),
    Case(Log(), np.log, np.abs(_every(200_000)), 2),
    Case(Log1p(), np.log1p, np.concatenate([np.abs(_every(200_000)), _dense(-0.9999, 9)]), 3),
    Case(Sigmoid(), lambda x: 1 / (1 + np.exp(-x)), _dense(-87, 87), 3),
    Case(Softplus(), lambda x: np.logaddexp(x, 0), _dense(-87, 87), 4),
    Case(Mish(), lambda x: x * np.tanh(np.logaddexp(x, 0)), _dense(-87, 87), 5),
    Case(Sin(), np.sin, _angles(), 3),
    Case(Cos(), np.cos, _angles(), 3),
    Case(Tan(), np.tan, _angles(), 5),
    Case(Gelu(), _gelu, _dense(-20, 20), 2, of_x=True),
    Case(Gelu("tanh"), _gelu_tanh, _dense(-20, 20), 2, of_x=True),
]
IDS = [f"{c.op.name}{getattr(c.op, 'approximate', '')}" for c in CASES]


def _run(op: Op, device: DeviceInfo, width: int, *arrays: Array) -> Array:
    kind = TensorType(DType.FLOAT32, arrays[0].shape)
    values, result = [Value(f"x{i}", kind) for i in range(len(arrays))], Value("y", kind)
    graph = Graph("math", values, [result], [Node("node", op, values, [result])])
    if isinstance(op, Pow) and width > device.caps.float_lanes:
        # LLVM 14 ends itself where it turns vectors of 16 into AVX2; records never ask for these.
        pytest.skip("wider than the vectors that the compiler uses")
    # The scalar functions are what every device but a CPU runs.
    caps = device.caps if width > 1 else replace(device.caps, kind="gpu")
    plan = plan_graph(graph, caps, {**CPU.defaults, "T_VW": width})
    return run_plan(plan, {v.name: x for v, x in zip(values, arrays, strict=True)}, device)["y"]


def _error(actual: Array, exact: Array, unit: Array) -> Array:
    """Returns the error in units of the last place of `unit`; subnormal results may be flushed."""
    error = np.abs(actual - exact)
    error[np.abs(exact) < SMALLEST] -= SMALLEST
    spacing = np.spacing(np.maximum(np.abs(unit.astype(np.float32)), np.float32(SMALLEST)))
    return np.asarray(error / spacing.astype(np.float64))


@pytest.mark.parametrize(("device", "width"), ON)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_math_function_error_is_within_ulp_bound(
    case: Case, device: DeviceInfo, width: int
) -> None:
    x, exact = case.domain[case.domain != 0], case.results
    error = _error(_run(case.op, device, width, x), exact, x if case.of_x else exact)
    worst = int(np.argmax(error))
    assert error[worst] <= case.ulp, f"{error[worst]} at {x[worst]}"


@pytest.mark.parametrize(("device", "width"), ON)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_math_functions_match_numpy_on_special_values(
    case: Case, device: DeviceInfo, width: int
) -> None:
    x = np.concatenate([SPECIAL, _every(64)])
    with np.errstate(all="ignore"):
        wanted = case.exact(x.astype(np.float64)).astype(np.float32)
    actual = _run(case.op, device, width, x)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(wanted))
    np.testing.assert_array_equal(np.isposinf(actual), np.isposinf(wanted))
    np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(actual[finite], wanted[finite], rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize(("device", "width"), ON)
@pytest.mark.parametrize("op", [Erf(), Tanh()], ids=["Erf", "Tanh"])
def test_erf_and_tanh_saturate_exactly(op: Op, device: DeviceInfo, width: int) -> None:
    x = np.concatenate([np.linspace(9.2, 1000, 1001), [1e10, np.inf]]).astype(np.float32)
    np.testing.assert_array_equal(_run(op, device, width, x), 1)
    np.testing.assert_array_equal(_run(op, device, width, -x), -1)


@pytest.mark.parametrize(("device", "width"), ON)
@pytest.mark.parametrize(
    ("largest", "spread", "ulp"), [(33, 0.3, 2), (126, 0.3, 8), (126, 1e-3, 8), (126, 126, 8)]
)
def test_pow_error_is_within_ulp_bound(
    largest: float, spread: float, ulp: float, device: DeviceInfo, width: int
) -> None:
    rng = np.random.default_rng(5)
    # Powers between 2^-largest and 2^largest, of numbers up to 2^spread from 1.
    x = np.exp2(rng.uniform(-spread, spread, 200_000)).astype(np.float32)
    x = x[x != 1]
    y = (rng.uniform(-largest, largest, x.size) / np.log2(x.astype(np.float64))).astype(np.float32)
    exact = np.power(x.astype(np.float64), y.astype(np.float64))
    error = _error(_run(Pow(), device, width, x, y), exact, exact)
    worst = int(np.argmax(error))
    assert error[worst] <= ulp, f"{error[worst]} at {x[worst]} to the power {y[worst]}"


@pytest.mark.parametrize(("device", "width"), ON)
def test_pow_matches_numpy_on_special_values(device: DeviceInfo, width: int) -> None:
    numbers = [1, 2, 0.5, 3, 1.5, 1 / 3, 1e30, 2**24, 2**24 + 2, 2**23 - 1, 1.0000001, 0.99999994]
    each = np.concatenate([SPECIAL, numbers, np.negative(numbers)]).astype(np.float32)
    x, y = (a.ravel() for a in np.meshgrid(each, each))
    with np.errstate(all="ignore"):
        wanted = np.power(x, y)
    actual = _run(Pow(), device, width, x, y)
    np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=SMALLEST)
    kept = ~np.isnan(wanted) & (np.abs(wanted) > SMALLEST)
    np.testing.assert_array_equal(np.signbit(actual)[kept], np.signbit(wanted)[kept])
