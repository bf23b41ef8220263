"""The steps of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from clrt.ir.graph import Node, Value
from clrt.kernels.spec import KernelSpec, Launch, Scratch


@dataclass(frozen=True)
class DeviceStep:
    """What runs on the device for a node.

    Attributes:
        nodes: The node.
        variant: Name of the kernel variant.
        rejected: Why earlier variants were not taken.
        also: Kernels that it launches at other shapes only.
    """

    nodes: tuple[Node, ...]
    variant: str
    launches: tuple[Launch, ...]
    rejected: tuple[str, ...] = ()
    also: tuple[KernelSpec, ...] = ()

    @property
    def node(self) -> Node:
        """The node, of several the last."""
        return self.nodes[-1]

    def work(self) -> Iterator[tuple[Launch, Node, tuple[Node, ...]]]:
        """Each launch, the node for which it counts, and the nodes that it makes.

        A node is made by the first launch that names its output. A launch counts for the first node
        that it makes, or else for the one that is made next.
        """
        left = list(self.nodes)
        for launch in self.launches:
            named = set(launch.buffers)
            made = tuple(n for n in left if not named.isdisjoint(n.outputs))
            node = next(iter((*made, *left)), self.node)
            left = [n for n in left if n not in made]
            yield launch, node, made

    def launches_of(self, node: Node) -> list[Launch]:
        """Those that count for a node."""
        return [launch for launch, counted, _ in self.work() if counted is node]


@dataclass(frozen=True)
class Region(DeviceStep):
    """Launches that do the work of several nodes.

    Attributes:
        nodes: Each behind those that it reads.
        variant: Name of the rule (`LaunchFusionRule`).
    """


@dataclass(frozen=True)
class HostStep:
    """A node that runs its NumPy reference on the host.

    Attributes:
        reason: Why no kernel variant fits.
    """

    node: Node
    reason: str

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The node."""
        return (self.node,)


PlanStep: TypeAlias = "DeviceStep | HostStep"


def launches_of(steps: Iterable[PlanStep]) -> list[Launch]:
    """All launches of some steps, in their order."""
    return [x for s in steps if isinstance(s, DeviceStep) for x in s.launches]


Placed: TypeAlias = "Value | Scratch"
