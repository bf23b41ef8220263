"""Verifier of the invariants of a graph."""

from __future__ import annotations

from clrt.errors import ClrtError, PassError, counted
from clrt.ir.graph import Graph, Node, Value


def verify(graph: Graph) -> None:
    """Checks order, producers, unique names and types of a graph.

    Raises:
        PassError: An invariant is violated; the message names it and the node or value.
    """
    available: set[Value] = set(graph.inputs)
    constants: set[Value] = set()
    names: set[str] = set()
    node_names: set[str] = set()
    for value in graph.inputs:
        if value.producer is not None:
            raise PassError(f"graph input '{value.name}' has a producer")
        _unique(value.name, names, "value")
    for node in graph.nodes:
        _unique(node.name, node_names, "node")
        for value in (v for v in node.inputs if v is not None and v not in available):
            if not value.is_constant:
                raise PassError(f"{node} reads '{value.name}' before it is computed")
            if value not in constants:
                _unique(value.name, names, "value")
                constants.add(value)
        for value in node.outputs:
            if value.producer is not node:
                raise PassError(f"output '{value.name}' of {node} has another producer")
            _unique(value.name, names, "value")
            available.add(value)
        verify_types(node)
    if len(graph.outputs) != len(graph.output_names):
        raise PassError(
            f"graph '{graph.name}' has {counted(len(graph.outputs), 'output')} but other names"
        )
    for value in graph.outputs:
        if value not in available and not value.is_constant:
            raise PassError(f"graph output '{value.name}' is computed by no node")


def _unique(name: str, seen: set[str], kind: str) -> None:
    """Adds the name of a `kind` (node or value) to `seen`; raises PassError if it is there."""
    if name in seen:
        raise PassError(f"two {kind}s are named '{name}'")
    seen.add(name)


def verify_types(node: Node) -> None:
    """Checks a node's output types against the types that its op infers.

    Raises:
        PassError: Types are incompatible, or the inputs do not fit the op.
    """
    try:
        inferred = node.op.infer(node.input_types)
    except ClrtError as error:
        raise PassError(f"{node} does not type-check: {error}") from error
    if len(node.outputs) > len(inferred):
        raise PassError(
            f"{node} has {counted(len(node.outputs), 'output')}; its op has {len(inferred)}"
        )
    for value, type_ in zip(node.outputs, inferred, strict=False):
        if not value.type.is_compatible(type_):
            raise PassError(f"{node} gives {type_}, but its output is {value!r}")
