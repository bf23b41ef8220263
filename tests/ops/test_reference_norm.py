"""Attention, normalizations, reductions and pooling, against ONNX's node tests."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import substitute, symbol
from clrt.ir.dtypes import DType
from clrt.ir.op import TensorType
from clrt.ops.base import Op
from clrt.ops.norm.hardmax import Hardmax
from clrt.ops.norm.lp_normalization import LpNormalization
from clrt.ops.norm.softmax import Softmax
from clrt.ops.reduce.argmax import ArgMax
from clrt.ops.reduce.cum_sum import CumSum
from clrt.plan.steps import DeviceStep
from tests.harness import plan_graph, sample_graph
from tests.ops.onnx_cases import Case, cases, left_out
from tests.ops.samples import Sample

OP_TYPES = {
    "ArgMax", "ArgMin", "Attention", "AveragePool", "BatchNormalization", "GlobalAveragePool",
    "GlobalMaxPool", "GroupNormalization", "Hardmax", "InstanceNormalization", "LayerNormalization",
    "LogSoftmax", "LpNormalization", "MaxPool", "RMSNormalization", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Softmax",
}  # fmt: skip
GPU = DeviceCaps("p", "gpu", "v", "1", "gpu")
CASES = cases(OP_TYPES)
# Why a node test of these ops may be left out.
REASONS = (
    " nodes",  # the expanded form of a case that is here
    "bfloat16",
    "it runs as other ops",
    "not all inputs and outputs are tensors",
)


def test_skipped_onnx_cases_have_known_reasons() -> None:
    assert not [c for c in left_out(OP_TYPES) if not any(r in c.reason for r in REASONS)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_norm_reference_matches_onnx(case: Case) -> None:
    results = case.op.reference(*case.inputs)
    for result, expected in zip(results, case.outputs, strict=False):
        if expected is None:
            continue
        assert result.dtype == expected.dtype
        assert result.shape == expected.shape
        # The tolerance of ONNX's backend tests.
        np.testing.assert_allclose(
            result, expected, rtol=1e-3, atol=1e-7 if expected.dtype != np.float16 else 1e-3
        )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_norm_inference_matches_onnx(case: Case) -> None:
    """Dims above 1 become symbols, one per size: binding them gives the shapes back."""
    sizes = {d for a in case.inputs if a is not None for d in a.shape if d > 1}
    bindings = {f"d{s}": s for s in sizes}
    for symbolic in (False, True):
        types: list[TensorType | None] = []
        for index, array in enumerate(case.inputs):
            if array is None:
                types.append(None)
                continue
            data = array if index in case.op.input_traits.plan_time else None
            free = symbolic and data is None
            shape = tuple(symbol(f"d{d}") if free and d > 1 else d for d in array.shape)
            types.append(TensorType(DType.of(array.dtype), shape, data))
        for found, expected in zip(case.op.infer(types), case.outputs, strict=False):
            if expected is None:
                continue
            assert found.dtype is DType.of(expected.dtype)
            assert found.shape is not None
            bound = tuple(substitute(d, bindings) for d in found.shape)
            if all(isinstance(d, int) for d in bound):
                assert bound == expected.shape
            else:
                assert symbolic and len(bound) == expected.ndim


@pytest.mark.parametrize(
    "op", [ArgMax(-1), CumSum(), Hardmax(), LpNormalization(), Softmax()], ids=lambda op: op.name
)
def test_row_ops_launch_one_work_item_per_row(op: Op) -> None:
    """One row per work-item, in the dimension that is split into work-groups."""
    inputs = (np.zeros((40, 7), np.float32), *([np.array(1)] if isinstance(op, CumSum) else []))
    (step,) = plan_graph(sample_graph(Sample(op, inputs)), GPU).steps
    assert isinstance(step, DeviceStep)
    assert [launch.global_size for launch in step.launches] == [(40,)]
