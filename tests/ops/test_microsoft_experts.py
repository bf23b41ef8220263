"""MoE and QMoE against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.errors import UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import name_of, quick_device
from tests.ops.test_microsoft_quantised import Case, check

RNG = np.random.default_rng(53)
# Compositions are the same on every device, whose kernels other tests compare.
DEVICES = pytest.mark.parametrize("device", [quick_device()], ids=name_of)
TOKENS, EXPERTS, WIDTH, INNER = 5, 4, 32, 16
LIMITS = {"activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.0}


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def _experts(rows: int = INNER) -> list[Array]:
    """Returns weights and biases of both layers."""
    return [
        _x(EXPERTS, rows, WIDTH) / 4, _x(EXPERTS, rows), _x(EXPERTS, WIDTH, INNER) / 4,
        _x(EXPERTS, WIDTH),
    ]  # fmt: skip


def _plain() -> list[Case]:
    x, logits = _x(TOKENS, WIDTH), _x(TOKENS, EXPERTS)
    weights, double = _experts(), _experts(2 * INNER)
    unbiased = [weights[0], None, weights[2], None]
    swiglu = {"activation_type": "swiglu", "swiglu_fusion": 1}
    cases = [
        Case("MoE", (x, logits, *weights), (2, 3, 4, 5), attrs={"k": k, **more})
        for k, more in (
            (1, {}),
            (2, {"activation_type": "gelu", "normalize_routing_weights": 1}),
            (2, {"activation_type": "silu", "use_sparse_mixer": 1}),
            (3, {"activation_type": "identity"}),
        )
    ]
    # Between equals the last ones win.
    same = np.zeros_like(logits)
    return [
        *cases,
        Case("MoE", (x, logits, *double), (2, 3, 4, 5), attrs={"k": 2, **swiglu, **LIMITS}),
        Case("MoE", (x.reshape(1, TOKENS, WIDTH), logits, *unbiased), attrs={"k": 1}),
        Case("MoE", (x, same, *unbiased), (2, 4), attrs={"k": 2, "normalize_routing_weights": 1}),
    ]


def _pack(levels: Array, bits: int) -> Array:
    each = 8 // bits
    spare = [(0, 0)] * (levels.ndim - 1) + [(0, -levels.shape[-1] % each)]
    parts = np.pad(levels, spare).reshape(*levels.shape[:-1], -1, each)
    return np.asarray((parts << (np.arange(each) * bits)).sum(-1), np.uint8)


def _quantised(
    activation: str, bits: int, block: int, zeros: bool, shares: bool = False, **more: Any
) -> Case:
    rows = 2 * INNER if activation == "swiglu" else INNER
    layers: list[Array] = []
    points: list[Array | None] = []
    for n, k in ((rows, WIDTH), (WIDTH, INNER)):
        shape = (EXPERTS, n, k // block) if block else (EXPERTS, n)
        levels = RNG.integers(0, 1 << bits, (EXPERTS, n, k))
        scales = np.asarray(RNG.uniform(0.2, 1, shape) / (1 << bits), np.float32)
        layers += [_pack(levels, bits), scales, _x(EXPERTS, n)]
        points.append(_pack(RNG.integers(0, 1 << bits, shape), bits) if zeros else None)
    given = abs(_x(TOKENS, EXPERTS)) if shares else None
    inputs = (_x(TOKENS, WIDTH), _x(TOKENS, EXPERTS), *layers, *[None] * 3, *points, None, given)
    attrs = {"k": 2, "activation_type": activation, "expert_weight_bits": bits, **more}
    if block:
        attrs["block_size"] = block
    if activation == "swiglu":
        attrs["swiglu_fusion"] = 1
    constant = [i for i, a in enumerate(inputs) if a is not None and i not in (0, 1, 14)]
    return Case("QMoE", inputs, constant, attrs=attrs)


def _in_bits() -> list[Case]:
    return [
        _quantised("relu", 4, 0, False),
        _quantised("silu", 4, 16, True, normalize_routing_weights=1),
        _quantised("gelu", 8, 0, True),
        _quantised("identity", 2, 16, True, shares=True),
        _quantised("swiglu", 4, 0, True, **LIMITS),
        _quantised("swiglu", 2, 0, True, shares=True, normalize_routing_weights=1),
        _quantised("swiglu", 8, 0, False, weights_prepacked=0),
    ]


@DEVICES
@pytest.mark.parametrize("case", [*_plain(), *_in_bits()], ids=lambda c: c.op)
def test_moe_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    check(case, device, 1e-4)


def _as_first_declared(case: Case) -> Case:
    """Returns a case with weights [experts, in, out], the layout before August 2025."""
    inputs = list(case.inputs)
    packs = 1 if case.op == "MoE" else 8 // case.attrs["expert_weight_bits"]
    for index in (2, 4, 6) if case.op == "MoE" else (2, 5, 8):
        weights = inputs[index] if index < len(inputs) else None
        if weights is not None:
            count, rows, columns = weights.shape
            inputs[index] = weights.reshape(count, columns * packs, rows // packs)
    return replace(case, inputs=tuple(inputs))


FIRST_DECLARED = [_as_first_declared(case) for case in (*_plain(), *_in_bits())]


@DEVICES
@pytest.mark.parametrize("case", FIRST_DECLARED, ids=lambda c: c.op)
def test_moe_with_first_weight_layout_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    if case.attrs.get("expert_weight_bits") != 4:
        check(case, device, 1e-4)
        return
    # ONNX Runtime packs levels of 4 bits by the shapes that are declared, against its own check.
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    model, feeds = case.model()
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    with clrt.load(model, device=device.index) as loaded:
        np.testing.assert_allclose(loaded.run(feeds)["y0"], expected, rtol=0, atol=1e-4)


@DEVICES
@pytest.mark.parametrize("fusion", [1, 2])
def test_moe_first_weight_layout_of_square_experts_is_detected(
    fusion: int, device: DeviceInfo
) -> None:
    """Inner and outer sizes are equal; only the gated layer's shape identifies the layout."""
    attrs: dict[str, Any] = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": fusion, **LIMITS}
    first = _x(EXPERTS, 2 * WIDTH, WIDTH) / 4
    inputs = (_x(TOKENS, WIDTH), _x(TOKENS, EXPERTS), first, None, _x(EXPERTS, WIDTH, WIDTH) / 4)
    case = Case("MoE", inputs, (2, 4), attrs=attrs)
    found = []
    for one in (case, _as_first_declared(case)):
        model, feeds = one.model()
        with clrt.load(model, device=device.index) as loaded:
            found.append(loaded.run(feeds)["y0"])
    np.testing.assert_array_equal(found[1], found[0])


