"""Steps of a plan: launches on the device, or a node on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from clrt.ir.graph import Node, Value
from clrt.kernels.spec import KernelSpec, Launch, Scratch
from clrt.util.fast_dataclass import dataclass
from clrt.util.renamed import renamed


@renamed(also="precompiled_kernels")
@dataclass(frozen=True)
class DeviceStep:
    """Kernel launches that compute a node; launches that compute several nodes are a `Region`.

    Attributes:
        nodes: The computed node as a tuple; for a region, all nodes of the region.
        variant: Name of the kernel variant.
        launches: Launches in execution order.
        rejected: Names and reject reasons of the variants that were tried before.
        precompiled_kernels: Kernels that the step launches at other input shapes only, to be
            compiled in advance.
    """

    nodes: tuple[Node, ...]
    variant: str
    launches: tuple[Launch, ...]
    rejected: tuple[str, ...] = ()
    precompiled_kernels: tuple[KernelSpec, ...] = ()

    @property
    def node(self) -> Node:
        """The computed node; for a region, its last node."""
        return self.nodes[-1]

    def work(self) -> Iterator[tuple[Launch, Node, tuple[Node, ...]]]:
        """Yields each launch, the node it is attributed to, and the nodes that it computes.

        The first launch that has a node's output as an argument is the one that computes the node.
        A launch is attributed to the first node that it computes. If a launch computes no node, it
        is attributed to the node that is computed next.
        """
        remaining = list(self.nodes)
        for launch in self.launches:
            buffers = set(launch.buffers)
            computed = tuple(n for n in remaining if not buffers.isdisjoint(n.outputs))
            node = next(iter((*computed, *remaining)), self.node)
            remaining = [n for n in remaining if n not in computed]
            yield launch, node, computed

    def launches_of(self, node: Node) -> list[Launch]:
        """Returns the launches of this step that are attributed to a node (see `work`)."""
        return [launch for launch, attributed, _ in self.work() if attributed is node]


@dataclass(frozen=True)
class Region(DeviceStep):
    """Fused launches that compute several nodes.

    Attributes:
        nodes: The nodes in topological order.
        variant: Name of the `LaunchFusionRule`.
    """


@dataclass(frozen=True)
class HostStep:
    """A node that runs its NumPy reference on the host.

    Attributes:
        node: The node.
        reason: Why no kernel variant applies.
    """

    node: Node
    reason: str

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The node, as a tuple of one element."""
        return (self.node,)


PlanStep: TypeAlias = "DeviceStep | HostStep"


def launches_of(steps: Iterable[PlanStep]) -> list[Launch]:
    """Returns the launches of all device steps, in execution order."""
    return [x for s in steps if isinstance(s, DeviceStep) for x in s.launches]


# What the arena allocates: the buffer of a value, or a kernel's scratch buffer.
Placed: TypeAlias = "Value | Scratch"
