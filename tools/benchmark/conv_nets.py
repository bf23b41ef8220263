"""ResNet-50, MobileNetV2 and EfficientNet-B0 at their real sizes with random weights, as ONNX.

Batch norms are folded into the convolutions, as exporters do.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

Activation: TypeAlias = Literal["", "Relu", "Relu6", "Silu"]

# Of MobileNetV2 and EfficientNet-B0: factor of the expansion, maps, blocks, stride, window.
_Stage: TypeAlias = "tuple[int, int, int, int, int]"
_MOBILE: tuple[_Stage, ...] = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
_EFFICIENT: tuple[_Stage, ...] = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip


class _Net:
    """Builder of an ONNX graph."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: dict[str, np.ndarray[Any, Any]] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        from onnx import helper

        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self._weights)}"
        self._weights[name] = np.asarray(array, np.float32)
        return name

    def weights(self, *shape: int) -> str:
        """Adds random weights that preserve the scale of activations."""
        scale = (2 / np.prod(shape[1:])) ** 0.5
        return self.constant(scale * self._rng.standard_normal(shape))

    def conv(
        self,
        x: str,
        channels: int,
        maps: int,
        window: int = 1,
        stride: int = 1,
        group: int = 1,
        act: Activation = "",
    ) -> str:
        """Adds a convolution with bias and activation, padded so that stride 1 keeps the size."""
        weights = self.weights(maps, channels // group, window, window)
        bias = self.constant(0.1 * self._rng.standard_normal(maps))
        pads = [window // 2] * 4
        y = self.op("Conv", x, weights, bias, strides=[stride] * 2, pads=pads, group=group)
        if act == "Relu6":
            return self.op("Clip", y, self.constant(0), self.constant(6))
        if act == "Silu":
            return self.op("Mul", y, self.op("Sigmoid", y))
        return self.op(act, y) if act else y

    def model(self, x: str, channels: int) -> bytes:
        """Returns the model, with a head of 1,000 classes."""
        from onnx import TensorProto, helper, numpy_helper

        pooled = self.op("Flatten", self.op("GlobalAveragePool", x))
        y = self.op("Gemm", pooled, self.weights(1000, channels), transB=1)
        graph = helper.make_graph(
            self._nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", 1000])],
            [numpy_helper.from_array(array, name) for name, array in self._weights.items()],
        )
        opset = [helper.make_opsetid("", 17)]
        return bytes(
            helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
        )


def _resnet50() -> bytes:
    net = _Net()
    x = net.conv("x", 3, 64, 7, 2, act="Relu")
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            y = net.conv(x, channels, width, act="Relu")
            y = net.conv(y, width, width, 3, stride, act="Relu")
            y = net.conv(y, width, 4 * width)
            x = net.conv(x, channels, 4 * width, 1, stride) if block == 0 else x
            x, channels = net.op("Relu", net.op("Add", y, x)), 4 * width
    return net.model(x, channels)


def _inverted(stages: tuple[_Stage, ...], act: Activation, squeezes: bool) -> bytes:
    """Blocks that expand, convolve each channel, and project; some squeeze and excite, too."""
    net = _Net()
    x, channels = net.conv("x", 3, 32, 3, 2, act=act), 32
    for factor, maps, blocks, first_stride, window in stages:
        for block in range(blocks):
            wide, stride = factor * channels, first_stride if block == 0 else 1
            y = x if factor == 1 else net.conv(x, channels, wide, act=act)
            y = net.conv(y, wide, wide, window, stride, wide, act)
            if squeezes:
                few = channels // 4
                s = net.conv(net.op("GlobalAveragePool", y), wide, few, act=act)
                y = net.op("Mul", y, net.op("Sigmoid", net.conv(s, few, wide)))
            y = net.conv(y, wide, maps)
            x, channels = (net.op("Add", x, y) if block else y), maps
    return net.model(net.conv(x, channels, 1280, act=act), 1280)


def conv_nets() -> dict[str, bytes]:
    """Returns the nets by name, for any batch of 224 x 224 images."""
    return {
        "ResNet-50": _resnet50(),
        "MobileNetV2": _inverted(_MOBILE, "Relu6", squeezes=False),
        "EfficientNet-B0": _inverted(_EFFICIENT, "Silu", squeezes=True),
    }
