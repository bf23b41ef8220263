"""The lab's report as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from clrt.util.formatting import format_bytes

from .products import KINDS

Stages: TypeAlias = "Mapping[str, Mapping[str, Mapping[str, Any]]]"
_LIBRARIES = ("clrt", "torch", "CLBlast")


def page(found: Stages) -> str:
    """Returns the page of all results so far."""
    report = found.get("device", {}).get("report", {})
    parts = [*_device(report), *_tests(found.get("tests", {})), *_tuning(found.get("tuning", {}))]
    parts += [*_models(found.get("models", {})), *_products(found.get("products", {}))]
    return "\n".join([*parts, *_failures(found)]).rstrip("\n") + "\n"


def _device(report: Mapping[str, Any]) -> Iterator[str]:
    if "device" not in report:
        yield "# An unknown device\n"
        return
    caps, measured = report["device"], report["measured"]
    yield f"# {caps['name']}\n"
    yield "Made by `tools/gpu_lab.py`. Times are medians on a device that did nothing else.\n"
    yield _row("", "")
    yield "|---|---|"
    yield _row("platform, driver", f"{caps['platform']}, {caps['driver']}")
    yield _row("OpenCL", report["driver"].get("version", ""))
    yield _row("clrt, date", f"{report['clrt']}, {report['date']}")
    memory = format_bytes(caps["global_mem_bytes"])
    yield _row("units, memory", f"{caps['compute_units']}, {memory}")
    if "error" not in measured:
        rates = f"{measured['gflops']:.0f} GFLOP/s, {measured['gbs']:.0f} GB/s"
        yield _row("measured", f"{rates}, a launch {measured['launch_us']:.1f} us")
    cases = report["self_test"]
    right = sum(c["error"] <= c["limit"] and not c["note"] for c in cases)
    yield _row("self-test", f"{right} of {len(cases)} cases right")
    yield _row("takes", ", ".join(n for n, taken in report["takes"].items() if taken))
    yield _row("deviations", "; ".join(report["deviations"]) or "none")
    yield ""


def _tests(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    counted = [run for run in found.values() if "passed" in run and not run["note"]]
    if not counted:
        return
    passed, failed, skipped = (sum(r[k] for r in counted) for k in ("passed", "failed", "skipped"))
    yield "## Op tests\n"
    yield f"{len(counted)} runs: {passed} passed, {failed} failed, {skipped} skipped.\n"
    names = [name for run in counted for name in run["failures"]]
    yield from (f"- `{name}`" for name in names)
    yield from ([""] if names else [])


def _tuning(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [(name, k) for name, run in found.items() for k in run.get("kernels", ())]
    if not rows:
        return
    yield "## Tuning\n"
    yield _row("Case", "Kernel", "Before", "After", "Time")
    yield "|---|---|---|---|---:|"
    for name, kernel in rows:
        before, after = (_tunables(kernel[when]) for when in ("before", "after"))
        shown = after if after != before else "="
        yield _row(name, f"`{kernel['kernel']}`", before, shown, f"{kernel['ratio']:.2f}")
    yield ""


def _models(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = {name: run for name, run in found.items() if "device_ms" in run}
    if not rows:
        return
    yield "## Models\n"
    yield "*launches* is what they take on the device, *run* a call from arrays to arrays.\n"
    titles = ("Launches", "launches, ms", "GFLOP/s", "run, ms", "torch fp32", "torch fp16")
    yield _row("Model", *titles)
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, run in rows.items():
        speed = 1e3 * run["gflop"] / run["device_ms"]
        torch = (_number(run["torch"].get(kind)) for kind in ("fp32", "fp16"))
        times = _number(run["device_ms"]), f"{speed:.0f}", _number(run.get("run_ms"))
        yield _row(name, run["launches"], *times, *torch)
    yield ""


def _products(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = {size: run["gflops"] for size, run in found.items() if "gflops" in run}
    if not rows:
        return
    yield "## Products of square matrices, GFLOP/s\n"
    yield _row("Size", *(f"{library} {kind}" for kind in KINDS for library in _LIBRARIES))
    yield f"|---|{'---:|' * len(KINDS) * len(_LIBRARIES)}"
    for size, speeds in rows.items():
        cells = (speeds.get(library, {}).get(k) for k in KINDS for library in _LIBRARIES)
        yield _row(size, *(f"{speed:.0f}" if speed else "" for speed in cells))
    yield ""


def _failures(found: Stages) -> Iterator[str]:
    """Lists failed items and their errors."""
    notes = [
        f"- {stage}, {name}: {why}"
        for stage, runs in found.items()
        for name, run in runs.items()
        if (why := run.get("error") or run.get("note"))
    ]
    if notes:
        yield "## What did not run\n"
        yield from notes


def _tunables(values: Mapping[str, int]) -> str:
    return " ".join(f"{name.removeprefix('T_')}={value}" for name, value in values.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
