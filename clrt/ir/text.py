"""Text form of the IR, for people, tests and compiled models; `clrt.ir.parse` parses it.

graph "main" (%x: float32[batch,384]) {
  const %w: float32[384,12] = ...
  const %axes: int64[1] = [1]
  const %table: float32[9,384] = @"0/table"
  %y: float32[batch,12] = MatMul(%x, %w) @"layer 0"
  return %y as "logits"
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import ElementwiseInstruction, IrOp

_PLAIN = re.compile(r"[\w./:\-]+")
# Stores a constant outside the text and returns its key; "" prints `...`, None prints the elements.
Store: TypeAlias = "Callable[[Value], str | None]"


def elided(limit: int = 16) -> Store:
    """Returns a `Store` for `print_graph` that prints large constants as `...`.

    Args:
        limit: Maximum number of elements that are printed.
    """
    return lambda value: "" if value.has_numbers and prod(value.dims) > limit else None


_SHORT = elided()


def print_graph(graph: Graph, store: Store = _SHORT) -> str:
    """Returns the text form of a graph, which `clrt.ir.parse.parse_graph` parses.

    Args:
        store: Called with each constant, decides how its elements are printed. If it returns None,
            they are printed; if "", as `...`; if another string, as this key, under which `store`
            has stored them elsewhere.
    """
    inputs = ", ".join(_typed(v) for v in graph.inputs)
    lines = [f"graph {json.dumps(graph.name)} ({inputs}) {{"]
    for value in graph.constants():
        if value not in graph.inputs:
            lines.append(f"  const {_typed(value)} = {_data(value, store)}")
    for node in graph.nodes:
        outputs = ", ".join(_typed(v) for v in node.outputs)
        args = ", ".join("_" if v is None else _name(v.name) for v in node.inputs)
        lines.append(f"  {outputs} = {print_op(node.op, store)}({args}) @{json.dumps(node.name)}")
    pairs = zip(graph.outputs, graph.output_names, strict=True)
    results = ", ".join(f"{_name(v.name)} as {json.dumps(n)}" for v, n in pairs)
    return "\n".join([*lines, f"  return {results}", "}"]) + "\n"


def _name(name: str) -> str:
    """Returns a value's name in the text form: `%name`, or `%"name"` if it is no plain word."""
    # A trailing colon would be parsed as the one before the type.
    plain = _PLAIN.fullmatch(name) and not name.endswith(":")
    return f"%{name}" if plain else f"%{json.dumps(name)}"


def _typed(value: Value) -> str:
    return f"{_name(value.name)}: {value.type}"


def _data(value: Value, store: Store) -> str:
    """Returns the text of a constant's elements: the elements, `...`, or the key from `store`."""
    key = store(value)
    if key is not None:
        return f"@{json.dumps(key)}" if key else "..."
    data = value.type.data
    assert data is not None
    return _nested(data.tolist())


def _nested(item: Any) -> str:
    """Returns nested lists of elements as text; strings in JSON quotes, bools as 0 or 1."""
    if isinstance(item, str):
        return json.dumps(item)
    if isinstance(item, list):
        return f"[{', '.join(map(_nested, item))}]"
    return str(item) if not isinstance(item, bool) else str(int(item))


def print_op(op: IrOp, store: Store = _SHORT) -> str:
    """Returns the text form of an op with its attributes, which `parse_op` parses.

    Args:
        store: Returns how to print each constant of a subgraph, as in `print_graph`.
    """
    name = f"{op.domain}.{op.name}" if op.domain else op.name
    attributes = ", ".join(f"{k}={_attribute(v, store)}" for k, v in op.attributes.items())
    return f"{name}{{{attributes}}}" if attributes else name


def _attribute(value: Any, store: Store) -> str:
    """Returns the text form of an attribute's value.

    Args:
        store: Returns how to print each constant of a subgraph, as in `print_graph`.
    """
    match value:
        case DType():
            return value.value
        case Graph():
            return print_graph(value, store).strip().replace("\n", "\n    ")
        case IrOp():
            return print_op(value, store)
        case ElementwiseInstruction():
            return f"{print_op(value.op, store)}({', '.join(map(str, value.args))})"
        case tuple():
            return f"[{', '.join(_attribute(v, store) for v in value)}]"
        case str():
            return json.dumps(value)
        case bool() | None:
            return str(value)
        case float():
            return repr(value)
    return str(value)
