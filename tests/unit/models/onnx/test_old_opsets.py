"""Op forms of old opsets, and forms absent from ONNX's function bodies, compared with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.onnx.importer import import_model
from clrt.ops.reference_interpreter import evaluate

_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
_ONE, _THREE = np.float32([0.5]), np.float32([1, 2, 3])
_PLANES = _THREE[:, None, None]
_TRUTH = _X > 0
_SIGNS = np.resize(np.float32([1, -1]), (2, 3, 4, 6))
_MEAN, _VARIANCE = _X.mean((0, 2, 3)), _X.var((0, 2, 3))


@dataclass
class Case:
    """ONNX node, its inputs and expected outputs."""

    op: str
    opset: int
    inputs: Sequence[Array]
    expected: Sequence[Array]
    attrs: dict[str, Any] = field(default_factory=dict)


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return gamma * np.where(x > 0, x, alpha * (np.exp(x) - 1))


CASES = [
    Case("Add", 6, [_X, _THREE], [_X + _PLANES], {"broadcast": 1, "axis": 1}),
    Case("Sub", 1, [_X, _X[0, 0]], [_X - _X[0, 0]], {"broadcast": 1, "consumed_inputs": [0, 0]}),
    Case("Mul", 3, [_X, _X[0]], [_X * _X[0]], {"broadcast": 1, "axis": -3}),
    Case("Pow", 1, [np.abs(_X), _THREE], [np.abs(_X) ** _PLANES], {"broadcast": 1, "axis": 1}),
    Case("Less", 1, [_X, _X[::-1]], [_X[::-1] > _X]),
    Case(
        "And", 6, [_TRUTH, _TRUTH[:, 0, 0, 0]], [_TRUTH & _TRUTH[:, :1, :1, :1]],
        {"broadcast": 1, "axis": 0},
    ),
    Case(
        "Gemm", 6, [_X[0, 0], _X[0, 1], _ONE], [_X[0, 0] @ _X[0, 1].T + 0.5],
        {"transB": 1, "broadcast": 1},
    ),
    Case("PRelu", 6, [_X, _THREE], [np.where(_TRUTH, _X, _PLANES * _X)]),
    Case("PRelu", 1, [_X, _ONE], [np.where(_TRUTH, _X, 0.5 * _X)]),
    Case("Selu", 1, [_X], [_selu(_X, 1.6732, 1.0507)]),
    Case("Selu", 6, [_X], [_selu(_X, 1.67326319217681884765625, 1.05070102214813232421875)]),
    Case("Cast", 1, [_X], [_X.astype(np.int32)], {"to": "INT32"}),
    Case("Concat", 3, [_X, _X], [np.concatenate([_X, _X], 1)]),
    Case("Reshape", 1, [_X], [_X.reshape(2, 3, 20)], {"shape": [0, 3, -1]}),
    Case(
        "Pad", 1, [_X[0, 0]], [np.pad(_X[0, 0], ((0, 1), (2, 0)), constant_values=1.5)],
        {"paddings": [0, 2, 1, 0], "value": 1.5},
    ),
    Case("Tile", 1, [_X, np.float32([3]), np.float32([2])], [np.tile(_X, (1, 1, 3, 1))]),
    Case("Split", 1, [_X], [_X[:, :2], _X[:, 2:]], {"axis": 1, "split": [2, 1]}),
    Case("Split", 1, [_X], [_X[:1], _X[1:]]),
    Case("Split", 1, [_X, np.float32([1, 3])], [_X[:, :, :1], _X[:, :, 1:]], {"axis": 2}),
    Case(
        "Upsample", 1, [_X], [_X.repeat(2, 2).repeat(3, 3)],
        {"height_scale": 2.0, "width_scale": 3.0},
    ),
    Case(
        "Upsample", 7, [_X], [_X.repeat(2, 2).repeat(3, 3)],
        {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"},
    ),
    Case("Upsample", 9, [_X, np.float32([1, 1, 2, 3])], [_X.repeat(2, 2).repeat(3, 3)]),
    Case(
        "Scatter", 9, [_THREE, np.int64([2, 0]), np.float32([7, 8])], [np.float32([8, 2, 7])],
        {"axis": -1},
    ),
    Case(
        "LpPool", 1, [_X], [np.sqrt(np.square(_X).sum((2, 3), keepdims=True))],
        {"kernel_shape": [4, 5], "p": 2.0},
    ),
    Case(
        "BatchNormalization", 7, [_X, *[_X[0] ** 2] * 4],
        [(_X - _X[0] ** 2) * np.abs(_X[0]) + _X[0] ** 2], {"spatial": 0, "epsilon": 0.0},
    ),
    Case(
        "BatchNormalization", 9, [_X, *[np.float32([1, 1, 1])] * 4],
        [
            (_X - _MEAN[:, None, None]) / np.sqrt(_VARIANCE[:, None, None]) + 1,
            0.9 + 0.1 * _MEAN, 0.9 + 0.1 * _VARIANCE, _MEAN, _VARIANCE,
        ],
        {"epsilon": 0.0},
    ),
    Case(
        "MeanVarianceNormalization", 9, [_X.astype(np.float64)],
        [(_X - _MEAN[:, None, None]) / np.sqrt(_VARIANCE[:, None, None])],
    ),
    Case("MeanVarianceNormalization", 13, [4096 + _SIGNS], [_SIGNS]),
    Case(
        "ConstantFill", 8, [np.int64([2, 3])], [np.zeros((2, 3), np.float32)],
        {"input_as_shape": 1, "dtype": 1},
    ),
    Case(
        "ConstantFill", 6, [np.int32([2])], [np.full((2, 4), 7)],
        {"input_as_shape": 1, "extra_shape": [4], "dtype": 7, "value": 7.0},
    ),
    Case(
        "ConstantFill", 1, [_X], [np.full((*_X.shape, 1), 1.5)], {"value": 1.5, "extra_shape": [1]}
    ),
    Case(
        "ConstantFill", 1, [], [np.full((2, 3), True)], {"shape": [2, 3], "dtype": 9, "value": 1.0}
    ),
    Case("CenterCropPad", 18, [_X[0, 0], np.int32([2, 3])], [_X[0, 0, 1:3, 1:4]]),
    Case(
        "LRN", 7, [_X[..., None]], [_X[..., None] / (1 + np.square(_X[..., None])) ** 0.75],
        {"size": 1, "alpha": 1.0},
    ),
    Case(
        "BatchNormalization", 1, [_X, *[_THREE] * 4], [(_X - _PLANES) * np.sqrt(_PLANES) + _PLANES],
        {"is_test": 1, "epsilon": 0.0},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{c.opset}")
@pytest.mark.parametrize("constant", [False, True], ids=["inputs", "initializers"])
def test_old_opset_op_matches_numpy(case: Case, constant: bool) -> None:
    names = [f"x{i}" for i in range(len(case.inputs))]
    given = dict(zip(names, case.inputs, strict=True))
    fixed = dict(list(given.items())[1:]) if constant else {}
    graph = _imported(case, given, fixed)
    found = evaluate(graph, {k: v for k, v in given.items() if k not in fixed})
    for name, expected in zip(found, case.expected, strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=2e-6, atol=1e-6)


def test_legacy_broadcast_of_unknown_rank_is_refused() -> None:
    case = Case("Add", 6, [_X, _THREE], [_X], {"broadcast": 1, "axis": 1})
    with pytest.raises(UnsupportedError, match=r"Add 'Add_0'.*input 0 has no known rank"):
        _imported(case, {"x0": _X, "x1": _THREE}, {"x1": _THREE}, ranks=False)


@pytest.mark.parametrize("mode", ["up", "down"])
def test_cast_like_keeps_round_mode(mode: str) -> None:
    like = np.ones(1, ml_dtypes.float8_e8m0fnu)
    case = Case("CastLike", 25, [_THREE, like], [_THREE], {"round_mode": mode})
    graph = _imported(case, {"x0": _THREE, "x1": like}, {})
    found = evaluate(graph, {"x0": _THREE, "x1": like})["y0"].astype(np.float32)
    np.testing.assert_array_equal(found, [1, 2, 4 if mode == "up" else 2])


@pytest.mark.parametrize(
    ("count", "message"), [(1, "has 1 input; opset 7 needs 2"), (3, "allows 2")]
)
def test_wrong_input_count_is_refused(count: int, message: str) -> None:
    case = Case("Reshape", 7, [_X] * count, [_X])
    with pytest.raises(ModelError, match=message):
        _imported(case, dict(zip("xsz", case.inputs, strict=False)), {})


def _imported(
    case: Case, given: dict[str, Array], fixed: dict[str, Array], ranks: bool = True
) -> Graph:
    def info(name: str, array: Array) -> onnx.ValueInfoProto:
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        dims = [f"{name}_{i}" for i in range(array.ndim)] if ranks else None
        return helper.make_tensor_value_info(name, dtype, dims if ranks else None)

    outputs = [f"y{i}" for i in range(len(case.expected))]
    node = helper.make_node(case.op, list(given), outputs, **case.attrs)
    graph = helper.make_graph(
        [node],
        "old",
        [info(k, v) for k, v in given.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(v, k) for k, v in fixed.items()],
    )
    imports = [helper.make_opsetid("", case.opset)]
    return import_model(helper.make_model(graph, opset_imports=imports, ir_version=3))
