"""Models quantized by ONNX Runtime's tools: errors stay below the quantization error."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import _pybind_state as kernels
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import clrt
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices
from tests.models.fixtures import load_family
from tests.models.oracle import LIMIT, expected, relative_error, text_feeds

SHAPES = ((1, 1), (1, 16), (3, 37))
PRODUCTS = ["MatMul", "Gemm"]


def _feeds(proto: onnx.ModelProto, batch: int, sequence: int) -> dict[str, Array]:
    return text_feeds([i.name for i in proto.graph.input], batch, sequence, True, 200)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, proto: onnx.ModelProto) -> None:
        self._feeds = iter([_feeds(proto, *shape) for shape in SHAPES])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def _saved(proto: onnx.ModelProto, folder: Path) -> Path:
    """Saves the model to a file, since the tools move the weights of a model object."""
    onnx.save(proto, folder / "float.onnx")
    return folder / "float.onnx"


def _dynamic(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    quantize_dynamic(_saved(proto, folder), folder / "made.onnx")
    return onnx.load(folder / "made.onnx")


def _dynamic_per_channel(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    source, made = _saved(proto, folder), folder / "made.onnx"
    quantize_dynamic(source, made, weight_type=QuantType.QUInt8, per_channel=True)
    return onnx.load(folder / "made.onnx")


def _static(form: QuantFormat) -> Callable[[onnx.ModelProto, Path], onnx.ModelProto]:
    def quantise(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
        # Masks of -3e38 leave no steps for anything else: only products are quantised.
        quantize_static(
            _saved(proto, folder),
            folder / "made.onnx",
            _Reader(proto),
            quant_format=form,
            per_channel=form is QuantFormat.QDQ,
            op_types_to_quantize=PRODUCTS,
        )
        return onnx.load(folder / "made.onnx")

    return quantise


def _few_bits(bits: int, symmetric: bool) -> Callable[[onnx.ModelProto, Path], onnx.ModelProto]:
    """Converts constant products to MatMulNBits; the tools' quantizer needs another package."""

    def quantise(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
        made = onnx.ModelProto()
        made.CopyFrom(proto)
        weights = {t.name: t for t in made.graph.initializer}
        for node in made.graph.node:
            if node.op_type == "MatMul" and node.input[1] in weights:
                array = numpy_helper.to_array(weights[node.input[1]])
                if array.ndim == 2:
                    _replace(made, node, array, bits, symmetric)
        made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return made

    return quantise


def _replace(
    model: onnx.ModelProto, node: onnx.NodeProto, array: Array, bits: int, symmetric: bool
) -> None:
    (k, n), size = array.shape, 32
    blocks = -(-k // size)
    padded = np.pad(array, ((0, blocks * size - k), (0, 0)))
    packed = np.zeros((n, blocks, size * bits // 8), np.uint8)
    zeros = np.zeros((n, -(-blocks * bits // 8)), np.uint8)
    scales = np.zeros((n, blocks), np.float32)
    quantise = getattr(kernels, f"quantize_matmul_{bits}bits")
    quantise(packed, np.ascontiguousarray(padded), scales, zeros, size, n, k, symmetric)
    parts = {"packed": packed, "scales": scales, **({} if symmetric else {"zeros": zeros})}
    names = [f"{node.output[0]}_{part}" for part in parts]
    for name, part in zip(names, parts.values(), strict=True):
        model.graph.initializer.append(numpy_helper.from_array(part, name))
    inputs = [node.input[0], *names]
    attrs = {"K": k, "N": n, "bits": bits, "block_size": size}
    node.CopyFrom(
        helper.make_node("MatMulNBits", inputs, node.output, domain="com.microsoft", **attrs)
    )


KINDS: dict[str, Callable[[onnx.ModelProto, Path], onnx.ModelProto]] = {
    "dynamic": _dynamic,
    "dynamic_per_channel": _dynamic_per_channel,
    "qdq": _static(QuantFormat.QDQ),
    "qoperator": _static(QuantFormat.QOperator),
    "4_bits": _few_bits(4, symmetric=True),
    "4_bits_zero_points": _few_bits(4, symmetric=False),
    "8_bits": _few_bits(8, symmetric=True),
}


@cache
def _original(name: str) -> onnx.ModelProto:
    return load_family(name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["bert_dynamo20", "gpt2_torchscript17"])
def test_onnxruntime_quantized_model_stays_within_own_error(
    name: str, kind: str, tmp_path: Path
) -> None:
    original = _original(name)
    proto = KINDS[kind](original, tmp_path)
    domains = {"", "com.microsoft"}
    ops = {n.op_type for n in proto.graph.node if n.domain in domains}
    assert ops & {"MatMulInteger", "QuantizeLinear", "MatMulNBits"}
    for device in all_devices():
        with clrt.load(proto, device=device.index, strict=True) as model:
            for shape in SHAPES:
                feeds = _feeds(original, *shape)
                actual, floats = model.run(feeds), expected(original, feeds)
                for output, wanted in expected(proto, feeds).items():
                    own = relative_error(wanted, floats[output])
                    error = relative_error(actual[output], wanted)
                    assert own > LIMIT, "nothing was quantised"
                    assert error <= own / 2, f"{output} at {shape}: {error:.2e}, own {own:.2e}"


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_dynamic_quantize_linear_is_bit_exact(device: DeviceInfo) -> None:
    """One ulp in a scale moves values to the next integer, and later layers amplify that to 1 %."""
    names = ("y", "y_scale", "y_zero_point")
    infos = [helper.make_empty_tensor_value_info(name) for name in names]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])
    node = helper.make_node("DynamicQuantizeLinear", ["x"], names)
    graph = helper.make_graph([node], "g", [x], infos)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)
    rng = np.random.default_rng(0)
    with clrt.load(proto, device=device.index) as model:
        for _ in range(50):
            feeds = {"x": np.asarray(rng.standard_normal(300) + rng.normal(), np.float32)}
            for name, array in expected(proto, feeds).items():
                np.testing.assert_array_equal(model.run(feeds)[name], array)
        for size in (0, 1, 7):
            feeds = {"x": np.zeros(size, np.float32)}
            for name, array in expected(proto, feeds).items():
                np.testing.assert_array_equal(model.run(feeds)[name], array)
