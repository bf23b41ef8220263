"""Scalar constants are kernel arguments: layers that differ only in them share kernels."""

from __future__ import annotations

import pytest

from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, agree, normal, parsed

MODEL = """g (float[n, 40] x, float[40, 40] w) => (float[n, 40] y)
<float one = {{0.3173}}, float two = {{-0.0471}}, float three = {{0.7731}}, float half = {{0.5}}>
{{ {0} }}"""
PRODUCTS = """p = MatMul(x, w) p1 = Tanh(p) p2 = Mul(p1, one) p3 = Add(p2, half)
q = MatMul(p3, w) q1 = Tanh(q) q2 = Mul(q1, two) q3 = Add(q2, half)
r = MatMul(q3, w) r1 = Tanh(r) r2 = Mul(r1, three) y = Add(r2, half)"""
ELEMENTWISE = """p1 = Tanh(x) p2 = Mul(p1, one) p3 = Add(p2, half) p4 = Transpose(p3)
q1 = Tanh(p4) q2 = Mul(q1, two) q3 = Add(q2, half) q4 = Transpose(q3)
r1 = Tanh(q4) r2 = Mul(r1, three) r3 = Add(r2, half) y = MatMul(r3, w)"""


@DEVICES
@pytest.mark.parametrize("body", [PRODUCTS, ELEMENTWISE], ids=["products", "elementwise"])
def test_layers_with_different_constants_share_kernels(device: DeviceInfo, body: str) -> None:
    feeds = {"x": normal(1, 7, 40), "w": normal(2, 40, 40) / 6}
    with agree(parsed(MODEL.format(body)), device, feeds) as model:
        steps = model.plan({k: v.shape for k, v in feeds.items()}).steps
        kernels = [x.kernel for x in launches_of(steps)]
        numbered = [
            k
            for k in kernels
            if any("c0" in str(v) for m, v in k.defines if m in ("BODY", "EPILOGUE_BODY"))
        ]
    assert len(numbered) == 3
    assert len(set(numbered)) == 1
    assert "(0x1.0000000000000p-1f)" in numbered[0].text
