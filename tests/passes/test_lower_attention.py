"""ONNX's Attention becomes FusedAttention, with the same numbers; what it cannot be stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from clrt.importer.onnx_importer import import_model
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.ops.attention import Attention
from clrt.ops.evaluate import evaluate
from clrt.passes.pipeline import optimize

RNG = np.random.default_rng(0)
BY_HEAD = {"q": (2, 4, 5, 6), "k": (2, 2, 7, 6), "v": (2, 2, 7, 3)}
ROWS = {"q": (2, 5, 24), "k": (2, 7, 12), "v": (2, 7, 6)}
PADDING = np.array([[[[True] * 7]], [[[True] * 4 + [False] * 3]]])


def _graph(shapes: dict[str, tuple[int, ...]], mask: Array | None, **attrs: object) -> Graph:
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", *s[1:]])
        for n, s in shapes.items()
    ]
    names, constants = list(shapes), []
    if mask is not None:
        names.append("mask")
        constants.append(onnx.numpy_helper.from_array(mask, "mask"))
    node = helper.make_node("Attention", names, ["y"], "block", **attrs)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", infos, [result], constants)
    return import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, PADDING, RNG.standard_normal((5, 7)).astype(np.float32)])
@pytest.mark.parametrize("by_head", [True, False])
def test_numbers_stay(by_head: bool, mask: Array | None, causal: int) -> None:
    shapes = BY_HEAD if by_head else ROWS
    heads = {} if by_head else {"q_num_heads": 4, "kv_num_heads": 2}
    graph = _graph(shapes, mask, is_causal=causal, scale=0.3, **heads)
    feeds = {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    before = evaluate(graph, feeds)["y"]
    optimize(graph)
    assert "FusedAttention" in {n.op.name for n in graph.nodes}
    assert "Attention" not in {n.op.name for n in graph.nodes}
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], before, rtol=0, atol=1e-6)


def test_what_no_kernel_does_runs_as_the_body_that_onnx_gives() -> None:
    graph = _graph(BY_HEAD, None, softcap=0.5)
    assert "Attention" not in {n.op.name for n in graph.nodes}
    q, k, v = (RNG.standard_normal(s).astype(np.float32) for s in BY_HEAD.values())
    (expected,) = Attention(softcap=0.5).reference(q, k, v)
    optimize(graph)
    found = evaluate(graph, {"q": q, "k": k, "v": v})["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
