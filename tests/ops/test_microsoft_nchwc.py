"""Models in ONNX Runtime's NCHWc convolution layout, as saved by its optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import clrt
from clrt.errors import UnsupportedError
from clrt.ir.op import Array
from clrt.models.onnx import nchwc as onnx_nchwc
from clrt.models.onnx.nchwc import block_of
from clrt.ops.decompositions.import_rules.microsoft.nchwc import NCHWC
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices

RNG = np.random.default_rng(31)
DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


class _Net:
    """A model being built; values are names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def __call__(self, op: str, *inputs: str | Array, domain: str = "", **attrs: Any) -> str:
        names = [self._name(v) for v in inputs]
        output = f"v{len(self.nodes)}"
        node = helper.make_node(op, names, [output], domain=domain, **attrs)
        self.nodes.append(node)
        return output

    def _name(self, value: str | Array) -> str:
        if isinstance(value, str):
            return value
        name = f"w{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(value, name))
        return name

    def model(self, channels: int, *outputs: str) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", 1, ["n", channels, 9, 8])
        infos = [helper.make_tensor_value_info(o, 1, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "g", [x], infos, self.tensors)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(NCHWC, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _network() -> onnx.ModelProto:
    net = _Net()
    same: dict[str, Any] = {"pads": [1, 1, 1, 1]}
    v = net("Relu", net("Conv", "x", _x(16, 3, 3, 3), _x(16), **same))
    deep = net("HardSwish", net("Conv", v, _x(16, 1, 3, 3), _x(16), group=16, **same))
    joined = net("Add", net("Conv", deep, _x(16, 16, 1, 1)), v)
    pooled = net("MaxPool", joined, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, **same)
    wide = net(
        "Clip",
        net("Conv", pooled, _x(20, 16, 1, 1), _x(20)),
        np.zeros((), np.float32),
        np.ones((), np.float32),
    )
    gate = net("Conv", net("GlobalAveragePool", wide), _x(16, 20, 1, 1), _x(16))
    grown = [
        net("Resize", gate, "", np.array([1, 1, 5, 5], np.float32), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        net("AveragePool", pooled, kernel_shape=[3, 3], count_include_pad=1, **same),
    ]  # fmt: skip
    last = net("Conv", net("Concat", *grown, axis=1), _x(12, 32, 3, 3), strides=[2, 1])
    turned = net(
        "Transpose", net("Conv", wide, _x(16, 20, 3, 3), dilations=[2, 1]), perm=[0, 2, 3, 1]
    )
    return net.model(3, last, turned, net("GlobalMaxPool", last))


@pytest.mark.lengthy
@pytest.mark.parametrize("level", ["EXTENDED", "ALL"])
def test_model_saved_by_onnxruntime_matches_onnxruntime(level: str, tmp_path: Path) -> None:
    model, x = _network().SerializeToString(), _x(2, 3, 9, 8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
    )
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    domains = {n.domain for n in onnx.load(tmp_path / "saved.onnx").graph.node}
    if level == "ALL" and NCHWC not in domains:
        pytest.skip("ONNX Runtime has no such layout on this CPU")
    for device in all_devices():
        with clrt.load(tmp_path / "saved.onnx", device=device.index, strict=True) as loaded:
            found = loaded.run({"x": x}).values()
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


def _in_blocks(weights: Array, block: int, axes: tuple[int, ...]) -> Array:
    """Returns weights `[O, I, H, W]` in ONNX Runtime's blocked layout, outputs innermost."""
    outputs, *rest = weights.shape
    inputs = (rest[0] // block, block) if 1 in axes else (rest[0], 1)
    parts = weights.reshape(outputs // block, block, *inputs, *rest[1:])
    return parts.transpose(0, 2, 4, 5, 3, 1).reshape(weights.shape)


@DEVICES
@pytest.mark.parametrize("block", [8, 16])
def test_nchwc_blocks_of_8_and_16_match_plain_conv(block: int, device: DeviceInfo) -> None:
    """Convolutions of plain and blocked inputs, depthwise ones, a sum, and a partial block."""
    first, each, last = (
        _x(3 * block, 3, 3, 3),
        _x(3 * block, 1, 3, 3),
        _x(2 * block, 3 * block, 1, 1),
    )
    last[block + 1 :] = 0  # what is no channel
    bias = _x(3 * block)
    plain, blocked = _Net(), _Net()
    same: dict[str, Any] = {"pads": [1, 1, 1, 1]}
    v = plain("Conv", "x", first, **same)
    v = plain("Relu", plain("Add", plain("Conv", v, each, bias, group=3 * block, **same), v))
    y = plain("Conv", v, last[: block + 1])
    own: dict[str, object] = {"domain": NCHWC, **same}
    v = blocked("Conv", "x", _in_blocks(first, block, (0,)), **own)
    attrs = {**own, "group": 3 * block, "activation": "Relu"}
    v = blocked("Conv", v, _in_blocks(each, block, (0,)), bias, v, **attrs)
    v = blocked("Conv", v, _in_blocks(last, block, (0, 1)), domain=NCHWC)
    z = blocked("ReorderOutput", v, channels=block + 1, domain=NCHWC)
    x = _x(2, 3, 9, 8)
    session = onnxruntime.InferenceSession(
        plain.model(3, y).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    model = blocked.model(3, z)
    assert block == 8 or block_of(model.graph) == 16
    with clrt.load(model, device=device.index, strict=True) as loaded:
        found = loaded.run({"x": x})[z]
        moved = [n.op.name for n in loaded._graph.nodes if n.op.name in ("Transpose", "Pad")]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    # Of what goes out; what comes in is an image, read as it lies. GPUs have all as ONNX has it.
    assert moved == (["Transpose"] if device.caps.is_cpu else [])


def _sizes(*convolutions: tuple[int, int], channels: int = 0) -> onnx.ModelProto:
    net = _Net()
    v = "x"
    for outputs, inputs in convolutions:
        v = net("Conv", v, np.zeros((outputs, inputs, 1, 1), np.float32), domain=NCHWC)
    if channels:
        v = net("ReorderOutput", v, channels=channels, domain=NCHWC)
    return net.model(convolutions[0][1], v)


@pytest.mark.parametrize(
    ("model", "block"),
    [
        (_sizes((16, 3), (24, 16)), 8),
        (_sizes((16, 3), (16, 12)), 16),
        (_sizes((32, 3), channels=20), 16),
        (_sizes((16, 3), channels=12), None),
    ],
)
def test_nchwc_block_size_is_inferred_from_weights(
    model: onnx.ModelProto, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_nchwc, "_block_of_cpu", lambda: None)
    if block:
        assert block_of(model.graph) == block
    else:
        with pytest.raises(UnsupportedError, match=r"1 thing .*Conv .*ORT_ENABLE_EXTENDED"):
            clrt.load(model)
