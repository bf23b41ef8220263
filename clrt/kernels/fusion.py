"""Launch fusion: rules by which nodes that read each other share their launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.variant import Lowering


class ProducerMap(dict[Value, Node]):
    """The node that makes a value, of the nodes that a plan launches kernels for.

    Attributes:
        readers: The nodes of the graph, views among them, that read each value, as often as they
            do; None for an output of the graph.
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

    def is_only_read_by(self, nodes: Collection[Node], value: Value) -> bool:
        """Whether only these nodes read a value."""
        return all(reader in nodes for reader in self.readers[value])


@dataclass(frozen=True)
class FusionMatch:
    """Nodes that a rule makes a region of.

    Attributes:
        nodes: Each behind those that it reads; the last is the one that was matched.
        payload: What the rule tells its `emit`.
    """

    nodes: tuple[Node, ...]
    payload: Any


@dataclass(frozen=True)
class FusionMiss:
    """Why nodes that look like a region of a rule are none."""

    reason: str


@dataclass(frozen=True)
class RegionLaunches:
    """What a rule makes of a region.

    Attributes:
        also: Kernels that the region launches at other shapes only.
    """

    launches: list[Launch]
    also: tuple[KernelSpec, ...] = ()


@dataclass(frozen=True)
class LaunchFusionRule:
    """A rule; it lives beside the kernels that it launches.

    Attributes:
        size: How many nodes it takes. Of the rules that match a node, the one of most nodes holds.
        match: What the rule finds where `node` is the last of the region, seen over use-def edges;
            None where the node is not its business. An UnsupportedError is a miss, too. Whether it
            matches depends on no size that changes from call to call.
        emit: The launches. They and `also` have the same kernels at all shapes, or a new shape
            would compile some. Whatever a node reads has been read once the first launch ends that
            names its output.
    """

    name: str
    size: int
    match: Callable[[Node, ProducerMap, Lowering], FusionMatch | FusionMiss | None]
    emit: Callable[[FusionMatch, Lowering], RegionLaunches]


_RULES: dict[str, LaunchFusionRule] = {}


def register_fusion(rule: LaunchFusionRule) -> LaunchFusionRule:
    """Makes a rule known to planning."""
    assert rule.name not in _RULES
    _RULES[rule.name] = rule
    return rule


def launch_fusions() -> list[LaunchFusionRule]:
    """All rules, those of most nodes first."""
    return sorted(_RULES.values(), key=lambda r: (-r.size, r.name))
