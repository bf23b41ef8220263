"""Traces an out-of-range index that a kernel reported back to model inputs, for messages."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.errors import ClrtError, InputError, ModelError, NumberError
from clrt.ir.graph import Graph, Node, Value, all_graphs
from clrt.ops.base import Op

# Maximum number of model inputs that a message names.
_MAX_NAMED = 3


def explain_index_error(error: NumberError, model: Graph) -> ClrtError:
    """Returns the error to raise for an out-of-range number that a kernel reported.

    Args:
        error: The reported error: the number, the node, and the operand that contains the number.
        model: The whole model. Values of suffixes and subgraphs are looked up in it by name.

    Returns:
        An InputError that names the node and the model inputs that the number depends on. A
        ModelError if the number is in a constant of the model. `error` itself if the node or its
        operand is unknown.
    """
    node = error.node
    value = node.input(error.operand) if isinstance(node, Node) else None
    if value is None:
        return error
    names, moved = _origins(value, model)
    end = f"is {error.number}; {error.allowed}."
    if not names:
        return ModelError(f"{node}: {error.what} in a constant of the model {end}")
    first = ", ".join(f"'{name}'" for name in names[:_MAX_NAMED])
    rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    source = f"input{'s' if len(names) > 1 else ''} {first}{rest}"
    return InputError(f"{node}: {error.what} {'of' if moved else 'computed from'} {source} {end}")


def _origins(value: Value, model: Graph) -> tuple[list[str], bool]:
    """Returns the model inputs that a value depends on.

    An input of a suffix after a graph break, or of a subgraph of a node, is a value of another
    graph. It is looked up by name in the model.

    Returns:
        (names of the model inputs, whether the value's elements are elements of an input). The
        bool is true if there is one such input, and if all nodes between the input and the value
        only move elements.
    """
    produced, suppliers = _values_of(model)
    inputs = {v.name for v in model.inputs}
    origins: dict[str, None] = {}
    seen: set[Value] = set()
    pending, moved = [value], True
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.producer is not None:
            moved = moved and _moves(current.producer)
            pending += _read(current.producer)
        elif current.name in inputs:
            origins[current.name] = None
        elif (outer := produced.get(current.name)) is not None:
            pending.append(outer)
        elif current.name in suppliers:
            moved = False
            pending += suppliers[current.name]
    return list(origins), moved and len(origins) == 1


def _moves(node: Node) -> bool:
    """Returns whether a node only moves elements, such as Gather or Transpose."""
    return isinstance(node.op, Op) and node.op.memory_traits.is_data_movement


def _read(node: Node) -> list[Value]:
    """Returns the inputs from which a node computes its elements.

    For a node that only moves elements, such as Gather, that is input 0 alone.
    """
    first = 1 if _moves(node) else None
    return [v for v in node.inputs[:first] if v is not None]


def _values_of(model: Graph) -> tuple[dict[str, Value], dict[str, Sequence[Value]]]:
    """Maps value names to values of the model, to trace values of suffixes and subgraphs.

    Returns:
        Two mappings by name. The first maps node outputs to themselves, and each captured input of
        a subgraph to the captured value. The second maps every other input of a subgraph, such as a
        loop-carried value, to the inputs of the node: any of these may supply its elements.
    """
    outer_values: dict[str, Value] = {}
    suppliers: dict[str, Sequence[Value]] = {}
    for graph in all_graphs(model):
        for node in graph.nodes:
            op = node.op_as(Op)
            outer_values.update((v.name, v) for v in node.outputs)
            captures = getattr(op, "captures", 0)
            for inner in op.graphs:
                first = len(inner.inputs) - captures
                pairs = zip(
                    inner.inputs[first:], node.inputs[len(node.inputs) - captures :], strict=True
                )
                outer_values.update(
                    (inner_value.name, v) for inner_value, v in pairs if v is not None
                )
                suppliers.update(
                    (inner_value.name, _read(node)) for inner_value in inner.inputs[:first]
                )
    return outer_values, suppliers
