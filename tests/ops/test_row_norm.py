"""A product or elementwise program fused with the normalization of its rows."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, IrOp, TensorType
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.fused import Fused
from clrt.ops.pointwise.table import Add, Mul, Relu
from clrt.plan.steps import DeviceStep, Region
from clrt.plan.traffic import traffic
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, plan_graph, run_graph, tolerance

CPU = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=2)
TILE_ROWS = 14  # at most, of any tile
RESIDUAL = FusedMatMul(
    steps=(ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Add(), (3, 2)))
)


def value(name: str, array: Array, constant: bool = False) -> Value:
    return Value(name, TensorType(DType.of(array.dtype), array.shape, array if constant else None))


def apply(op: IrOp, name: str, *inputs: Value) -> Node:
    assert isinstance(op, Op)
    (type_,) = op.infer([v.type for v in inputs])
    return Node(name, op, list(inputs), [Value(name, type_)])


def residual_norm(
    norm: Op,
    shape: tuple[int, ...],
    n: int,
    keeps_sum: bool = False,
    shared: bool = False,
) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """Returns norm(x W + b + r), its feeds and expected outputs; r may be shared by a batch."""
    rng = np.random.default_rng(3)
    draw = rng.standard_normal

    def floats(*dims: int) -> Array:
        return draw(dims).astype(np.float32)

    x, r = floats(*shape), floats(*shape[1 if shared else 0 : -1], n)
    w, b, scale, bias = floats(shape[-1], n), floats(n), floats(n), floats(n)
    inputs = [value("x", x), value("r", r)]
    constants = [value("w", w, True), value("b", b, True)]
    affine = [scale, bias] if isinstance(norm, LayerNormalization) else [scale]
    product = apply(RESIDUAL, "sum", inputs[0], *constants, inputs[1])
    rows = [value(f"s{i}", a, True) for i, a in enumerate(affine)]
    normalised = apply(norm, "y", product.output, *rows)
    (total,) = RESIDUAL.reference(x, w, b, r)
    (result,) = norm.reference(total, *affine)
    outputs, expected = [normalised.output], {"y": result}
    if keeps_sum:
        outputs.append(product.output)
        expected["sum"] = total
    return Graph("g", inputs, outputs, [product, normalised]), {"x": x, "r": r}, expected


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("keeps_sum", [False, True], ids=["alone", "sum_kept"])
@pytest.mark.parametrize("norm", [LayerNormalization(), RMSNormalization()], ids=["layer", "rms"])
@pytest.mark.parametrize("n", [1, 24, 50])
def test_product_norm_matches_reference(
    device: DeviceInfo, norm: Op, n: int, keeps_sum: bool
) -> None:
    many = 2 * device.caps.compute_units * TILE_ROWS + 3
    cases = [((3, 7), False, 2), ((1, 2, 7), False, 2), ((many, 7), False, 1)]
    cases += [((2, many, 5), False, 1), ((2, many, 5), True, 2)]
    for shape, shared, launches in cases:
        graph, feeds, expected = residual_norm(norm, shape, n, keeps_sum, shared)
        results, plan = run_graph(graph, feeds, device)
        if device.caps.is_cpu:
            assert plan.launches == launches
        for name, array in expected.items():
            bound = 8 * tolerance(norm, array)
            np.testing.assert_allclose(results[name], array, rtol=0, atol=bound)


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("keeps_sum", [False, True], ids=["alone", "sum_kept"])
@pytest.mark.parametrize("norm", [LayerNormalization(), RMSNormalization()], ids=["layer", "rms"])
@pytest.mark.parametrize("n", [8, 33, 2500])
def test_elementwise_norm_matches_reference(
    device: DeviceInfo, norm: Op, n: int, keeps_sum: bool
) -> None:
    rng = np.random.default_rng(5)
    for dims in ((1, n), (3, 7, n), (90, n)):
        shapes = (
            dims,
            dims[1:],
            (n,),
            *[(n,)] * (2 if isinstance(norm, LayerNormalization) else 1),
        )
        x, a, b, *affine = (rng.standard_normal(s).astype(np.float32) for s in shapes)
        op = Fused((ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Mul(), (3, 2))))
        inputs = [value("x", x), value("a", a), value("b", b)]
        program = apply(op, "sum", *inputs)
        rows = [value(f"s{i}", w, True) for i, w in enumerate(affine)]
        normalised = apply(norm, "y", program.output, *rows)
        outputs = [normalised.output, *([program.output] if keeps_sum else [])]
        graph = Graph("g", inputs, outputs, [program, normalised])
        results, plan = run_graph(graph, {"x": x, "a": a, "b": b}, device)
        if device.caps.is_cpu:
            assert plan.launches == 1
        total = ((x + a) * b).astype(np.float32)
        (expected,) = norm.reference(total, *affine)
        np.testing.assert_allclose(results["y"], expected, rtol=0, atol=tolerance(norm, expected))
        if keeps_sum:
            np.testing.assert_allclose(results["sum"], total, rtol=1e-6, atol=1e-6)


def test_product_norm_step_lists_its_nodes() -> None:
    graph, _, _ = residual_norm(LayerNormalization(), (40, 7), 24)
    plan = plan_graph(graph, CPU)
    (step,) = plan.steps
    assert isinstance(step, Region) and len(step.launches) == 1
    assert (step.variant, step.nodes) == ("product_norm", tuple(plan.graph.nodes))


def test_product_norm_launch_traffic_is_exact() -> None:
    graph, _, _ = residual_norm(LayerNormalization(), (3, 7), 24)
    step = plan_graph(graph, CPU).steps[0]
    assert isinstance(step, DeviceStep)
    first, second = (traffic(step.nodes, x) for x in step.launches)
    rows, columns, weights = 3 * 24 * 4, 24 * 4, 7 * 24 * 4
    assert (first.read, first.written) == (3 * 7 * 4 + weights + columns + rows, rows)
    assert (second.read, second.written) == (2 * columns, 2 * rows)


def test_residual_norm_reuses_residual_buffer() -> None:
    graph, _, _ = residual_norm(LayerNormalization(), (40, 24), 24)
    plan = plan_graph(graph, CPU)
    product, norm = (node.output for node in plan.graph.nodes)
    assert plan.root(norm) is plan.root(product) is plan.graph.inputs[1]


def test_product_norm_new_shape_compiles_nothing() -> None:
    kernels = set()
    for shape in ((1, 7), (3, 7), (16, 7), (2, 40, 7), (400, 7)):
        graph, _, _ = residual_norm(LayerNormalization(), shape, 24)
        steps = plan_graph(graph, CPU).steps
        kernels |= {x.kernel for s in steps if isinstance(s, DeviceStep) for x in s.launches}
    assert len(kernels) == 1


@pytest.mark.parametrize("change", ["axis", "stats", "other_input", "circle"])
def test_product_and_norm_stay_separate_if_unfusable(change: str) -> None:
    graph, _, _ = residual_norm(LayerNormalization(), (40, 24), 24)
    product, norm = graph.nodes
    if change == "axis":
        ones = value("s", np.ones((40, 24), np.float32), True)
        norm = apply(LayerNormalization(axis=0), "y", product.output, ones, ones)
    elif change == "stats":
        norm.op = LayerNormalization(stats=True)
        norm.outputs += [Value(n, TensorType(DType.FLOAT32, (40, 1))) for n in ("mean", "inverse")]
    elif change == "other_input":
        norm.inputs[0] = graph.inputs[1]
    nodes, outputs = [product, norm], [product.output, norm.output]
    if change == "circle":
        nodes.insert(1, apply(MatMul(), "z", value("u", np.ones(40, "f4"), True), product.output))
        norm.inputs[1] = nodes[1].output
    plan = plan_graph(Graph("g", graph.inputs, outputs, nodes), CPU)
    assert not any(isinstance(s, Region) for s in plan.steps)
    reasons = {
        "axis": "goes over more than the last axis",
        "stats": "gives the statistics, too",
        "circle": "its inputs depend on its outputs",
    }
    missed = [m.reason for m in plan.missed_regions if m.rule == "product_norm"]
    assert len(missed) == (change in reasons)
    assert all(reasons[change] in reason for reason in missed)


def test_readers_of_product_run_after_region() -> None:
    graph, _, _ = residual_norm(LayerNormalization(), (40, 24), 24)
    product, norm = graph.nodes
    relu = apply(Relu(), "z", product.output)
    outputs = [norm.output, relu.output]
    plan = plan_graph(Graph("g", graph.inputs, outputs, [product, relu, norm]), CPU)
    assert [n.name for s in plan.steps for n in s.nodes] == ["sum", "y", "z"]


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize(
    ("shape", "axis", "affine"),
    [((4, 4), -1, (4, 1)), ((2, 3, 4), 1, (4,)), ((2, 3, 4), -1, (2, 1, 4)), ((3, 1, 5), 1, (5,))],
)
def test_norm_with_broadcast_scale_matches_reference(
    device: DeviceInfo, shape: tuple[int, ...], axis: int, affine: tuple[int, ...]
) -> None:
    """A scale with as many elements as a row may still be one per row."""
    rng = np.random.default_rng(5)
    x, scale, bias = (
        np.asarray(rng.standard_normal(s), np.float32) for s in (shape, *[affine] * 2)
    )
    feeds = {"x": x, "s": scale, "b": bias}
    values = [value(name, array) for name, array in feeds.items()]
    for op in (LayerNormalization(axis, stats=True), RMSNormalization(axis)):
        inputs = values if isinstance(op, LayerNormalization) else values[:2]
        arrays = [feeds[v.name] for v in inputs]
        outputs = [Value(f"y{k}", t) for k, t in enumerate(op.infer([v.type for v in inputs]))]
        graph = Graph("g", inputs, outputs, [Node("norm", op, list(inputs), outputs)])
        found, plan = run_graph(graph, {v.name: feeds[v.name] for v in inputs}, device)
        assert not plan.host_steps
        for name, expected in zip(graph.output_names, op.reference(*arrays), strict=True):
            np.testing.assert_allclose(found[name], expected, atol=tolerance(op, expected))
