"""Formats the report as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from .goals import Goal
from .results import Report
from .runtimes import ONNXRUNTIME
from .small_summary import BETTER, small_results, small_summaries

_GEMM_KINDS = {
    "model": "sizes of transformers",
    "odd": "sizes that are multiples of no tile",
    "skinny": "few rows times a matrix larger than the caches",
}


def all_tables(report: Report) -> Iterator[Table]:
    """Returns a table per section that has rows."""
    if report.limits:
        yield _limits(report)
    if report.models:
        yield _models(report)
    if report.nets:
        yield _nets(report)
    if report.small:
        yield _small(report)
        yield _small_summary(report)
    if report.small_failures:
        yield _small_failures(report)
    if report.generation:
        yield _generation(report)
    if report.encode:
        yield _encode(report)
    if report.gemm:
        yield from _gemm(report)
    if report.kernels:
        yield _kernels(report)
    for runtime, rows in groupby(report.launches, key=lambda r: r.runtime):
        yield _launches(runtime, list(rows))
    if report.convolutions:
        yield _convolutions(report)
    if report.memory:
        yield _memory(report)
    if report.startup:
        yield _startup(report)
    if report.processes:
        yield _processes(report)
        yield _new_shapes(report)
    if report.neighbours:
        yield _neighbours(report)
    if report.programs:
        yield _programs(report)
    if report.install:
        yield _install(report)
    if report.left:
        yield _left(report)


def goal_table(goals: Sequence[Goal]) -> Table:
    """Each goal with the figure that decides, and each device's own."""
    table = _table("goals: the worst case, each on the better device", "goal", "bound", "measured")
    table.add_column("floor there", justify="right")
    table.add_column("worst case")
    table.add_column("each device by itself")
    table.caption = "floor: products alone, at the best speed seen; best GEMM: by multiply-adds"
    for goal in goals:
        case, value = goal.headline
        sign = "≤" if goal.at_most else "≥"
        colour = "green" if goal.is_met else "red"
        mine = ", ".join(f"{_short(d)} {_number(v, goal.bound)}" for d, v in goal.by_device.items())
        table.add_row(
            goal.name,
            f"{sign} {_number(goal.bound, goal.bound)}",
            Text(_number(value, goal.bound), colour),
            _number(goal.floors[case], goal.bound) if case in goal.floors else "",
            case,
            mine,
        )
    return table


def _limits(report: Report) -> Table:
    table = _table(
        "limits",
        "device",
        "multiply-add GFLOP/s",
        "matrix unit, float32 GFLOP/s",
        "best GEMM GFLOP/s",
        "copy GB/s, clEnqueueCopyBuffer",
        "copy GB/s, kernel",
        "read GB/s",
    )
    for r in report.limits:
        _add(
            table,
            r.runtime,
            f"{r.fma_gflops:.0f}",
            f"{r.unit_gflops:.0f}" if r.unit_gflops else "",
            f"{r.gemm_gflops:.0f} ({r.gemm_gflops / r.fma_gflops:.0%})",
            f"{r.copy_buffer_gbs:.1f}",
            f"{r.copy_kernel_gbs:.1f}",
            f"{r.read_gbs:.1f}",
        )
    return table


def _models(report: Report) -> Table:
    table = _table(
        "models, float32",
        "model",
        "batch x sequence",
        "runtime",
        "median ms",
        "best ms",
        "x ONNX Runtime",
        "x OpenVINO",
        "GFLOP/s",
        "of best GEMM",
        left=3,
    )
    for (model, shape), rows in groupby(report.models, key=lambda r: (r.model, r.shape)):
        for index, r in enumerate(rows):
            gflop = f" ({r.gflop:.2f} GFLOP)"
            _add(
                table,
                model if index == 0 else "",
                f"{shape}{gflop}" if index == 0 else "",
                r.runtime,
                f"{r.median_ms:.2f}",
                f"{r.best_ms:.2f}",
                _ratio(r.to_onnxruntime),
                _ratio(r.to_openvino),
                f"{r.gflops:.0f}",
                _share(r.ceiling_share),
            )
        table.add_section()
    return table


def _nets(report: Report) -> Table:
    columns = ("median ms", "x ONNX Runtime", "x OpenVINO", "largest error")
    table = _table("nets, float32", "net", "batch", "runtime", *columns, left=3)
    for (net, batch), rows in groupby(report.nets, key=lambda r: (r.net, r.batch)):
        for index, r in enumerate(rows):
            _add(
                table,
                net if index == 0 else "",
                str(batch) if index == 0 else "",
                r.runtime,
                f"{r.median_ms:.2f}",
                _ratio(r.to_onnxruntime),
                _ratio(r.to_openvino),
                f"{r.error:.0e}" if r.error is not None else "",
            )
        table.add_section()
    return table


