"""Ops of ai.onnx.ml and ai.onnx.preview.training, against ONNX Runtime or ONNX's reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import clrt
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
Case = tuple[str, list[Array], tuple[int, ...], dict[str, Any]]

RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 3)).astype(np.float32)
HOLES = np.where(RNG.integers(0, 4, X.shape) == 0, np.nan, X).astype(np.float32)
NUMBERS = RNG.integers(-3, 4, (6, 3))
TEXTS = np.array([["a", "q"], ["b", "c"]])
NAN = float("nan")


def _draw(count: int) -> list[float]:
    return [float(v) for v in np.random.default_rng(count).standard_normal(count)]


def _model(op: str, inputs: list[Array], outputs: tuple[int, ...], attrs: dict[str, Any]) -> bytes:
    domain = attrs.pop("domain", "ai.onnx.ml")
    opset = attrs.pop("opset", 3)
    node = helper.make_node(
        op,
        [f"x{i}" for i in range(len(inputs))],
        [f"y{i}" for i in range(len(outputs))],
        domain=domain,
        **attrs,
    )
    codes = [
        STRING if a.dtype.kind == "U" else helper.np_dtype_to_tensor_dtype(a.dtype) for a in inputs
    ]
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(f"x{i}", code, list(a.shape))
            for i, (code, a) in enumerate(zip(codes, inputs, strict=True))
        ],
        [helper.make_tensor_value_info(f"y{i}", code, None) for i, code in enumerate(outputs)],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(model.SerializeToString())


def _run(model: bytes, feeds: dict[str, Array], device: DeviceInfo) -> list[Array]:
    wide = any(a.dtype == np.float64 for a in feeds.values())
    lacks = wide and not device.caps.has_fp64  # the host computes what the device cannot
    with pytest.warns(clrt.HostFallbackWarning) if lacks else nullcontext():
        found = clrt.load(model, device=device.index).run(feeds)
    return [np.asarray(a) for a in found.values()]


def _same(found: Array, expected: Any) -> None:
    expected = np.asarray(expected)
    if expected.dtype.kind in "OU":
        np.testing.assert_array_equal(found.astype(str), expected.astype(str))
        return
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def _forest(kind: str, ids: list[int], sign: bool = False) -> dict[str, Any]:
    """Returns attributes of three 15-node trees; each leaf has a weight for each id."""
    rng = np.random.default_rng(7)
    attrs: dict[str, Any] = {f"nodes_{k}": [] for k in _NODE} | {f"{kind}_{k}": [] for k in _LEAF}
    for tree in range(3):
        for node in range(15):
            leaf = node >= 7
            mode = "LEAF" if leaf else f"BRANCH_{rng.choice(['LEQ', 'LT', 'GTE', 'GT', 'NEQ'])}"
            ways = (0, 0) if leaf else (2 * node + 1, 2 * node + 2)
            split, missing = float(rng.standard_normal()), int(rng.integers(2))
            row = (tree, node, int(rng.integers(3)), mode, split, *ways, missing)
            for key, value in zip(_NODE, row, strict=True):
                attrs[f"nodes_{key}"].append(value)
            for target in ids if leaf else ():
                weight = float(rng.uniform(0 if sign else -1, 1))
                for key, value in zip(_LEAF, (tree, node, target, weight), strict=True):
                    attrs[f"{kind}_{key}"].append(value)
    return attrs


_NODE = (
    "treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
    "missing_value_tracks_true",
)  # fmt: skip
_LEAF = ("treeids", "nodeids", "ids", "weights")


def _features() -> Iterator[Case]:
    for x in (X, X.astype(np.float64), NUMBERS, NUMBERS.astype(np.int32)):
        yield "Scaler", [x], (FLOAT,), {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 2.0, 1.0]}
        for norm in ("MAX", "L1", "L2"):
            yield "Normalizer", [x], (FLOAT,), {"norm": norm}
    yield "Normalizer", [np.zeros((2, 3), np.float32)], (FLOAT,), {"norm": "L2"}
    yield "Binarizer", [X], (FLOAT,), {"threshold": 0.3}
    fill = {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": NAN}
    yield "Imputer", [HOLES], (FLOAT,), fill
    fill = {"imputed_value_int64s": [7], "replaced_value_int64": 1}
    yield "Imputer", [NUMBERS], (INT64,), fill
    yield "ArrayFeatureExtractor", [X, np.array([[2, 0]])], (FLOAT,), {}
    yield "ArrayFeatureExtractor", [X[0], np.array([2, 0])], (FLOAT,), {}
    for widths in ([3, 2], [2, 4]):
        yield "FeatureVectorizer", [X, X[:, :2]], (FLOAT,), {"inputdimensions": widths}
    yield "OneHotEncoder", [NUMBERS], (FLOAT,), {"cats_int64s": [-3, 0, 2, 1]}
    yield "OneHotEncoder", [TEXTS], (FLOAT,), {"cats_strings": ["b", "a"]}
    yield "OneHotEncoder", [np.array([2, 0])], (FLOAT,), {"cats_int64s": [0, 2], "zeros": 0}
    keys = {"keys_int64s": [3, -1, 3], "opset": 2}
    yield "LabelEncoder", [NUMBERS], (FLOAT,), {"values_floats": [0.5, 1.5, 2.5], **keys}
    yield "LabelEncoder", [NUMBERS], (STRING,), {"values_strings": ["a", "b", "c"], **keys}
    keys = {"keys_strings": ["a", "b"], "values_int64s": [1, 2], "default_int64": 42, "opset": 2}
    yield "LabelEncoder", [TEXTS], (INT64,), keys
    yield "LabelEncoder", [TEXTS], (INT64,), {"classes_strings": ["q", "b"], "opset": 1}
    names = {"cats_strings": ["q", "b"], "cats_int64s": [5, 6], "opset": 1}
    yield "CategoryMapper", [TEXTS], (INT64,), names
    yield "CategoryMapper", [NUMBERS + 4], (STRING,), names


def _linear() -> Iterator[Case]:
    one = {"coefficients": _draw(3), "intercepts": _draw(1)}
    three = {"coefficients": _draw(9), "intercepts": _draw(3)}
    yield "LinearRegressor", [X], (FLOAT,), {"targets": 3, **three}
    for name in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        kind = {"post_transform": name}
        yield (
            "LinearClassifier",
            [X],
            (INT64, FLOAT),
            {"classlabels_ints": [5, 7, 2], **three, **kind},
        )
        if "SOFT" not in name:
            labels = {"classlabels_strings": ["no", "yes"]}
            yield "LinearClassifier", [X], (STRING, FLOAT), {**labels, **one, **kind}


def _trees() -> Iterator[Case]:
    for name in ("SUM", "AVERAGE", "MIN", "MAX"):
        attrs = {"n_targets": 2, "aggregate_function": name, "base_values": [0.5, -1.0]}
        yield "TreeEnsembleRegressor", [HOLES], (FLOAT,), {**attrs, **_forest("target", [0, 1])}
    attrs = {"n_targets": 1, **_forest("target", [0])}
    yield "TreeEnsembleRegressor", [HOLES.astype(np.float64)], (FLOAT,), attrs
    labels = {"classlabels_int64s": [5, 7, 2]}
    for name in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        kind = {"post_transform": name, **labels, **_forest("class", [0, 1, 2])}
        yield "TreeEnsembleClassifier", [HOLES], (INT64, FLOAT), kind
    labels = {"classlabels_strings": ["no", "yes"]}
    for ids in ([0], [1]):
        for sign in (False, True):
            attrs = {**labels, **_forest("class", ids, sign)}
            yield "TreeEnsembleClassifier", [HOLES], (STRING, FLOAT), attrs


def _svm() -> Iterator[Case]:
    params = {"kernel_params": [0.4, 0.2, 3.0]}
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        attrs = {"kernel_type": kernel, **params, "support_vectors": _draw(18)}
        rest = {"coefficients": _draw(6), "rho": [0.3], "n_supports": 6}
        yield "SVMRegressor", [X], (FLOAT,), {**attrs, **rest}
        yield "SVMRegressor", [X], (FLOAT,), {**attrs, **rest, "one_class": 1}
        attrs |= {"vectors_per_class": [2, 1, 3], "classlabels_ints": [4, 5, 6]}
        attrs |= {"coefficients": _draw(12), "rho": _draw(3)}
        yield "SVMClassifier", [X], (INT64, FLOAT), attrs
        chances = {"prob_a": [-0.5, -1.0, -0.7], "prob_b": [0.1, 0.2, -0.3]}
        yield "SVMClassifier", [X], (INT64, FLOAT), {**attrs, **chances}
    planes = {"coefficients": _draw(9), "rho": [0.2] * 3, "classlabels_ints": [4, 5, 6]}
    planes |= {"post_transform": "SOFTMAX", **params}
    yield "SVMClassifier", [X], (INT64, FLOAT), planes


CASES = [*_features(), *_linear(), *_trees(), *_svm()]


@SWEEP
@pytest.mark.parametrize("op", sorted({c[0] for c in CASES}))
def test_ml_op_matches_onnxruntime(op: str, device: DeviceInfo) -> None:
    for _, inputs, outputs, attrs in (c for c in CASES if c[0] == op):
        model = _model(op, inputs, outputs, dict(attrs))
        feeds = {f"x{i}": a for i, a in enumerate(inputs)}
        theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        plain = {k: a.astype(object) if a.dtype.kind == "U" else a for k, a in feeds.items()}
        for found, wanted in zip(_run(model, feeds, device), theirs.run(None, plain), strict=True):
            _same(found, wanted)


@SWEEP
@pytest.mark.parametrize("transform", ["SOFTMAX", "SOFTMAX_ZERO", "LOGISTIC"])
def test_binary_tree_classifier_matches_reference(transform: str, device: DeviceInfo) -> None:
    attrs = {"post_transform": transform, "classlabels_int64s": [4, 9], **_forest("class", [0])}
    x = np.nan_to_num(HOLES)
    model = _model("TreeEnsembleClassifier", [x], (INT64, FLOAT), attrs)
    wanted = ReferenceEvaluator(model).run(None, {"x0": x})
    for found, expected in zip(_run(model, {"x0": x}, device), wanted, strict=True):
        _same(found, expected)


@SWEEP
@pytest.mark.parametrize("op", ["Adam", "Adagrad", "Momentum"])
def test_training_optimizers_match_reference(op: str, device: DeviceInfo) -> None:
    attrs: dict[str, Any] = {"norm_coefficient": 0.1, "domain": "ai.onnx.preview.training"}
    attrs |= {"Adam": {"norm_coefficient_post": 0.2}, "Adagrad": {"decay_factor": 0.1}}.get(
        op, {"alpha": 0.9, "beta": 0.8, "mode": "nesterov"}
    )
    tensors = [a for k in range(4 if op == "Adam" else 3) for a in (np.abs(X) + k, X[:, 0] ** 2)]
    for times in (0, 3):
        inputs = [np.array(0.1, np.float32), np.array(times), *tensors]
        model = _model(op, inputs, (FLOAT,) * (len(tensors) - 2), {**attrs, "opset": 1})
        feeds = {f"x{i}": a for i, a in enumerate(inputs)}
        for found, wanted in zip(
            _run(model, feeds, device), ReferenceEvaluator(model).run(None, feeds), strict=True
        ):
            _same(found, wanted)


def test_cyclic_trees_are_refused() -> None:
    attrs = _forest("target", [0])
    for way in ("true", "false"):
        bad = {**attrs, f"nodes_{way}nodeids": [0] * 45, "n_targets": 1}
        with pytest.raises(ModelError, match="cycle"):
            clrt.load(_model("TreeEnsembleRegressor", [X], (FLOAT,), bad))


def test_unknown_normalizer_norm_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="norm 'L3'"):
        clrt.load(_model("Normalizer", [X], (FLOAT,), {"norm": "L3"}))


@SWEEP
def test_unknown_one_hot_category_is_refused(device: DeviceInfo) -> None:
    attrs = {"cats_int64s": [0, 2], "zeros": 0}
    x = np.array([2, 5])
    with pytest.raises(InputError, match="an index computed from input 'x0' is 2; allowed"):
        _run(_model("OneHotEncoder", [x], (FLOAT,), attrs), {"x0": x}, device)
