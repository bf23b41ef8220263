"""Lowering of ONNX's Attention to FusedAttention or to its function body, with equal results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.onnx.importer import import_model
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.pipeline import optimize

RNG = np.random.default_rng(0)
BY_HEAD = {"q": (2, 4, 5, 6), "k": (2, 2, 7, 6), "v": (2, 2, 7, 3)}
ROWS = {"q": (2, 5, 24), "k": (2, 7, 12), "v": (2, 7, 6)}
PADDING = np.array([[[[True] * 7]], [[[True] * 4 + [False] * 3]]])


def _model(
    shapes: dict[str, tuple[int, ...]], mask: Array | None, opset: int, **attrs: object
) -> onnx.ModelProto:
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
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def _graph(shapes: dict[str, tuple[int, ...]], mask: Array | None, **attrs: object) -> Graph:
    return import_model(_model(shapes, mask, 23, **attrs))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [None, PADDING, RNG.standard_normal((5, 7)).astype(np.float32)])
@pytest.mark.parametrize("by_head", [True, False])
def test_onnx_attention_lowered_to_fused_attention_keeps_results(
    by_head: bool, mask: Array | None, causal: int
) -> None:
    shapes = BY_HEAD if by_head else ROWS
    heads = {} if by_head else {"q_num_heads": 4, "kv_num_heads": 2}
    graph = _graph(shapes, mask, is_causal=causal, scale=0.3, **heads)
    feeds = {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    before = evaluate(graph, feeds)["y"]
    optimize(graph)
    assert "FusedAttention" in {n.op.name for n in graph.nodes}
    assert "Attention" not in {n.op.name for n in graph.nodes}
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], before, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "mask", "attrs"),
    [
        (BY_HEAD, None, {"right_window_size": 1}),
        ({"q": (2, 1, 3, 513), "k": (2, 1, 4, 513), "v": (2, 1, 4, 2)}, None, {}),
        ({"q": (2, 1, 3, 2), "k": (2, 1, 4, 2), "v": (2, 1, 4, 513)}, None, {}),
        (BY_HEAD, PADDING[..., :4], {}),
        (BY_HEAD, PADDING[..., :1], {}),
        (BY_HEAD, np.float32(RNG.standard_normal((5, 1))), {"is_causal": 1}),
    ],
)
def test_unsupported_onnx_attention_runs_as_function_body(
    shapes: dict[str, tuple[int, ...]], mask: Array | None, attrs: dict[str, float]
) -> None:
    model = _model(shapes, mask, 25, **attrs)
    graph = import_model(model)
    assert "Attention" not in {n.op.name for n in graph.nodes}
    feeds = {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    optimize(graph)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=0, atol=1e-5)


def test_attention_mask_of_one_key_broadcasts_before_opset_24() -> None:
    mask = np.array([[True]] * 4 + [[False]])
    feeds = {n: RNG.standard_normal(s).astype(np.float32) for n, s in BY_HEAD.items()}
    found = [evaluate(_graph(BY_HEAD, m), feeds)["y"] for m in (mask, mask.repeat(7, 1))]
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)
