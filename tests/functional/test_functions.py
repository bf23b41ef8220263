"""`clrt.functional` calls on arrays, scalars and tensors, by ONNX and by common names."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import clrt
import clrt.functional as F
from clrt.errors import DeviceError, InputError, ShapeError, UnsupportedError
from clrt.functional import calls, common
from clrt.ir.op import Array
from tests.harness import all_devices, quick_device
from tests.models.onnx_text import parsed

DEVICE = quick_device().index
RNG = np.random.default_rng(28)


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


@pytest.fixture(autouse=True)
def on_quick_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CLRT_DEVICE", str(DEVICE))
    calls.clear_cache()
    yield
    calls.clear_cache()


X, IMAGE = _x(2, 5, 8), _x(2, 3, 9, 7)
WEIGHT, BIAS, KERNEL = _x(6, 8), _x(6), _x(4, 3, 3, 3)
QUERY, KEY, VALUE = _x(2, 4, 5, 8), _x(2, 4, 7, 8), _x(2, 4, 7, 6)
IDS = np.array([[1, 5], [0, 1]])

# A call, and the same in ONNX's text: its inputs are a, b, …
CASES: list[tuple[str, Callable[..., Any], tuple[Array, ...], str]] = [
    ("relu", F.relu, (X,), "Relu(a)"),
    ("leaky_relu", lambda a: F.leaky_relu(a, 0.2), (X,), "LeakyRelu<alpha = 0.2>(a)"),
    ("gelu", F.gelu, (X,), "Gelu(a)"),
    ("gelu_tanh", lambda a: F.gelu(a, "tanh"), (X,), 'Gelu<approximate = "tanh">(a)'),
    ("silu", F.silu, (X,), "s = Sigmoid(a) y = Mul(a, s)"),
    ("sigmoid", F.sigmoid, (X,), "Sigmoid(a)"),
    ("tanh", F.tanh, (X,), "Tanh(a)"),
    ("softplus", F.softplus, (X,), "Softplus(a)"),
    ("softmax", lambda a: F.softmax(a, axis=1), (X,), "Softmax<axis = 1>(a)"),
    ("log_softmax", F.log_softmax, (X,), "LogSoftmax(a)"),
    ("matmul", F.matmul, (X, _x(8, 3)), "MatMul(a, b)"),
    ("linear", F.linear, (X, WEIGHT), "t = Transpose(b) y = MatMul(a, t)"),
    (
        "linear_bias", F.linear, (X[0], WEIGHT, BIAS), "Gemm<transB = 1>(a, b, c)",
    ),
    ("embedding", F.embedding, (IDS, WEIGHT), "Gather(b, a)"),
    (
        "layer_norm", lambda a, b, c: F.layer_norm(a, b, c, 1e-3), (X, _x(8), _x(8)),
        "LayerNormalization<epsilon = 0.001>(a, b, c)",
    ),
    (
        "rms_norm", F.rms_norm, (X, _x(8)),
        """q = Mul(a, a) l = Constant<value = int64[1] {-1}>() m = ReduceMean(q, l)
           e = Constant<value = float {0.00001}>() s = Add(m, e) r = Sqrt(s) d = Div(a, r)
           y = Mul(d, b)""",
    ),
    (
        "batch_norm", F.batch_norm, (IMAGE, _x(3), abs(_x(3)), _x(3), _x(3)),
        "BatchNormalization(a, d, e, b, c)",
    ),
    ("normalize", F.normalize, (X,), "LpNormalization<axis = -1>(a)"),
    (
        "conv2d",
        lambda a, b, c: F.conv2d(a, b, c, stride=(2, 1), padding=1, dilation=2),
        (IMAGE, KERNEL, _x(4)),
        "Conv<strides = [2, 1], pads = [1, 1, 1, 1], dilations = [2, 2]>(a, b, c)",
    ),
    ("conv1d", lambda a, b: F.conv1d(a, b, groups=5), (X, _x(10, 1, 3)), "Conv<group = 5>(a, b)"),
    (
        "conv_transpose2d", lambda a, b: F.conv_transpose2d(a, b, stride=2, output_padding=1),
        (IMAGE, _x(3, 2, 3, 3)), "ConvTranspose<strides = [2, 2], output_padding = [1, 1]>(a, b)",
    ),
    (
        "max_pool2d", lambda a: F.max_pool2d(a, 3, 2, 1), (IMAGE,),
        "MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a)",
    ),
    (
        "avg_pool2d", lambda a: F.avg_pool2d(a, 2, padding=1), (IMAGE,),
        """AveragePool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1],
           count_include_pad = 1>(a)""",
    ),
    ("concat", lambda a, b: F.concat([a, b], axis=1), (X, _x(2, 2, 8)), "Concat<axis = 1>(a, b)"),
]  # fmt: skip


def _by_onnx_runtime(inputs: tuple[Array, ...], text: str) -> Array:
    """Returns ONNX Runtime's result of a graph body."""
    names = "abcdefgh"[: len(inputs)]
    types = {"float32": "float", "int64": "int64"}
    declared = ", ".join(
        f"{types[x.dtype.name]}[{','.join(map(str, x.shape))}] {n}"
        for n, x in zip(names, inputs, strict=True)
    )
    body = text if " y = " in text else f"y = {text}"
    model = parsed(f"g ({declared}) => (float[] y) {{ {body} }}", opset=20, ir_version=9)
    proto = _without_output_shape(model)
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(found)


