"""`GraphBreak`: the point of a graph at which the host must read data before planning goes on."""

from __future__ import annotations

from clrt.ir.graph import Graph, Node
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class GraphBreak:
    """Split of a graph at nodes that depend on data which the host must read first.

    Attributes:
        nodes: Nodes whose output shape or kernel depends on the data; independent of each other.
        reads: Names of the values that the host reads: inputs or outputs of the graph before the
            break.
        known: Names among `reads` that become constants of the suffix.
        host_driven: Nodes among `nodes` that the host executes: control flow, such as Loop, and
            nodes with data-dependent output shapes, such as NonZero.
        suffix: Graph of the remaining nodes. Its inputs are values of the graph before the break
            and outputs of the host-driven nodes.
    """

    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    known: tuple[str, ...]
    host_driven: tuple[Node, ...]
    suffix: Graph

    @property
    def title(self) -> str:
        """Name of the first node at the graph break and the number of other nodes, for messages."""
        more = len(self.nodes) - 1
        return f"{self.nodes[0]}{f' and {more} more' if more else ''}"
