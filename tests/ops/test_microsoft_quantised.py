"""Quantized ops of com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import clrt
from clrt.errors import UnsupportedError
from clrt.ir.op import Array
from clrt.ops.recurrent.dynamic_quantize_lstm import DynamicQuantizeLSTM
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP
from tests.ops.samples.recurrent.dynamic_quantize_lstm import quantized_inputs

RNG = np.random.default_rng(5)
SCALE = np.array(0.05, np.float32)


@dataclass
class Case:
    """One node; `constant` names the inputs that are initializers.

    Attributes:
        symbolic: The model leaves each dim of the inputs open.
        opset: Of ai.onnx.
    """

    op: str
    inputs: Sequence[Array | None]
    constant: Sequence[int] = ()
    outputs: int = 1
    attrs: dict[str, Any] = field(default_factory=dict)
    domain: str = "com.microsoft"
    symbolic: bool = False
    opset: int = 21

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        feeds = {
            f"x{i}": np.asarray(a)
            for i, a in enumerate(self.inputs)
            if a is not None and i not in self.constant
        }
        names = ["" if a is None else f"x{i}" for i, a in enumerate(self.inputs)]
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attrs)
        graph = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(
                    n,
                    helper.np_dtype_to_tensor_dtype(a.dtype),
                    [f"{n}_{d}" for d in range(a.ndim)] if self.symbolic else a.shape,
                )
                for n, a in feeds.items()
            ],
            [onnx.ValueInfoProto(name=o) for o in outputs],
            [numpy_helper.from_array(np.asarray(self.inputs[i]), f"x{i}") for i in self.constant],
        )
        # A fourth output is scores, whose type ONNX Runtime does not infer.
        for output in graph.output[3:]:
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def _bytes(*shape: int, dtype: type = np.uint8) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max + 1, shape), dtype)


def _floats(*shape: int, low: float = -1.0, high: float = 1.0) -> Array:
    return np.asarray(RNG.uniform(low, high, shape), np.float32)


def _zero(value: int, dtype: type = np.uint8) -> Array:
    return np.array(value, dtype)


def _binary(op: str) -> list[Case]:
    cases = []
    for dtype, zero in ((np.uint8, 117), (np.int8, -9)):
        for a, b in (((3, 5), (3, 5)), ((2, 3, 17), (17,)), ((4, 1), (1, 6))):
            left = (_bytes(*a, dtype=dtype), SCALE, _zero(zero, dtype))
            right = (_bytes(*b, dtype=dtype), SCALE * np.float32(0.7), _zero(3, dtype))
            out = (SCALE * np.float32(1.9), _zero(20, dtype))
            cases.append(Case(op, (*left, *right, *out)))
    return cases


def _unary(op: str, out: float, attrs: dict[str, Any]) -> list[Case]:
    scale = np.array(out, np.float32)
    return [
        Case(op, (_bytes(3, 17), SCALE, _zero(100), scale, _zero(7)), (1, 2, 3, 4), attrs=attrs),
        Case(
            op,
            (_bytes(2, 9, dtype=np.int8), SCALE, _zero(0, np.int8), scale, _zero(-9, np.int8)),
            (1, 2, 3, 4),
            attrs=attrs,
        ),
    ]


def _products() -> list[Case]:
    cases = []
    for shape, k, n in (((1,), 32, 16), ((5,), 17, 40), ((2, 7), 300, 33)):
        a, b = _bytes(*shape, k), _bytes(k, n, dtype=np.int8)
        columns = _floats(n, low=0.01, high=0.1)
        zeros = (_zero(120), _bytes(n, dtype=np.int8))
        bias = _floats(n)
        for constant in ((), (1, 3, 5)):
            inputs = (a, b, SCALE, columns, *zeros, bias)
            cases.append(Case("MatMulIntegerToFloat", inputs, constant))
        cases.append(Case("MatMulIntegerToFloat", (a, b, SCALE, SCALE)))
        x = _floats(*shape, k, low=-3, high=4)
        cases.append(Case("DynamicQuantizeMatMul", (x, b, SCALE, _zero(3, np.int8), bias)))
        cases.append(Case("DynamicQuantizeMatMul", (x, b, columns, None, bias), (1, 2)))
    return cases


def _gemms() -> list[Case]:
    cases = []
    for trans_a, trans_b in ((0, 0), (1, 0), (0, 1)):
        a = _bytes(*((12, 5) if trans_a else (5, 12)))
        b = _bytes(*((9, 12) if trans_b else (12, 9)), dtype=np.int8)
        bias = np.asarray(RNG.integers(-999, 999, 9), np.int32)
        head = (a, SCALE, _zero(99), b, SCALE, _zero(-3, np.int8), bias)
        attrs = {"transA": trans_a, "transB": trans_b, "alpha": 1.5}
        cases.append(Case("QGemm", (*head, SCALE * 40, _zero(90)), attrs=attrs))
        cases.append(Case("QGemm", head, attrs=attrs))
    return cases


def _pools() -> list[Case]:
    cases = []
    for last in (0, 1):
        x = _bytes(2, 6, 7, 5)
        rest = (SCALE, _zero(100), SCALE * np.float32(0.7), _zero(80))
        attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
        more = {**attrs, "count_include_pad": 1, "channels_last": last}
        cases += [
            Case("QLinearAveragePool", (x, *rest), attrs={**attrs, "channels_last": last}),
            Case("QLinearAveragePool", (x, *rest), attrs=more),
            Case("QLinearGlobalAveragePool", (x, *rest), attrs={"channels_last": last}),
        ]
    return cases


def _others() -> list[Case]:
    quantised = (_bytes(2, 3), SCALE, _zero(9), _bytes(2, 5), SCALE * 2, _zero(128))
    softmax = (_bytes(2, 3, 9), SCALE, _zero(100), np.array(1 / 256, np.float32), _zero(0))
    tail = (SCALE, _zero(100))
    conv = (
        _bytes(1, 4, 7, 6), SCALE, _zero(130), _bytes(5, 4, 3, 3, dtype=np.int8),
        _floats(5, low=0.01, high=0.1), _zero(0, np.int8), SCALE * 9, _zero(120),
        np.asarray(RNG.integers(-99, 99, 5), np.int32),
    )  # fmt: skip
    x = _floats(3, 4, 5, low=-9, high=9)
    scales = _floats(4, low=0.01, high=0.1)
    return [
        Case("QLinearConcat", (*tail, *quantised), attrs={"axis": 1}),
        Case("QLinearSoftmax", softmax, attrs={"axis": -1, "opset": 13}),
        Case("QLinearSoftmax", softmax, attrs={"axis": 1, "opset": 12}),
        Case("QLinearConv", conv, (3, 4, 5, 8), attrs={"pads": [1, 1, 1, 1]}),
        Case("QuantizeLinear", (x, scales, _bytes(4)), (1, 2), attrs={"axis": 1}),
        Case("QuantizeLinear", (x, SCALE, np.array(900, np.uint16)), (1, 2)),
        Case("DequantizeLinear", (_bytes(3, 4, 5), scales, _bytes(4)), (1, 2), attrs={"axis": 1}),
        Case(
            "QLinearWhere",
            (
                RNG.integers(0, 2, (3, 5)) > 0,
                _bytes(3, 5),
                *tail,
                _bytes(5),
                SCALE * 2,
                _zero(9),
                SCALE * 3,
                _zero(77),
            ),
            (2, 3, 5, 6, 7, 8),
        ),
    ]


def _gathers() -> list[Case]:
    cases = []
    indices = np.array([[5, 0, 1], [3, 3, 6]], np.int64)
    for bits in (4, 8):
        data = _bytes(7, 40 * bits // 8)
        scales = _floats(7, 3)
        zeros = _bytes(7, -(-3 * bits // 8))
        attrs = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
        cases.append(Case("GatherBlockQuantized", (data, indices, scales), (0, 2), attrs=attrs))
        inputs = (data, indices, scales, zeros)
        cases.append(Case("GatherBlockQuantized", inputs, (0, 2, 3), attrs=attrs))
    for dtype, low in ((ml_dtypes.int4, -8), (ml_dtypes.uint4, 0)):
        codes = np.asarray(RNG.integers(low, low + 16, (7, 3, 40)), np.int32).astype(dtype)
        zeros = np.asarray(RNG.integers(low, low + 16, (7, 3, 3)), np.int32).astype(dtype)
        for gather in (0, 1):
            attrs = {"block_size": 16, "gather_axis": gather, "quantize_axis": 2}
            inputs = (codes, indices % codes.shape[gather], _floats(7, 3, 3), zeros)
            cases.append(Case("GatherBlockQuantized", inputs, (0, 2, 3), attrs=attrs))
    return cases


def _vectors() -> list[Case]:
    """Returns products of vectors, whose scales have an axis that the result may lack."""
    cases = []
    scale, zero = SCALE.reshape(1), _zero(3, np.int8).reshape(1)
    for b in (_bytes(17, dtype=np.int8), _bytes(17, 9, dtype=np.int8)):
        a, x = _bytes(17), _floats(17)
        head, rest = (a, scale, _zero(120).reshape(1)), (b, scale, zero)
        out = (scale * 9, _zero(100).reshape(1))
        for symbolic in (False, True):
            more: dict[str, Any] = {"symbolic": symbolic}
            cases += [
                Case("QLinearMatMul", (*head, *rest, *out), domain="", **more),
                Case("MatMulIntegerToFloat", (a, b, scale, scale), **more),
                Case("DynamicQuantizeMatMul", (x, b, scale, zero), **more),
            ]
    return cases


def _open() -> list[Case]:
    """Returns nodes whose input shapes are known only at run time."""
    scale, zero = SCALE.reshape(1), _zero(100).reshape(1)
    more: dict[str, Any] = {"domain": "", "symbolic": True}
    cases = [
        Case(op, (x, scale, zero), **more)
        for shape in ((), (7,), (2, 3))
        for op, x in (("QuantizeLinear", _floats(*shape)), ("DequantizeLinear", _bytes(*shape)))
    ]
    x, weight, bias = _bytes(2, 5, 8), _bytes(8, 24, dtype=np.int8), _floats(24)
    for mask in ([5, 2], [5, 4, 1, 0]):
        inputs = (x, weight, bias, SCALE, SCALE, np.array(mask, np.int32))
        cases.append(Case("QAttention", inputs, (1, 2), attrs={"num_heads": 2}, symbolic=True))
    return cases


def _attentions() -> list[Case]:
    cases = []
    batch, sequence, heads, size = 2, 5, 2, 4
    hidden = heads * size
    x, weight = _bytes(batch, sequence, hidden), _bytes(hidden, 3 * hidden, dtype=np.int8)
    scales = (SCALE * np.float32(0.2), _floats(3 * hidden, low=0.001, high=0.02))
    zeros = (_zero(120), np.zeros(3 * hidden, np.int8))
    keep = np.asarray(RNG.integers(0, 2, (batch, sequence)), np.int32)
    keep[:, 0] = 1
    masks: list[Array | None] = [None, np.array([5, 2], np.int32), keep]
    masks.append(np.array([5, 4, 1, 0], np.int32))
    for mask in masks:
        inputs = (x, weight, _floats(3 * hidden), *scales, mask, *zeros)
        cases.append(Case("QAttention", inputs, (1, 2, 3, 4, 6, 7), attrs={"num_heads": heads}))
    inputs = (x, weight, _floats(3 * hidden), *scales, keep, *zeros)
    attrs = {"num_heads": heads, "unidirectional": 1, "mask_filter_value": -3.0, "scale": 0.3}
    cases.append(Case("QAttention", inputs, (1, 2, 3, 4, 6, 7), attrs=attrs))
    past = _floats(2, batch, heads, 3, size)
    inputs = (x, weight, _floats(3 * hidden), *scales, None, *zeros, past)
    attrs = {"num_heads": heads, "unidirectional": 1}
    cases.append(Case("QAttention", inputs, (1, 2, 3, 4, 6, 7), 2, attrs))
    return cases


def _bits() -> list[Case]:
    cases = []
    for bits, rows, k, n in ((4, 1, 64, 33), (4, 20, 80, 48), (8, 3, 32, 70), (8, 9, 48, 16)):
        blocks = -(-k // 16)
        a, weights = _floats(2, rows, k), _bytes(n, blocks, 2 * bits)
        scales, bias = _floats(n, blocks, low=0.01, high=0.1), _floats(n)
        packed = _bytes(n, -(-blocks * bits // 8))
        attrs = {"K": k, "N": n, "bits": bits, "block_size": 16}
        cases.append(Case("MatMulNBits", (a, weights, scales), (1, 2), attrs=attrs))
        inputs = (a, weights, scales, packed, None, bias)
        cases.append(Case("MatMulNBits", inputs, (1, 2, 3, 5), attrs=attrs))
        if bits == 4:
            unpacked = _floats(n, blocks, low=0, high=15)
            inputs = (a, weights, scales, unpacked, None, bias)
            cases.append(Case("MatMulNBits", inputs, (1, 2, 3, 5), attrs=attrs))
            groups = np.asarray(RNG.integers(0, blocks, k), np.int32)
            # ONNX Runtime reads packed zero points wrongly where there are groups.
            inputs = (a, weights, scales, unpacked, groups, bias)
            cases.append(Case("MatMulNBits", inputs, (1, 2, 3, 4, 5), attrs=attrs))
            inputs = (a, weights, scales, None, groups, bias)
            cases.append(Case("MatMulNBits", inputs, (1, 2, 4, 5), attrs=attrs))
    return cases


def _padded_groups() -> list[Case]:
    """Returns group indices for padded blocks, of which the last is partial."""
    groups = np.asarray(RNG.integers(0, 3, 48), np.int32)
    weights, scales = _bytes(9, 3, 8), _floats(9, 3, low=0.01, high=0.1)
    attrs = {"K": 37, "N": 9, "bits": 4, "block_size": 16}
    inputs = (_floats(5, 37), weights, scales, None, groups)
    return [Case("MatMulNBits", inputs, (1, 2, 4), attrs=attrs)]


def _embeddings() -> list[Case]:
    ids, segments = (np.asarray(RNG.integers(0, high, (2, 5)), np.int32) for high in (11, 2))
    mask = np.asarray(RNG.integers(0, 2, (2, 5)), np.int32)
    tables = [_bytes(rows, 8) for rows in (11, 9, 2)] + [_bytes(8), _bytes(8)]
    scales, zeros = [SCALE * np.float32(k) for k in range(1, 6)], [_zero(k) for k in range(97, 102)]
    inputs = (ids, segments, *tables, mask, *scales, *zeros)
    plain = [None if k in (1, 4, 7, 10, 15) else a for k, a in enumerate(inputs)]
    return [
        Case(
            "QEmbedLayerNormalization",
            given,
            [k for k, a in enumerate(given) if a is not None and k not in (0, 1, 7)],
            2,
            symbolic=True,
        )
        for given in (inputs, plain)
    ]


CASES = [
    *_bits(),
    *_binary("QLinearAdd"),
    *_binary("QLinearMul"),
    *_unary("QLinearSigmoid", 1 / 256, {}),
    *_unary("QLinearLeakyRelu", 0.05, {"alpha": 0.2}),
    *_products(),
    *_gemms(),
    *_pools(),
    *_others(),
    *_gathers(),
    *_attentions(),
    *_vectors(),
    *_open(),
    *_padded_groups(),
    *_embeddings(),
]


def check(case: Case, device: DeviceInfo, limit: float = 1e-5, threads: int = 0) -> None:
    """Compares clrt with ONNX Runtime: floats within `limit`, integers within one step.

    Args:
        threads: Of ONNX Runtime; 0 for its default.

    Raises:
        AssertionError: It does not.
    """
    model, feeds = case.model()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feeds)
    with clrt.load(model.SerializeToString(), device=device.index) as loaded:
        actual = loaded.run(feeds)
    for name, wanted in zip(actual, expected, strict=True):
        assert actual[name].dtype == wanted.dtype
        assert actual[name].shape == wanted.shape
        wide = wanted.astype(np.float64)
        # A sum in another order may fall on the other side of a half.
        allowed = 1.0 if wanted.dtype.kind in "iu" else limit * float(np.abs(wide).max(initial=1.0))
        np.testing.assert_allclose(actual[name].astype(np.float64), wide, rtol=0, atol=allowed)
        if wanted.dtype.kind in "iu":
            assert np.mean(actual[name] != wanted) <= 0.05


@SWEEP
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_microsoft_quantized_op_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    check(case, device)


def test_quantized_attention_with_rotary_is_refused() -> None:
    case = _attentions()[0]
    case.attrs["do_rotary"] = 1
    model, _ = case.model()
    with pytest.raises(UnsupportedError, match="do_rotary"):
        clrt.load(model.SerializeToString())


@SWEEP
def test_matmul_nbits_sharing_scales_keeps_own_zero_points(device: DeviceInfo) -> None:
    k = n = 32
    x, scales = _floats(3, k), np.ones((n, 2), np.float32)
    data = {"b": _bytes(n, 2, 8), "s": scales, "z1": _bytes(n, 1), "z2": _bytes(n, 1)}
    attrs = {"K": k, "N": n, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "b", "s", f"z{i}"], [f"y{i}"], **attrs)
        for i in (1, 2)
    ]
    infos = [helper.make_tensor_value_info(name, 1, None) for name in ("y1", "y2")]
    given = [onnx.numpy_helper.from_array(array, name) for name, array in data.items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, x.shape)], infos, given
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    found = clrt.load(model, device=device.index, strict=True).run({"x": x})
    for name, array in zip(("y1", "y2"), expected, strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-4)


@SWEEP
@pytest.mark.parametrize(
    ("sizes", "dtype", "per_column", "attrs"),
    [
        ((1, 1, 8, 16), np.int8, False, {}),
        ((6, 2, 8, 20), np.int8, True, {"direction": "bidirectional"}),
        ((4, 10, 3, 16), np.uint8, True, {"direction": "reverse", "clip": 0.75}),
        ((3, 3, 5, 260), np.uint8, False, {"input_forget": 1}),
    ],
    ids=str,
)
def test_dynamic_quantize_lstm_matches_onnxruntime(
    sizes: tuple[int, int, int, int],
    dtype: type,
    per_column: bool,
    attrs: dict[str, Any],
    device: DeviceInfo,
) -> None:
    """ONNX Runtime rounds the states of each sequence separately if it has a thread for it."""
    op = DynamicQuantizeLSTM(**attrs)
    inputs = quantized_inputs(op, sizes, (True,) * 5, dtype, per_column)
    attrs = {**attrs, "hidden_size": sizes[3]}
    case = Case("DynamicQuantizeLSTM", inputs, (1, 2, 3, 8, 9, 10, 11), 3, attrs)
    check(case, device, threads=sizes[1])


@SWEEP
def test_dynamic_quantize_lstm_with_computed_weights_matches_onnxruntime(
    device: DeviceInfo,
) -> None:
    inputs = quantized_inputs(DynamicQuantizeLSTM(), (2, 1, 3, 4), (False,) * 5)
    check(Case("DynamicQuantizeLSTM", inputs, (), 3, {"hidden_size": 4}), device)