def _small(report: Report) -> Table:
    devices = _small_devices(report)
    columns = [f"{_short(d)}\n{c}" for d in devices for c in ("ms", "x")]
    table = _table(
        "small nets, float32; x: time over ONNX Runtime's",
        "net",
        "ONNX Runtime ms",
        *columns,
        "largest error",
    )
    for r in small_results(report.small):
        cells = [
            cell for d in devices for cell in (_ms(r.times_ms.get(d)), _ratio(r.ratios.get(d)))
        ]
        error = f"{r.error:.0e}" if r.error is not None else ""
        _add(table, r.name, _ms(r.peer_ms), *cells, error)
    return table


def _small_summary(report: Report) -> Table:
    devices = [*_small_devices(report), BETTER]
    columns = [f"{_short(d)}\n{c}" for d in devices for c in ("mean", "worst")]
    title = "small nets: geometric mean of time over ONNX Runtime's, and the worst"
    table = _table(title, "ONNX Runtime's time", "nets", *columns)
    for g in small_summaries(report.small):
        cells: list[str] = []
        for d in devices:
            if d in g.ratios:
                worst, net = g.worst(d)
                cells += (_ratio(g.mean(d)), f"{worst:.2f} {net}")
            else:
                cells += ("", "")
        _add(table, g.label, str(g.count), *cells)
    return table


def _small_devices(report: Report) -> list[str]:
    return list(dict.fromkeys(r.runtime for r in report.small if r.runtime != ONNXRUNTIME))


def _small_failures(report: Report) -> Table:
    table = _table("small nets that were not measured", "net", "why", left=2)
    for name, reason in report.small_failures.items():
        _add(table, name, reason)
    return table


def _generation(report: Report) -> Table:
    columns = ("tokens", "runtime", "tokens/s", "x best peer")
    table = _table("generation, one text at a time", "model", "what", *columns, left=2)
    for (model, what, tokens), rows in groupby(
        report.generation, key=lambda r: (r.model, r.what, r.tokens)
    ):
        for r in rows:
            speeds = f"{r.tokens_per_s:.0f}", _ratio(r.to_best)
            _add(table, model, what, str(tokens), r.runtime, *speeds)
        table.add_section()
    return table


def _encode(report: Report) -> Table:
    table = _table(
        f"encode: {report.encode[0].texts} texts of mixed length",
        "runtime",
        "texts/s",
        "first pass",
        "x torch",
        "x ONNX",
        "least cosine to torch",
    )
    for r in report.encode:
        cosine = "" if r.least_cosine is None else f"{r.least_cosine:.7f}"
        speeds = f"{r.texts_per_s:.1f}", f"{r.first_texts_per_s:.1f}"
        _add(table, r.runtime, *speeds, _ratio(r.to_torch), _ratio(r.to_onnx), cosine)
    return table


def _gemm(report: Report) -> Iterator[Table]:
    """Products, devices side by side; those that memory bounds in a table of their own."""
    devices = [_short(d) for d in dict.fromkeys(r.runtime for r in report.gemm)]
    for kind, rows in groupby(report.gemm, key=lambda r: r.kind):
        names = ("B GB/s", "of a copy") if kind == "skinny" else ("of best GEMM", "of multiply-add")
        columns = [f"{d}\n{c}" for d in devices for c in ("GFLOP/s", *names)]
        table = _table(f"GEMM, {_GEMM_KINDS[kind]}", "MxNxK", *columns)
        for size, group in groupby(rows, key=lambda r: r.size):
            cells: list[str] = []
            for r in group:
                shares = _share(r.gemm_share), _share(r.fma_share)
                bound = f"{r.gbs:.1f}", _share(r.copy_share)
                cells += (f"{r.gflops:.0f}", *(bound if kind == "skinny" else shares))
            _add(table, size, *cells)
        yield table


def _kernels(report: Report) -> Table:
    table = _table(
        "memory-bound ops on tensors larger than the caches",
        "op",
        "shape",
        "device",
        "ms",
        "GB/s",
        "of a copy",
        left=3,
    )
    for r in report.kernels:
        _add(table, r.op, r.shape, r.runtime, f"{r.ms:.2f}", f"{r.gbs:.1f}", _share(r.copy_share))
    return table


def _launches(runtime: str, rows: list[Any]) -> Table:
    table = _table(
        f"MiniLM 8x128 on {runtime}, launch by launch",
        "op",
        "launches",
        "ms",
        "of the run",
        "GFLOP/s",
        "GB/s",
        "of the roofline",
    )
    for r in rows:
        rates = (f"{r.gflops:.0f}", f"{r.gbs:.1f}") if r.count else ("", "")
        _add(
            table,
            r.label,
            str(r.count or ""),
            f"{r.ms:.3f}",
            f"{r.time_share:.1%}",
            *rates,
            _share(r.limit_share),
        )
    return table


