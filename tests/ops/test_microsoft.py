"""Floating-point ops of com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser

import clrt
from clrt.errors import UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP
from tests.ops.test_microsoft_quantised import Case, check

RNG = np.random.default_rng(11)


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def _case(op: str, *inputs: Array | None, outputs: int = 1, **attrs: Any) -> Case:
    return Case(op, inputs, (), outputs, attrs)


def _activations() -> list[Case]:
    x, bias = _x(2, 3, 17), _x(17)
    return [
        _case("Gelu", x),
        _case("FastGelu", x),
        _case("FastGelu", x, bias),
        _case("BiasGelu", x, bias),
        _case("QuickGelu", x),
        _case("QuickGelu", x, alpha=1.3),
    ]


def _norms() -> list[Case]:
    x, skip, gamma, beta, bias = _x(2, 5, 8), _x(2, 5, 8), _x(8), _x(8), _x(8)
    ids = np.asarray(RNG.integers(0, 9, (2, 5)), np.int32)
    segments = np.asarray(RNG.integers(0, 2, (2, 5)), np.int32)
    tables = (_x(9, 8), _x(7, 8), _x(2, 8))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    return [
        _case("SkipLayerNormalization", x, skip, gamma),
        _case("SkipLayerNormalization", x, skip, gamma, beta, bias, epsilon=1e-5),
        _case("SkipLayerNormalization", x, skip[:1], gamma, beta),
        _case("SkipSimplifiedLayerNormalization", x, skip, gamma),
        _case("SkipSimplifiedLayerNormalization", x, skip, gamma, bias, epsilon=1e-5),
        _case("EmbedLayerNormalization", ids, segments, *tables, gamma, beta, mask, outputs=2),
        _case("EmbedLayerNormalization", ids, None, *tables[:2], None, gamma, beta, outputs=2),
        _case("EmbedLayerNormalization", ids, segments, *tables, gamma, beta, outputs=2),
    ]


def _products() -> list[Case]:
    a, b = _x(2, 3, 5), _x(2, 5, 4)
    image, kernel, bias = _x(1, 3, 6, 7), _x(4, 3, 3, 3), _x(4)
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    return [
        _case("FusedMatMul", a, b, alpha=0.5),
        _case("FusedMatMul", _x(2, 5, 3), b, transA=1),
        _case("FusedMatMul", a, _x(4, 5), transB=1, alpha=2.0),
        _case("FusedMatMul", _x(3, 2, 4, 5), _x(2, 4, 5, 6), transBatchA=1),
        _case("FusedMatMul", _x(5, 2, 4, 3), _x(2, 4, 5, 6), transBatchA=1, transA=1),
        _case("FusedMatMul", _x(3, 2, 5), _x(6, 2, 5), transBatchA=1, transBatchB=1, transB=1),
        _case("FusedGemm", a[0], _x(4, 5), _x(4), transB=1, activation="Relu"),
        _case("FusedGemm", a[0], b[0], activation="LeakyRelu", activation_alpha=0.3),
        _case("FusedConv", image, kernel, bias, activation="Relu", **conv),
        _case("FusedConv", image, kernel, bias, _x(1, 4, 6, 7), activation="Relu", **conv),
        _case("FusedConv", image, kernel, None, activation="Clip", activation_params=[-0.5, 1.0]),
    ]


def _distances() -> list[Case]:
    a, b = _x(5, 3), _x(4, 3)
    double = a.astype(np.float64), b.astype(np.float64)
    return [
        _case("CDist", a, b),
        _case("CDist", a, a[:1], metric="euclidean"),
        _case("CDist", *double, metric="sqeuclidean"),
        _case("CDist", *double, metric="euclidean"),
    ]


def _states() -> list[Case]:
    """Ops with recurrent state: causal convolutions, and linear attention without a key cache."""
    op, w, bias = "CausalConvWithState", _x(6, 1, 4), _x(6)
    return [
        _case(op, _x(2, 6, 5), w, bias, activation="silu", outputs=2),
        _case(op, _x(2, 6, 1), w, None, _x(2, 6, 3), outputs=2),
        _case(op, _x(2, 6, 2), w, bias, _x(2, 6, 6), dilation=2, outputs=2),
        _case(op, _x(1, 6, 3), w[..., :1], bias, outputs=2),
        *(
            _case(
                "LinearAttention", _x(2, tokens, 4 * q_heads), _x(2, tokens, 4 * heads),
                _x(2, tokens, 5 * heads), past, decay if "gated" in rule else None,
                abs(_x(2, tokens, 1)) if "delta" in rule else None,
                q_num_heads=q_heads, kv_num_heads=heads, update_rule=rule, outputs=2,
            )
            for rule, q_heads, heads, tokens, past, decay in (
                ("linear", 2, 2, 3, None, None),
                ("gated", 4, 2, 1, _x(2, 2, 4, 5), -abs(_x(2, 1, 8))),
                ("delta", 2, 4, 3, _x(2, 4, 4, 5), None),
                ("gated_delta", 2, 2, 4, None, -abs(_x(2, 4, 2))),
            )
        ),
    ]  # fmt: skip


def _states_channels_last() -> list[Case]:
    op, w, attrs = "CausalConvWithState", _x(6, 1, 4), {"channels_last": 1}
    return [
        _case(op, _x(2, 5, 6), w, _x(6), activation="silu", outputs=2, **attrs),
        _case(op, _x(2, 2, 2, 3), w, None, _x(2, 6, 2, 3), dilation=2, outputs=2, **attrs),
    ]


def _rotary() -> list[Case]:
    tables = (_x(16, 4), _x(16, 4))
    ids = np.array([[0, 1, 2], [5, 6, 7]])
    return [
        _case("RotaryEmbedding", _x(2, 3, 16), ids, *tables),
        _case("RotaryEmbedding", _x(2, 3, 16), np.array([4]), *tables, interleaved=1),
        _case("RotaryEmbedding", _x(2, 2, 3, 8), ids, *tables),
        _case("RotaryEmbedding", _x(2, 3, 16), ids, *tables, scale=2.0, is_packed_batching=1),
        _case("RotaryEmbedding", _x(2, 3, 24), ids, *tables, num_heads=2, rotary_embedding_dim=8),
        _case(
            "RotaryEmbedding", _x(2, 2, 3, 12), ids, *tables, num_heads=2, rotary_embedding_dim=8,
            interleaved=1,
        ),
    ]  # fmt: skip


def _attentions() -> list[Case]:
    x, weights, bias = _x(2, 5, 8), _x(8, 24), _x(24)
    lengths = np.array([3, 5], np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    past = _x(2, 2, 2, 4, 4)
    return [
        _case("Attention", x, weights, bias, num_heads=2, outputs=2),
        _case("Attention", x, weights, bias, mask, num_heads=2),
        _case("Attention", x, weights, bias, lengths, num_heads=2),
        _case("Attention", x, weights, bias, num_heads=4, unidirectional=1, scale=0.3),
        _case("Attention", x, weights, bias, None, past, num_heads=2, outputs=2, unidirectional=1),
        _case("Attention", x, weights, bias, None, None, _x(1, 2, 5, 5), num_heads=2),
        _case("Attention", x, _x(8, 8 + 8 + 4), _x(20), num_heads=2, qkv_hidden_sizes=[8, 8, 4]),
    ]


def _multi_heads() -> list[Case]:
    q, k, v = _x(2, 3, 8), _x(2, 5, 8), _x(2, 5, 12)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    past = (_x(2, 2, 4, 4), _x(2, 2, 4, 4))
    room = (_x(2, 2, 7, 4), _x(2, 2, 7, 4))
    own = _x(2, 3, 8)
    return [
        _case("MultiHeadAttention", q, k, v, num_heads=2),
        _case("MultiHeadAttention", q, k, v, _x(28), num_heads=2),
        _case("MultiHeadAttention", q, k, v, None, mask, num_heads=2),
        _case("MultiHeadAttention", q, k, v, None, None, _x(2, 2, 3, 5), num_heads=2, scale=0.7),
        _case("MultiHeadAttention", q, own, own, num_heads=2, unidirectional=1),
        _case("MultiHeadAttention", q, own, own, None, None, None, *past, num_heads=2, outputs=3),
        _case("MultiHeadAttention", q, _x(2, 2, 5, 4), _x(2, 2, 5, 4), num_heads=2),
        # Ends of the keys, then where each row of queries and of keys would start if packed.
        _case("MultiHeadAttention", q, k, v, None, np.array([2, 5, 0, 3, 6, 0, 5, 10], np.int32),
              num_heads=2),
        _case("MultiHeadAttention", q, k, v, None, None, _x(1, 2, 3, 5), num_heads=2, outputs=4),
        _case("MultiHeadAttention", q, own, own, None, None, None, *room, np.array([2], np.int32),
              num_heads=2, outputs=4, unidirectional=1),
    ]  # fmt: skip


def _decoders() -> list[Case]:
    """Decoder attention of one new token on a preallocated cache, also shared by beams."""
    op, new = "DecoderMaskedMultiHeadAttention", (_x(4, 1, 8), _x(4, 1, 8), _x(4, 1, 8))
    cache = (_x(4, 2, 6, 4), _x(4, 2, 6, 4), np.array([3], np.int32))
    mask = np.array([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 1]], np.int32)
    beams = (np.array([2], np.int32), np.asarray(RNG.integers(0, 2, (2, 2, 6)), np.int32))
    heads = {"num_heads": 2, "past_present_share_buffer": 1, "outputs": 3}
    scores = {**heads, "output_qk": 1, "outputs": 4}
    others = (_x(4, 2, 5, 4), _x(4, 2, 5, 4))
    return [
        _case(op, *new, None, None, *cache, **heads),
        _case(op, *new, mask, _x(1, 2, 1, 4), *cache, None, None, _x(24), scale=0.4, **scores),
        _case(op, *new, None, None, *cache, *beams, **heads),
        _case(op, new[0], *others, num_heads=2),
        _case(op, new[0], *others, mask[:, [0, 1, 2, 3, 0]], *[None] * 6, _x(24), num_heads=2),
    ]


def _grouped() -> list[Case]:
    tables = (_x(16, 8), _x(16, 8))
    q, k, v = _x(2, 3, 64), _x(2, 3, 32), _x(2, 3, 32)
    one = (_x(2, 1, 64), _x(2, 1, 32), _x(2, 1, 32))
    past = (_x(2, 2, 5, 16), _x(2, 2, 5, 16))
    heads = {"num_heads": 4, "kv_num_heads": 2, "outputs": 3}

    def last(*values: int) -> tuple[Array, Array]:
        return np.array(values, np.int32), np.array(max(values) + 1, np.int32)

    none = (_x(2, 2, 0, 16), _x(2, 2, 0, 16))
    # Tables narrower than half a head: the rest of it does not turn.
    wide = (_x(2, 1, 128), _x(2, 1, 64), _x(2, 1, 64))
    cache = (_x(2, 2, 5, 32), _x(2, 2, 5, 32))
    first = (_x(2, 2, 0, 32), _x(2, 2, 0, 32))
    turning = {**heads, "do_rotary": 1}
    roomy = tuple(np.pad(t[:, :, :3], [(0, 0), (0, 0), (0, 2), (0, 0)]) for t in past)
    return [
        _case("GroupQueryAttention", q, k, v, *none, *last(2, 2), **heads),
        _case("GroupQueryAttention", q, k, v, *none, *last(2, 2), *tables, do_rotary=1, **heads),
        _case("GroupQueryAttention", *one, *past, *last(5, 5), **heads),
        _case(
            "GroupQueryAttention", *one, *past, *last(5, 5), *tables, do_rotary=1,
            rotary_interleaved=1, local_window_size=3, softcap=5.0, **heads,
        ),
        _case(
            "GroupQueryAttention", _x(2, 3, 128), None, None, *none, *last(2, 2), *tables,
            do_rotary=1, **heads,
        ),
        _case(
            "GroupQueryAttention", _x(2, 3, 256), None, None, *first, *last(2, 2), *tables,
            **turning,
        ),
        _case("GroupQueryAttention", *wide, *cache, *last(5, 5), *tables, **turning),
        _case(
            "GroupQueryAttention", *wide, *cache, *last(5, 5), *tables, rotary_interleaved=1,
            **turning,
        ),
        _case("GroupQueryAttention", *one, *past, *last(5, 5), smooth_softmax=1, **heads),
        _case(
            "GroupQueryAttention", q, k, v, *none, *last(2, 2), None, None, None, _x(2, 1, 3, 3),
            _x(4), softcap=5.0, **heads,
        ),
        # The cache has room behind the places that there are.
        _case(
            "GroupQueryAttention", *one, *roomy, *last(3, 3), None, None, None, _x(1, 4, 1, 4),
            **heads,
        ),
        _case("GroupQueryAttention", q, k, v, *none, *last(2, 2), causal=0, **heads),
    ]  # fmt: skip


CASES = [
    *_activations(), *_norms(), *_products(), *_rotary(), *_attentions(), *_multi_heads(),
    *_grouped(), *_decoders(), *_states(), *_distances(),
    *_states_channels_last(),
]  # fmt: skip


@SWEEP
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_microsoft_float_op_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    check(case, device, 1e-4)


@SWEEP
def test_group_query_attention_normalizes_queries_and_keys(device: DeviceInfo) -> None:
    """Equals normalizing the rows beforehand; ONNX Runtime supports qk_norm on GPUs only."""
    q, k, v, scales = _x(2, 3, 64), _x(2, 3, 32), _x(2, 3, 32), (_x(16), _x(16))
    tail = (None, None, np.array([2, 2], np.int32), np.array(3, np.int32))
    norms = (*[None] * 7, *scales)
    attrs = {"num_heads": 4, "kv_num_heads": 2, "qk_norm_epsilon": 0.1}
    rows = [t.reshape(2, 3, -1, 16) for t in (q, k)]
    before = [
        (t / np.sqrt((t**2).mean(-1, keepdims=True) + 0.1) * s).reshape(2, 3, -1)
        for t, s in zip(rows, scales, strict=True)
    ]
    results = []
    for case in (
        _case("GroupQueryAttention", q, k, v, *tail, *norms, **attrs),
        _case("GroupQueryAttention", *before, v, *tail, **attrs),
    ):
        model, feeds = case.model()
        with clrt.load(model, device=device.index) as loaded:
            results.append(loaded.run(feeds)["y0"])
    np.testing.assert_allclose(*results, atol=1e-5)


@SWEEP
def test_default_domain_simplified_layer_norm_matches_onnxruntime(device: DeviceInfo) -> None:
    x, scale = _x(2, 5, 8), _x(8)
    infos = [helper.make_tensor_value_info(n, 1, a.shape) for n, a in (("x", x), ("s", scale))]
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["y"], axis=-1)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x, "s": scale})
    found = clrt.load(data, device=device.index, strict=True).run({"x": x, "s": scale})["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@SWEEP
def test_microsoft_attention_becomes_fused_attention(device: DeviceInfo) -> None:
    model, feeds = _attentions()[1].model()
    with clrt.load(model.SerializeToString(), device=device.index, strict=True) as loaded:
        loaded.run(feeds)
        names = [n.op.name for n in loaded._graph.nodes]
    assert "FusedAttention" in names and "Softmax" not in names


@SWEEP
def test_nhwc_conv_matches_onnxruntime_conv(device: DeviceInfo) -> None:
    """ONNX Runtime has no NhwcConv on CPUs; the reference is Conv between transpositions."""
    x, w, bias = _x(1, 6, 7, 3), _x(4, 3, 3, 3), _x(4)
    model, feeds = _case("NhwcConv", x, w, bias, pads=[1, 1, 1, 1]).model()
    with clrt.load(model.SerializeToString(), device=device.index) as loaded:
        (found,) = loaded.run(feeds).values()
    plain = _case("FusedConv", x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2), bias)
    plain.attrs["pads"] = [1, 1, 1, 1]
    model, feeds = plain.model()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    np.testing.assert_allclose(found, expected.transpose(0, 2, 3, 1), rtol=0, atol=1e-5)


def _with_statistics(*more: onnx.NodeProto, outputs: Sequence[str] = ("y",)) -> onnx.ModelProto:
    """Returns SkipLayerNormalization with its unsupported mean output, followed by `more`."""
    names = ["y", "mean", "", "total"]
    node = helper.make_node(
        "SkipLayerNormalization", ["x", "x", "g"], names, "norm", domain="com.microsoft"
    )
    graph = helper.make_graph(
        [node, *more], "g", [helper.make_tensor_value_info("x", 1, (1, 2, 8))],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(_x(8), "g")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_unsupported_expansion_output_is_refused_if_read() -> None:
    reader = helper.make_node("Neg", ["mean"], ["z"])
    inner = helper.make_graph(
        [helper.make_node("Neg", ["mean"], ["n"])], "b", [], [onnx.ValueInfoProto(name="n")]
    )
    cond = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    branch = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    for model in (
        _with_statistics(outputs=("y", "mean")),
        _with_statistics(reader),
        _with_statistics(cond, branch),
    ):
        with pytest.raises(UnsupportedError, match=r"1 thing .*'norm'.*: its output 1\."):
            clrt.load(model)


@SWEEP
def test_unread_unsupported_expansion_output_is_accepted(device: DeviceInfo) -> None:
    model = _with_statistics(outputs=("y", "total"))
    x = _x(1, 2, 8)
    # A name of the same place in a function of the model.
    function = helper.make_function(
        "own", "F", ["x"], ["y", "mean"],
        [helper.make_node("Constant", [], ["g"], value=numpy_helper.from_array(_x(8))),
         helper.make_node("SkipLayerNormalization", ["x", "x", "g"], ["y", "mean"],
                          domain="com.microsoft")],
        list(model.opset_import),
    )  # fmt: skip
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node("F", ["x"], ["z", "unread"], domain="own"))
    model.graph.output.append(onnx.ValueInfoProto(name="z"))
    with clrt.load(model, device=device.index) as loaded:
        found = loaded.run({"x": x})
    assert list(found) == ["y", "total", "z"]
    np.testing.assert_allclose(found["total"], 2 * x, atol=1e-6)
    model.graph.node.append(helper.make_node("Neg", ["unread"], ["n"]))
    with pytest.raises(UnsupportedError, match=r"SkipLayerNormalization.*its output 1\."):
        clrt.load(model)


def test_linear_attention_output_has_query_rows() -> None:
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[b, t, 8] q, float[b, t, 8] k, float[b, t, 10] v) => (float[m, n, k] y) {
          y, s = com.microsoft.LinearAttention <
            q_num_heads = 2, kv_num_heads = 2, update_rule = "linear"
          > (q, k, v)
        }
        """
    )
    with clrt.load(model) as loaded:
        assert [str(d) for d in loaded.outputs[0].shape or ()] == ["b", "t", "10"]
