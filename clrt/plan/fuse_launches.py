"""Launch fusion: which nodes of a specialised graph become regions, and where these stand.

Regions are found over use-def edges, from the node that ends them backwards, in an order that
follows from the edges alone. So the order in which a file lists independent nodes changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clrt.errors import ShapeError, UnsupportedError, reworded
from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.fusion import FusionMiss, LaunchFusionRule, ProducerMap, launch_fusions
from clrt.kernels.variant import Lowering
from clrt.plan.lifetimes import is_view
from clrt.plan.steps import Region


@dataclass(frozen=True)
class MissedRegion:
    """A rule that nearly held.

    Attributes:
        node: The last of the nodes that look like a region.
    """

    rule: str
    node: Node
    reason: str


@dataclass(frozen=True)
class FusedLaunches:
    """What the stage makes of a graph.

    Attributes:
        order: Regions and other nodes as they run.
        misses: Rules that nearly held.
    """

    order: tuple[Region | Node, ...]
    misses: tuple[MissedRegion, ...]


def fuse_launches(graph: Graph, ctx: Lowering) -> FusedLaunches:
    """Finds the regions of a specialised graph.

    A region stands where the last of its nodes stood, or before that where a node between needs
    what it makes. Views are left out.

    Raises:
        ShapeError: A kernel would count past 32 bits.
    """
    nodes = [n for n in graph.nodes if not is_view(n)]
    edges, makers = _Edges(graph), ProducerMap(graph, nodes)
    refused: dict[tuple[str, Node], str] = {}
    while True:
        search = _Search(makers, ctx, refused)
        for node in edges.from_outputs(nodes):
            search.visit(node)
        regions = search.regions
        parts = edges.ordered(nodes, regions)
        circles = [p for p in parts if len(p) > 1]
        if not circles:
            order = (regions.get(node, node) for (node,) in parts)
            return FusedLaunches(tuple(order), tuple(search.misses))
        for region in (regions[n] for circle in circles for n in circle if n in regions):
            refused[region.variant, region.node] = "what it reads depends on what it makes"


def by_edges(graph: Graph) -> list[Node]:
    """The nodes that are no views, each behind those that it reads, as edges lead from the outputs:
    the order in which a file lists independent nodes changes nothing.
    """
    nodes = [n for n in graph.nodes if not is_view(n)]
    return list(_Edges(graph).from_outputs(nodes))


class _Edges:
    """Who makes what a node reads, views looked through."""

    def __init__(self, graph: Graph) -> None:
        self._made: dict[Value, Node] = {}
        self._outputs = graph.outputs
        for node in graph.nodes:
            source = self._made.get(node.arg(0)) if is_view(node) else node
            if source is not None:
                self._made.update(dict.fromkeys(node.outputs, source))

    def from_outputs(self, nodes: Sequence[Node]) -> Iterator[Node]:
        """Each node behind those that it reads, as the edges lead from the outputs: the order of
        the list only matters to what no output depends on.
        """
        ends = [self._made[v] for v in self._outputs if v in self._made]
        return (node for (node,) in self.ordered([*ends, *nodes], {}))

    def ordered(
        self, nodes: Sequence[Node], regions: Mapping[Node, Region]
    ) -> list[tuple[Node, ...]]:
        """Each node behind those that it reads, else as listed; a region is known by its last node.

        Returns:
            One node each; or several that depend on each other, regions among them.
        """
        last = {n: r.node for r in regions.values() for n in r.nodes}

        def before(node: Node) -> Iterator[Node]:
            members = regions[node].nodes if node in regions else (node,)
            read = (v for n in members for v in n.inputs if v is not None)
            makers = (self._made[v] for v in read if v in self._made)
            return (m for n in makers if (m := last.get(n, n)) is not node)

        return connected([n for n in nodes if last.get(n, n) is n], before)


def connected(
    nodes: Iterable[Node], before: Callable[[Node], Iterator[Node]]
) -> list[tuple[Node, ...]]:
    """The strongly connected parts of a graph, each behind those that it depends on.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms (1972).
    """
    parts: list[tuple[Node, ...]] = []
    low: dict[Node, int] = {}  # the first node that is not in a part and that this one leads to
    waiting: list[Node] = []
    path: list[tuple[Node, int, Iterator[Node]]] = []

    def enter(node: Node) -> None:
        path.append((node, len(low), before(node)))
        low[node] = len(low)
        waiting.append(node)

    for root in nodes:
        if root not in low:
            enter(root)
        while path:
            node, index, rest = path[-1]
            other = next(rest, None)
            if other is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index:
                    parts.append(_take(waiting, node, low))
            elif other in low:
                low[node] = min(low[node], low[other])
            else:
                enter(other)
    return parts


def _take(waiting: list[Node], first: Node, low: dict[Node, int]) -> tuple[Node, ...]:
    """Removes a part from the end of those that wait."""
    part: list[Node] = []
    while not part or part[-1] is not first:
        part.append(waiting.pop())
        low[part[-1]] = sys.maxsize
    return tuple(part)


class _Search:
    """The regions so far, by their last nodes."""

    def __init__(
        self, makers: ProducerMap, ctx: Lowering, refused: Mapping[tuple[str, Node], str]
    ) -> None:
        self.regions: dict[Node, Region] = {}
        self.misses: list[MissedRegion] = []
        self._rules = launch_fusions()
        self._makers, self._ctx, self._refused = makers, ctx, refused
        self._taken: dict[Node, Region] = {}

    def visit(self, node: Node) -> None:
        """Makes a region that ends with the node, where a rule holds."""
        if node in self._taken:
            return
        for rule in self._rules:
            found = self._region(rule, node)
            if isinstance(found, Region):
                self.regions[node] = found
                self._taken.update(dict.fromkeys(found.nodes, found))
                return
            if found is not None:
                self.misses.append(MissedRegion(rule.name, node, found.reason))

    def _region(self, rule: LaunchFusionRule, node: Node) -> Region | FusionMiss | None:
        if (rule.name, node) in self._refused:
            return FusionMiss(self._refused[rule.name, node])
        try:
            match = rule.match(node, self._makers, self._ctx)
            if match is None or isinstance(match, FusionMiss):
                return match
            other = next((n for n in match.nodes if n in self._taken), None)
            if other is not None:
                return FusionMiss(f"{other} is in the region of {self._taken[other].node}")
            made = rule.emit(match, self._ctx)
        except UnsupportedError as error:
            return FusionMiss(str(error))
        except ShapeError as error:
            raise reworded(error, f"{node}: {error}") from error
        launches = tuple(x for x in made.launches if all(x.global_size))
        idle = (x.kernel for x in made.launches if not all(x.global_size))
        return Region(match.nodes, rule.name, launches, also=(*made.also, *idle))
