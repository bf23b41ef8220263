"""An explanation as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.console import Group
from rich.table import Table

from clrt.errors import counted
from clrt.inspection.findings import BreakRow, Findings, KernelUse, NodeRow, PassRow
from clrt.printing import PlainText, table_text
from clrt.units import format_bytes, format_flops, format_shapes

_MAX_ORIGINS = 6
_STYLES = {"device": "", "host": "yellow", "view": "dim"}


def as_text(findings: Findings) -> str:
    """The tables as plain text."""
    return table_text(explanation_tables(findings))


def explanation_tables(findings: Findings) -> Group:
    """The summary, the nodes, the graph break, the kernels and the passes."""
    parts: list[PlainText | Table] = [PlainText(line) for line in _summary(findings)]
    parts.append(_node_table(findings.rows))
    if findings.graph_break is not None:
        parts += [PlainText(line, style="yellow") for line in _break_lines(findings.graph_break)]
    parts += [_kernel_table(findings.rows), _pass_table(findings.passes)]
    return Group(*parts)


def _summary(findings: Findings) -> Iterator[str]:
    rows = findings.rows
    on_host = sum(r.where == "host" for r in rows)
    yield f"{format_shapes(findings.shapes)} on {findings.device}"
    yield (
        f"{counted(len(rows), 'node')}, "
        f"{counted(findings.launches, 'kernel launch', 'kernel launches')}, "
        f"{counted(on_host, 'node')} on the host, "
        f"{format_flops(findings.flops)}"
    )
    yield f"memory {findings.memory}"
    if findings.folded:
        yield f"known when planned, so never run: {counted(len(findings.folded), 'node')}"


def _node_table(rows: tuple[NodeRow, ...]) -> Table:
    table = Table()
    table.add_column("node", overflow="fold")
    table.add_column("runs as", overflow="fold")
    table.add_column("why", overflow="fold")
    table.add_column("stands for", overflow="fold")
    table.add_column("gives", overflow="fold")
    table.add_column("cost", justify="right", no_wrap=True)
    for row in rows:
        cells: list[Iterable[str]] = [
            (row.op, row.name),
            _runs(row),
            _reasons(row),
            _origins(row),
            filter(None, [*row.outputs, row.memory]),
            _cost(row),
        ]
        table.add_row(
            *(PlainText.stacked(*c) for c in cells), style=_STYLES[row.where], end_section=True
        )
    return table


def _runs(row: NodeRow) -> list[str]:
    if row.where != "device":
        return ["on the host" if row.where == "host" else "view"]
    counts = Counter(use.entry for use in row.kernels)
    entries = (f"{n} x {e}" if n > 1 else e for e, n in counts.items())
    return [f"variant {row.variant}", *entries]


def _kernel_table(rows: tuple[NodeRow, ...]) -> Table:
    """Each kernel once, with its tunables and the record they come from."""
    table = Table(title="kernels")
    table.add_column("kernel", overflow="fold")
    table.add_column("launches", justify="right", no_wrap=True)
    table.add_column("tunables", overflow="fold")
    table.add_column("from", overflow="fold")
    counts = Counter((u.entry, _values(u), u.record) for r in rows for u in r.kernels)
    for (entry, values, record), launches in counts.most_common():
        table.add_row(*map(PlainText, (entry, str(launches), values, record)))
    return table


def _values(use: KernelUse) -> str:
    return " ".join(f"{name}={value}" for name, value in use.tunables.items())


def _reasons(row: NodeRow) -> Iterator[str]:
    yield row.why
    yield from (f"not {reason}" for reason in row.rejected)


def _origins(row: NodeRow) -> list[str]:
    names = [*row.origins[:_MAX_ORIGINS]]
    if len(row.origins) > _MAX_ORIGINS:
        names.append(f"and {len(row.origins) - _MAX_ORIGINS} more")
    return [*names, f"(by {row.made_by})"] if row.made_by else names


def _cost(row: NodeRow) -> Iterator[str]:
    if row.read_bytes or row.written_bytes:
        yield f"reads {format_bytes(row.read_bytes)}"
        yield f"writes {format_bytes(row.written_bytes)}"
    if row.scratch_bytes:
        yield f"scratch {format_bytes(row.scratch_bytes)}"
    if row.flops:
        yield format_flops(row.flops)


def _break_lines(graph_break: BreakRow) -> Iterator[str]:
    reads = ", ".join(f"%{name}" for name in graph_break.reads) or "nothing"
    yield f"Here the plan ends, at {graph_break.node}: {graph_break.why}."
    after = ", ".join(f"{n} {op}" for op, n in graph_break.ops_after.items()) or "nothing"
    yield f"The host reads {reads}; planned once that is known: {after}."


def _pass_table(passes: tuple[PassRow, ...]) -> Table:
    table = Table(title="graph passes")
    table.add_column("pass", overflow="fold")
    table.add_column("hits", justify="right", no_wrap=True)
    table.add_column("near misses", overflow="fold")
    for row in passes:
        if row.hits or row.misses:
            cells = ([row.name], [str(len(row.hits))], _misses(row))
            table.add_row(*(PlainText.stacked(*c) for c in cells))
    return table


def _misses(row: PassRow) -> Iterator[str]:
    """One line per reason, with its count and the first node."""
    counts = Counter(reason for _, reason in row.misses)
    first = {reason: node for node, reason in reversed(row.misses)}
    for reason, count in counts.most_common():
        more = f" and {count - 1} more" if count > 1 else ""
        yield f"{first[reason]}{more}: {reason}"
