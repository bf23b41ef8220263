"""Data of an explanation: rows of nodes, graph break and passes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from clrt.plan.memory import Memory


@dataclass(frozen=True)
class KernelUse:
    """One launch of a kernel.

    Attributes:
        entry: Entry point.
        source: File of the kernel.
        global_size: Work-items per dimension.
        tunables: Values of its `T_` macros.
        record: Tuning record that the values come from; "" for a kernel without tunables.
    """

    entry: str
    source: str
    global_size: tuple[int, ...]
    tunables: dict[str, int]
    record: str


@dataclass(frozen=True)
class NodeRow:
    """One node of a plan.

    Attributes:
        where: "device", "host" or "view" (it shares its input's memory and nothing runs).
        why: Why the node runs there and by this variant.
        variant: The kernel variant; "" if there is none.
        rejected: Reject reasons of other variants, predicted costs of others that fit, reasons why
            launch fusions missed, and reasons why subviews are copied.
        kernels: The node's launches.
        origins: The ONNX nodes that the node stands for.
        made_by: The pass that created the node; "" for a node of the file.
        read_bytes, written_bytes, scratch_bytes: Bytes that its launches move; see
            `clrt.plan.traffic`.
        flops: Floating-point operations; 0 for ops that do not count them.
        outputs: Name and type of each output.
        memory: Text on the value whose memory the output shares; "" if it shares none.
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
    """A graph break: a plan ends because what follows depends on computed data.

    Attributes:
        node: First node whose output shape or kernel depends on the data, and the number of others.
        why: Why the node needs the host.
        reads: Names of the values that the host reads.
        ops_after: Number of nodes of each op in the suffix.
    """

    node: str
    why: str
    reads: tuple[str, ...]
    ops_after: dict[str, int]


@dataclass(frozen=True)
class PassRow:
    """Matches and near misses of a graph pass.

    Attributes:
        hits: Nodes that the pass rewrote.
        misses: Nodes that the pass nearly matched, each with the reason why not.
    """

    name: str
    hits: tuple[str, ...]
    misses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Findings:
    """An explanation of the plan for some input shapes, as data.

    Attributes:
        device: Name of the device.
        shapes: Input shapes by name.
        rows: Nodes in order of execution.
        folded: Names of nodes whose outputs were known at planning (shape arithmetic).
        graph_break: Break at the end of the plan; None if it covers the graph.
        memory: Memory that a run needs.
        passes: Matches and near misses of the graph passes.
    """

    device: str
    shapes: dict[str, tuple[int, ...]]
    rows: tuple[NodeRow, ...]
    folded: tuple[str, ...]
    graph_break: BreakRow | None
    memory: Memory
    passes: tuple[PassRow, ...]

    @property
    def flops(self) -> int:
        """Total floating-point operations."""
        return sum(r.flops for r in self.rows)

    @property
    def launches(self) -> int:
        """Number of kernel launches in a run."""
        return sum(len(r.kernels) for r in self.rows)

    def to_dict(self) -> dict[str, object]:
        """Returns the findings as a dict for JSON, with totals."""
        sums = {"memory": self.memory.to_dict(), "flops": self.flops, "launches": self.launches}
        return {**asdict(self), **sums}
