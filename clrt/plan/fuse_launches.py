"""Launch fusion: groups nodes of a specialised graph into regions and orders them.

Rules match backwards from the last node of a region, along use-def edges. The visiting order
follows from the edges alone, so the order in which a file lists independent nodes has no effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from clrt.errors import ShapeError, UnsupportedError, reworded
from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.fusion import FusionMiss, LaunchFusionRule, ProducerMap
from clrt.kernels.variant import Lowering
from clrt.ops.launch_fusions import launch_fusions
from clrt.plan.lifetimes import is_view
from clrt.plan.steps import Region
from clrt.util.background import yield_point
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class MissedRegion:
    """Near miss of a launch fusion rule: nodes that it almost fuses into a region.

    Attributes:
        rule: Name of the rule.
        node: Node at which the rule tried to end a region.
        reason: Why the rule does not apply there.
    """

    rule: str
    node: Node
    reason: str


@dataclass(frozen=True)
class FusedLaunches:
    """Result of launch fusion.

    Attributes:
        order: Regions and unfused nodes in execution order, without views.
        misses: Near misses of launch fusion rules.
    """

    order: tuple[Region | Node, ...]
    misses: tuple[MissedRegion, ...]


def fuse_launches(graph: Graph, ctx: Lowering) -> FusedLaunches:
    """Finds regions of nodes to fuse in a specialised graph; orders them among the other nodes.

    A region runs at the position of its last node, or earlier if another node reads one of its
    outputs before that. Views are left out. A region that would depend on itself is refused and
    reported as a near miss.

    Raises:
        ShapeError: A kernel index or argument would exceed 32 bits.
    """
    nodes = [n for n in graph.nodes if not is_view(n)]
    edges, producers = _Edges(graph), ProducerMap(graph, nodes)
    refused: dict[tuple[str, Node], str] = {}
    while True:
        search = _Search(producers, ctx, refused)
        for node in edges.from_outputs(nodes):
            search.visit(node)
        regions = search.regions
        components = edges.ordered(nodes, regions)
        cycles = [c for c in components if len(c) > 1]
        if not cycles:
            order = (regions.get(node, node) for (node,) in components)
            return FusedLaunches(tuple(order), tuple(search.misses))
        for region in (regions[n] for cycle in cycles for n in cycle if n in regions):
            refused[region.variant, region.node] = "its inputs depend on its outputs"


def by_edges(graph: Graph) -> list[Node]:
    """Returns the nodes other than views in topological order.

    The order comes from a depth-first search from the graph outputs, so the order in which a file
    lists independent nodes has no effect.
    """
    nodes = [n for n in graph.nodes if not is_view(n)]
    return list(_Edges(graph).from_outputs(nodes))


class _Edges:
    """Maps each value to the node that computes it, looking through views to their inputs."""

    def __init__(self, graph: Graph) -> None:
        self._producers: dict[Value, Node] = {}
        self._outputs = graph.outputs
        for node in graph.nodes:
            source = self._producers.get(node.arg(0)) if is_view(node) else node
            if source is not None:
                self._producers.update(dict.fromkeys(node.outputs, source))

    def from_outputs(self, nodes: Sequence[Node]) -> Iterator[Node]:
        """Returns `nodes` in topological order, by depth-first search from the graph outputs.

        The order of `nodes` only matters for nodes that no graph output depends on.
        """
        ends = [self._producers[v] for v in self._outputs if v in self._producers]
        return (node for (node,) in self.ordered([*ends, *nodes], {}))

    def ordered(
        self, nodes: Sequence[Node], regions: Mapping[Node, Region]
    ) -> list[tuple[Node, ...]]:
        """Sorts nodes and regions topologically, keeping the order of `nodes` where possible.

        Args:
            nodes: All nodes, including the nodes of regions.
            regions: Regions by their last node, which stands for the region in the result.

        Returns:
            Strongly connected components in topological order. Each is a single node, or a cycle of
            nodes and regions that depend on each other.
        """
        last = {n: r.node for r in regions.values() for n in r.nodes}

        def before(node: Node) -> Iterator[Node]:
            members = regions[node].nodes if node in regions else (node,)
            read = (v for n in members for v in n.inputs if v is not None)
            makers = (self._producers[v] for v in read if v in self._producers)
            return (m for n in makers if (m := last.get(n, n)) is not node)

        return connected([n for n in nodes if last.get(n, n) is n], before)


def connected(
    nodes: Iterable[Node], before: Callable[[Node], Iterator[Node]]
) -> list[tuple[Node, ...]]:
    """Returns the strongly connected components of a graph of nodes in topological order.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms (1972).

    Args:
        nodes: Nodes to start from; nodes that they depend on are included in the result.
        before: Yields the nodes that a node directly depends on.
    """
    components: list[tuple[Node, ...]] = []
    low: dict[Node, int] = {}  # Tarjan's low-link
    stack: list[Node] = []
    path: list[tuple[Node, int, Iterator[Node]]] = []

    def enter(node: Node) -> None:
        path.append((node, len(low), before(node)))
        low[node] = len(low)
        stack.append(node)

    for root in nodes:
        if root not in low:
            enter(root)
        while path:
            node, index, dependencies = path[-1]
            other = next(dependencies, None)
            if other is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index:
                    components.append(_pop_component(stack, node, low))
            elif other in low:
                low[node] = min(low[node], low[other])
            else:
                enter(other)
    return components


def _pop_component(stack: list[Node], first: Node, low: dict[Node, int]) -> tuple[Node, ...]:
    """Pops a strongly connected component from the stack of Tarjan's algorithm; returns it.

    Args:
        stack: Visited nodes that are in no component yet.
        first: Lowest node of the component on the stack; all nodes from it upwards are popped.
        low: Lowest index that each visited node reaches; updated for popped nodes.
    """
    component: list[Node] = []
    while not component or component[-1] is not first:
        component.append(stack.pop())
        low[component[-1]] = sys.maxsize
    return tuple(component)


class _Search:
    """Greedy search for regions of nodes that launch fusion rules match.

    Attributes:
        regions: Regions found so far, by their last node.
        misses: Near misses so far.
    """

    def __init__(
        self, producers: ProducerMap, ctx: Lowering, refused: Mapping[tuple[str, Node], str]
    ) -> None:
        self.regions: dict[Node, Region] = {}
        self.misses: list[MissedRegion] = []
        self._producers, self._ctx, self._refused = producers, ctx, refused
        self._region_of: dict[Node, Region] = {}

    def visit(self, node: Node) -> None:
        """Adds a region that ends with `node` if a fusion rule matches; records near misses."""
        yield_point()
        if node in self._region_of:
            return
        for rule in launch_fusions(type(node.op)):
            result = self._region(rule, node)
            if isinstance(result, Region):
                self.regions[node] = result
                self._region_of.update(dict.fromkeys(result.nodes, result))
                return
            if result is not None:
                self.misses.append(MissedRegion(rule.name, node, result.reason))

    def _region(self, rule: LaunchFusionRule, node: Node) -> Region | FusionMiss | None:
        """Tries a rule at a node; returns the region, a near miss, or None if it does not apply."""
        if (rule.name, node) in self._refused:
            return FusionMiss(self._refused[rule.name, node])
        try:
            match = rule.match(node, self._producers, self._ctx)
            if match is None or isinstance(match, FusionMiss):
                return match
            taken = next((n for n in match.nodes if n in self._region_of), None)
            if taken is not None:
                return FusionMiss(f"{taken} is in the region of {self._region_of[taken].node}")
            fused = rule.emit(match, self._ctx)
        except UnsupportedError as error:
            return FusionMiss(str(error))
        except ShapeError as error:
            raise reworded(error, f"{node}: {error}") from error
        launches = tuple(x for x in fused.launches if all(x.global_size))
        idle = (x.kernel for x in fused.launches if not all(x.global_size))
        return Region(
            match.nodes,
            rule.name,
            launches,
            precompiled_kernels=(*fused.precompiled_kernels, *idle),
        )