@DEVICES
@pytest.mark.parametrize("case", [_plain()[1], _in_bits()[1]], ids=lambda c: c.op)
def test_moe_in_float16_matches_float32(case: Case, device: DeviceInfo) -> None:
    """ONNX Runtime's MoE is wrong in float16: it does not agree with itself in float32."""
    halves = [
        a.astype(np.float16) if a is not None and a.dtype == np.float32 else a for a in case.inputs
    ]
    wide = [a.astype(np.float32) if a is not None and a.dtype == np.float16 else a for a in halves]
    model, feeds = replace(case, inputs=wide).model()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    model, feeds = replace(case, inputs=halves).model()
    with clrt.load(model, device=device.index) as loaded:
        found = loaded.run(feeds)["y0"]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3 * abs(expected).max())


def _both(case: Case, changed: dict[int, Array], attrs: dict[str, Any], device: DeviceInfo) -> None:
    """Compares clrt, with changed inputs and attributes, with ONNX Runtime on the original case."""
    model, feeds = case.model()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    inputs = [*case.inputs, *[None] * (15 - len(case.inputs))]
    for place, array in changed.items():
        inputs[place] = array
    constant = [i for i, a in enumerate(inputs) if a is not None and i > 1]
    model, feeds = Case(case.op, inputs, constant, 1, {**case.attrs, **attrs}).model()
    del model.graph.node[0].input[8 if case.op == "MoE" else 15 :]
    with clrt.load(model, device=device.index) as loaded:
        np.testing.assert_allclose(loaded.run(feeds)["y0"], expected, rtol=0, atol=1e-4)


@DEVICES
@pytest.mark.parametrize("op", ["MoE", "QMoE"])
def test_moe_swiglu_layouts_give_equal_results(op: str, device: DeviceInfo) -> None:
    """ONNX Runtime supports only interleaved gates on CPUs."""
    if op == "MoE":
        attrs: dict[str, Any] = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, **LIMITS}
        inputs = (_x(TOKENS, WIDTH), _x(TOKENS, EXPERTS), *_experts(2 * INNER))
        turns, first, third = Case(op, inputs, (), 1, attrs), (2, 3), (6, 7)
    else:
        turns, first, third = (
            _quantised("swiglu", 4, 16, True, **LIMITS),
            (2, 3, 4, 11),
            (8, 9, 10, 13),
        )
    beside: dict[int, Array] = {}
    apart: dict[int, Array] = {}
    for a, b in zip(first, third, strict=True):
        whole = turns.inputs[a]
        assert whole is not None
        apart[a], apart[b] = whole[:, ::2], whole[:, 1::2]
        beside[a] = np.concatenate([apart[a], apart[b]], 1)
    _both(turns, beside, {"swiglu_fusion": 2}, device)
    _both(turns, apart, {"swiglu_fusion": 0}, device)


@DEVICES
def test_qmoe_layers_may_differ_in_bit_width(device: DeviceInfo) -> None:
    """ONNX Runtime supports one bit width on CPUs; 4-bit levels are also 8-bit levels."""
    case = _quantised("silu", 4, 0, False)
    packed = case.inputs[5]
    assert packed is not None
    levels = np.stack([packed & 15, packed >> 4], -1).reshape(EXPERTS, WIDTH, INNER)
    middle = np.full((EXPERTS, WIDTH), 8, np.uint8)
    _both(case, {5: levels, 12: middle}, {"fc2_expert_weight_bits": 8}, device)


def test_unsupported_moe_attributes_are_refused() -> None:
    plain, bits = _plain()[0], _quantised("relu", 4, 0, False)
    for case, more, match in (
        (plain, {"activation_type": "mish"}, "activation_type 'mish'"),
        (bits, {"quant_type": "fp4"}, "quant_type 'fp4'"),
        (bits, {"weights_prepacked": 1}, "packed for a GPU"),
    ):
        case.attrs |= more
        model, _ = case.model()
        with pytest.raises(UnsupportedError, match=match):
            clrt.load(model)
