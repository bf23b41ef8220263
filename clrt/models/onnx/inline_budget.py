"""Counts the nodes of a model after inlining its functions, before any is inlined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from clrt.errors import ModelError
from clrt.models.onnx.functions import Function
from clrt.models.onnx.read import normal_domain
from clrt.models.onnx.scope import FunctionKey
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass

# Maximum nesting: Python's stack allows 1000 calls, and each level needs up to 12.
_MAX_DEPTH = 64


@dataclass(frozen=True)
class _InlinedSize:
    """Size of a list of nodes after inlining functions.

    Attributes:
        nodes: Number of nodes, including those of subgraphs and called functions.
        depth: Maximum nesting depth of subgraphs and calls.
    """

    nodes: int = 0
    depth: int = 0


def inlined_nodes(graph: onnx.GraphProto, functions: Mapping[FunctionKey, Function]) -> int:
    """Returns the number of nodes of a graph with all functions inlined, including subgraphs.

    Args:
        graph: Main graph of the model.
        functions: Functions of the model, by (domain, name, overload).

    Raises:
        ModelError: The number exceeds CLRT_NODE_LIMIT, or functions and subgraphs are nested more
            than 64 deep.
    """
    sizes: dict[FunctionKey, _InlinedSize] = {}
    for key in functions:
        pending = [key]
        while pending:  # recursion might exceed Python's stack
            key = pending[-1]
            # Placeholder for recursive functions, which are rejected later.
            sizes.setdefault(key, _InlinedSize())
            callees = _calls(functions[key].nodes, functions)
            if missing := [k for k in callees if k not in sizes]:
                pending += missing
            else:
                sizes[key] = _size(functions[key].nodes, functions, sizes)
                pending.pop()
    total = _size(graph.node, functions, sizes)
    limit = env_vars.NODE_LIMIT.get()
    if total.nodes > limit:
        raise ModelError(
            f"The model has {total.nodes:.3g} nodes once its functions are inlined, and "
            f"CLRT_NODE_LIMIT allows {limit}; raise it if this is intended."
        )
    if total.depth > _MAX_DEPTH:
        raise ModelError(
            f"The model nests functions and graphs {total.depth} deep; {_MAX_DEPTH} are allowed. "
            "Export it with its functions inlined."
        )
    return total.nodes


def _key(node: onnx.NodeProto) -> FunctionKey:
    return normal_domain(node.domain), node.op_type, node.overload


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _calls(
    nodes: Iterable[onnx.NodeProto], functions: Mapping[FunctionKey, Function]
) -> list[FunctionKey]:
    """Returns the functions that nodes and the nodes of their subgraphs call directly.

    Recursion into subgraphs is safe: protobuf limits their nesting.

    Args:
        nodes: Nodes of a graph or function.
        functions: Functions of the model, by (domain, name, overload).
    """
    called: dict[FunctionKey, None] = {}
    for node in nodes:
        if (key := _key(node)) in functions:
            called[key] = None
        for graph in _graphs(node):
            called.update(dict.fromkeys(_calls(graph.node, functions)))
    return list(called)


def _size(
    nodes: Iterable[onnx.NodeProto],
    functions: Mapping[FunctionKey, Function],
    sizes: Mapping[FunctionKey, _InlinedSize],
) -> _InlinedSize:
    count, depth = 0, 0
    for node in nodes:
        count += 1
        inner = [_size(g.node, functions, sizes) for g in _graphs(node)]
        if functions and (key := _key(node)) in functions:
            inner.append(sizes[key])
        for size in inner:
            count += size.nodes
            depth = max(depth, 1 + size.depth)
    return _InlinedSize(count, depth)
