"""Data of an explanation: rows of nodes, graph break and passes."""

from __future__ import annotations

from dataclasses import asdict

from clrt.plan.memory import Memory
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class KernelUse:
    """One kernel launch in an explanation.

    Attributes:
        entry: Entry point of the kernel.
        source: Source file of the kernel.
        global_size: Work-items per dimension.
        tunables: Value of each `T_` macro, by name.
        record: Tuning record with the values in `tunables`; "" for a kernel without tunables.
    """

    entry: str
    source: str
    global_size: tuple[int, ...]
    tunables: dict[str, int]
    record: str


@dataclass(frozen=True)
class NodeRow:
    """One node of a plan in an explanation.

    Attributes:
        name: Name of the node.
        op: Name of its op.
        where: "device", "host" or "view" (the output shares its input's memory and nothing runs).
        why: Why the node runs there and by this variant.
        variant: Name of the chosen variant; "" if there is none.
        rejected: Reasons against alternatives: reject reasons of variants, predicted times of
            slower variants, why launch fusions missed, and why subviews are copied.
        kernels: The node's launches.
        origins: The ONNX nodes that the node stands for.
        made_by: The pass that created the node; "" for a node of the file.
        read_bytes: Bytes that the node's launches read.
        written_bytes: Bytes that the node's launches write.
        scratch_bytes: Bytes of scratch that the node's launches use.
        flops: Number of floating-point operations; 0 for ops that do not count operations.
        outputs: Name and type of each output, as one string.
        memory: Which value's memory the output shares, in words; "" if it shares none.
    """

    name: str
    op: str
    where: str
    why: str
    variant: str
    rejected: tuple[str, ...]
    kernels: tuple[KernelUse, ...]
    origins: tuple[str, ...]
    made_by: str
    read_bytes: int
    written_bytes: int
    scratch_bytes: int
    flops: int
    outputs: tuple[str, ...]
    memory: str


@dataclass(frozen=True)
class BreakRow:
    """A graph break in an explanation: the plan ends, since later nodes depend on computed data.

    Attributes:
        node: First node at the break, as text, and the number of further nodes at it.
        why: Why that node needs the host.
        reads: Names of the values that the host reads.
        ops_after: Number of nodes after the break, by op.
    """

    node: str
    why: str
    reads: tuple[str, ...]
    ops_after: dict[str, int]


@dataclass(frozen=True)
class PassRow:
    """Matches and near misses of a graph pass.

    Attributes:
        name: Name of the pass.
        hits: Names of the nodes that the pass rewrote.
        misses: (name, reason) of each node that the pass nearly matched.
    """

    name: str
    hits: tuple[str, ...]
    misses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Findings:
    """The data of an explanation of a plan.

    Attributes:
        device: Name of the device.
        shapes: Input shapes of the plan by name.
        rows: One row per node, in order of execution.
        folded: Names of nodes whose outputs were known at planning (shape arithmetic).
        graph_break: Graph break at the end of the plan; None if the plan covers the graph.
        memory: Memory that a run needs.
        passes: Matches and near misses of the graph passes.
        unoptimized: Entry points of the kernels whose programs are compiled without optimization
            so far, while optimized ones are compiled in the background.
    """

    device: str
    shapes: dict[str, tuple[int, ...]]
    rows: tuple[NodeRow, ...]
    folded: tuple[str, ...]
    graph_break: BreakRow | None
    memory: Memory
    passes: tuple[PassRow, ...]
    unoptimized: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """Number of floating-point operations in a run of the plan."""
        return sum(r.flops for r in self.rows)

    @property
    def launches(self) -> int:
        """Number of kernel launches in a run of the plan."""
        return sum(len(r.kernels) for r in self.rows)

    def to_dict(self) -> dict[str, object]:
        """Returns the findings as a dict for JSON, with totals of FLOPs and launches."""
        sums = {"memory": self.memory.to_dict(), "flops": self.flops, "launches": self.launches}
        return {**asdict(self), **sums}
