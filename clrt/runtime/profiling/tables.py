"""Renders a profile as tables for a terminal."""

from __future__ import annotations

from rich.table import Table

from clrt.errors import counted
from clrt.runtime.profiling.timings import KernelSum, KernelTime, Timings
from clrt.util.table_text import PlainText, table_text


def tables_text(timings: Timings) -> str:
    """Returns a profile as text: a table of steps in order, and a table of kernels by time."""
    return table_text(step_table(timings), kernel_table(timings))


def step_table(timings: Timings) -> Table:
    """Returns a table of a profile with a row per launch and host step, in order of execution."""
    table = _table(f"{timings.model}: steps as run", ("#",), ("node", "kernel"))
    total = timings.step_ns
    for step in timings.steps:
        share = step.median_ns / total if total else 0.0
        figures = _figures(step) if isinstance(step, KernelTime) else ("", "", "")
        names = _cut(step.node), _cut(step.kernel)
        table.add_row(str(step.index), *names, _us(step.median_ns), _percent(share), *figures)
    return table


def kernel_table(timings: Timings) -> Table:
    """Returns a table of a profile with a row per kernel, slowest first.

    The table's caption states the main figures of the profile.
    """
    table = _table(f"{timings.model}: kernels, the slowest first", (), ("kernel",), ("calls",))
    for row in timings.by_kernel():
        cells = (str(row.calls), _us(row.ns), _percent(row.share), *_figures(row))
        table.add_row(_cut(row.kernel), *cells)
    table.caption = PlainText(headline(timings))
    return table


def headline(timings: Timings) -> str:
    """Returns the main figures of a profile as text: times, launches, gaps, peaks of the device."""
    quick = ""
    if timings.unoptimized:
        quick = (
            f" At first {timings.unoptimized} of them ran kernels that were compiled without "
            "optimization; Model.warmup waits for the optimized ones."
        )
    return (
        f"{timings.device}: {timings.wall_ms:.2f} ms a run (median of {timings.repeat}); "
        f"{counted(len(timings.kernels), 'launch', 'launches')}, "
        f"{counted(len(timings.host_steps), 'host step')}; under the "
        f"profiler {1e-6 * timings.run_ns:.2f} ms, {timings.gap_share:.0%} of it gaps. Peaks: "
        f"{timings.peaks.gflops:.0f} GFLOP/s, {timings.peaks.gbs:.0f} GB/s. {timings.sums}"
        f"{quick}"
    )


def _table(
    title: str, left: tuple[str, ...], names: tuple[str, ...], counts: tuple[str, ...] = ()
) -> Table:
    """Returns an empty table; columns for times and rates follow the given columns.

    Args:
        title: Title of the table.
        left: Headings of the first columns, aligned right.
        names: Headings of the columns for names.
        counts: Headings of the columns for counts.
    """
    table = Table(title=PlainText(title), title_justify="left", caption_justify="left")
    for column in left:
        table.add_column(column, justify="right", no_wrap=True)
    for column in names:
        table.add_column(column)
    for column in (*counts, "us", "share", "GFLOP/s", "GB/s", "of roof"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _figures(row: KernelTime | KernelSum) -> tuple[str, str, str]:
    gflops = f"{row.gflops:.1f}" if row.flops else ""
    share = _percent(row.roofline_share) if row.roofline_ns else ""
    return gflops, f"{row.gbs:.1f}" if row.nbytes else "", share


def _cut(name: str) -> PlainText:
    """Returns a table cell with a name that is cut to one line if the column is too narrow.

    `no_wrap` of the column itself would prevent the column from shrinking.
    """
    return PlainText(name, no_wrap=True, overflow="ellipsis")


def _us(ns: float) -> str:
    return f"{1e-3 * ns:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
