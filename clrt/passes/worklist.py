"""Which nodes of a graph changed since a pass last looked at them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from clrt.ir.graph import Node


@dataclass
class _Reader:
    """How far somebody has read the log.

    Attributes:
        left: Nodes read in a sweep that was behind them already.
    """

    read: int
    left: list[Node] = field(default_factory=list)


class Worklist:
    """The nodes of a graph with their places, and a log of those that were touched.

    A node is touched when it is new, when what it reads or a type of it changes, and when others
    begin or cease to read what it makes.

    Attributes:
        places: The nodes that are (still) part of the graph, and by what they are visited in order.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        # A new node has the place of the node that it was made for.
        self.places = {node: place for place, node in enumerate(nodes)}
        self._log: list[Node] = []
        self._readers: dict[Hashable, _Reader] = {}

    def add(self, node: Node, root: Node) -> None:
        """Adds a new node, made for `root`."""
        self.places[node] = self.places[root]
        self._log.append(node)

    def drop(self, node: Node) -> None:
        """Takes a node out."""
        del self.places[node]

    def touch(self, node: Node | None) -> None:
        """Has passes look at a node again."""
        if node is not None:
            self._log.append(node)

    def begin(self, reader: Hashable) -> None:
        """The reader looks at all nodes now."""
        self._readers[reader] = _Reader(len(self._log))

    def has_begun(self, reader: Hashable) -> bool:
        """Whether the reader has looked at all nodes once."""
        return reader in self._readers

    def is_done(self, reader: Hashable) -> bool:
        """Whether nothing was touched since the reader last looked."""
        found = self._readers.get(reader)
        return found is not None and found.read == len(self._log) and not found.left

    def due(self, reader: Hashable, backward: bool = False) -> Iterator[Node]:
        """The nodes touched since the reader last looked, in order.

        So are those touched meanwhile, where they come later.
        """
        state, sign = self._readers[reader], -1 if backward else 1
        waiting: list[tuple[int, int, Node]] = []
        queued: set[Node] = set()
        pending, state.left = state.left, []
        at: int | None = None
        while True:
            pending += self._log[state.read :]
            state.read = len(self._log)
            for node in pending:
                if node in queued or node not in self.places:
                    continue
                place = sign * self.places[node]
                if at is None or place > at:
                    heappush(waiting, (place, len(queued), node))
                    queued.add(node)
                else:
                    state.left.append(node)
            pending = []
            if not waiting:
                return
            at, _, node = heappop(waiting)
            if node in self.places:
                yield node
