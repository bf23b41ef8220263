"""Fusion of fake quantization into RoundToScale, and of its MatMul into RoundedMatMul."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.models.onnx.export.exporter import export_model
from clrt.models.onnx.importer import import_model
from clrt.ops.matmul.gemm import Gemm
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.rounded_matmul import MAX_DEPTH
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.quantize_linear import DequantizeLinear, QuantizeLinear
from clrt.ops.pointwise.table import Add, Relu
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.device_pipeline import prepare
from clrt.passes.driver import infer_types
from clrt.passes.fuse_fake_quantize import FuseFakeQuantize, FuseRoundedMatmul
from clrt.passes.pipeline import optimize
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_graph
from tests.passes.helpers import apply, assert_same_results, random_inputs

RNG = np.random.default_rng(5)
K, N = 20, 13
SCALE = np.array(0.02, np.float32)


def _graph(shape: tuple[Any, ...], *steps: tuple[Any, ...]) -> Graph:
    """Nodes from their names, ops, and inputs, by name or as constants; the last is the output."""
    known = {"x": Value("x", TensorType(DType.FLOAT32, shape))}
    nodes = []
    for name, op, *inputs in steps:
        values = [
            known[a] if isinstance(a, str) else Value(f"{name}{i}", TensorType.of(a))
            for i, a in enumerate(inputs)
        ]
        made = Value(name, TensorType(DType.FLOAT32, None))
        nodes.append(Node(name, op, values, [made]))
        known[name] = made
    graph = Graph("g", [known["x"]], [known[steps[-1][0]]], nodes)
    infer_types(graph)
    return graph


def _integers(dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max + 1, shape), dtype)


def _scales(*shape: int) -> Array:
    return np.asarray(RNG.uniform(0.01, 0.03, shape), np.float32)


def _names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


AXES = [
    (1, SCALE, np.array(3, np.int8)),
    (1, SCALE, np.array(200, np.uint8)),
    (1, SCALE.reshape(1), np.array([-300], np.int16)),
    (1, _scales(3), np.array([0, 7, 255], np.uint8)),
    (-1, _scales(5), np.zeros(5, np.int8)),
]


@pytest.mark.parametrize(("axis", "scale", "zero"), AXES)
def test_quantize_dequantize_pair_becomes_round_to_scale(
    axis: int, scale: Array, zero: Array
) -> None:
    graph = _graph(
        (symbol("B"), 3, 5),
        ("q", QuantizeLinear(axis), "x", scale, zero),
        ("y", DequantizeLinear(axis), "q", scale.copy(), zero.copy()),
    )
    apply(FuseFakeQuantize(), graph)
    assert _names(graph) == ["RoundToScale"]


@pytest.mark.parametrize(
    ("again", "reason"),
    [
        ((DequantizeLinear(), "q", SCALE * 2, np.array(3, np.int8)), "scales differ"),
        ((DequantizeLinear(), "q", SCALE, np.array(4, np.int8)), "zero points differ"),
        ((DequantizeLinear(), "q", SCALE), "zero points differ"),
        ((DequantizeLinear(), "q", SCALE.astype(np.float16), np.array(3, np.int8)), "float32"),
    ],
)
def test_mismatched_quantize_dequantize_pair_is_kept(again: tuple[Any, ...], reason: str) -> None:
    quantised = ("q", QuantizeLinear(), "x", SCALE, np.array(3, np.int8))
    record = apply(FuseFakeQuantize(), _graph((symbol("B"), 3), quantised, ("y", *again)))
    assert not record.hits
    assert [r for _, r in record.misses if reason in r]


def _product(a: str, b: str, form: str) -> Graph:
    """A product of x, quantised to dtype a, by a weight of dtype b."""
    transposed = form in ("gemm", "transpose")
    shape, axis = ((N, K), 0) if transposed else ((K, N), 1)
    one = form == "tensor"
    scales, zeros = (_scales(), _integers(b)) if one else (_scales(N), _integers(b, N))
    zero = np.asarray(np.array(37), a)
    steps: list[tuple[Any, ...]] = [
        ("q", QuantizeLinear(), "x", SCALE, zero),
        ("a", DequantizeLinear(), "q", SCALE, zero),
        ("w", DequantizeLinear(axis), _integers(b, *shape), scales, zeros),
    ]
    if form == "gemm":
        steps += [("c", DequantizeLinear(0), _integers("int32", N) >> 12, _scales(N))]
        steps += [("p", Gemm(transB=1), "a", "w", "c")]
    elif form == "transpose":
        steps += [("t", Transpose((1, 0)), "w"), ("p", MatMul(), "a", "t")]
    else:
        steps += [("p", MatMul(), "a", "w")]
    return _graph((symbol("B"), K), *steps, ("y", Relu(), "p"))


FORMS = [
    ("uint8", "int8", "column"),
    ("int8", "uint8", "column"),
    ("uint8", "uint8", "tensor"),
    ("int8", "int8", "gemm"),
    ("uint8", "int8", "transpose"),
]


@pytest.mark.parametrize(("a", "b", "form"), FORMS)
def test_fake_quantized_matmul_becomes_rounded_matmul(a: str, b: str, form: str) -> None:
    graph = _product(a, b, form)
    apply(FuseRoundedMatmul(), graph)
    assert "RoundedMatMul" in _names(graph) and not {"MatMul", "Gemm"} & {*_names(graph)}


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_rounded_matmul_matches_reference_on_device(device: DeviceInfo) -> None:
    for form in FORMS:
        graph = _product(*form)
        feeds = random_inputs(graph, {"B": 11})
        expected = evaluate(graph, feeds)
        optimize(graph)
        assert _names(graph) == ["RoundedMatMul"] and graph.nodes[0].arg(1).dtype.itemsize == 1
        prepare(graph, device.caps)
        for value in graph.inputs:
            value.type = replace(value.type, shape=feeds[value.name].shape)
        infer_types(graph)
        actual, plan = run_graph(graph, feeds, device)
        assert not plan.host_steps
        assert_same_results(expected, actual)


def test_rounded_matmul_uses_floats_without_integer_matrix_unit() -> None:
    caps = DeviceCaps("p", "cpu", "v", "1", "cpu")
    for form in FORMS:
        graph = _product(*form)
        feeds = random_inputs(graph)
        expected = evaluate(graph, feeds)
        optimize(graph)
        integers = replace(caps, matrix_shapes=(VNNI_INT8,))
        assert not prepare(graph, integers).patches
        prepare(graph, caps)
        assert _names(graph) == ["RoundToScale", "FusedMatMul"]
        assert graph.nodes[1].arg(1).is_constant
        assert_same_results(expected, evaluate(graph, feeds))


def test_dequantized_weight_with_other_readers_is_folded() -> None:
    for level in (1, 2):
        graph = _graph(
            (K, K),
            ("q", QuantizeLinear(), "x", SCALE, np.array(3, np.uint8)),
            ("a", DequantizeLinear(), "q", SCALE, np.array(3, np.uint8)),
            ("w", DequantizeLinear(1), _integers("int8", K, N), _scales(N)),
            ("p", MatMul(), "a", "w"),
            ("y", Add(), "p", "w"),
        )
        optimize(graph, level)
        assert not [n for n in graph.nodes if n.inputs[0] and n.arg(0).is_constant]
        assert ("RoundedMatMul" in _names(graph)) == (level == 2)


def test_rounded_matmul_exports_to_onnx_with_equal_results() -> None:
    for form in FORMS:
        graph = _product(*form)
        feeds = random_inputs(graph)
        expected = evaluate(graph, feeds)
        optimize(graph)
        again = import_model(export_model(graph))
        assert_same_results(expected, evaluate(again, feeds))


@pytest.mark.parametrize(
    ("scale", "weight", "op", "reason"),
    [
        (_scales(K), (K, N), MatMul(), "more than one scale"),
        (SCALE, (K, N), Gemm(alpha=2.0), "there are factors"),
        (np.array(0, np.float32), (K, N), MatMul(), "the scale of A is 0"),
        (SCALE, (2, K, N), MatMul(), "B is int8"),
        (SCALE, (MAX_DEPTH + 1, 1), MatMul(), "expected 1 to"),
    ],
)
def test_unsuitable_fake_quantized_matmul_is_kept(
    scale: Array, weight: tuple[int, ...], op: Any, reason: str
) -> None:
    zero = np.zeros(scale.shape, np.int8)
    graph = _graph(
        (3, weight[-2]),
        ("q", QuantizeLinear(), "x", scale, zero),
        ("a", DequantizeLinear(), "q", scale, zero),
        ("w", DequantizeLinear(), np.ones(weight, np.int8), SCALE),
        ("y", op, "a", "w"),
    )
    record = apply(FuseRoundedMatmul(), graph)
    assert not record.hits
    assert [r for _, r in record.misses if reason in r], record.misses
