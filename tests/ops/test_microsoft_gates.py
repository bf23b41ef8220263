"""Gates, norms and positions of com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import name_of, quick_device
from tests.ops.test_microsoft_quantised import Case, check

RNG = np.random.default_rng(23)
# Compositions are the same on every device, whose kernels other tests compare.
DEVICES = pytest.mark.parametrize("device", [quick_device()], ids=name_of)


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def _half(*shape: int) -> Array:
    return _x(*shape).astype(np.float16)


def _case(op: str, *inputs: Array | None, outputs: int = 1, **attrs: Any) -> Case:
    return Case(op, inputs, (), outputs, attrs)


def _gates() -> list[Case]:
    bias, decay = _x(4), -abs(_x(4))
    return [
        _case("ScaledSiLU", _x(2, 17)),
        _case("ScaledSiLU", _x(2, 17), alpha=1.3),
        _case("ScaledSiLU", _x(2, 0, 3), np.array(0.4, np.float32), alpha=1.3),
        _case("ScaledSiLU", _half(5), np.array(0.4, np.float32)),
        _case("ScaledSiLU", _x(), np.array(0.4, np.float16)),
        _case("GatedAdd", _x(2, 3, 5), _x(2, 3, 5), _x(2, 3, 1)),
        _case("GatedAdd", _half(3, 5), _half(3, 5), _half(3, 1)),
        _case("LinearAttentionGate", _x(2, 3, 4), bias, decay),
        _case("LinearAttentionGate", _x(2, 3, 4), bias, decay, _x(2, 3, 4), outputs=2),
        _case("LinearAttentionGate", _half(1, 1, 4), bias, decay, _half(1, 1, 4), outputs=2),
    ]


def _norms() -> list[Case]:
    x = _x(2, 3, 8)
    return [
        _case("GatedRMSNorm", x, _x(8), _x(2, 3, 8)),
        _case("GatedRMSNorm", x, _x(4), _x(2, 3, 8), activation="sigmoid", epsilon=0.1),
        _case("GatedRMSNorm", x, _x(2), _x(2, 3, 8), activation="swish"),
        _case("GatedRMSNorm", _half(3, 8), _half(8), _half(3, 8)),
        _case("GatedRMSNorm", _x(0, 8), _x(4), _x(0, 8)),
        _case("BranchwiseRMSNorm", x),
        _case("BranchwiseRMSNorm", x, _x(24), epsilon=0.1),
        _case("BranchwiseRMSNorm", x, _x(3, 8)),
        _case("BranchwiseRMSNorm", x, _x(8)),
        _case("BranchwiseRMSNorm", x, num_branches=4),
        _case("BranchwiseRMSNorm", x, _x(8), num_branches=4),
        _case("BranchwiseRMSNorm", x, _x(4, 2).astype(np.float16), num_branches=4),
        _case("BranchwiseRMSNorm", _half(2, 8), _x(2), num_branches=4),
    ]


def _rotations() -> list[Case]:
    positions = RNG.integers(0, 16, (3, 2, 3))
    wide, narrow = (_x(16, 8), _x(16, 8)), (_x(16, 4), _x(16, 4))
    op, three = "MRotaryEmbedding", [4, 2, 2]
    return [
        _case(op, _x(2, 3, 32), positions, *wide, mrope_section=three, num_heads=2),
        _case(op, _x(2, 3, 32), positions, *wide, mrope_section=three, mrope_layout=1,
              num_heads=2),
        _case(op, _x(2, 2, 3, 16), positions, *wide, mrope_section=[0, 8, 0], interleaved=1),
        _case(op, _x(2, 2, 3, 16), positions, *wide, mrope_section=[2, 3, 3], mrope_layout=1,
              scale=2.0, is_packed_batching=1),
        _case(op, _x(2, 3, 24), positions, *narrow, mrope_section=[1, 1, 2], num_heads=2,
              rotary_embedding_dim=8),
        _case(op, _x(2, 2, 3, 12), positions, *narrow, mrope_section=[2, 1, 1], num_heads=2,
              rotary_embedding_dim=8, mrope_layout=1, scale=0.5),
    ]  # fmt: skip


def _integers() -> list[Case]:
    a, b = (np.asarray(RNG.integers(-999, 999, s), np.int16) for s in ((2, 3, 5), (5, 4)))
    cases = [_case("MatMulInteger16", a, b), _case("MatMulInteger16", a[0], b)]
    for dtype in (np.int8, np.uint8):
        limits = np.iinfo(dtype)
        x = np.asarray(RNG.integers(limits.min, limits.max + 1, (2, 7, 6, 3)), dtype)
        cases += [
            _case("NhwcMaxPool", x, kernel_shape=[2, 3], auto_pad="SAME_UPPER"),
            _case("NhwcMaxPool", x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1]),
            _case("NhwcMaxPool", x, kernel_shape=[2, 2], dilations=[2, 1], pads=[0, 1, 0, 0]),
            _case("NhwcMaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        ]
    return cases


CASES = [*_gates(), *_norms(), *_rotations(), *_integers()]


@DEVICES
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_microsoft_gate_norm_rotary_or_integer_op_matches_onnxruntime(
    case: Case, device: DeviceInfo
) -> None:
    halves = any(a is not None and a.dtype == np.float16 for a in case.inputs)
    check(case, device, 5e-3 if halves else 1e-4)
