"""Movement ops: references and inference against ONNX's node tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clrt.errors import ShapeError
from clrt.ir.dims import Dim, substitute, symbol
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.attention.tensor_scatter import TensorScatter
from clrt.ops.base import Op
from clrt.ops.movement.gather_nd import ScatterND
from clrt.ops.movement.pad import Pad
from clrt.ops.movement.scatter_elements import ScatterElements
from clrt.ops.movement.slice import Slice
from clrt.ops.tensor.range import Range
from tests.ops.onnx_cases import Case, cases, check_exact

OP_TYPES = {
    "Compress", "Concat", "ConstantOfShape", "CumProd", "CumSum", "DepthToSpace", "Dropout",
    "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "NonZero",
    "OneHot", "Pad", "Range", "Reshape", "ReverseSequence", "ScatterElements",
    "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "TensorScatter",
    "Tile", "TopK", "Trilu", "Unique", "Unsqueeze",
}  # fmt: skip
CASES = cases(OP_TYPES)
# What ONNX expects of the others comes from NumPy's generator.
DRAWLESS = [c for c in CASES if "training_dropout" not in c.name or "zero_ratio" in c.name]
DATA_DEPENDENT = {"Compress", "NonZero", "Unique"}

N = symbol("n")
BOUNDS = st.builds(lambda factor, more: factor * N + more, st.integers(-1, 2), st.integers(-6, 6))


def _type(op: Op, index: int, array: Array | None, shape: tuple[Dim, ...]) -> TensorType | None:
    if array is None:
        return None
    data = array if index in op.input_traits.plan_time else None
    return TensorType(DType.of(array.dtype), shape, data)


@pytest.mark.parametrize("case", DRAWLESS, ids=lambda c: c.name)
def test_movement_reference_matches_onnx(case: Case) -> None:
    check_exact(case)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_movement_inference_matches_onnx(case: Case) -> None:
    op = case.op
    types = [None if a is None else _type(op, i, a, a.shape) for i, a in enumerate(case.inputs)]
    for found, expected in zip(op.infer_with_data(types), case.outputs, strict=False):
        if expected is None:
            continue
        assert found.dtype is DType.of(expected.dtype)
        if op.name not in DATA_DEPENDENT:
            assert found.shape == expected.shape
        if found.numbers is not None:
            np.testing.assert_array_equal(found.numbers, expected, strict=True)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_movement_inference_of_symbolic_dims_matches_onnx(case: Case) -> None:
    """Dims above 1 become symbols, one per size: binding them gives the shapes back."""
    op = case.op
    sizes = {d for a in case.inputs if a is not None for d in a.shape if d > 1}
    bindings = {f"d{s}": s for s in sizes}
    types = [
        None
        if a is None
        else _type(op, i, a, tuple(symbol(f"d{d}") if d > 1 else d for d in a.shape))
        for i, a in enumerate(case.inputs)
    ]
    try:
        found_types = op.infer_with_data(types)
    except ShapeError as error:
        pytest.fail(str(error))
    for found, expected in zip(found_types, case.outputs, strict=False):
        if expected is None or found.shape is None:
            continue
        bound = [substitute(d, bindings) for d in found.shape]
        assert len(bound) == expected.ndim
        for dim, size in zip(bound, expected.shape, strict=True):
            assert not isinstance(dim, int) or dim == size, (found, expected.shape)


@given(BOUNDS, BOUNDS, st.sampled_from([-2, -1, 1, 2, 3]), st.integers(0, 9))
def test_slice_and_range_infer_symbolic_bounds(start: Dim, end: Dim, step: int, size: int) -> None:
    first, last, steps = (TensorType.of_dims([v]) for v in (start, end, step))
    x = TensorType(DType.FLOAT32, (N,))
    for op, types in ((Slice(), (x, first, last, None, steps)), (Range(), (first, last, steps))):
        (found,) = op.infer(types)
        (expected,) = op.infer([None if t is None else t.bind({"n": size}) for t in types])
        assert found.bind({"n": size}).is_compatible(expected)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_movement_inference_without_data_does_not_raise(case: Case) -> None:
    """Inference does not raise if host inputs or ranks are unknown."""
    op = case.op
    for rank_known in (True, False):
        types = [
            None if a is None else TensorType(DType.of(a.dtype), a.shape if rank_known else None)
            for a in case.inputs
        ]
        for found, expected in zip(op.infer(types), case.outputs, strict=False):
            if expected is None:
                continue
            assert found.dtype is DType.of(expected.dtype)
            assert found.shape is None or len(found.shape) == expected.ndim


_AB, _LONG = np.array(["a", "b"]), np.array(["long"])


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        (ScatterElements(), (_AB, np.array([1]), _LONG), ["a", "long"]),
        (ScatterND(), (_AB, np.array([[1]]), _LONG), ["a", "long"]),
        (TensorScatter(1), (_AB[None], _LONG[None]), ["long", "b"]),
        (Pad(), (_AB, np.array([1, 0]), _LONG), ["long", "a", "b"]),
        (Pad(), (_AB, np.array([1, 0])), ["", "a", "b"]),
    ],
)
def test_string_movement_keeps_long_strings(
    op: Op, inputs: tuple[Array, ...], expected: list[str]
) -> None:
    (found,) = op.run_reference(*inputs)
    assert found.reshape(-1).tolist() == expected
