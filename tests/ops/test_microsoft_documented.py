"""Ops of com.microsoft that ONNX Runtime supports on GPUs only, against their documentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.errors import UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import name_of, quick_device
from tests.ops.test_microsoft_quantised import Case

RNG = np.random.default_rng(31)
# Compositions are the same on every device, whose kernels other tests compare.
DEVICES = pytest.mark.parametrize("device", [quick_device()], ids=name_of)


@dataclass
class Documented:
    """A node and its expected outputs."""

    case: Case
    expected: Sequence[Array]


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def _doc(op: str, inputs: Sequence[Array | None], *expected: Array, **attrs: Any) -> Documented:
    return Documented(Case(op, inputs, (), len(expected), attrs), expected)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _fast_gelu(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _sums() -> list[Documented]:
    x, bias, skip = _x(2, 3, 8), _x(8), _x(2, 3, 8)
    w, w_bias = _x(8, 5), _x(5)
    ones = np.ones(x.shape, np.bool_)
    ids = np.array([[0, 2], [1, 1]])
    return [
        _doc("BiasAdd", [x, bias, skip], x + bias + skip),
        _doc("GemmFastGelu", [x, w], _fast_gelu(x @ w)),
        _doc("GemmFastGelu", [x, w, w_bias], _fast_gelu(x @ w + w_bias)),
        _doc("BiasDropout", [x, bias, skip], x + bias + skip, ones),
        _doc("BiasDropout", [x, bias, None, np.array(0.3, np.float32)], x + bias),
        _doc("BiasDropout", [x, skip, skip, np.array(0.0, np.float32), np.array(True)],
             x + skip + skip, ones, seed=3),
        _doc("TorchEmbedding", [w, ids], w[ids]),
        _doc("TorchEmbedding", [w, ids, np.array(1), np.array(True)], w[ids]),
    ]  # fmt: skip


def _norms() -> list[Documented]:
    x, gamma, beta, bias = _x(2, 3, 4, 6), _x(6), _x(6), _x(6)

    def normalised(total: Array, silu: bool = False, epsilon: float = 1e-5) -> Array:
        groups = total.reshape(2, 12, 3, 2)
        mean = groups.mean((1, 3), keepdims=True)
        variance = groups.var((1, 3), keepdims=True)
        y = ((groups - mean) / np.sqrt(variance + epsilon)).reshape(total.shape) * gamma + beta
        return np.asarray(y * _sigmoid(y) if silu else y, np.float32)

    cases = []
    for skip in (_x(2, 3, 4, 6), _x(2, 1, 1, 6), _x(2, 6)):
        total = x + skip.reshape(2, *(skip.shape[1:3] if skip.ndim == 4 else (1, 1)), 6)
        inputs = [x, gamma, beta, skip]
        cases += [
            _doc("SkipGroupNorm", inputs, normalised(total), total, groups=3, activation=0),
            _doc(
                "SkipGroupNorm", [*inputs, bias], normalised(total + bias, True, 0.1),
                total + bias, groups=3, activation=1, epsilon=0.1, channels_last=1,
            ),
        ]  # fmt: skip
    half = [t.astype(np.float16) for t in (gamma, beta)]
    gamma, beta = (t.astype(np.float32) for t in half)
    none = np.zeros_like(x)
    y = normalised(x)
    return [*cases, _doc("SkipGroupNorm", [x, *half, none], y, groups=3, activation=0)]


def _products() -> list[Documented]:
    a, b = _x(2, 3, 5), _x(2, 5, 4)
    op, y = "FusedMatMulActivation", a @ b
    image, kernel, bias, added = _x(1, 5, 4, 3), _x(2, 3, 1, 1), _x(2), _x(1, 5, 4, 2)
    plain = np.einsum("nhwc,mcij->nhwm", image, kernel)
    conv = "NhwcFusedConv"
    return [
        _doc(op, [a, b], np.maximum(y, 0), activation="Relu"),
        _doc(op, [a.swapaxes(1, 2), b], np.where(y > 0, y, 0.6 * y) / 2, transA=1, alpha=0.5,
             activation="LeakyRelu", activation_alpha=0.6),
        _doc(op, [a, b], np.clip(0.3 * y + 0.4, 0, 1), activation="HardSigmoid",
             activation_alpha=0.3, activation_beta=0.4),
        _doc(op, [a, b], 1.5 * np.where(y > 0, y, 0.6 * np.expm1(y)), activation="Selu",
             activation_alpha=0.6, activation_gamma=1.5),
        _doc(op, [a, b], _softmax(y.swapaxes(1, 2)).swapaxes(1, 2), activation="Softmax",
             activation_axis=1),
        _doc(conv, [image, kernel], plain),
        _doc(conv, [image, kernel, bias, added], np.maximum(plain + bias + added, 0),
             activation="Relu"),
        _doc(conv, [image, kernel, None, added], np.clip(plain + added, -0.5, 1),
             activation="Clip", activation_params=[-0.5, 1.0]),
    ]  # fmt: skip


def _finite() -> list[Documented]:
    fine, nan, infinite = _x(3), np.array([[np.nan, 1]], np.float32), np.float32([-np.inf, 2])
    empty = _x(0, 2)
    yes, no = np.array(True), np.array(False)
    op = "IsAllFinite"
    return [
        _doc(op, [fine, empty], yes),
        _doc(op, [fine, nan], no),
        _doc(op, [infinite, fine, fine], no),
        _doc(op, [infinite], yes, isnan_only=1),
        _doc(op, [nan, infinite], no, isnan_only=1),
        _doc(op, [nan, fine], yes, isinf_only=1),
        _doc(op, [nan, infinite], no, isinf_only=1),
    ]


def _signals() -> list[Documented]:
    def parts(y: Array) -> Array:
        return np.stack([y.real, y.imag], -1).astype(np.float32)

    x = _x(3, 4, 6)
    cases = []
    for axes in ((2,), (1, 2), (0, 1, 2)):
        y = np.fft.rfftn(x, axes=axes)
        attrs = {"signal_ndim": len(axes), "onesided": 1, "normalized": 0}
        cases += [_doc("Rfft", [x], parts(y), **attrs), _doc("Irfft", [parts(y)], x, **attrs)]
    a, b = _x(2, 3, 2), _x(3, 2)
    left, right = (t[..., 0] + 1j * t[..., 1] for t in (a, b))
    return [
        *cases,
        _doc("ComplexMul", [a, b], parts(left * right)),
        _doc("ComplexMulConj", [a, b], parts(left * right.conj())),
        _doc("ComplexMulConj", [b, a], parts(right * left.conj())),
    ]


def _integers() -> list[Documented]:
    cases = []
    for dtype in (np.uint8, np.int8):
        limits = np.iinfo(dtype)
        a, b = (
            np.asarray(RNG.integers(limits.min, limits.max + 1, s), dtype) for s in ((3, 5), (5,))
        )
        zeros = (np.array(9, dtype), np.array(7, dtype))
        wide = [t.astype(np.int32) for t in (a, b)]
        cases += [
            _doc("MulInteger", [a, zeros[0], b, zeros[1]], (wide[0] - 9) * (wide[1] - 7)),
            _doc("MulInteger", [a, None, b], wide[0] * wide[1]),
            _doc("MulInteger", [b, zeros[0], a], (wide[1] - 9) * wide[0]),
        ]
        scale, to = np.array(0.1, np.float32), np.array(0.05, np.float32)
        for axes, keep in (([1], 1), ([0], 0), ([0, 1], 0), ([-1], 1)):
            mean = ((wide[0] - 9) * scale).mean(tuple(axes), keepdims=bool(keep), dtype=np.float32)
            y = np.clip(np.rint(mean / to) + 7, limits.min, limits.max).astype(dtype)
            inputs = [a, scale, zeros[0], to, zeros[1]]
            cases.append(_doc("QLinearReduceMean", inputs, y, axes=axes, keepdims=keep))
    return cases


def _biases() -> list[Documented]:
    cases = []
    for both in (0, 1):
        buckets, heads, length = 8, 3, 40
        values = _x(buckets, heads)
        # T5's own words: half of the buckets for exact distances, the others up to 16 by logarithm.
        bias = np.zeros((1, heads, length, length), np.float32)
        for q in range(length):
            for k in range(length):
                count = buckets // (1 + both)
                distance = abs(k - q) if both else max(q - k, 0)
                place = distance
                if distance >= count // 2:
                    ratio = math.log(distance / (count // 2)) / math.log(16 / (count // 2))
                    place = min(count // 2 + int(ratio * (count - count // 2) + 1e-6), count - 1)
                bias[0, :, q, k] = values[place + (count if both and k > q else 0)]
        table = np.ascontiguousarray(values.T).reshape(buckets, heads)
        size = np.array([length])
        attrs = {"max_distance": 16, "is_bidirectional": both}
        cases.append(_doc("RelativePositionBias", [table, size, size], bias, **attrs))
    query, own, position = _x(2, 3, 8), _x(8), _x(1, 2, 3, 3)
    weight, bias, scale = _x(4, 6), _x(6), _x(1, 2, 1, 1)

    def gated(query: Array) -> Array:
        q = (query + own).reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
        both = _sigmoid((q @ weight + bias).reshape(2, 2, 3, 2, 3).sum(-1))
        u, r = both[..., :1], both[..., 1:]
        return np.asarray((u * (r * scale - 1) + 2) * position, np.float32)

    rest = [own, position, weight, bias, scale]
    offsets = np.array([[0, 3, 4], [1, 2, 5]], np.int32)
    padded = np.zeros((6, 8), np.float32)
    padded[[0, 3, 4]] = query.reshape(6, 8)[[0, 3, 4]]
    angles, states = _x(2, 3, 4), [_x(2, 2, 3, 4).astype(np.float16) for _ in range(4)]
    sine, cosine = (f(angles)[:, None].astype(np.float16) for f in (np.sin, np.cos))
    return [
        *cases,
        _doc("GatedRelativePositionBias", [query, *rest], gated(query), num_heads=2),
        _doc("GatedRelativePositionBias", [padded[[0, 3, 4]], *rest, offsets],
             gated(padded.reshape(2, 3, 8)), num_heads=2),
        _doc("GemmaRotaryEmbedding", [angles, *states], states[0] * cosine + states[1] * sine,
             states[2] * cosine + states[3] * sine),
    ]  # fmt: skip


# Three sequences of four places, of which 1, 4 and 2 are tokens.
LENGTHS = np.array([1, 4, 2], np.int32)
TOKENS, PADDING = [0, 4, 5, 6, 7, 8, 9], [1, 2, 3, 10, 11]
OFFSETS = np.array([*TOKENS, *PADDING], np.int32).reshape(3, 4)
ENDS = np.array([0, 1, 5, 7], np.int32)


def _padding() -> list[Documented]:
    x = _x(3, 4, 5)
    rows = x.reshape(12, 5)[TOKENS]
    restored = np.zeros((12, 5), np.float32)
    restored[TOKENS] = rows
    longest = np.array([4], np.int32)
    none = np.zeros(3, np.int32)
    nowhere = np.arange(12, dtype=np.int32).reshape(3, 4)
    return [
        _doc("RemovePadding", [x, LENGTHS], rows, OFFSETS, ENDS, longest),
        _doc("RemovePadding", [x, none], rows[:0], nowhere, np.zeros(4, np.int32), longest - 4),
        _doc("RestorePadding", [rows, OFFSETS], restored.reshape(3, 4, 5)),
    ]


def _attend(
    q: Array, k: Array, v: Array, bias: Array | None = None, scale: float | None = None
) -> Array:
    """Returns attention of 2 heads, per sequence, on tokens without padding."""
    rows = []
    for n, (start, end) in enumerate(pairwise(ENDS)):
        heads = []
        for h, (a, b, c) in enumerate(
            zip(*(np.split(t[start:end], 2, axis=1) for t in (q, k, v)), strict=True)
        ):
            scores = a @ b.T * (scale or a.shape[1] ** -0.5)
            if bias is not None:
                own = np.broadcast_to(bias, (3, 2, 4, 4))[n, h]
                scores = scores + own[: end - start, : end - start]
            heads.append(_softmax(scores) @ c)
        rows.append(np.concatenate(heads, 1))
    return np.concatenate(rows)


def _packed() -> list[Documented]:
    x, w, bias, added = _x(7, 6), _x(6, 24), _x(24), _x(1, 2, 4, 4)
    tail = [OFFSETS, ENDS]
    cases = []
    for sizes, scale, extra in ((None, None, None), ([8, 8, 4], 0.3, None), (None, None, added)):
        width = sum(sizes or [24])
        parts = np.split(x @ w[:, :width] + bias[:width], [8, 16], axis=1)
        attrs = {"num_heads": 2, "qkv_hidden_sizes": sizes, "scale": scale}
        inputs = [x, w[:, :width], bias[:width], *tail, extra]
        y = _attend(*parts, bias=extra, scale=scale)
        attrs = {k: v for k, v in attrs.items() if v}
        cases.append(_doc("PackedAttention", inputs, y, **attrs))
    op, (q, k, v, own) = "PackedMultiHeadAttention", (_x(7, 8), _x(7, 8), _x(7, 4), _x(20))
    whole = np.stack([t.reshape(7, 2, 4) for t in (q, k, k + 1)], 2)
    biased = (q + own[:8], k + own[8:16], v + own[16:])
    by_row = _x(3, 1, 4, 4)
    return [
        *cases,
        _doc(op, [q, k, v, None, *tail], _attend(q, k, v), num_heads=2),
        _doc(op, [q, k, v, own, *tail, by_row], _attend(*biased, by_row, 0.7), num_heads=2,
             scale=0.7),
        _doc(op, [whole, None, None, None, *tail], _attend(q, k, k + 1), num_heads=2),
        _doc(op, [whole, None, None, bias, *tail],
             _attend(q + bias[:8], k + bias[8:16], k + 1 + bias[16:]), num_heads=2),
    ]  # fmt: skip


CASES = [
    *_sums(), *_norms(), *_products(), *_finite(), *_signals(), *_integers(), *_biases(),
    *_padding(), *_packed(),
]  # fmt: skip


@DEVICES
@pytest.mark.parametrize("given", CASES, ids=lambda d: d.case.op)
def test_microsoft_gpu_op_matches_documentation(given: Documented, device: DeviceInfo) -> None:
    model, feeds = given.case.model()
    with clrt.load(model, device=device.index) as loaded:
        found = loaded.run(feeds)
    for value, expected in zip(found.values(), given.expected, strict=True):
        assert value.dtype == expected.dtype and value.shape == expected.shape
        near = 5e-3 if value.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(
            value.astype(np.float64), expected.astype(np.float64), rtol=near, atol=near
        )


@DEVICES
@pytest.mark.parametrize("beams", [1, 2])
def test_decoder_masked_self_attention_matches_multi_head_op(
    beams: int, device: DeviceInfo
) -> None:
    """Matches DecoderMaskedMultiHeadAttention on its projection, except for the key layout."""
    x, w, bias = _x(4, 1, 6), _x(6, 48), _x(48)
    keys, values, count = _x(4, 2, 5, 8), _x(4, 2, 5, 8), np.array([3], np.int32)
    mask = np.array([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 1]], np.int32)
    origins: list[Array | None] = [None, None]
    if beams > 1:
        origins = [np.array([2], np.int32), np.asarray(RNG.integers(0, 2, (2, 2, 5)), np.int32)]
    attrs = {"num_heads": 2, "past_present_share_buffer": 1, "scale": 0.4}
    operands = np.split(x @ w + bias, 3, axis=2)
    plain = Case(
        "DecoderMaskedMultiHeadAttention", (*operands, mask, None, keys, values, count, *origins),
        (), 3, attrs,
    )  # fmt: skip
    model, feeds = plain.model()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, feeds)
    # A run of 16 bytes of each key, of all places, before the next run.
    runs = keys.reshape(4, 2, 5, 2, 4).transpose(0, 1, 3, 2, 4)
    past = np.stack([runs.reshape(keys.shape), values])
    inputs = (x, w, bias, mask, past, None, count, *origins)
    model, feeds = Case("DecoderMaskedSelfAttention", inputs, (), 2, attrs).model()
    with clrt.load(model, device=device.index) as loaded:
        y, present = loaded.run(feeds).values()
    np.testing.assert_allclose(y, wanted[0], atol=1e-4)
    runs = present[0].reshape(4, 2, 2, 5, 4).transpose(0, 1, 3, 2, 4)
    np.testing.assert_allclose(runs.reshape(keys.shape), wanted[1], atol=1e-5)
    np.testing.assert_allclose(present[1], wanted[2], atol=1e-5)


def test_unsupported_gpu_op_attributes_are_refused() -> None:
    x = _x(1, 3, 2, 2)
    cases = [
        _doc("SkipGroupNorm", [x, _x(3), _x(3), x], x, groups=1, activation=0, channels_last=0),
        _doc("Rfft", [x], x, onesided=0),
        _doc("FusedMatMulActivation", [x, x], x, activation="Mish"),
    ]
    for given, match in zip(cases, ("channels_last", "onesided", "Mish"), strict=True):
        model, _ = given.case.model()
        with pytest.raises(UnsupportedError, match=match):
            clrt.load(model)
