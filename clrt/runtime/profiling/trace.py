"""Renders a profile in the trace event format of Chrome and Perfetto.

Source: "Trace Event Format", the JSON object form with complete ("X") and metadata ("M") events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from clrt.runtime.profiling.timings import HostTime, KernelTime, StepTime, Timings

Event: TypeAlias = "dict[str, Any]"

# Ids in the trace: of the process, and of the track that shows gaps. Tracks of plans start at 1.
_PROCESS = 1
_GAPS = 0


def trace_text(timings: Timings) -> str:
    """Returns a profile as a JSON trace: a track per plan, and a track for gaps between steps."""
    other = {
        "device": timings.device,
        "model": timings.model,
        "wall_ms": timings.wall_ms,
        "peak_gflops": timings.peaks.gflops,
        "peak_gbs": timings.peaks.gbs,
    }
    content = {
        "traceEvents": list(_events(timings)),
        "displayTimeUnit": "ns",
        "otherData": other,
    }
    return json.dumps(content)


def _events(timings: Timings) -> Iterator[Event]:
    """Yields the trace events of a profile: track names, gaps and steps."""
    yield _name("process_name", _GAPS, f"{timings.model} on {timings.device}")
    yield _name("thread_name", _GAPS, "host gaps")
    for stage in range(len(timings.stages)):
        yield _name("thread_name", 1 + stage, f"stage {stage}")
    for gap in timings.gaps:
        yield _span("gap", "gap", _GAPS, gap.start_ns, gap.end_ns, {})
    for step in timings.steps:
        kind = "kernel" if isinstance(step, KernelTime) else "host"
        yield _span(step.kernel, kind, 1 + step.stage, step.start_ns, step.end_ns, _args(step))


def _args(step: StepTime) -> Event:
    """Returns the details of a step that a trace viewer shows."""
    args: Event = {
        "node": step.node,
        "op": step.op,
        "origins": list(step.origins),
        "median_us": 1e-3 * step.median_ns,
    }
    if isinstance(step, HostTime):
        return {**args, "reason": step.reason}
    if isinstance(step, KernelTime):
        args.update(
            variant=step.variant,
            defines=dict(step.defines),
            global_size=list(step.global_size),
            shape=list(step.shape),
            flops=step.flops,
            bytes=step.nbytes,
            gflops=step.gflops,
            gbs=step.gbs,
            roofline_share=step.roofline_share,
        )
    return args


def _span(name: str, kind: str, track: int, start: float, end: float, args: Event) -> Event:
    """Returns a trace event from `start` to `end` in ns."""
    times = {"ts": 1e-3 * start, "dur": 1e-3 * (end - start)}
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        **times,
        "args": args,
    }


def _name(what: str, track: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}
