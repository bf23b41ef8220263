"""Where a number that a kernel could not follow comes from, in words."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.errors import ClrtError, InputError, ModelError, NumberError
from clrt.ir.graph import Graph, Node, Value
from clrt.ops.base import Op, all_graphs

_NAMED = 3


def traced(error: NumberError, model: Graph) -> ClrtError:
    """The error, naming the node, and the inputs of the model that the number depends on.

    Where it depends on none, it is the model that is wrong.
    """
    node = error.node
    value = node.input(error.operand) if isinstance(node, Node) else None
    if value is None:
        return error
    names, moved = _origins(value, model)
    end = f"is {error.number}; {error.allowed}."
    if not names:
        return ModelError(f"{node}: {error.what} that the model has as a constant {end}")
    first = ", ".join(f"'{name}'" for name in names[:_NAMED])
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    source = f"input{'s' if len(names) > 1 else ''} {first}{rest}"
    return InputError(f"{node}: {error.what} {'of' if moved else 'computed from'} {source} {end}")


def _origins(value: Value, model: Graph) -> tuple[list[str], bool]:
    """The inputs of the model that a value depends on, and whether it is one of them, moved.

    Plans of a graph that is cut, and graphs that nodes run, read values of others as inputs of
    their own: those are found by name in the model.
    """
    made, formal = _values_of(model)
    inputs = {v.name for v in model.inputs}
    found: dict[str, None] = {}
    seen: set[Value] = set()
    pending, moved = [value], True
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        if at.producer is not None:
            moved = moved and _moves(at.producer)
            pending += _read(at.producer)
        elif at.name in inputs:
            found[at.name] = None
        elif (there := made.get(at.name)) is not None:
            pending.append(there)
        elif at.name in formal:
            moved = False
            pending += formal[at.name]
    return list(found), moved and len(found) == 1


def _moves(node: Node) -> bool:
    return isinstance(node.op, Op) and node.op.is_data_movement


def _read(node: Node) -> list[Value]:
    """What decides the elements of the outputs: not the shape that a view is to have."""
    first = 1 if _moves(node) else None
    return [v for v in node.inputs[:first] if v is not None]


def _values_of(model: Graph) -> tuple[dict[str, Value], dict[str, Sequence[Value]]]:
    """By name: what a value is elsewhere in the model, and what others may depend on.

    The first are the outputs of all nodes, and what graphs in nodes read of the graph around them,
    their last inputs. What else goes into such a graph may come from any input of its node.
    """
    made: dict[str, Value] = {}
    formal: dict[str, Sequence[Value]] = {}
    for graph in all_graphs(model):
        for node in graph.nodes:
            assert isinstance(node.op, Op)
            made.update((v.name, v) for v in node.outputs)
            captures = getattr(node.op, "captures", 0)
            for inner in node.op.graphs:
                first = len(inner.inputs) - captures
                pairs = zip(
                    inner.inputs[first:], node.inputs[len(node.inputs) - captures :], strict=True
                )
                made.update((own.name, v) for own, v in pairs if v is not None)
                formal.update((own.name, _read(node)) for own in inner.inputs[:first])
    return made, formal
