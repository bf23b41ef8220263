"""ONNX exporter, tested with ONNX's checker, ONNX Runtime and the importer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.models.onnx.export import exporter as onnx_exporter
from clrt.models.onnx.export.exporter import export_model, save_model
from clrt.models.onnx.export.opsets import attributes
from clrt.models.onnx.importer import import_model
from clrt.ops.ml.decision_trees import DecisionTrees
from clrt.ops.ml.svm import CouplePairs
from clrt.ops.movement.views import Identity
from clrt.ops.vision.resize import Resize
from clrt.passes.pipeline import optimize
from tests.ops.samples import Sample, samples


def parse(text: str, opset: int = 21) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')


def export(proto: onnx.ModelProto) -> onnx.ModelProto:
    graph = import_model(proto)
    optimize(graph)
    result = export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    return result


def run(proto: onnx.ModelProto | Path, feeds: dict[str, Any]) -> list[Any]:
    model = str(proto) if isinstance(proto, Path) else proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check_export(text: str, *feeds: dict[str, Any], opset: int = 21) -> onnx.ModelProto:
    """Exports a model; asserts that the export and its re-export give the model's outputs."""
    proto = parse(text, opset)
    result = export(proto)
    again = export(result)
    for feed in feeds:
        for model in (result, again):
            for found, wanted in zip(run(model, feed), run(proto, feed), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    return result


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def constant(name: str, array: Array) -> Value:
    return Value(name, TensorType.of(array))


def test_exported_symbolic_shapes_match_source() -> None:
    result = check_export(
        """
        g (float[b, s, 6] x, float[b, 4] y, float[m, 1] z)
          => (float[n, 3] a, int64[k] c, float[b, s] d) {
          shape = Shape(x)
          two = Constant<value = int64[1] {2}>()
          three = Constant<value = int64[1] {3}>()
          i0 = Constant<value = int64 {0}>()
          i1 = Constant<value = int64 {1}>()
          b0 = Gather(shape, i0)
          s0 = Gather(shape, i1)
          axes = Constant<value = int64[1] {0}>()
          b1 = Unsqueeze(b0, axes)
          s1 = Unsqueeze(s0, axes)
          bs = Mul(b1, s1)
          rows = Mul(bs, two)
          target = Concat<axis = 0>(rows, three)
          a = Reshape(x, target)
          half = Div(s1, two)
          most = Max(half, b1)
          left = Mod(s1, two)
          yz = Add(y, z)
          broadcast = Shape(yz)
          c = Concat<axis = 0>(most, left, bs, two, broadcast)
          grid = Concat<axis = 0>(b1, s1)
          d = ConstantOfShape<value = float[1] {0.5}>(grid)
        }
        """,
        {"x": floats(2, 5, 6), "y": floats(2, 4), "z": floats(1, 1)},
        {"x": floats(1, 2, 6), "y": floats(1, 4), "z": floats(3, 1)},
    )
    assert {"Shape", "Div", "Mod", "Max", "Where"} <= {n.op_type for n in result.graph.node}
    # Where 0 and -1 say it, a Reshape needs no arithmetic.
    assert any(list(onnx.numpy_helper.to_array(t)) == [-1, 3] for t in result.graph.initializer)


def test_exported_if_branches_read_outer_values() -> None:
    result = check_export(
        """
        g (float[n, 3] x, bool c) => (float[m, k] y, float[n, 3] z) {
          z = Exp(x)
          w = Constant<value = float[3] {1.0, 2.0, 3.0}>()
          y = If (c) <
            then_branch = yes () => (float[a, b] p) { p = Add(z, w) },
            else_branch = no () => (float[e, f] q) { q = Identity(x) }
          >
        }
        """,
        {"x": floats(2, 3), "c": np.array(True)},
        {"x": floats(2, 3), "c": np.array(False)},
    )
    assert "If" in {n.op_type for n in result.graph.node}


def test_exported_loop_carries_and_stacks_values() -> None:
    check_export(
        """
        g (int64 trips, float[n] x) => (float[n] y, float[t, n] ys) {
          going = Constant<value = bool {1}>()
          y, ys = Loop (trips, going, x) <
            body = turn (int64 i, bool c, float[n] v) => (bool d, float[n] w, float[n] row) {
              d = Identity(c)
              w = Add(v, x)
              row = Mul(w, w)
            }
          >
        }
        """,
        {"trips": np.array(3), "x": floats(4)},
    )


def test_input_and_constant_export_as_outputs() -> None:
    x = Value("x", TensorType(DType.FLOAT32, (2,)))
    k = constant("k", np.arange(3))
    y = Value("y", x.type)
    graph = Graph("g", [x], [y, y, k, x], [Node("n", Identity(), [x], [y])], ["y", "z", "k", "w"])
    result = export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    a, b, c, d = run(result, {"x": floats(2)})
    np.testing.assert_array_equal([a, b, d], [floats(2)] * 3)
    np.testing.assert_array_equal(c, np.arange(3))


@pytest.mark.parametrize(
    "dtype", [DType.BFLOAT16, DType.INT4, DType.UINT4, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2]
)
def test_small_dtype_initializers_round_trip(dtype: DType) -> None:
    array = np.array([[0, 1, 2], [3, 4, 1]]).astype(dtype.numpy)
    k = constant("k", array)
    y = Value("y", k.type)
    graph = Graph("g", [], [y], [Node("n", Identity(), [k], [y])])
    result = export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    (tensor,) = result.graph.initializer
    assert tensor.data_type == dtype.onnx
    again = import_model(result)
    (found,) = again.constants()
    np.testing.assert_array_equal(found.numbers, array)


def test_unexportable_ops_are_named() -> None:
    x = Value("x", TensorType(DType.FLOAT32, (2, 3)))
    outputs = [Value(name, TensorType(DType.FLOAT32, (2, 3))) for name in "yz"]
    nodes = [Node(f"couple {v.name}", CouplePairs(3), [x], [v]) for v in outputs]
    with pytest.raises(UnsupportedError, match=r"couple y.*couple z"):
        export_model(Graph("g", [x], outputs, nodes))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "blocks"])
