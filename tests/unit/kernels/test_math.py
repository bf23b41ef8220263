"""common/math.clh: the stated bounds in ulp over each function's whole domain."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Op
from clrt.ops.pointwise import Erf, Exp, Log, Tanh
from clrt.runtime.devices import DeviceInfo
from tests.harness import all_devices, run_graph

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40], np.float32)


def _every(count: int) -> Array:
    """Floats spread evenly over all bit patterns, both signs."""
    bits = np.linspace(0, 0x7F7FFFFF, count // 2).astype(np.uint32)
    positive = bits.view(np.float32)
    return np.concatenate([positive, -positive])


def _dense(low: float, high: float) -> Array:
    return np.linspace(low, high, 200_000).astype(np.float32)


def _run(op: Op, x: Array, device: DeviceInfo) -> Array:
    value = Value("x", TensorType(DType.FLOAT32, x.shape))
    result = Value("y", TensorType(DType.FLOAT32, x.shape))
    graph = Graph("math", [value], [result], [Node("node", op, [value], [result])])
    return run_graph(graph, {"x": x}, device)[0]["y"]


def _ulps(actual: Array, exact: Array) -> float:
    """The largest error in units of float32's last place; tiny results count absolutely."""
    wanted = exact.astype(np.float32)
    finite = np.isfinite(wanted) & (np.abs(wanted) >= np.finfo(np.float32).tiny)
    unit = np.spacing(np.abs(wanted[finite])).astype(np.float64)
    return float((np.abs(actual[finite].astype(np.float64) - exact[finite]) / unit).max())


CASES: list[tuple[Op, Callable[[Array], Array], Array, float]] = [
    (Exp(), np.exp, _dense(-87, 88.7), 2.0),
    (Tanh(), np.tanh, _dense(-11, 11), 4.0),
    (Erf(), np.vectorize(math.erf, otypes=[np.float64]), _dense(-4.5, 4.5), 4.0),
    (Log(), np.log, np.abs(_every(200_000)), 2.0),
]


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize(
    ("op", "exact", "domain", "bound"), CASES, ids=lambda c: getattr(c, "name", "")
)
def test_error_in_ulp(
    op: Op, exact: Callable[[Array], Array], domain: Array, bound: float, device: DeviceInfo
) -> None:
    x = domain[domain != 0] if op.name == "Log" else domain
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
    assert _ulps(_run(op, x, device), wanted) <= bound


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].name)
def test_special_values(
    case: tuple[Op, Callable[[Array], Array], Array, float], device: DeviceInfo
) -> None:
    op, exact, _, _ = case
    x = np.concatenate([SPECIAL, _every(64)])
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64)).astype(np.float32)
    actual = _run(op, x, device)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(wanted))
    np.testing.assert_array_equal(np.isposinf(actual), np.isposinf(wanted))
    np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(actual[finite], wanted[finite], rtol=1e-6, atol=1e-37)
