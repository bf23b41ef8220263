"""Launch fusion: rules that compute several dependent nodes (a region) in shared launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import IrOp
from clrt.ir.pattern import Captures, Pattern
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.variant import Lowering
from clrt.util.fast_dataclass import dataclass


class ProducerMap(dict[Value, Node]):
    """Maps each value to the kernel-launching node that produces it.

    Patterns of launch fusion rules follow these edges.

    Args:
        graph: The graph.
        nodes: The nodes that a plan launches kernels for.

    Attributes:
        readers: Maps each value to the nodes that read it, once per use, including views. The
            entry None stands for a use as graph output.
    """

    def __init__(self, graph: Graph, nodes: Iterable[Node]) -> None:
        super().__init__({v: n for n in nodes for v in n.outputs})
        self.readers: defaultdict[Value, list[Node | None]] = defaultdict(list)
        for node in graph.nodes:
            for value in node.inputs:
                if value is not None:
                    self.readers[value].append(node)
        for value in graph.outputs:
            self.readers[value].append(None)

    def producer(self, value: Value) -> Node | None:
        """Returns the kernel-launching node that computes a value; None if there is none."""
        return self.get(value)

    def only_user(self, value: Value) -> Node | None:
        """Returns the only node that reads `value`; None if it has several or is a graph output."""
        readers = set(self.readers[value])
        return next(iter(readers)) if len(readers) == 1 else None

    def is_only_read_by(self, nodes: Collection[Node], value: Value) -> bool:
        """Returns whether `value` is read by `nodes` alone and is not a graph output."""
        return all(reader in nodes for reader in self.readers[value])


@dataclass(frozen=True)
class FusionMatch:
    """Nodes that a launch fusion rule fuses into a region.

    Attributes:
        nodes: The nodes in topological order; the last one is the node that the rule visited.
        payload: Data that the rule's `match` passes to its `emit`.
    """

    nodes: tuple[Node, ...]
    payload: Any


@dataclass(frozen=True)
class FusionMiss:
    """A near miss: the nodes resemble a region of a rule but cannot be fused.

    Attributes:
        reason: Why the nodes cannot be fused, as a clause for `clrt explain`.
    """

    reason: str


@dataclass(frozen=True)
class RegionLaunches:
    """Launches of a region of fused nodes.

    Attributes:
        launches: Launches in execution order.
        precompiled_kernels: Kernels that the region launches at other shapes only; compiled with
            the plan.
    """

    launches: list[Launch]
    precompiled_kernels: tuple[KernelSpec, ...] = ()


@dataclass(frozen=True)
class LaunchFusionRule:
    """A rule that fuses the launches of several nodes.

    Attributes:
        name: Unique name, shown by `clrt explain`.
        size: Number of nodes of a region. If several rules match a node, the largest one is used.
        last: Op classes of the last node of a region, of which nodes of subclasses count too.
        match: Tries to match a region whose last node is the given one. Returns None if the rule
            does not apply; a raised UnsupportedError counts as a miss. The result must not depend
            on sizes that vary from call to call.
        emit: Returns the launches of a matched region. Their kernels plus `precompiled_kernels`
            must be the same at all shapes, so that a new shape needs no compilation. Launches after
            the first one that accesses a node's output must not read the node's inputs.
    """

    name: str
    size: int
    last: tuple[type[IrOp], ...]
    match: Callable[[Node, ProducerMap, Lowering], FusionMatch | FusionMiss | None]
    emit: Callable[[FusionMatch, Lowering], RegionLaunches]


def by_pattern(
    pattern: Pattern, lower: Callable[[Captures, Lowering], Any]
) -> Callable[[Node, ProducerMap, Lowering], FusionMatch | FusionMiss | None]:
    """Returns the `match` of a rule whose region is all nodes that a pattern matches.

    Args:
        pattern: Pattern of the output of the region's last node.
        lower: Returns the payload for `emit`, or a near miss; may raise UnsupportedError.
    """

    def match(node: Node, makers: ProducerMap, ctx: Lowering) -> FusionMatch | FusionMiss | None:
        found = pattern.find(node.output, makers)
        if not isinstance(found, Captures):
            return None if found is None else FusionMiss(found)
        payload = lower(found, ctx)
        is_miss = isinstance(payload, FusionMiss)
        return payload if is_miss else FusionMatch(tuple(found.nodes), payload)

    return match
