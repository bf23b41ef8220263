"""Quantized convolutions and the nodes between them, in bytes and with channels last."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import clrt
from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import ShapeTrace
from clrt.kernels.gemm_int8_cpu import partition
from clrt.kernels.variant import Lowering
from clrt.models.onnx.importer import import_model
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.device_pipeline import prepare
from clrt.passes.driver import run_pass
from clrt.passes.expand_quantization import ExpandQuantization
from clrt.passes.pipeline import optimize
from clrt.passes.requantized_conv import FuseRequantizedConv
from tests.harness import all_devices
from tests.passes.helpers import assert_same_results, check_miss, graph_of

BYTES_CPU = DeviceCaps("p", "cpu", "v", "1", "cpu", matrix_shapes=frozenset({VNNI_INT8}))
IMAGE = "%x: uint8[1,8,B,S]"
WEIGHTS = (
    "const %w: int8[8,8,1,1] = ...\nconst %z: uint8[] = 121\nconst %one: float32[] = 1.0\n"
    "const %f: float32[8,1,1] = ...\n"
)


def _levels(rng: np.random.Generator, *shape: int, dtype: Any = np.int8) -> Array:
    return rng.integers(-128, 128, shape).astype(np.int8).view(dtype)


def _net(signed: bool) -> onnx.ModelProto:
    """A block of a quantized net: 3 x 3, depthwise and 1 x 1 convolution, and a residual sum."""
    rng = np.random.default_rng(5)
    kind, onnx_type = (np.int8, TensorProto.INT8) if signed else (np.uint8, TensorProto.UINT8)
    zero = np.array(3 if signed else 121, kind)
    initializers: dict[str, Array] = {"scale": np.array(0.05, np.float32), "zero": zero}
    nodes = []

    def conv(x: str, name: str, shape: tuple[int, ...], bias: bool, **attributes: Any) -> str:
        maps = shape[0]
        scale = rng.uniform(0.5, 1.5, maps) / (64 * np.sqrt(np.prod(shape[1:])))
        more = {
            f"{name}_w": _levels(rng, *shape),
            f"{name}_s": scale.astype(np.float32),
            f"{name}_z": np.zeros(maps, np.int8),
        }
        if bias:
            more[f"{name}_b"] = rng.integers(-2000, 2000, maps).astype(np.int32)
        initializers.update(more)
        weights = list(more)
        inputs = [x, "scale", "zero", *weights[:3], "scale", "zero", *weights[3:]]
        nodes.append(helper.make_node("QLinearConv", inputs, [name], **attributes))
        return name

    a = conv("x", "a", (16, 3, 3, 3), True, pads=[1] * 4, strides=[2, 2])
    b = conv(a, "b", (16, 1, 3, 3), False, pads=[1] * 4, group=16)
    c = conv(b, "c", (16, 16, 1, 1), True)
    add = [a, "scale", "zero", c, "scale", "zero", "scale", "zero"]
    nodes.append(helper.make_node("QLinearAdd", add, ["sum"], domain="com.microsoft"))
    conv("sum", "y", (5, 16, 2, 2), True, dilations=[2, 1])
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", onnx_type, [2, 3, "H", "W"])],
        [helper.make_tensor_value_info("y", onnx_type, None)],
        [numpy_helper.from_array(v, k) for k, v in initializers.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _feeds(signed: bool) -> dict[str, Array]:
    kind = np.int8 if signed else np.uint8
    return {"x": _levels(np.random.default_rng(7), 2, 3, 13, 18, dtype=kind)}


def _count(graph: Graph) -> Counter[str]:
    return Counter(n.op.name for n in graph.nodes)


@pytest.mark.parametrize("signed", [False, True])
def test_block_runs_in_bytes_with_channels_last(signed: bool) -> None:
    graph = import_model(_net(signed))
    before = evaluate(graph, _feeds(signed))
    optimize(graph)
    prepare(graph, BYTES_CPU)
    found = _count(graph)
    assert found == {"Transpose": 2, "ChannelsLastQuantizedConv": 4, "Fused": 1}
    assert_same_results(before, evaluate(graph, _feeds(signed)))


@pytest.mark.parametrize("signed", [False, True])
def test_block_has_onnxruntime_results(signed: bool) -> None:
    proto, feeds = _net(signed), _feeds(signed)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for device in all_devices():
        with clrt.load(proto, device=device.index, strict=True) as model:
            np.testing.assert_array_equal(model.run(feeds)["y"], expected)


def test_shares_of_work_groups_follow_by_formula_at_other_sizes() -> None:
    ctx, trace = Lowering(BYTES_CPU, lambda _: {}), ShapeTrace({"m": 100})
    shares = partition(trace.start()["m"], 96, 1, ctx)
    for m in (1, 7, 64, 100, 999, 12544):
        evaluation = trace.evaluate({"m": m})
        assert evaluation is not None
        found = tuple(evaluation.numbers[trace.formula(n)] for n in shares)
        assert found == partition(m, 96, 1, ctx)


def test_devices_without_byte_products_keep_integer_convolution() -> None:
    graph = import_model(_net(False))
    optimize(graph)
    prepare(graph, DeviceCaps("p", "cpu", "v", "1", "cpu"))
    assert _count(graph)["ConvInteger"] == 4


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "%s: int32[1,8,B,S] = ConvInteger(%x, %w, %z)\n"
            "%c: float32[1,8,B,S] = Cast{to=float32}(%s)\n%m: float32[1,8,B,S] = Mul(%c, %f)\n"
            "%y: uint8[1,8,B,S] = QuantizeLinear(%m, %two, %z)",
            "its scale is not 1",
        ),
        (
            "%s: int32[1,8,B,S] = ConvInteger(%x, %w, %z)\n"
            "%c: float32[1,8,B,S] = Cast{to=float32}(%s)\n%m: float32[1,8,B,S] = Mul(%c, %map)\n"
            "%y: uint8[1,8,B,S] = QuantizeLinear(%m, %one, %z)",
            "Mul has other operands",
        ),
        (
            "%s: int32[1,8,B,S] = ConvInteger(%x, %w, %z)\n"
            "%c: float32[1,8,B,S] = Cast{to=float32}(%s)\n%m: float32[1,8,B,S] = Mul(%c, %f)\n"
            "%t: float32[1,8,B,S] = Tanh(%m)\n"
            "%y: uint8[1,8,B,S] = QuantizeLinear(%t, %one, %z)",
            "Tanh",
        ),
        (
            "%s: int32[1,8,B,S] = ConvInteger(%x, %w, %n)\n"
            "%c: float32[1,8,B,S] = Cast{to=float32}(%s)\n%m: float32[1,8,B,S] = Mul(%c, %f)\n"
            "%y: uint8[1,8,B,S] = QuantizeLinear(%m, %one, %z)",
            "the zero point of x is computed",
        ),
        (
            "%s: int32[1,8,B,S] = ConvInteger(%x, %w, %z)\n"
            "%c: float32[1,8,B,S] = Cast{to=float32}(%s)\n%m: float32[1,8,B,S] = Mul(%c, %f)\n"
            "%y: uint8[1,8,B,S] = QuantizeLinear(%m, %half, %z)",
            "it quantizes float16",
        ),
    ],
)
def test_near_miss_says_why(body: str, reason: str) -> None:
    graph = graph_of(
        f"{WEIGHTS}const %two: float32[] = 2.0\nconst %half: float16[] = 1.0\n{body}",
        f"{IMAGE}, %map: float32[1,8,B,S], %n: uint8[]",
    )
    optimize(graph)
    outcome = run_pass(graph, FuseRequantizedConv())
    assert not outcome.hits and reason in outcome.misses[0][1]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_expanded_quantization_has_equal_bits(dtype: str) -> None:
    """Halves between levels, numbers out of range, infinities and NaN."""
    zero = 121 if dtype == "uint8" else -5
    graph = graph_of(
        f"const %s: float32[] = 0.25\nconst %z: {dtype}[] = {zero}\n"
        f"%a: float32[B] = Neg(%x)\n%q: {dtype}[B] = QuantizeLinear(%a, %s, %z)\n"
        f"%d: float32[B] = DequantizeLinear(%q, %s, %z)\n%y: float32[B] = Abs(%d)",
        "%x: float32[B]",
        "%y, %q",
    )
    numbers = np.append(np.arange(-400, 400) / 8, [np.inf, -np.inf, np.nan, 1e30])
    feeds = {"x": numbers.astype(np.float32)}
    before = evaluate(graph, feeds)
    assert len(run_pass(graph, ExpandQuantization()).hits) == 2
    after = evaluate(graph, feeds)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_quantization_by_channel_stays() -> None:
    check_miss(
        ExpandQuantization(),
        "%x: float32[B,4]",
        "const %s: float32[4] = ...\nconst %z: uint8[4] = ...\n%a: float32[B,4] = Neg(%x)\n"
        "%y: uint8[B,4] = QuantizeLinear(%a, %s, %z)",
        "several scales",
    )