def _convolutions(report: Report) -> Table:
    """Those that lose time; the page has all."""
    table = _table(
        "convolutions below 75 % of the best product or 80 % of a copy",
        "device",
        "convolution",
        "kernel",
        "calls",
        "us",
        "GFLOP/s",
        "GB/s",
        "of",
        "share",
        "lost us",
        left=3,
    )
    for r in report.convolutions:
        if r.lost_us > 0:
            calls = sum(count for _, count in r.nets)
            figures = f"{r.us:.0f}", f"{r.gflops:.0f}", f"{r.gbs:.1f}", r.bound_by
            cells = (str(calls), *figures, _share(r.share), f"{r.lost_us:.0f}")
            _add(table, _short(r.runtime), r.geometry, r.algorithm, *cells)
    return table


def _memory(report: Report) -> Table:
    shape = report.memory[0].shape
    table = _table(f"peak resident memory, MiniLM {shape}", "runtime", "MiB", "over imports, MiB")
    for r in report.memory:
        _add(table, r.runtime, f"{r.peak_mib:.0f}", f"{r.over_imports_mib:.0f}")
    return table


def _install(report: Report) -> Table:
    (imports,) = report.imports
    title = f"installed; import clrt: {imports.ms:.0f} ms, {imports.modules} modules"
    table = _table(title, "what", "MiB", "what takes most, MiB")
    for r in report.install:
        most = ", ".join(f"{name} {mib:.0f}" for name, mib in r.packages)
        _add(table, r.runtime, f"{r.mib:.0f}", most)
    return table


def _left(report: Report) -> Table:
    table = _table(
        "resident memory, MiniLM, MiB",
        "runtime",
        "model of the process",
        "before load",
        "after a run",
        "after close",
        "left",
    )
    for r in report.left:
        sizes = (r.before_mib, r.running_mib, r.closed_mib, r.left_mib)
        _add(table, r.runtime, str(r.cycle), *(f"{s:.0f}" for s in sizes))
    return table


def _startup(report: Report) -> Table:
    shape = report.startup[0].shape
    table = _table(
        f"startup, MiniLM {shape}, seconds",
        "device",
        "caches",
        "import clrt",
        "load",
        "load to first result",
        "programs built",
        left=2,
    )
    for r in report.startup:
        seconds = (f"{s:.2f}" for s in (r.import_s, r.load_s, r.first_s))
        _add(table, r.runtime, r.caches, *seconds, str(r.builds))
    return table


def _processes(report: Report) -> Table:
    names = ("model", "start", "empty caches, s", "warm, s", "x ONNX Runtime")
    table = _table("process start to first result", *names, left=2)
    for r in report.processes:
        figures = (f"{r.empty_s:.2f}", f"{r.warm_s:.2f}", _ratio(r.to_onnxruntime))
        _add(table, r.model, r.start, *figures)
    return table


def _neighbours(report: Report) -> Table:
    names = ("device", "what", "times", "median ms", "p99 ms", "worst ms")
    table = _table("beside the rest of a program", *names, left=2)
    for r in report.neighbours:
        figures = (f"{x:.1f}" for x in (r.median_ms, r.p99_ms, r.worst_ms))
        _add(table, r.runtime, r.what, str(r.count), *figures)
    return table


def _programs(report: Report) -> Table:
    names = ("program", "pass", "runtime", "median ms", "in sessions", "x ONNX Runtime")
    table = _table("programs works only with ONNX Runtime", *names, left=3)
    for r in report.programs:
        figures = (f"{r.median_ms:.1f}", f"{r.session_ms:.1f}", _ratio(r.to_onnxruntime))
        _add(table, r.program, r.case, r.runtime, *figures)
    return table


def _new_shapes(report: Report) -> Table:
    table = _table(
        "new shapes in a warm process",
        "device",
        "shape",
        "first run, ms",
        "over its repeat, ms",
        "programs built",
        left=2,
    )
    for r in report.new_shapes:
        _add(table, r.runtime, r.shape, f"{r.first_ms:.1f}", f"{r.extra_ms:.1f}", str(r.builds))
    return table


def _table(title: str, *columns: str, left: int = 1) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(c) for c in cells))


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    """Returns milliseconds in three digits or more."""
    return "" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _short(device: str) -> str:
    return device.removeprefix("clrt ")


def _number(value: float, bound: float) -> str:
    """With as many decimals as the bound has, but two at least; whole where both are."""
    if value == int(value) and bound == int(bound):
        return f"{value:.0f}"
    return f"{value:.{max(2, len(str(bound).partition('.')[2]))}f}"
