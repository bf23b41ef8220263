"""Renders an explanation as text: blocks of lines wrapped between words."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group

from clrt.errors import counted, visible
from clrt.runtime.inspection.findings import BreakRow, Findings, KernelUse, NodeRow, PassRow
from clrt.util.formatting import format_bytes, format_flops, format_shapes
from clrt.util.table_text import PlainText, fitting, table_width

# Maximum number of ONNX nodes listed per row.
_MAX_ORIGINS = 6
_STYLES = {"device": "", "host": "yellow", "view": "dim"}
# Maximum columns of a line, unless a single word is longer: names are never cut.
_WIDTH = 100
# Columns of a label, such as "runs as".
_LABEL = 14
_LEGEND = (
    "%name is a value of the graph. A predicted time is what clrt's cost model computes for a "
    "kernel variant on this device; nothing was measured."
)


def as_text(findings: Findings) -> str:
    """Returns an explanation as plain text."""
    return fitting("\n".join(line for line, _ in _lines(findings)))


def explanation_tables(findings: Findings) -> Group:
    """Returns an explanation as coloured text, for printing by rich."""
    return Group(
        *(
            PlainText(line, style, no_wrap=True, overflow="ignore")
            for line, style in _lines(findings)
        )
    )


def _lines(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yields each line of an explanation's text, with rich's name of its style ("" for none)."""
    for text in (*_summary(findings), _LEGEND):
        yield from ((line, "") for line in _wrapped(text))
    for row in findings.rows:
        style = _STYLES[row.where]
        yield from ((line, style) for line in ("", *_node_lines(row)))
    if findings.graph_break is not None:
        yield "", ""
        for text in _break_lines(findings.graph_break):
            yield from ((line, "yellow") for line in _wrapped(text))
    for block in (_kernel_lines(findings.rows), _pass_lines(findings.passes)):
        yield from ((line, "") for line in block)


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Wraps text between words; words that are longer than a line stay whole.

    Args:
        first: Prefix of the first line.
        rest: Prefix of the remaining lines.
    """
    return textwrap.wrap(
        visible(text),
        min(_WIDTH, table_width()),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _labelled(label: str, parts: Iterable[str]) -> Iterator[str]:
    """Yields the wrapped lines of some texts, with a label before the first line.

    Args:
        parts: Texts, each of which begins a new line.
    """
    blank = " " * (_LABEL + 2)
    for number, part in enumerate(parts):
        first = f"  {'' if number else label:{_LABEL}}"
        lines = _wrapped(part, first, blank)
        if any(len(line) > _WIDTH for line in lines):  # a long name fits better below its label
            if first.strip():
                yield first.rstrip()
            lines = _wrapped(part, "    ", "    ")
        yield from lines


def _summary(findings: Findings) -> Iterator[str]:
    """Yields the lines above the table: shapes, device, counts and memory."""
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
    if findings.unoptimized:
        yield f"compiled without optimization so far: {', '.join(findings.unoptimized)}"


def _node_lines(row: NodeRow) -> Iterator[str]:
    yield from _wrapped(f"{row.op} {row.name}", rest="  ")
    yield from _labelled("runs as", _runs(row))
    yield from _labelled("why", _reasons(row))
    yield from _labelled("stands for", _origins(row))
    yield from _labelled("gives", filter(None, [*row.outputs, row.memory]))
    yield from _labelled("cost", filter(None, [", ".join(_cost(row))]))


def _runs(row: NodeRow) -> list[str]:
    """Returns how a node runs: variant and kernels, host, or view."""
    if row.where != "device":
        return ["on the host" if row.where == "host" else "view"]
    counts = Counter(use.entry for use in row.kernels)
    entries = (f"{n} x {e}" if n > 1 else e for e, n in counts.items())
    return [f"variant {row.variant}", *entries]


def _kernel_lines(rows: Sequence[NodeRow]) -> Iterator[str]:
    """Yields lines on each kernel: number of launches, tunables and their tuning record."""
    counts = Counter((u.entry, _values(u), u.record) for r in rows for u in r.kernels)
    if counts:
        yield from ("", "Kernels", "")
    for (entry, values, record), launches in counts.most_common():
        yield from _wrapped(f"{entry}: {counted(launches, 'launch', 'launches')}")
        yield from _labelled("tunables", filter(None, [values]))
        yield from _labelled("from", filter(None, [record]))


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
    """Yields the bytes and operations of a node as texts."""
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


def _pass_lines(passes: Sequence[PassRow]) -> Iterator[str]:
    rows = [row for row in passes if row.hits or row.misses]
    if rows:
        yield from ("", "Graph passes", "")
    for row in rows:
        yield from _wrapped(f"{row.name}: {counted(len(row.hits), 'hit')}")
        yield from _labelled("near misses", _misses(row))


def _misses(row: PassRow) -> Iterator[str]:
    """Yields a text per reason for misses of a pass, with one node and the number of further nodes.

    Args:
        row: Matches and misses of the pass.
    """
    counts = Counter(reason for _, reason in row.misses)
    first = {reason: node for node, reason in reversed(row.misses)}
    for reason, count in counts.most_common():
        more = f" and {count - 1} more" if count > 1 else ""
        yield f"{first[reason]}{more}: {reason}"