def test_quantised_weights_export_as_dequantize_linear(kind: str) -> None:
    dtype = DType("int4" if kind == "blocks" else kind)
    low = -8 if dtype is DType.INT4 else -128 if dtype is DType.INT8 else 0
    levels = np.random.default_rng(0).integers(low, low + 16, (32, 6)).astype(dtype.numpy)
    scales = (np.arange(12, dtype=np.float32) / 50 + 0.01).reshape(2, 6)
    zeros = (np.arange(12).reshape(2, 6) % 7).astype(dtype.numpy)
    arrays = [levels, scales, zeros] if kind == "blocks" else [levels, scales[0], zeros[0]]
    attrs = "axis = 0, block_size = 16" if kind == "blocks" else "axis = 1"
    proto = parse(
        f"""
        g (float[n, 32] x) => (float[n, 6] y) {{
          w = DequantizeLinear<{attrs}>(levels, scales, zeros)
          y = MatMul(x, w)
        }}
        """
    )
    for name, array in zip(("levels", "scales", "zeros"), arrays, strict=True):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = import_model(proto)
    optimize(graph, keep_quantized=True)
    assert [n.op.name for n in graph.nodes] == ["MatMulNBits"]
    result = export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    assert [n.op_type for n in result.graph.node] == ["DequantizeLinear", "MatMul"]
    feeds = {"x": floats(3, 32)}
    np.testing.assert_allclose(run(result, feeds), run(proto, feeds), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zeros", ["3, 3", "3, -7"])
def test_exported_qlinear_conv_keeps_zero_points(zeros: str) -> None:
    x = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4)
    check_export(
        f"""
        g (uint8[n, 1, 4, 4] x) => (uint8[n, 2, 3, 3] y) <
          int8[2, 1, 2, 2] w = {{1, -2, 3, 4, -5, 6, 7, 8}}, float[2] scales = {{0.5, 0.25}},
          int8[2] zeros = {{{zeros}}}, float one = {{1.0}}, uint8 zero = {{2}}
        > {{ y = QLinearConv(x, one, zero, w, scales, zeros, one, zero) }}
        """,
        {"x": x},
    )


def test_dynamic_quantize_linear_is_restored() -> None:
    result = check_export(
        """
        g (float[n, 4] x) => (uint8[n, 4] y, float s, float[n, 4] z) {
          y, s, p = DynamicQuantizeLinear(x)
          z = DequantizeLinear(y, s, p)
        }
        """,
        {"x": floats(3, 4)},
    )
    assert [n.op_type for n in result.graph.node] == ["DynamicQuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("given", "x", "point", "put_together"),
    [
        ("3, 4", "Identity(a)", "Identity(c)", True),
        ("n, 4", "Identity(a)", "Identity(c)", True),
        ("n, 4", "Concat<axis = 0>(a, a)", "Identity(c)", False),
        ("n, 4", "Identity(a)", "Reshape(c, every)", False),
    ],
)
def test_expanded_dynamic_quantisation_is_fused_if_equivalent(
    given: str, x: str, point: str, put_together: bool
) -> None:
    result = check_export(
        f"""
        g (float[{given}] a) => (uint8[m, 4] y, uint8[] p) {{
          every = Constant<value = int64[1] {{-1}}>()
          none = Constant<value = float {{0.0}}>()
          steps = Constant<value = float {{255.0}}>()
          x = {x}
          flat = Reshape(x, every)
          least = ReduceMin<keepdims = 0>(flat)
          most = ReduceMax<keepdims = 0>(flat)
          low = Min(least, none)
          high = Max(most, none)
          range = Sub(high, low)
          s = Div(range, steps)
          shift = Div(low, s)
          up = Neg(shift)
          whole = Round(up)
          c = Clip(whole, none, steps)
          turned = {point}
          p = Cast<to = 2>(turned)
          y = QuantizeLinear(x, s, p)
        }}
        """,
        {"a": floats(3, 4)},
    )
    assert put_together == ("DynamicQuantizeLinear" in {n.op_type for n in result.graph.node})


