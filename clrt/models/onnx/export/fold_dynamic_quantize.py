"""Folds decomposed DynamicQuantizeLinear into the op, for which ONNX Runtime has a kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.dims import Expr, UndecidableDim, substitute
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array
from clrt.ops.pointwise.dynamic_quantize_linear import DynamicQuantizeLinear
from clrt.ops.pointwise.quantize_linear import QuantizeLinear
from clrt.ops.reference_interpreter import evaluate

# Maximum number of nodes that compute the scale and zero point, which bounds the search.
_MAX_CONE = 16
_ENDS = {"ReduceMin", "ReduceMax"}


def fold_dynamic_quantize(graph: Graph) -> None:
    """Replaces nodes of a graph that together compute DynamicQuantizeLinear by this op.

    The nodes are a QuantizeLinear, and those that compute its scale and zero point from its input.
    """
    replaced: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if not _is_dynamic(node):
            nodes.append(node)
            continue
        x, scale, zero = (node.arg(i) for i in range(3))
        parameters = [Value(f"{node.output.name}/{v.name}", v.type) for v in (scale, zero)]
        replaced |= {scale: parameters[0], zero: parameters[1]}
        outputs = [node.output, *parameters]
        nodes.append(Node(node.name, DynamicQuantizeLinear(), [x], outputs, node.origins, "export"))
    if not replaced:
        return
    for node in nodes:
        node.inputs = [None if v is None else replaced.get(v, v) for v in node.inputs]
    graph.outputs = [replaced.get(v, v) for v in graph.outputs]
    graph.nodes = nodes
    graph.sort()
    graph.remove_dead()


def _is_dynamic(node: Node) -> bool:
    """Returns whether a node is a QuantizeLinear that computes the same as DynamicQuantizeLinear.

    Its scale and zero point must be computed from the minimum and maximum of its input. Graphs do
    this in many ways, so the nodes are evaluated on samples instead of matched.
    """
    if not isinstance(node.op, QuantizeLinear) or len(node.inputs) < 3:
        return False
    x, scale, zero = node.inputs[:3]
    if x is None or scale is None or zero is None or x.shape is None:
        return False
    if (x.dtype, zero.dtype, scale.shape, zero.shape) != (DType.FLOAT32, DType.UINT8, (), ()):
        return False
    cone = _cone(x, [scale, zero])
    if cone is None or not {n.op.name for n in cone} >= _ENDS:
        return False
    trial = Graph("trial", [x], [scale, zero], cone, ["scale", "zero"])
    # The nodes may read symbolic sizes of x. The trial run substitutes an arbitrary number.
    symbols = {name: 4 for d in x.shape if isinstance(d, Expr) for name in d.symbols}
    sizes = tuple(int(substitute(d, symbols)) for d in x.shape)
    try:
        return all(_agrees(trial, x.name, a) for a in _trials(sizes))
    except (ClrtError, UndecidableDim, ValueError, LookupError):
        return False


def _cone(x: Value, ends: list[Value]) -> list[Node] | None:
    """Returns the nodes that compute `ends` from x and constants, in topological order.

    Returns None if they read another value, or are more than `_MAX_CONE` nodes.
    """
    order: dict[Node, None] = {}
    pending = [v.producer for v in ends]
    while pending:
        node = pending.pop()
        if node is None or len(order) > _MAX_CONE:
            return None
        order[node] = None
        pending += [
            v.producer for v in node.inputs if v is not None and v is not x and not v.is_constant
        ]
    graph = Graph("cone", [x], list(ends), list(order))
    graph.sort()
    return graph.nodes


def _trials(shape: tuple[int, ...]) -> Iterator[Array]:
    """Yields sample inputs of a shape: numbers on both sides of 0, all above, and all below 0."""
    rng = np.random.default_rng(0)
    for low, high in ((-3, 2), (1, 2), (-5, -4), (-0.01, 7)):
        yield rng.random(shape, np.float32) * np.float32(high - low) + np.float32(low)


def _agrees(graph: Graph, name: str, x: Array) -> bool:
    """Returns whether a graph computes the scale and zero point of DynamicQuantizeLinear for x.

    Args:
        graph: Graph with outputs "scale" and "zero".
        name: Name of the graph's input.
        x: Elements of the input.
    """
    low, high = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
    scale = (high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    outputs = evaluate(graph, {name: x})
    near = np.allclose(outputs["scale"], scale, rtol=1e-6)
    return near and bool(np.all(outputs["zero"].astype(np.float32) == zero))
