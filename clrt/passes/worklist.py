"""Worklist of graph nodes that changed since a pass last visited them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import field
from heapq import heappop, heappush

from clrt.ir.graph import Node
from clrt.util.fast_dataclass import dataclass


@dataclass
class _Reader:
    """Progress of one pass in a worklist's log of touched nodes.

    Attributes:
        read: Number of log entries that the pass has read.
        deferred: Nodes touched in the last sweep after the sweep had passed their position. The
            next sweep visits them.
    """

    read: int
    deferred: list[Node] = field(default_factory=list)


class Worklist:
    """Nodes of a graph in visiting order, and a log of touched nodes that passes read.

    A node is touched if it is new, if its inputs change, if the type of an input or output changes,
    or if the users of its outputs change. A reader of the log is any hashable key, such as a pass.

    Attributes:
        places: Maps each node that is in the graph to its position in the visiting order.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        # A new node gets the position of the match root that it replaces.
        self.places = {node: place for place, node in enumerate(nodes)}
        self._log: list[Node] = []
        self._readers: dict[Hashable, _Reader] = {}

    def add(self, node: Node, root: Node) -> None:
        """Adds a new node at the position of node `root` in visiting order, and touches it."""
        self.places[node] = self.places[root]
        self._log.append(node)

    def drop(self, node: Node) -> None:
        """Removes a node that left the graph: `due` no longer yields it to any reader."""
        del self.places[node]

    def touch(self, node: Node | None) -> None:
        """Logs a node as changed, so that all readers visit it again; ignores None."""
        if node is not None:
            self._log.append(node)

    def begin(self, reader: Hashable) -> None:
        """Starts a reader: `due` then yields only nodes that are touched after this call.

        The caller itself visits the nodes that are in the graph now.
        """
        self._readers[reader] = _Reader(len(self._log))

    def has_begun(self, reader: Hashable) -> bool:
        """Whether `begin` was called for a reader."""
        return reader in self._readers

    def is_done(self, reader: Hashable) -> bool:
        """Whether a reader has begun and has visited all touched nodes."""
        state = self._readers.get(reader)
        return state is not None and state.read == len(self._log) and not state.deferred

    def due(self, reader: Hashable, backward: bool = False) -> Iterator[Node]:
        """Yields the nodes touched since a reader's last sweep, in visiting order.

        Nodes touched during the sweep are included if they come later in the order.

        Args:
            reader: A reader for which `begin` was called.
            backward: Whether to visit in reverse order.
        """
        state, sign = self._readers[reader], -1 if backward else 1
        heap: list[tuple[int, int, Node]] = []
        queued: set[Node] = set()
        pending, state.deferred = state.deferred, []
        current: int | None = None
        while True:
            pending += self._log[state.read :]
            state.read = len(self._log)
            for node in pending:
                if node in queued or node not in self.places:
                    continue
                place = sign * self.places[node]
                if current is None or place > current:
                    heappush(heap, (place, len(queued), node))
                    queued.add(node)
                else:
                    state.deferred.append(node)
            pending = []
            if not heap:
                return
            current, _, node = heappop(heap)
            if node in self.places:
                yield node
