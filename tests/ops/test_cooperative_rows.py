"""Reductions of rows shared by work-items on GPUs: new shapes compile no kernels."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Dim, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ops.reduce.reduce import ReduceSum
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of

GPU = DeviceCaps("Test", "test", "Test", "1", "gpu", compute_units=64, max_work_group_size=256)
B, N = symbol("B"), symbol("N")
SIZES = [(1, 10_000), (400, 64), (2, 5)]


@pytest.mark.parametrize(("n", "kernels"), [(N, 3), (10_000, 3), (64, 1)])
def test_split_reduction_new_shape_compiles_nothing(n: Dim, kernels: int) -> None:
    """Few outputs of many elements are split over work-groups, at some sizes of a model."""
    x = Value("x", TensorType(DType.FLOAT32, (B, 3, n)))
    axes = Value("axes", TensorType(DType.INT64, (1,), np.asarray([-1])))
    y = Value("y", TensorType(DType.FLOAT32, (B, 3, 1)))
    found = []
    for b, size in SIZES:
        graph = Graph("g", [x], [y], [Node("n", ReduceSum(), [x, axes], [y])])
        plan = make_plan(specialise(graph, {"B": b, "N": size}), GPU, lambda _: {})
        found.append({x.kernel for x in launches_of(plan.steps)} | {*plan.precompiled_kernels})
    assert len(found[0]) == kernels
    assert all(each == found[0] for each in found)
