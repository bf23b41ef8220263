"""Split-k product fused with the producer of its A: another product, or attention with or without
its projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, IrOp, TensorType
from clrt.kernels.tuning_records import record_for
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.table import Add, Gelu, Relu
from clrt.plan.make_plan import make_plan
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import DeviceStep, Region
from clrt.plan.traffic import traffic
from clrt.runtime.inspection.explain import flops_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_plan, tolerance
from tests.ops.test_ops import SMALL

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
CORES = 3  # work-groups that make parts, also on a simulator
CPU = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=CORES)
GELU = FusedMatMul(
    steps=(ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Gelu(), (2,)))
)
BIASED = FusedMatMul(steps=(ElementwiseInstruction(Add(), (0, 1)),))
RESIDUAL = FusedMatMul(
    steps=(ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Add(), (3, 2)))
)
rng = np.random.default_rng(7)


def floats(*dims: int) -> Array:
    return rng.standard_normal(dims).astype(np.float32)


class Build:
    """Builds a graph and its NumPy results side by side."""

    def __init__(self) -> None:
        self.graph = Graph("g", [], [], [])
        self.known: dict[Value, Array] = {}

    def given(self, name: str, array: Array, constant: bool = False) -> Value:
        data = array if constant else None
        value = Value(name, TensorType(DType.of(array.dtype), array.shape, data))
        self.known[value] = array
        if not constant:
            self.graph.inputs.append(value)
        return value

    def weight(self, *dims: int, dtype: DType = DType.FLOAT32) -> Value:
        return self.given(f"w{len(self.known)}", floats(*dims).astype(dtype.numpy), True)

    def apply(self, op: IrOp, *inputs: Value | None) -> Value:
        assert isinstance(op, Op)
        (type_,) = op.infer([v and v.type for v in inputs])
        name = f"n{len(self.graph.nodes)}"
        node = Node(name, op, list(inputs), [Value(name, type_)])
        self.graph.nodes.append(node)
        (self.known[node.output],) = op.reference(*(v and self.known[v] for v in inputs))
        return node.output

    def joined(self, heads: Value, residual: Value, stored: DType) -> Value:
        """Returns norm(heads W + b + residual), W in the given dtype."""
        n = int(residual.dims[-1])
        w = self.weight(int(heads.dims[-1]), n, dtype=stored)
        y = self.apply(RESIDUAL, heads, w, self.weight(n), residual)
        return self.normalised(LayerNormalization(), y)

    def normalised(self, norm: Op, x: Value) -> Value:
        affine = 2 if isinstance(norm, LayerNormalization) else 1
        return self.apply(norm, x, *(self.weight(int(x.dims[-1])) for _ in range(affine)))


def feed_forward(
    shape: tuple[int, ...],
    hidden: int,
    n: int,
    norm: Op,
    keeps_all: bool = False,
    stored: DType = DType.FLOAT32,
) -> Build:
    """Returns norm(gelu(x W + b) V + c + r), W and V in the given dtype."""
    build = Build()
    x, r = build.given("x", floats(*shape)), build.given("r", floats(*shape[:-1], n))
    w, v = (build.weight(*d, dtype=stored) for d in ((shape[-1], hidden), (hidden, n)))
    h = build.apply(GELU, x, w, build.weight(hidden))
    y = build.apply(RESIDUAL, h, v, build.weight(n), r)
    z = build.normalised(norm, y)
    build.graph.outputs = [h, y, z] if keeps_all else [z]
    return build


def attention(
    batch: int,
    queries: int,
    keys: int,
    op: FusedAttention,
    n: int,
    mask: Array | None = None,
    stored: DType = DType.FLOAT32,
) -> Build:
    """Returns norm(attention(q, k, v) W + b + r), W in the given dtype."""
    build = Build()
    sizes = ((queries, op.num_heads), (keys, op.kv_num_heads), (keys, op.kv_num_heads))
    qkv = [
        build.given(name, floats(batch, length, heads * op.head_size))
        for name, (length, heads) in zip("qkv", sizes, strict=True)
    ]
    masks = [] if mask is None else [build.given("mask", mask)]
    heads = build.apply(op, *qkv, *masks)
    r = build.given("r", floats(batch, queries, n))
    build.graph.outputs = [heads, build.joined(heads, r, stored)]
    return build


def self_attention(
    rows: tuple[int, int],
    width: int,
    op: FusedAttention,
    mask: Array | None = None,
    stored: DType = DType.FLOAT32,
) -> Build:
    """Returns norm(attention(x W + b) V + c + x), x [*rows, width]; op has q, k, v offsets."""
    build = Build()
    x = build.given("x", floats(*rows, width))
    n = op.num_heads * op.head_size + op.kv_num_heads * (op.head_size + op.v_head_size)
    qkv = build.apply(BIASED, x, build.weight(width, n, dtype=stored), build.weight(n))
    masks = [] if mask is None else [build.given("mask", mask)]
    heads = build.apply(op, qkv, qkv, qkv, *masks)
    build.graph.outputs = [qkv, heads, build.joined(heads, x, stored)]
    return build


def merged(heads: int, kv_heads: int, size: int, order: str = "qkv") -> FusedAttention:
    """Returns an attention whose operands are adjacent in one tensor."""
    widths = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * size}
    starts = {f"{x}_offset": sum(widths[y] for y in order[: order.index(x)]) for x in order}
    return FusedAttention.plain(heads, size, kv_num_heads=kv_heads, **starts)


def planned(
    graph: Graph, caps: DeviceCaps, tunables: Mapping[str, Mapping[str, int]] | None = None
) -> Plan:
    def record(kernel: str) -> Mapping[str, int]:
        return record_for(kernel, caps) if tunables is None else tunables.get(kernel, {})

    return make_plan(specialise(graph, {}), caps, record)


def check(
    build: Build,
    device: DeviceInfo,
    launches: int,
    small: Mapping[str, Mapping[str, int]] = SMALL,
) -> None:
    caps = replace(device.caps, compute_units=CORES)
    for tunables in (None, small):
        plan = planned(build.graph, caps, tunables)
        if caps.is_cpu and tunables is small:
            assert plan.launches == launches
        results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, device)
        for value in build.graph.outputs:
            expected = build.known[value]
            bound = 8 * tolerance(LayerNormalization(), expected)
            np.testing.assert_allclose(results[value.name], expected, rtol=0, atol=bound)


@DEVICES
@pytest.mark.parametrize("norm", [LayerNormalization(), RMSNormalization()], ids=["layer", "rms"])
@pytest.mark.parametrize("hidden", [16, 21, 50])
def test_split_product_after_product_matches_reference(
    device: DeviceInfo, norm: Op, hidden: int
) -> None:
    for shape, n, launches in (
        ((1, 5), 9, 2),
        ((2, 2, 5), 13, 2),
        ((15, 7), 8, 2),
        ((19, 5), 9, 2),  # enough rows for every core: a launch for each product
    ):
        check(feed_forward(shape, hidden, n, norm), device, launches)
    check(feed_forward((4, 5), hidden, 9, norm, keeps_all=True), device, 2)


@DEVICES
@pytest.mark.parametrize("heads", [(3, 3), (5, 5), (6, 2)], ids=str)
@pytest.mark.parametrize("size", [4, 5])
def test_split_product_after_attention_matches_reference(
    device: DeviceInfo, heads: tuple[int, int], size: int
) -> None:
    op = FusedAttention.plain(heads[0], size, kv_num_heads=heads[1])
    for batch, queries, keys in ((1, 1, 4), (1, 9, 9), (2, 5, 3), (3, 1, 7)):
        check(attention(batch, queries, keys, op, 9), device, 2)
    check(attention(1, 9, 9, op, 9, floats(9, 9)), device, 2)
    check(attention(2, 30, 30, op, 13), device, 2)


@DEVICES
@pytest.mark.parametrize("op", [merged(3, 3, 4), merged(6, 3, 8, "vqk")], ids=["mha", "gqa"])
def test_split_product_after_projected_attention_matches_reference(
    device: DeviceInfo, op: FusedAttention
) -> None:
    for rows in ((1, 1), (1, 5), (1, 8)):
        check(self_attention(rows, 7, op), device, 2)
    causal = replace(op, is_causal=True)
    check(self_attention((1, 7), 8, causal, floats(7, 7)), device, 2)
    # Further blocks of queries read the same keys; more sequences share the projection's weights.
    check(self_attention((1, 9), 7, op), device, 3)
    check(self_attention((2, 5), 7, op), device, 3)
    check(self_attention((1, 30), 7, op), device, 3)


@DEVICES
@pytest.mark.parametrize(
    "op",
    [merged(3, 3, 5), merged(4, 1, 4), replace(merged(3, 3, 4), v_offset=12, k_offset=12)],
    ids=["part_of_a_panel", "shared_key", "overlapping"],
)
def test_unfusable_projection_gets_own_launch(device: DeviceInfo, op: FusedAttention) -> None:
    check(self_attention((1, 5), 7, op), device, 3)


@DEVICES
@pytest.mark.parametrize("stored", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_split_product_with_16_bit_weights_matches_reference(
    device: DeviceInfo, stored: DType
) -> None:
    op = FusedAttention.plain(5, 4)
    check(feed_forward((7, 5), 21, 9, LayerNormalization(), stored=stored), device, 2)
    check(attention(1, 9, 9, op, 9, stored=stored), device, 2)
    check(self_attention((1, 7), 8, merged(3, 3, 8), stored=stored), device, 2)


def kernels_of(plan: Plan) -> set[object]:
    launched = {x.kernel for s in plan.steps for x in getattr(s, "launches", ())}
    return launched.union(*(s.precompiled_kernels for s in plan.steps if isinstance(s, Region)))


def test_split_product_step_lists_its_nodes() -> None:
    plan = planned(feed_forward((4, 5), 96, 24, LayerNormalization()).graph, CPU)
    (step,) = plan.steps
    assert isinstance(step, Region) and step.variant == "product_product_norm"
    first, *others = step.nodes
    assert [made for _, _, made in step.work()] == [(first,), tuple(others)]


def test_split_product_flops_are_counted_once() -> None:
    for rows in (4, 400):
        build = feed_forward((rows, 5), 96, 24, LayerNormalization())
        products = 2 * rows * 96 * (5 + 24)
        counted = sum(map(flops_of, planned(build.graph, CPU).steps))
        assert products < counted < 1.1 * products


def test_split_product_has_at_most_one_part_per_core() -> None:
    for hidden, groups in ((48, 2), (72, 3), (96, 2), (240, 3)):
        plan = planned(feed_forward((4, 5), hidden, 24, LayerNormalization()).graph, CPU)
        assert isinstance(plan.steps[0], DeviceStep)
        assert plan.steps[0].launches[0].global_size == (groups,)


def test_split_product_new_shape_compiles_nothing() -> None:
    products, heads, projected = set[object](), set[object](), set[object]()
    op = FusedAttention.plain(6, 8)
    for rows in (1, 4, 23, 24, 400):
        products |= kernels_of(
            planned(feed_forward((rows, 5), 96, 24, LayerNormalization()).graph, CPU)
        )
        heads |= kernels_of(planned(attention(1, rows, rows, op, 24).graph, CPU))
        heads |= kernels_of(planned(attention(2, rows, rows, op, 24).graph, CPU))
        small = planned(self_attention((1, rows), 40, merged(6, 6, 24)).graph, CPU)
        projected |= kernels_of(small)
        assert small.launches == (2 if rows <= 24 else 3)
        assert len(kernels_of(small)) == 3
    assert len(products) == 2
    assert len(heads) == 2
    assert len(projected) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("transposed", "transposes what it reads"),
        ("computed", "B is computed"),
        ("other_input", ""),
        ("no_norm", ""),
    ],
)
def test_products_stay_separate_if_unfusable(change: str, reason: str) -> None:
    build = Build()
    x = build.given("x", floats(4, 5))
    h = build.apply(GELU, x, build.weight(5, 96), build.weight(1))
    width = int(h.dims[-1])
    w = build.weight(width, 24)
    a, op = h, RESIDUAL
    if change == "transposed":
        op, w = replace(RESIDUAL, trans_a=1), build.weight(4, 24)
    elif change == "computed":
        w = build.given("w", floats(width, 24))
    elif change == "other_input":
        a = build.given("a", floats(4, width))
    y = build.apply(op, a, w, build.weight(24), build.given("r", floats(1, 24)))
    last = build.apply(Relu(), y) if change == "no_norm" else y
    build.graph.outputs = [h, build.normalised(LayerNormalization(), last)]
    plan = planned(build.graph, CPU)
    first = plan.steps[0]
    assert isinstance(first, DeviceStep) and len(first.launches) == len(first.nodes) == 1
    missed = [m.reason for m in plan.missed_regions if m.rule == "product_product_norm"]
    assert len(missed) == bool(reason) and all(reason in m for m in missed)


@pytest.mark.parametrize(
    ("rows", "depth", "hidden", "stack"),
    # 48 columns are too few for three cores: the third costs more than a launch if A is deep
    [(4, 8192, 48, ()), (400, 5, 96, ()), (4, 5, 96, (2,))],
)
def test_unprofitable_split_falls_back_to_product_norm(
    rows: int, depth: int, hidden: int, stack: tuple[int, ...]
) -> None:
    build = Build()
    x, r = build.given("x", floats(rows, depth)), build.given("r", floats(1, 24))
    h = build.apply(GELU, x, build.weight(depth, hidden), build.weight(1))
    y = build.apply(RESIDUAL, h, build.weight(*stack, hidden, 24), build.weight(24), r)
    build.graph.outputs = [build.normalised(LayerNormalization(), y)]
    (step,) = planned(build.graph, CPU).steps
    assert isinstance(step, Region)
    made = [[n.name for n in nodes] for _, _, nodes in step.work()]
    assert made == ([["n0"], ["n1", "n2"]] if rows == 400 else [["n0"], ["n1"], ["n2"]])


def test_split_product_launch_traffic_is_exact() -> None:
    step = planned(feed_forward((4, 5), 96, 24, LayerNormalization()).graph, CPU).steps[0]
    assert isinstance(step, DeviceStep)
    first, second = (traffic(step.nodes, x) for x in step.launches)
    hidden, rows, columns, parts = 4 * 96 * 4, 4 * 24 * 4, 24 * 4, 2 * 4 * 24 * 4
    weights = 4 * (5 * 96 + 96 + 96 * 24)
    assert (first.read, first.written, first.scratch) == (4 * 5 * 4 + weights, hidden, parts)
    assert (second.read, second.written, second.scratch) == (rows + 3 * columns, 2 * rows, parts)
