"""`GraphRecipe`: a graph that clrt builds itself, unless its plans are stored."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from clrt.ir.dims import Substitutes
from clrt.ir.graph import Graph


class GraphRecipe(Graph):
    """A graph that clrt builds when it is copied, as `clrt.load` does if it finds no executable.

    Attributes:
        function: Function that builds the graph, as "module:name".
        arguments: Arguments of the function.
        key: Text that is the same only for arguments that lead to the same graph.
    """

    def __init__(self, function: str, arguments: tuple[Any, ...], key: str) -> None:
        super().__init__(function, [], [])
        self.function, self.arguments, self.key = function, arguments, key

    def copy(self, bindings: Substitutes | None = None) -> Graph:
        module, _, name = self.function.partition(":")
        graph = cast(Graph, getattr(import_module(module), name)(*self.arguments))
        return graph.copy(bindings) if bindings else graph