def _without_output_shape(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    ("function", "inputs", "text"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_common_functions_match_onnxruntime(
    function: Callable[..., Any], inputs: tuple[Array, ...], text: str
) -> None:
    expected = _by_onnx_runtime(inputs, text)
    found = function(*inputs)
    assert isinstance(found, np.ndarray)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * abs(expected).max())
    there = function(*(clrt.tensor(x, device=DEVICE) for x in inputs))
    assert isinstance(there, clrt.DeviceTensor)
    np.testing.assert_allclose(there.numpy(), found, rtol=0, atol=1e-6 * abs(expected).max())


def _attention(q: Array, k: Array, v: Array, hidden: Array, scale: float) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) * scale
    scores[np.broadcast_to(hidden, scores.shape)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def test_attention_masks_and_scale_match_numpy() -> None:
    q, k, v = (t.astype(np.float64) for t in (QUERY, KEY, VALUE))
    behind = np.triu(np.ones((5, 7), bool), 1)
    some = np.zeros((2, 1, 1, 7), bool)
    some[1, ..., 5:] = True
    for hidden, options in (
        (np.zeros((5, 7), bool), {}),
        (behind, {"causal": True}),
        (some, {"mask": ~some}),
        (behind, {"causal": True, "scale": 0.5}),
    ):
        expected = _attention(q, k, v, hidden, float(options.get("scale", 8**-0.5)))
        found = F.attention(QUERY, KEY, VALUE, **options)
        np.testing.assert_allclose(found, expected, atol=2e-6)
    rows = [np.swapaxes(t, 1, 2).reshape(2, t.shape[2], -1) for t in (QUERY, KEY, VALUE)]
    found = F.attention(*rows, causal=True, num_heads=4)
    expected = np.swapaxes(_attention(q, k, v, behind, 8**-0.5), 1, 2).reshape(2, 5, -1)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    shared = F.attention(QUERY, KEY[:, :2], VALUE[:, :2])
    expected = F.attention(QUERY, KEY[:, [0, 0, 1, 1]], VALUE[:, [0, 0, 1, 1]])
    np.testing.assert_allclose(shared, expected, atol=2e-6)


def test_norms_without_weights_match_numpy() -> None:
    x = X.astype(np.float64)
    centred = x - x.mean((1, 2), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean((1, 2), keepdims=True) + 1e-5)
    np.testing.assert_allclose(F.layer_norm(X, axis=1), expected, atol=1e-5)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(F.rms_norm(X), expected, atol=1e-5)
    groups = _x(2, 6, 4)
    parts = groups.reshape(2, 3, -1).astype(np.float64)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    found = F.group_norm(groups, 3, np.ones(6, np.float32), np.zeros(6, np.float32))
    np.testing.assert_allclose(found, parts.reshape(2, 6, 4), atol=1e-5)


def test_scalars_and_lists_take_dtype_of_array_operand() -> None:
    for dtype in (np.float32, np.float16, np.int32, np.uint8):
        found = F.Mul(np.array([1, 2], dtype), 3)
        assert found.dtype == dtype
        assert found.tolist() == [3, 6]
    assert F.Add([1, 2], 2).dtype == np.int64
    assert F.relu([-1.5, 2]).dtype == np.float32
    assert F.Clip(X, max=0.5).max() == np.float32(0.5)
    assert F.Where([True, False], 1.0, [2.0, 3.0]).tolist() == [1, 3]
    assert F.Reshape(X, [-1, 8]).shape == (10, 8)
    assert F.ReduceSum(X, []).shape == (1, 1, 1)
    assert F.Range(0, 6, 2).tolist() == [0, 2, 4]
    assert F.Cast([1, 2], to=np.float16).dtype == F.Cast([1, 2], to=10).dtype == np.float16
    for wrong in (2.5, 300, [1, "a"], object(), [[1], [2, 3]]):
        with pytest.raises(InputError, match="Add: input 'B'"):
            F.Add(np.array([1], np.uint8), wrong)


def test_strings_sequences_and_maps_are_supported() -> None:
    assert F.StringConcat(["a", "b"], np.array(["c", "d"], object)).tolist() == ["ac", "bd"]
    both = F.SequenceConstruct(X, X[:1])
    assert [x.shape for x in both] == [(2, 5, 8), (1, 5, 8)]
    np.testing.assert_array_equal(F.SequenceAt(both, 1), X[:1])
    np.testing.assert_array_equal(F.ConcatFromSequence(both, axis=0), np.concatenate(both))
    weights = F.ml.DictVectorizer({"a": 1.0, "c": 2.0}, string_vocabulary=["a", "b", "c"])
    assert np.asarray(weights).reshape(-1).tolist() == [1, 0, 2]


def test_output_count_is_required_outputs_or_outputs_argument() -> None:
    values, places = F.TopK(X, 2)
    assert (values.shape, places.dtype) == ((2, 5, 2), np.int64)
    normal, mean = F.LayerNormalization(X, np.ones(8, np.float32), outputs=2)
    np.testing.assert_allclose(mean[..., 0], X.mean(-1), atol=1e-6)
    assert normal.shape == X.shape
    assert [p.shape[2] for p in F.Split(X, [1, 5, 2], axis=2)] == [1, 5, 2]
    assert len(F.Split(X, num_outputs=4, axis=2)) == 4
    assert len(F.GRU(_x(3, 2, 4), _x(1, 15, 4), _x(1, 15, 5), hidden_size=5)) == 2
    with pytest.raises(InputError, match="outputs is 2; it has 1"):
        F.Relu(X, outputs=2)
    with pytest.raises(InputError, match="pass outputs="):
        F.Split(X)


def test_device_input_gives_device_output() -> None:
    there = clrt.tensor(X, device=DEVICE)
    for found in (F.Add(there, X), F.Add(X, there), F.Add(there, 1), F.Shape(there)):
        assert isinstance(found, clrt.DeviceTensor)
    with F.linear(there, WEIGHT) as hidden, F.gelu(hidden) as found:
        np.testing.assert_allclose(found.numpy(), F.gelu(F.linear(X, WEIGHT)), atol=1e-5)
    with pytest.raises(InputError, match="released"):
        F.gelu(hidden)
    shape = clrt.tensor([4, 20], device=DEVICE)
    assert F.Reshape(there, shape).shape == (4, 20)
    assert all(isinstance(x, clrt.DeviceTensor) for x in F.SequenceConstruct(there, there))


def test_tensors_on_two_devices_are_refused() -> None:
    others = [d.index for d in all_devices() if d.index != DEVICE]
    assert isinstance(F.relu(X, device=DEVICE), np.ndarray)
    for other in others:
        np.testing.assert_array_equal(F.Abs(X, device=other), abs(X))
        there = clrt.tensor(X, device=DEVICE)
        with pytest.raises(DeviceError, match=r"\.numpy\(\)"):
            F.Add(there, clrt.tensor(X, device=other))
        with pytest.raises(DeviceError, match=r"\.numpy\(\)"):
            F.Abs(there, device=other)


def test_new_shape_reuses_cached_model() -> None:
    for rows in (3, 4, 5, 7, 11):
        x = _x(rows, 16)
        np.testing.assert_allclose(F.softmax(x).sum(-1), 1, atol=1e-6)
        F.Add(x, x)
        F.Reshape(x, [-1, 8])
    assert len(calls._MODELS) == 3
    F.softmax(_x(3, 16).astype(np.float16))
    F.softmax(_x(3, 16), axis=0)
    F.softmax(_x(3, 1))
    F.Reshape(_x(3, 16), [16, -1])
    assert len(calls._MODELS) == 7


def test_model_cache_is_bounded_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MODELS", calls.RecentlyUsed(3))
    for k in range(1, 9):
        assert F.Pow(2.0, float(k)).item() == 2**k
        assert F.Reshape(X, [k, -1] if 80 % k == 0 else [-1]).size == 80
    assert len(calls._MODELS) == 3
    F.clear_cache()
    assert len(calls._MODELS) == 0


def test_concurrent_calls_give_correct_results() -> None:
    inputs = [_x(2 + k % 5, 8) for k in range(60)]
    with ThreadPoolExecutor(6) as pool:
        results = pool.map(lambda x: F.linear(x, WEIGHT, BIAS), inputs)
        for x, found in zip(inputs, results, strict=True):
            np.testing.assert_allclose(found, x @ WEIGHT.T + BIAS, atol=1e-5)


def test_microsoft_and_ml_ops_have_namespaces() -> None:
    expected = F.gelu(X + X[0, 0])
    np.testing.assert_allclose(F.microsoft.BiasGelu(X, X[0, 0]), expected, atol=1e-6)
    np.testing.assert_array_equal(F.microsoft.Trilu(X[0], 1), np.triu(X[0], 1))
    scaled = F.ml.Scaler(X[0], offset=[1.0], scale=[2.0])
    np.testing.assert_allclose(scaled, (X[0] - 1) * 2, atol=1e-6)
    assert "BiasGelu" in dir(F.microsoft)
    assert "LinearClassifier" in dir(F.ml)


def test_signatures_and_docstrings_describe_inputs() -> None:
    assert str(inspect.signature(F.Softmax)) == "(input, *, axis=-1, outputs=None, device=None)"
    assert list(inspect.signature(F.Concat).parameters) == ["inputs", "axis", "outputs", "device"]
    text = inspect.getdoc(F.LayerNormalization) or ""
    for part in ("Args:", "epsilon: The epsilon", "Returns:", "(optional, T)", "Source: ONNX"):
        assert part in text
    assert {"Softmax", "softmax", "microsoft"} <= set(dir(F))
    assert "If" not in dir(F)
    assert pickle.loads(pickle.dumps(F.Softmax)) is F.Softmax
    np.testing.assert_array_equal(F.Add(A=X, B=1.0), X + 1)


def test_common_functions_have_docstrings() -> None:
    for name in common.__all__:
        assert inspect.getdoc(getattr(F, name)), name


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.Sofmax, AttributeError, "Did you mean 'Softmax'"),
        (lambda: F.softMax, AttributeError, "Did you mean 'Softmax'"),
        (lambda: F.BiasGelu, AttributeError, "Did you mean 'microsoft.BiasGelu'"),
        (lambda: F.microsoft.BiasGellu, AttributeError, "Did you mean 'microsoft.BiasGelu'"),
        (lambda: F.If, AttributeError, "control flow"),
        (lambda: F.Softmax(X, axs=1), InputError, "no attribute 'axs'. Did you mean 'axis'"),
        (lambda: F.Softmax(X, 1), InputError, "takes 1 input, and 2 are given.*axis"),
        (lambda: F.Softmax(X, axis="last"), InputError, "attribute 'axis' is 'last'"),
        (lambda: F.Softmax(X, axis=1.5), InputError, "expected an integer"),
        (lambda: F.Softmax(X, axis=7), ShapeError, "axis 7 is outside rank 3"),
        (lambda: F.Conv(X, KERNEL, strides=2), InputError, "a list of integers"),
        (lambda: F.Concat([X, X], axis=0), InputError, "pass each on its own"),
        (lambda: F.Concat(X, X), InputError, "lacks its attribute 'axis'"),
        (lambda: F.Softmax(), InputError, "lacks its input 'input'"),
        (lambda: F.Add(X, A=X, B=X), InputError, "its input 'A' twice"),
        (lambda: F.Add(X, X.astype(np.float64)), ShapeError, "one dtype"),
        (lambda: F.Relu(np.array([object()])), InputError, "input 'X'"),
        (lambda: F.matmul(X, X), ShapeError, "8 and 5"),
        (lambda: F.layer_norm(X, axis=5), InputError, "axis 5 is outside rank 3"),
        (lambda: F.conv2d(X, BIAS), InputError, "third axis"),
        (lambda: F.linear(X, BIAS), InputError, "two axes"),
        (lambda: F.Softmax(X, device="nonsense"), DeviceError, "nonsense"),
        (lambda: F.microsoft.SparseAttention(X, sparse_block_size=1), InputError, "lacks its attr"),
        (
            lambda: F.microsoft.Attention(X, _x(8, 24), _x(24), num_heads=2, do_rotary=1),
            UnsupportedError, "do_rotary",
        ),
    ],
)  # fmt: skip
def test_call_errors_name_argument_and_suggestion(
    call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()
