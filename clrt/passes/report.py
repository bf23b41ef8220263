"""Reports of pass runs: rewritten nodes and near misses."""

from __future__ import annotations

import sys
from dataclasses import field

from clrt.errors import counted, visible
from clrt.util.fast_dataclass import dataclass


@dataclass
class PassOutcome:
    """Record of one run of a pass.

    Attributes:
        name: Name of the pass.
        hits: Root nodes of the applied patches, as "Op 'name'".
        misses: Near misses at nodes that are still in the graph, as ("Op 'name'", reason).
        nodes_after: Number of nodes in the graph after the run.
        seconds: Duration of the run.
    """

    name: str
    hits: list[str] = field(default_factory=list)
    misses: list[tuple[str, str]] = field(default_factory=list)
    nodes_after: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.hits)} hits, {len(self.misses)} near misses, "
            f"{counted(self.nodes_after, 'node')} left, {self.seconds * 1e3:.1f} ms"
        )

    def explain(self) -> None:
        """Prints the rewritten nodes and near misses of the run to stderr."""
        print(self, file=sys.stderr)
        for hit in self.hits:
            print(f"  + {visible(hit)}", file=sys.stderr)
        for node, reason in self.misses:
            print(f"  - {visible(node)}: {visible(reason)}", file=sys.stderr)


@dataclass
class PassReport:
    """Records of all pass runs on a graph, for `model.explain()`.

    Attributes:
        records: One record per run, in order.
        patches: Total number of patches applied.
        stopped: Whether passes stopped at the limit of patches set by CLRT_MAX_PATCHES.
    """

    records: list[PassOutcome] = field(default_factory=list)
    patches: int = 0
    stopped: bool = False

    def append(self, later: PassReport) -> None:
        """Adds the records and the number of patches of a later report to this one."""
        self.records += later.records
        self.patches += later.patches

    @property
    def misses(self) -> list[tuple[str, str, str]]:
        """Near misses of the last run of each pass, as (pass name, node, reason)."""
        last = {r.name: r for r in self.records}
        return [(r.name, *miss) for r in last.values() for miss in r.misses]

    def __str__(self) -> str:
        lines = []
        for record in self.records:
            if not record.hits and not record.misses:
                continue
            lines.append(str(record))
            lines += [f"  - {node}: {reason}" for node, reason in record.misses]
        return "\n".join(lines)
