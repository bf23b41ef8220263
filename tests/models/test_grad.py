"""`clrt.grad`, and ONNX's Gradient op, on every device."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import clrt
from clrt.errors import ClrtError, InputError, ModelError, UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, parsed

MLP = """net (float[n, 3] x, float[n, 2] target, int64[1] axis) => (float loss, float[n, 2] error)
    <float[3, 4] w = {0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6},
     float[4] b = {0.1, 0.2, 0.3, 0.4},
     float[4, 2] v = {1, 2, 3, 4, 5, 6, 7, 8}> {
    product = MatMul (x, w)
    sums = Add (product, b)
    hidden = Tanh (sums)
    found = MatMul (hidden, v)
    error = Sub (found, target)
    squares = Mul (error, error)
    loss = ReduceMean <keepdims = 0> (squares)
}"""
TRAINING = "ai.onnx.preview.training"


def _loss(x: Array, target: Array, w: Array, b: Array, v: Array) -> float:
    return float(np.mean((np.tanh(x @ w + b) @ v - target) ** 2))


def _numeric(function: Callable[..., float], args: dict[str, Array], name: str) -> Array:
    """Returns the gradient of a function by one argument, by central differences in float64."""
    x = args[name].astype(np.float64)
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        above, below = (function(**{**args, name: x + s}) for s in (step, -step))
        gradient[place] = (above - below) / 2e-5
    return gradient


def _mlp_args(rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    sizes = {"x": (rows, 3), "target": (rows, 2), "w": (3, 4), "b": (4,), "v": (4, 2)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}


@DEVICES
def test_grad_matches_finite_differences_at_file_and_given_weights(device: DeviceInfo) -> None:
    model = clrt.grad(parsed(MLP), ["w", "b", "x"], "loss", device=device.index, strict=True)
    assert [o.name for o in model.outputs] == ["loss", "w.grad", "b.grad", "x.grad"]
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in _proto(MLP).graph.initializer}
    for rows in (4, 7):
        given = _mlp_args(rows)
        axis = np.zeros(1, np.int64)
        feeds = {"x": given["x"], "target": given["target"], "axis": axis}
        for args in ({**given, **weights}, {**given, "v": weights["v"]}):
            changed = {n: args[n] for n in ("w", "b") if args[n] is not weights[n]}
            results = model.run({**feeds, **changed})
            assert results["loss"] == pytest.approx(_loss(**args), rel=1e-5)
            for name in ("w", "b", "x"):
                expected = _numeric(_loss, args, name)
                np.testing.assert_allclose(results[f"{name}.grad"], expected, rtol=1e-4, atol=1e-5)


def test_grad_model_is_copied_and_pickled() -> None:
    model = clrt.grad(parsed(MLP), ["w"], "loss")
    args = _mlp_args(2)
    feeds = {"x": args["x"], "target": args["target"], "axis": np.zeros(1, np.int64)}
    expected = model.run(feeds)
    for other in (copy.copy(model), pickle.loads(pickle.dumps(model))):
        for name, array in other.run(feeds).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-6)


def test_floor_has_gradient_zero() -> None:
    text = "net (float[3] x) => (float loss) { y = Floor (x) loss = ReduceSum <keepdims = 0> (y) }"
    results = clrt.grad(parsed(text), "x", "loss").run({"x": np.ones(3, np.float32)})
    assert not results["x.grad"].any()


@pytest.mark.parametrize(
    ("wrt", "loss", "text"),
    [
        (["weight"], "loss", "no value 'weight'; it has x, target, axis, w"),
        (["w"], "los", "no value 'los'"),
        (["axis"], "loss", "'axis' is int64"),
        (["w"], "error", "expected one element"),
        (["v"], "sums", "expected one element"),
    ],
)
def test_grad_names_bad_values(wrt: list[str], loss: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        clrt.grad(parsed(MLP), wrt, loss)


def test_grad_by_independent_value_is_an_error() -> None:
    text = """net (float[3] x, float[3] z) => (float loss, float[3] y) {
        y = Neg (z)
        loss = ReduceSum <keepdims = 0> (x)
    }"""
    with pytest.raises(InputError, match="does not depend on 'z'"):
        clrt.grad(parsed(text), ["x", "z"], "loss")


def test_op_without_gradient_in_branch_is_named_with_path() -> None:
    text = """net (float[2, 2] x, bool c) => (float loss) {
        y = If (c) <then_branch = a () => (float p) { d = Det (x) p = Neg (d) },
                    else_branch = b () => (float q) { q = ReduceMax <keepdims = 0> (x) }>
        loss = Tanh (y)
    }"""
    route = r"\(path: 'loss' ← Tanh '\w+' ← If '\w+' ← Neg '[^']+' ← Det '[^']+'\); leave[^;]*$"
    with pytest.raises(UnsupportedError, match=route):
        clrt.grad(parsed(text), "x", "loss")


@DEVICES
def test_attention_averages_values_of_rows_that_finite_masks_cover(device: DeviceInfo) -> None:
    text = """net (float[1, 1, 4, 4] q, float[1, 1, 4, 4] k, float[1, 1, 4, 4] v, float[4, 4] m)
               => (float loss) {
        y = Attention <is_causal = 1> (q, k, v, m)
        loss = ReduceSum <keepdims = 0> (y)
    }"""
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((1, 1, 4, 4)).astype(np.float32) for n in "qkv"}
    mask = np.full((4, 4), -np.inf, np.float32)  # of the first and the last query: no key
    mask[1:3] = np.finfo(np.float32).min
    model = clrt.grad(parsed(text, opset=23), ["q", "k", "v"], "loss", device=device.index)
    results = model.run({**feeds, "m": mask})
    weights = np.float32([1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3, 0])
    assert results["loss"] == pytest.approx((weights @ feeds["v"][0, 0]).sum(), rel=1e-4)
    np.testing.assert_allclose(results["v.grad"][0, 0, :, 0], weights, rtol=1e-5)
    assert np.isfinite(results["k.grad"]).all() and np.isfinite(results["q.grad"]).all()
    assert not results["q.grad"][..., [0, 3], :].any()


def test_random_numbers_of_a_shape_are_constants() -> None:
    text = """net (float[4] x) => (float loss, float[4] e) {
        e = RandomNormalLike <seed = 1.0> (x)
        y = Mul (x, e)
        loss = ReduceSum <keepdims = 0> (y)
    }"""
    results = clrt.grad(parsed(text), ["x", "e"], "loss").run({"x": np.ones(4, np.float32)})
    assert results["loss"] == pytest.approx(results["x.grad"].sum(), rel=1e-5)


def test_op_without_gradient_is_named_with_path() -> None:
    text = """net (float[3, 3] x) => (float loss) {
        y = Det (x)
        z = Tanh (y)
        loss = ReduceSum <keepdims = 0> (z)
    }"""
    with pytest.raises(UnsupportedError, match=r"'loss' ← ReduceSum .* ← Tanh .* ← Det"):
        clrt.grad(parsed(text), "x", "loss")


def _proto(text: str) -> onnx.ModelProto:
    return onnx.load_model_from_string(parsed(text))


def _with_gradient(text: str, **nodes: dict[str, Any]) -> onnx.ModelProto:
    """Returns a model with Gradient nodes before all others, whose outputs are outputs.

    Args:
        text: The model without them, in ONNX's text format.
        nodes: By output name, `inputs` and attributes of the node.
    """
    model = _proto(text)
    model.opset_import.add(domain=TRAINING, version=1)
    for name, given in nodes.items():
        attributes = {k: v for k, v in given.items() if k != "inputs"}
        node = onnx.helper.make_node(
            "Gradient", given["inputs"], [name], domain=TRAINING, **attributes
        )
        model.graph.node.insert(0, node)
        model.graph.output.add().name = name
    return model


CUBE = (
    "net (float[n] x, float[n] z) => (float[n] y) { s = Mul (x, x) c = Mul (s, x) y = Mul (c, z) }"
)


@DEVICES
def test_gradient_op_reads_other_inputs_and_second_order(device: DeviceInfo) -> None:
    here = {"inputs": ["x"], "xs": ["x"], "y": "y"}
    swapped = {"inputs": ["z", "x"], "xs": ["x"], "zs": ["z"], "y": "y"}
    second = {"inputs": ["x"], "xs": ["x"], "y": "dx"}
    inner = {"inputs": ["c"], "xs": ["c"], "y": "y"}
    model = _with_gradient(CUBE, dx=here, swapped=swapped, second=second, inner=inner)
    x, z = np.float32([1, 2, -3]), np.float32([4, -5, 6])
    results = clrt.load(model, device=device.index).run({"x": x, "z": z})
    expected = {
        "y": x**3 * z,
        "dx": 3 * x**2 * z,
        "swapped": 3 * z**2 * x,
        "second": 6 * x * z,
        "inner": z,
    }
    for name, array in expected.items():
        np.testing.assert_allclose(results[name], array, rtol=1e-5)


def test_gradient_op_differentiates_function_of_named_values_only() -> None:
    text = "net (float[n] x, float[n] z) => (float[n] y) { w = Mul (x, z) y = Mul (x, w) }"
    model = _with_gradient(
        text,
        other={"inputs": ["z"], "xs": ["x"], "y": "y"},
        same={"inputs": ["x", "x"], "xs": ["x"], "zs": ["z"], "y": "y"},
        held={"inputs": ["x", "w"], "xs": ["x"], "zs": ["w"], "y": "y"},
    )
    x, z = np.float32([1, 2, -3]), np.float32([4, -5, 6])
    results = clrt.load(model).run({"x": x, "z": z})
    expected = {"other": 2 * z * z, "same": 2 * x * x, "held": x * z}
    for name, array in expected.items():
        np.testing.assert_allclose(results[name], array, rtol=1e-5)


def test_nested_gradients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_NODE_LIMIT", "100")
    text = "net (float[n] x) => (float[n] y) { s = Sin (x) e = Exp (s) y = Mul (e, s) }"
    nodes = {f"d{k}": {"inputs": ["x"], "xs": ["x"], "y": f"d{k - 1}"} for k in range(1, 9)}
    nodes["d1"]["y"] = "y"
    with pytest.raises(ModelError, match="with its gradients, and CLRT_NODE_LIMIT allows 100"):
        clrt.load(_with_gradient(text, **nodes))


def test_gradient_op_names_itself_for_inputs_that_do_not_fit() -> None:
    text = "net (float[2] x, float[3] k) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }"
    with pytest.raises(ClrtError, match=r"Gradient .*do not broadcast"):
        clrt.load(_with_gradient(text, dx={"inputs": ["k"], "xs": ["x"], "y": "y"}))


@pytest.mark.parametrize(
    ("node", "text", "error"),
    [
        ({"inputs": ["x"], "xs": ["nope"], "y": "y"}, "nope", ModelError),
        ({"inputs": ["x"], "xs": ["x", "z"], "y": "y"}, "one input per name", ModelError),
        ({"inputs": ["x"], "xs": ["x"], "y": "z"}, "does not depend", UnsupportedError),
    ],
)
def test_gradient_op_names_bad_attributes(
    node: dict[str, Any], text: str, error: type[ClrtError]
) -> None:
    with pytest.raises(error, match=text):
        clrt.load(_with_gradient(CUBE, dx=node))


LOOP = """net (float[3] x, float[3, 3] w) => (float loss) {
    count = Constant <value = int64 {4}> ()
    start = Constant <value = bool {1}> ()
    y = Loop (count, start, x) <body = step (int64 i, bool go, float[3] s)
                                      => (bool on, float[3] t) {
        on = Identity (go)
        p = MatMul (w, s)
        t = Tanh (p)
    }>
    loss = ReduceSum <keepdims = 0> (y)
}"""
SCAN = """net (float[3] x, float[3, 3] w) => (float loss) {
    first = Sum (x)
    y, rows = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] e)
                    => (float[3] t, float[3] o) {
        p = MatMul (w, s)
        q = Add (p, e)
        t = Tanh (q)
        o = Mul (t, t)
    }> (first, w)
    a = ReduceSum <keepdims = 0> (y)
    b = ReduceSum <keepdims = 0> (rows)
    loss = Add (a, b)
}"""
# Both outputs of the loop are one value; the determinant of `w` has no gradient.
TWINS = """net (float[2] x, float[2, 2] w) => (float loss) {
    count = Constant <value = int64 {1}> ()
    start = Constant <value = bool {1}> ()
    y, z = Loop (count, start, x, x) <body = step (int64 i, bool go, float[2] s, float[2] r)
                                           => (bool on, float[2] t, float[2] t) {
        on = Identity (go)
        d = Det (w)
        p = Mul (s, r)
        t = Mul (p, d)
    }>
    p = Mul (y, y)
    q = Add (p, z)
    loss = ReduceSum <keepdims = 0> (q)
}"""
BRANCHES = """net (float[n] x, float[n] w, bool condition) => (float loss) {
    y = If (condition) <
        then_branch = a () => (float[n] p) { p = Mul (x, w) },
        else_branch = b () => (float[n] q) { r = Log (w) q = Add (r, x) }
    >
    loss = ReduceSum <keepdims = 0> (y)
}"""


def _loop(x: Array, w: Array) -> float:
    for _ in range(4):
        x = np.tanh(w @ x)
    return float(x.sum())


def _scan(x: Array, w: Array) -> float:
    total = 0.0
    for row in w:
        x = np.tanh(w @ x + row)
        total += float((x * x).sum())
    return total + float(x.sum())


def _branch(x: Array, w: Array, condition: Array) -> float:
    return float(np.sum(x * w if condition else np.log(w) + x))


@DEVICES
@pytest.mark.parametrize(
    ("text", "function", "extra"),
    [
        (LOOP, _loop, {}),
        (SCAN, _scan, {}),
        (BRANCHES, _branch, {"condition": np.array(True)}),
        (BRANCHES, _branch, {"condition": np.array(False)}),
    ],
    ids=["loop", "scan", "then", "else"],
)
def test_grad_goes_through_subgraphs(
    device: DeviceInfo, text: str, function: Callable[..., float], extra: dict[str, Array]
) -> None:
    rng = np.random.default_rng(1)
    w_shape = (3,) if extra else (3, 3)
    args = {"x": rng.uniform(0.1, 1, 3), "w": rng.uniform(0.1, 1, w_shape)}
    feeds = {n: a.astype(np.float32) for n, a in args.items()} | extra
    results = clrt.grad(parsed(text), ["x", "w"], "loss", device=device.index).run(feeds)
    for name in args:
        expected = _numeric(function, feeds, name)
        np.testing.assert_allclose(results[f"{name}.grad"], expected, rtol=1e-4, atol=1e-5)


def test_loop_with_one_value_as_two_outputs_ignores_inactive_ops() -> None:
    x, w = np.float32([0.6, 2]), np.float32([[1, 2], [3, 4]])
    results = clrt.grad(parsed(TWINS), "x", "loss").run({"x": x, "w": w})
    t = -2 * x * x
    np.testing.assert_allclose(results["x.grad"], (2 * t + 1) * -4 * x, rtol=1e-5)


def test_gradient_op_by_weight_that_a_subgraph_reads_is_an_error() -> None:
    text = """net (float[2] x) => (float[2] y) <float[2] w = {2, 3}> {
        count = Constant <value = int64 {2}> ()
        start = Constant <value = bool {1}> ()
        s = Loop (count, start, x) <body = step (int64 i, bool go, float[2] a)
                                         => (bool on, float[2] b) {
            on = Identity (go)
            b = Mul (a, w)
        }>
        y = Mul (s, w)
    }"""
    with pytest.raises(UnsupportedError, match="'w' is read inside a subgraph of Loop"):
        clrt.load(_with_gradient(text, dw={"inputs": ["w"], "xs": ["w"], "y": "y"}))
