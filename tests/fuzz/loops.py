"""Moves the second part of a model into a one-iteration loop that captures outer values."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def in_a_loop(model: onnx.ModelProto, before: int) -> onnx.ModelProto:
    """Returns an equivalent model whose nodes from index `before` on run in a loop."""
    graph = model.graph
    outside, inside = graph.node[:before], graph.node[before:]
    made = {name for node in inside for name in node.output}
    infos = {info.name: info for info in graph.output}
    results = [name for name in infos if name in made]
    for node in inside:
        for names in (node.input, node.output):
            names[:] = [f"{name}/inside" if name in made else name for name in names]
    going = helper.make_tensor_value_info("going", onnx.TensorProto.BOOL, [])
    body = helper.make_graph(
        [*inside, helper.make_node("Identity", ["go on"], ["going"])],
        "body",
        [
            helper.make_tensor_value_info("turn", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go on", onnx.TensorProto.BOOL, []),
        ],
        [going, *(_open(infos[name], f"{name}/inside") for name in results)],
    )
    stacks = [f"{name}/stack" for name in results]
    nodes = [
        *outside,
        helper.make_node("Loop", ["turns", ""], stacks, "loop", body=body),
        *(
            helper.make_node("Squeeze", [s, "first"], [n])
            for s, n in zip(stacks, results, strict=True)
        ),
    ]
    constants = [
        *graph.initializer,
        numpy_helper.from_array(np.array(1), "turns"),
        numpy_helper.from_array(np.array([0]), "first"),
    ]
    outputs = [_open(info, info.name) for info in graph.output]
    whole = helper.make_graph(nodes, graph.name, graph.input, outputs, constants)
    return helper.make_model(whole, opset_imports=model.opset_import, ir_version=model.ir_version)


def _open(info: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Returns an output of the same dtype, without a shape."""
    return helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, None)
