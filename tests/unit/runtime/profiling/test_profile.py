"""Profile sums, and output as tables, trace file and HTML page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from clrt.errors import visible
from clrt.runtime.profiling.page import page_text, script_json
from clrt.runtime.profiling.tables import headline
from clrt.runtime.profiling.timings import Gap
from tests.unit.runtime.profiling.made_up import NASTY, kernel, profile


def test_launch_speeds_and_roofline_share_are_computed() -> None:
    launch = kernel(0, "gemm", 60, 0, flops=3000, nbytes=100)
    assert (launch.gflops, launch.gbs) == pytest.approx((50, 100 / 60))
    assert launch.roofline_share == pytest.approx(0.5)
    idle = kernel(0, "gemm", 0, 0)
    assert (idle.gflops, idle.gbs, idle.roofline_share) == (0, 0, 0)


def test_kernel_times_are_summed_slowest_first() -> None:
    first, second, third = profile().by_kernel()
    assert (first.kernel, first.calls, first.share) == ("gemm", 1, 0.6)
    assert (second.kernel, second.calls, second.ns, second.nbytes) == ("copy", 2, 30, 400)
    assert second.gbs == pytest.approx(400 / 30)
    assert third.kernel == "host: NonZero"


def test_profile_gaps_and_steps_add_up_to_run_time() -> None:
    found = profile()
    assert found.gaps == (Gap(0, 20), Gap(80, 90), Gap(110, 150), Gap(170, 200))
    assert found.gap_share == pytest.approx(0.5)
    assert (found.step_ns, found.flops, found.nbytes) == (100, 3000, 500)


def test_profile_tables_list_steps_then_slowest_kernels() -> None:
    steps, kernels = str(profile()).split("calls")
    assert [name for name in ("node 0", "h ", "node 2", "node 3") if name not in steps] == []
    rows = [line for line in kernels.splitlines() if line.startswith("│")]
    assert "gemm" in rows[0] and "60.0 %" in rows[0]
    assert "0.25 ms a run" in kernels and "Fast [GPU]" in kernels


def test_trace_file_has_trace_event_fields(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profile().save_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert all({"name", "cat", "pid", "tid", "ts", "dur", "args"} <= set(e) for e in spans)
    assert {e["cat"] for e in spans} == {"kernel", "host", "gap"}
    gemm = next(e for e in spans if e["name"] == "gemm")
    assert (gemm["ts"], gemm["dur"]) == pytest.approx((0.02, 0.06))
    assert (gemm["args"]["flops"], gemm["args"]["bytes"]) == (3000, 100)
    assert (gemm["args"]["node"], gemm["args"]["origins"]) == ("node 0", ["one", NASTY])
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {0: "host gaps", 1: "stage 0"}


def test_profile_page_is_self_contained_and_escapes_names(tmp_path: Path) -> None:
    text = page_text(profile())
    assert text.count("</script>") == 2
    assert NASTY not in text and "alert('x')</script>" not in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    # The only address is the name of SVG's namespace, which nobody fetches.
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["model"] == visible(NASTY)


def test_script_json_is_escaped_and_round_trips() -> None:
    text = script_json({"name": NASTY})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": NASTY}


def test_profile_sums_explain_differences() -> None:
    made = profile()
    text = made.sums
    assert f"sum to {1e-6 * made.step_ns:.2f} ms" in text
    assert f"took {1e-6 * made.run_ns:.2f} ms" in text
    gaps = sum(g.end_ns - g.start_ns for g in made.gaps)
    whole = replace(made, run_ns=made.step_ns + gaps, wall_ms=1e-6 * (made.step_ns + gaps))
    assert ("more than it" in text or "less than it" in text) == (
        abs(made.step_ns + gaps - made.run_ns) > 0.02 * made.run_ns
    )
    slower = replace(whole, wall_ms=2 * whole.wall_ms)
    assert f"which times each launch, it is {slower.wall_ms:.2f} ms" in slower.sums
    assert made.sums in headline(made) and made.sums in page_text(made)
