"""Elementwise ops against ONNX's node tests: references, and kernels on every device."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.dims import symbol
from clrt.ir.op import Array, TensorType
from clrt.ops import REGISTRY
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.table import Div
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP, run_graph, sample_graph
from tests.ops.onnx_cases import Case, cases
from tests.ops.samples import Sample

NAMES = {
    c.name for c in REGISTRY.all_classes().values() if issubclass(c, Pointwise) and not c.domain
}
ALL = cases(NAMES)
# ONNX's own tolerance for node tests.
RTOL, ATOL = 1e-3, 1e-7


def _compare(actual: Array, expected: Array | None) -> None:
    assert expected is not None
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL, strict=True)


def test_every_pointwise_op_has_onnx_cases() -> None:
    assert {c.op.name for c in ALL} == NAMES


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_pointwise_reference_matches_onnx(case: Case) -> None:
    (result,) = case.op.reference(*case.inputs)
    _compare(result, case.outputs[0])


@SWEEP
@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_pointwise_kernel_matches_onnx(case: Case, device: DeviceInfo) -> None:
    graph = sample_graph(Sample(case.op, tuple(case.inputs)))
    feeds = {f"x{i}": np.asarray(a, order="C") for i, a in enumerate(case.inputs) if a is not None}
    results, plan = run_graph(graph, feeds, device)
    assert not plan.host_steps
    _compare(results["y0"], case.outputs[0])


def test_div_of_dim_by_0_is_unknown() -> None:
    operands = TensorType.of_dims([symbol("n"), 4]), TensorType.of_dims([0, 2])
    (found,) = Div().infer_with_data(operands)
    assert found.shape == (2,) and found.data is None
