"""Arguments of planning that the planner and what makes plans share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.plan.memory import Shapes
from clrt.runtime.execution.signature import bind_dims

# `T_` macros and their values, by kernel entry point.
Tunables = Mapping[str, Mapping[str, int]]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def bindings_of(graph: Graph, shapes: Shapes, known: Mapping[str, Array]) -> dict[str, int]:
    """Returns the size of each symbol in a graph's input shapes, by the symbol's name.

    Args:
        shapes: Shape of each input of the graph that is not in `known`, by name.
        known: Elements of inputs that planning needs, by name.
    """
    return bind_dims(graph.inputs, {**shapes, **{n: a.shape for n, a in known.items()}})