def test_other_quantisation_is_not_fused() -> None:
    result = check_export(
        """
        g (float[n, 4] x) => (uint8[n, 4] y) {
          low = ReduceMin<keepdims = 0>(x)
          high = ReduceMax<keepdims = 0>(x)
          range = Sub(high, low)
          steps = Constant<value = float {100.0}>()
          s = Div(range, steps)
          shift = Div(low, s)
          p = Cast<to = 2>(shift)
          y = QuantizeLinear(x, s, p)
        }
        """,
        {"x": abs(floats(3, 4)) + 1},
    )
    assert "DynamicQuantizeLinear" not in {n.op_type for n in result.graph.node}


@pytest.mark.parametrize("sample", [s for s in samples(DecisionTrees) if s.inputs[0] is not None])
def test_exported_decision_trees_match_reference(sample: Sample) -> None:
    x, *tables = (a for a in sample.inputs if a is not None)
    given = Value("x", TensorType(DType.of(x.dtype), x.shape))
    values = [given, *(constant(f"t{i}", a) for i, a in enumerate(tables))]
    y = Value("y", TensorType(given.dtype, (len(x), 4)))
    result = export_model(Graph("g", [given], [y], [Node("trees", sample.op, list(values), [y])]))
    onnx.checker.check_model(result, full_check=True)
    assert isinstance(sample.op, DecisionTrees)
    (wanted,) = sample.op.reference(*sample.inputs)
    if len(x):
        (found,) = run(result, {"x": x})
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_export_uses_oldest_sufficient_opset() -> None:
    plain = parse("g (float[n] x) => (float[n] y) { y = Relu(x) }", 25)
    assert export(plain).opset_import[0].version == 17
    text = """
        g (float[n, 4] x, float[4] s) => (float[n, 4] y) {
          y = RMSNormalization<epsilon = 0.25>(x, s)
        }
        """
    assert export(parse(text, 23)).opset_import[0].version == 23


def test_group_norm_opset_18_scales_expand_to_channels() -> None:
    text = """
        g (float[n, 6, h] x, float[2] b) => (float[n, 6, h] y) {
          s = Constant<value = float[2] {0.5, 2.0}>()
          y = GroupNormalization<num_groups = 2>(x, s, b)
        }
        """
    check_export(text, {"x": floats(2, 6, 3), "b": floats(2)}, opset=18)


def test_topk_attribute_exports_as_input() -> None:
    text = "g (float[n, 5] x) => (float[n, 2] y, int64[n, 2] i) { y, i = TopK<k = 2>(x) }"
    check_export(text, {"x": floats(3, 5)}, opset=9)


def test_negative_zero_attribute_is_exported() -> None:
    assert "extrapolation_value" not in attributes(Resize(extrapolation_value=0.0), 21)
    assert "extrapolation_value" in attributes(Resize(extrapolation_value=-0.0), 21)


def test_large_weights_are_saved_as_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[n, 32] x, float[32, 32] w) => (float[n, 32] y) { y = MatMul(x, w) }"
    proto = parse(text)
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(32, 32), "w"))
    graph = import_model(proto)
    save_model(graph, tmp_path / "whole.onnx")
    monkeypatch.setattr(onnx_exporter, "MAX_INLINE_BYTES", 0)
    save_model(graph, tmp_path / "apart.onnx")
    assert {p.name for p in tmp_path.iterdir()} == {"whole.onnx", "apart.onnx", "apart.onnx.data"}
    assert (tmp_path / "apart.onnx.data").stat().st_size == 4 * 32 * 32
    feeds = {"x": floats(3, 32)}
    for name in ("whole", "apart"):
        np.testing.assert_array_equal(run(tmp_path / f"{name}.onnx", feeds), run(proto, feeds))
