"""Convolutions of images with very small to very large values, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import clrt
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of
from tests.models.onnx_text import normal, parsed
from tests.models.oracle import outputs_of, relative_error, session_of

CHANNELS, SIDE = 32, 45
# Of the largest output.
LIMIT = 1e-4


def net() -> onnx.ModelProto:
    """Returns a first layer, two Winograd convolutions, a residual and a depthwise convolution."""
    model = onnx.load_from_string(
        parsed(
            f"""
            g (float[n, 3, {SIDE}, {SIDE}] x) => (float[n, {CHANNELS}, 23, 23] y)
            {{
              a = Conv<pads = [1, 1, 1, 1]>(x, w0)
              b = Relu(a)
              c = Conv<pads = [1, 1, 1, 1]>(b, w1)
              d = HardSwish(c)
              e = Conv<pads = [1, 1, 1, 1]>(d, w2)
              f = Add(e, b)
              y = Conv<pads = [1, 1, 1, 1], strides = [2, 2], group = {CHANNELS}>(f, w3)
            }}
            """
        )
    )
    shapes = [(CHANNELS, 3, 3, 3), *[(CHANNELS, CHANNELS, 3, 3)] * 2, (CHANNELS, 1, 3, 3)]
    for i, shape in enumerate(shapes):
        weights = normal(i, *shape) / np.sqrt(np.prod(shape[1:]), dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, f"w{i}"))
    return model


def images() -> dict[str, Array]:
    """Returns images [1, 3, SIDE, SIDE] by description."""
    x, rng = normal(9, 1, 3, SIDE, SIDE), np.random.default_rng(9)
    one, stripes = x.copy(), np.ones_like(x)
    one[0, 1, 20, 21] = 1e8
    stripes[..., ::2] = -1
    return {
        "normal": x,
        "large": x * np.float32(1e12),
        "small": x * np.float32(1e-12),
        "denormal": x * np.float32(1e-39),
        "zero": np.zeros_like(x),
        "constant": np.full_like(x, 255),
        "stripes": stripes * np.float32(1e4),
        "one large element": one,
        "all sizes": x * np.float32(10) ** rng.integers(-8, 9, x.shape).astype(np.float32),
    }


@pytest.mark.lengthy
@pytest.mark.parametrize("device", all_devices(), ids=name_of)
def test_convolutions_of_extreme_images_match_onnxruntime(device: DeviceInfo) -> None:
    proto = net()
    session = session_of(proto)
    with clrt.load(proto.SerializeToString(), device=device.index, strict=True) as model:
        rows = model.explain({"x": (1, 3, SIDE, SIDE)}).rows
        entries = [k.entry for r in rows for k in r.kernels]
        assert entries.count("winograd_cpu") == 2 and "conv_image_cpu" in entries
        errors = {
            what: relative_error(model.run({"x": x})["y"], outputs_of(session, {"x": x})["y"])
            for what, x in images().items()
        }
    assert {what: e for what, e in errors.items() if not e <= LIMIT} == {}
