"""Launch fusion: rules by which nodes that read each other share their launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from clrt.ir.graph import Node, Value
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.variant import Lowering

# The node that makes a value, of the nodes that a plan launches kernels for.
Makers: TypeAlias = Mapping[Value, Node]


@dataclass(frozen=True)
class FusionMatch:
    """Nodes that a rule makes a region of.

    Attributes:
        nodes: Each behind those that it reads; the last is the one that was matched.
        facts: What the rule tells its `emit`.
    """

    nodes: tuple[Node, ...]
    facts: Any


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
class LaunchFusion:
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
    match: Callable[[Node, Makers, Lowering], FusionMatch | FusionMiss | None]
    emit: Callable[[FusionMatch, Lowering], RegionLaunches]


_RULES: dict[str, LaunchFusion] = {}


def register_fusion(rule: LaunchFusion) -> LaunchFusion:
    """Makes a rule known to planning."""
    assert rule.name not in _RULES
    _RULES[rule.name] = rule
    return rule


def launch_fusions() -> list[LaunchFusion]:
    """All rules, those of most nodes first."""
    return sorted(_RULES.values(), key=lambda r: (-r.size, r.name))
