"""Fused launch regions: choice of nodes, order, and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, IrOp, TensorType
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.table import Add
from clrt.plan.fuse_launches import connected
from clrt.plan.make_plan import step_lifetimes
from clrt.plan.plan import Plan
from clrt.plan.steps import Region
from tests.harness import plan_graph

CPU = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=2)
RESIDUAL = FusedMatMul(steps=(ElementwiseInstruction(Add(), (0, 1)),))
N = 24


def constant(name: str, *dims: int) -> Value:
    array: Array = np.ones(dims, np.float32)
    return Value(name, TensorType.of(array))


def given_value(name: str, *dims: int) -> Value:
    return Value(name, TensorType(constant(name, *dims).dtype, dims))


def apply(op: IrOp, name: str, *inputs: Value) -> Node:
    assert isinstance(op, Op)
    (type_,) = op.infer([v.type for v in inputs])
    return Node(name, op, list(inputs), [Value(name, type_)])


def residual(name: str, a: Value, r: Value, n: int = N) -> Node:
    """Returns a node that computes a W + r, with rows of n elements."""
    return apply(RESIDUAL, name, a, constant(f"{name}_w", n, n), r)


def regions(plan: Plan) -> list[list[str]]:
    return [[n.name for n in s.nodes] for s in plan.steps if isinstance(s, Region)]


def test_output_order_decides_which_region_gets_shared_node() -> None:
    x, r = given_value("x", 3, N), given_value("r", 3, N)
    shared = residual("shared", x, r)
    one = apply(LayerNormalization(), "one", shared.output, constant("s", N))
    two = apply(RMSNormalization(), "two", shared.output, constant("s", N))
    for nodes in ([shared, one, two], [shared, two, one]):
        for outputs in ([one, two], [two, one]):
            graph = Graph("g", [x, r], [n.output for n in outputs], nodes)
            plan = plan_graph(graph, CPU)
            assert regions(plan) == [["shared", outputs[0].name]]
            (missed,) = plan.missed_regions
            assert missed.node.name == outputs[1].name
            assert "is in the region of" in missed.reason


def test_mutually_dependent_regions_shrink() -> None:
    """In each of two chains the second product reads the first product of the other chain."""
    x = given_value("x", 3, N)
    firsts = [residual(f"first{k}", x, x) for k in range(2)]
    seconds = [residual(f"second{k}", firsts[k].output, firsts[1 - k].output) for k in range(2)]
    norms = [
        apply(LayerNormalization(), f"norm{k}", s.output, constant("s", N))
        for k, s in enumerate(seconds)
    ]
    outputs = [n.output for n in norms]
    plan = plan_graph(Graph("g", [x], outputs, [*firsts, *seconds, *norms]), CPU)
    assert sorted(regions(plan)) == [["second0", "norm0"], ["second1", "norm1"]]
    reasons = {m.node.name: m.reason for m in plan.missed_regions}
    assert set(reasons) == {"norm0", "norm1"}
    assert set(reasons.values()) == {"its inputs depend on its outputs"}


def test_region_frees_memory_after_each_launch() -> None:
    """x is last read by the first of three launches, r by the second, whose output reuses r."""
    n = 480
    x, r = given_value("x", 16, n), given_value("r", 16, n)
    first = apply(FusedMatMul(), "first", x, constant("v", n, n))
    second = residual("second", first.output, r, n)
    norm = apply(LayerNormalization(), "norm", second.output, constant("s", n))
    # So many cores would wait for the chunks of `first` longer than a launch takes.
    many = replace(CPU, compute_units=64)
    plan = plan_graph(Graph("g", [x, r], [norm.output], [first, second, norm]), many)
    (step,) = plan.steps
    assert isinstance(step, Region)
    made = [[n.name for n in nodes] for _, _, nodes in step.work()]
    assert made == [["first"], ["second"], ["norm"]]
    root = {n.name: plan.root(n.output).name for n in plan.graph.nodes}
    assert root == {"first": "first", "second": "r", "norm": "r"}
    spans = {v.name: (i.first, i.last) for v, i in step_lifetimes(plan) if isinstance(v, Value)}
    assert spans == {"x": (-1, 0), "r": (-1, 1), "first": (0, 0)}


def test_residual_used_as_scale_is_not_overwritten() -> None:
    """One launch adds r to the product and scales rows by r, so y must not overwrite r."""
    x, r = given_value("x", 1, N), given_value("r", 1, N)
    product = residual("y", x, r)
    norm = apply(LayerNormalization(), "norm", product.output, r)
    plan = plan_graph(Graph("g", [x, r], [norm.output], [product, norm]), CPU)
    assert regions(plan) == [["y", "norm"]]
    assert plan.root(plan.graph.nodes[0].output).name == "y"


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=10, max_size=10))
def test_connected_components_match_reachability(edges: list[list[int]]) -> None:
    nodes = [Node(str(k), Add(), [], []) for k in range(len(edges))]

    def before(node: Node) -> Iterator[Node]:
        return (nodes[k] for k in edges[nodes.index(node)])

    reach = np.eye(len(edges), dtype=bool)
    for k, row in enumerate(edges):
        reach[k, row] = True
    for _ in edges:
        reach = reach @ reach
    parts = connected(nodes, before)
    place = {nodes.index(n): k for k, part in enumerate(parts) for n in part}
    assert sorted(place) == list(range(len(edges))) and sum(map(len, parts)) == len(edges)
    for a in place:
        for b in place:
            assert (place[a] == place[b]) == bool(reach[a, b] and reach[b, a])
            assert not reach[a, b] or place[b] <= place[a]
