"""Einsum rewritten to transpositions, sums and products: equal results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.onnx.importer import import_model
from clrt.ops.base import Op
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.pipeline import optimize
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_graph

# Equations whose labels all have a size of their own; "=" makes an axis of one element.
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 1, "f": 2}
EQUATIONS = [
    "ab->ba", "ab->", "ab", "ba", "abc->b", "aa->a", "aa->", "aab->b", "aab->ba", "abab->ba",
    "ab,bc->ac", "ab,bc->ca", "ab,bc", "ba,cb->ac", "ab,ab->ab", "ab,ab->a", "ab,ab->", "a,b->ab",
    "a,b->ba", "ab,c->cab", "ab,b->a", "b,ab->a", "abc,abd->acd", "abc,bd->ad", "abcd,cdf->abf",
    "abcd,cdf->bfa", "acbd,fdbc->af", "abc,cba->b", "abcd,fbd->cfa", "abc,ab->c", "ab,cd->",
    "ab,cd->ad", "ab,bc,cd->ad", "ab,bc,cd,df->fa", "a,a,a->a", "ab,b,b->", "a,ab,b->", "abe,eb->a",
    "aab,bcc->ac", "badc,bfdc->bdaf", "abcdf,fcb->da",
]  # fmt: skip
SHAPED: list[tuple[str, list[tuple[int, ...]]]] = [
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("...ij,jk", [(2, 3, 4), (4, 2)]),
    ("...,...->...", [(3, 1), (2, 1, 4)]),
    ("i...->...", [(3, 2, 4)]),
    ("...i->i...", [(2, 3, 4)]),
    ("...ii->...", [(2, 3, 3)]),
    ("ij,jk->ik", [(3, 1), (4, 5)]),
    ("ij,ij->i", [(1, 4), (3, 1)]),
    ("ij,jk->ik", [(0, 4), (4, 5)]),
    ("ij,jk->ik", [(3, 0), (0, 5)]),
    (" i j , j -> i ", [(3, 4), (4,)]),
    (",ab->b", [(), (2, 3)]),
]
CASES = [
    *(
        (e, [tuple(SIZES[x] for x in t) for t in e.partition("->")[0].split(",")])
        for e in EQUATIONS
    ),
    *SHAPED,
]


def _graph(equation: str, shapes: list[tuple[int, ...]], dtype: int, *, symbolic: bool) -> Graph:
    infos = [
        helper.make_tensor_value_info(
            f"x{k}", dtype, [f"n{d}" if symbolic and d > 1 else d for d in s]
        )
        for k, s in enumerate(shapes)
    ]
    node = helper.make_node("Einsum", [i.name for i in infos], ["y"], "sum", equation=equation)
    result = helper.make_tensor_value_info("y", dtype, None)
    graph = helper.make_graph([node], "g", infos, [result])
    return import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))


def _expected(equation: str, feeds: dict[str, Array]) -> Array:
    arrays = [a.astype(np.float64) for a in feeds.values()]
    try:
        return np.asarray(np.einsum(equation.replace(" ", ""), *arrays))
    except ValueError:  # NumPy wants operands of its own to broadcast one label
        return np.asarray(np.einsum(equation, *np.broadcast_arrays(*arrays)))


@pytest.mark.parametrize(("equation", "shapes"), CASES, ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_einsum_rewrite_keeps_results(
    equation: str, shapes: list[tuple[int, ...]], symbolic: bool
) -> None:
    rng = np.random.default_rng(0)
    graph = _graph(equation, shapes, TensorProto.FLOAT, symbolic=symbolic)
    feeds = {f"x{k}": rng.standard_normal(s).astype(np.float32) for k, s in enumerate(shapes)}
    before = evaluate(graph, feeds)["y"]
    np.testing.assert_allclose(before, _expected(equation, feeds), rtol=1e-5, atol=1e-5)
    report = optimize(graph)
    left = [n.op.equation for n in graph.nodes if n.op.name == "Einsum"]  # type: ignore[attr-defined]
    assert all("," not in e for e in left), report.misses
    after = evaluate(graph, feeds)["y"]
    assert after.shape == before.shape
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32])
def test_einsum_rewrite_runs_on_device(dtype: int, device: DeviceInfo) -> None:
    rng = np.random.default_rng(0)
    for equation in ("acbd,fdbc->af", "aab,bcc->ac", "a,ab,b->", "abcd,fbd->cfa"):
        shapes = [tuple(SIZES[x] for x in t) for t in equation.partition("->")[0].split(",")]
        graph = _graph(equation, shapes, dtype, symbolic=False)
        optimize(graph)
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        feeds = {f"x{k}": rng.integers(-2, 3, s).astype(kind) for k, s in enumerate(shapes)}
        results, plan = run_graph(graph, feeds, device)
        assert not plan.host_steps
        np.testing.assert_array_equal(results["y"], _expected(equation, feeds).astype(kind))


def test_einsum_attention_is_fused() -> None:
    shape = ["batch", "length", 4, 8]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkv"]
    nodes = [
        helper.make_node("Einsum", ["q", "k"], ["s"], equation="bqhd,bkhd->bhqk"),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("Einsum", ["p", "v"], ["y"], equation="bhqk,bkhd->bqhd"),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    made = helper.make_graph(nodes, "g", infos, [result])
    graph = import_model(helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)]))
    optimize(graph)
    ops = [n.op for n in graph.nodes if isinstance(n.op, Op)]
    assert [op.name for op in ops if not op.memory_traits.always_view] == ["FusedAttention"]


def _reshaped_squared(equation: str) -> onnx.ModelProto:
    """Returns an Einsum of one operand with itself, whose dims are another input."""
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("dims", TensorProto.INT64, [3]),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "dims"], ["a"]),
        helper.make_node("Einsum", ["a", "a"], ["y"], "products", equation=equation),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", infos, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_einsum_of_data_dependent_dims_needs_no_host(device: DeviceInfo) -> None:
    x = np.random.default_rng(0).standard_normal(60).astype(np.float32)
    with clrt.load(_reshaped_squared("bij,bkj->kbi"), device=device.index) as model:
        for dims in ((2, 5, 6), (1, 4, 15), (3, 1, 20)):
            a = x.reshape(dims)
            y = model.run({"x": x, "dims": np.array(dims)})["y"]
            np.testing.assert_allclose(y, np.einsum("bij,bkj->kbi", a, a), rtol=1e-5, atol=1e-5)
        assert not model.host_nodes


def test_einsum_dim_mismatch_names_node() -> None:
    model = clrt.load(_reshaped_squared("bij,bjk->bik"))
    with model, pytest.raises(clrt.ShapeError, match=r"Einsum 'products'.*axes of 6 and 5"):
        model.run({"x": np.zeros(60, np.float32), "dims": np.array((2, 5, 6))})
