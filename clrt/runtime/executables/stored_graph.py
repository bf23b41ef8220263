"""`StoredGraph`: the graph of a model whose plans are stored, read when its nodes are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

from clrt.errors import ModelError
from clrt.ir.graph import Graph, Node, Value


class StoredGraph(Graph):
    """A graph with inputs and outputs, whose nodes are read from the model at their first use.

    Attributes:
        read: Reads the model and returns its optimised graph.
        on_open: Called with the graph that `read` returned, once.
        is_open: Whether the nodes were read.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        output_names: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        self.is_open = False
        self.read: Callable[[], Graph]
        self.on_open: Callable[[Graph], object] = lambda graph: None
        self._lock: Any = RLock()
        super().__init__(name, list(inputs), list(outputs), [], list(output_names), properties)

    @property
    def nodes(self) -> list[Node]:
        """Nodes in topological order.

        Raises:
            ClrtError: The model cannot be read again, or is another one now.
        """
        with self._lock:
            if not self.is_open:
                graph = self.read()
                self._take(graph)
                self.is_open = True
                self.on_open(graph)
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    def _take(self, graph: Graph) -> None:
        """Takes over the nodes of a graph, which then read and compute this graph's values.

        Raises:
            ModelError: The graph has other inputs or outputs.
        """
        pairs = [(graph.inputs, self.inputs), (graph.outputs, self.outputs)]
        found, known = (
            [[_row(v) for v in values] for values in side] for side in zip(*pairs, strict=True)
        )
        if found != known or graph.output_names != self.output_names:
            raise ModelError(
                f"The file of model '{self.name}' was changed since it was loaded; load it again."
            )
        own = {v: mine for theirs, ours in pairs for v, mine in zip(theirs, ours, strict=True)}
        for value, mine in own.items():
            mine.type, mine.producer, mine.aliases = value.type, value.producer, value.aliases
        for node in graph.nodes:
            node.inputs = [v if v is None else own.get(v, v) for v in node.inputs]
            node.outputs = [own.get(v, v) for v in node.outputs]
        self.data_files = graph.data_files
        self._nodes = graph.nodes

    def after_fork_in_child(self) -> None:
        """Replaces the lock in a forked child process, which lacks the threads that held it."""
        self._lock = RLock()


def _row(value: Value) -> tuple[str, str, str]:
    return value.name, str(value.dtype), str(value.shape)
