"""Renders a profile as one self-contained HTML page."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from clrt.errors import visible
from clrt.runtime.profiling.timings import KernelTime, Timings

_SLOT = "/*DATA*/"


def page_text(timings: Timings) -> str:
    """Returns a profile as an HTML page: a template with the profile's data inserted as JSON."""
    template = files("clrt.runtime.profiling").joinpath("page.html").read_text(encoding="utf-8")
    before, after = template.split(_SLOT)
    return before + script_json(_visible(page_data(timings))) + after


def script_json(data: Any) -> str:
    """Converts data to JSON that is safe inside a script element, whatever its strings contain.

    Strings, such as names from the model's file, may contain `</script>` or `<!--`, which would end
    or change the element, or U+2028, which would end the line.
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _visible(data: Any) -> Any:
    """Returns JSON-like data with all control characters in its strings replaced by visible text.

    Bidirectional control characters are replaced too.
    """
    if isinstance(data, str):
        return visible(data, lines=True)
    if isinstance(data, dict):
        return {_visible(key): _visible(value) for key, value in data.items()}
    return [_visible(one) for one in data] if isinstance(data, (list, tuple)) else data


def page_data(timings: Timings) -> dict[str, Any]:
    """Returns the data of a profile that its HTML page draws, as a dict for JSON."""
    return {
        "model": timings.model,
        "device": timings.device,
        "inputs": timings.inputs,
        "repeat": timings.repeat,
        "wallMs": timings.wall_ms,
        "runNs": timings.run_ns,
        "stepNs": timings.step_ns,
        "gapShare": timings.gap_share,
        "sums": timings.sums,
        "flops": timings.flops,
        "bytes": timings.nbytes,
        "peaks": asdict(timings.peaks),
        "kernels": [
            {**asdict(k), "gflops": k.gflops, "gbs": k.gbs, "roofline": k.roofline_share}
            for k in timings.by_kernel()
        ],
        "steps": [_step(s) for s in timings.steps],
        "gaps": [[g.start_ns, g.end_ns] for g in timings.gaps],
        "stages": [asdict(s) for s in timings.stages],
    }


def _step(step: Any) -> dict[str, Any]:
    data = {**asdict(step), "kernel": step.kernel}
    if isinstance(step, KernelTime):
        data.update(gflops=step.gflops, gbs=step.gbs, roofline=step.roofline_share)
    return data
