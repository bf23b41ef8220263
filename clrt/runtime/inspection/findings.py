"""The data of an explanation: nodes, graph break, passes."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from clrt.plan.memory import Memory


@dataclass(frozen=True)
class KernelUse:
    """One launch of a kernel.

    Attributes:
        tunables: Its `T_` macros with their values.
        record: The tuning record they come from; "" for a kernel without tunables.
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
        why: Why it runs there and by this variant.
        variant: The kernel variant; "" where there is none.
        rejected: The reject reasons of variants, the costs of others that fit, why rules of
            launch fusion missed, and why a part is copied to where it belongs or lies.
        origins: The ONNX nodes it stands for.
        made_by: The pass that made it; "" for a node of the file.
        read_bytes, written_bytes, scratch_bytes: What its launches move: see `clrt.plan.traffic`.
        flops: Floating-point operations; 0 for ops that do not count them.
        outputs: Name and type of each.
        memory: The value whose memory the output shares, if it does.
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
        node: The first node whose output shape or kernel depends on it, and the number of others.
        why: What the host does for that node.
        reads: The values that the host reads.
        ops_after: The number of nodes of each op in the suffix.
    """

    node: str
    why: str
    reads: tuple[str, ...]
    ops_after: dict[str, int]


@dataclass(frozen=True)
class PassRow:
    """What a graph pass did.

    Attributes:
        hits: The nodes that it rewrote.
        misses: The nodes that it nearly rewrote, and why not.
    """

    name: str
    hits: tuple[str, ...]
    misses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Findings:
    """An explanation of the plan for some input shapes, as data.

    Attributes:
        rows: The nodes in the order in which they run.
        folded: Nodes whose outputs were known when the plan was made (shape arithmetic).
        graph_break: Where the plan ends before the graph does; None if nowhere.
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
        """Floating-point operations of all nodes."""
        return sum(r.flops for r in self.rows)

    @property
    def launches(self) -> int:
        """Kernel launches in a run."""
        return sum(len(r.kernels) for r in self.rows)

    def to_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        sums = {"memory": self.memory.to_dict(), "flops": self.flops, "launches": self.launches}
        return {**asdict(self), **sums}
