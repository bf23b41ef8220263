"""`clrt report-device`: the file is complete and holds no private data."""

from __future__ import annotations

import getpass
import json
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clrt.cli import app
from clrt.device.caps import DeviceCaps
from clrt.kernels.tuning_records import new_record, save
from clrt.runtime.opencl.peaks import LaunchTimes, Peaks
from clrt.runtime.selftest.cases import cases
from clrt.runtime.selftest.runner import Outcome, check_device
from clrt.tools import device_report
from clrt.tools.device_report import shown_to_others
from tests.harness import quick_device


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces measurements by constants and limits the self-test to softmax."""
    few = [c for c in cases() if c.family == "softmax"]
    monkeypatch.setattr(device_report, "check_device", lambda session: check_device(session, few))
    monkeypatch.setattr(device_report, "peaks_of", lambda session: Peaks(5.0, 6.0, ((64, 7.0),)))
    monkeypatch.setattr(device_report, "launch_times", lambda session: LaunchTimes(1e-6, 1e-5))
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path / "cache"))


def _report(path: Path) -> str:
    arguments = ["report-device", "--device", str(quick_device().index), "--output", str(path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "issue" in done.stdout and path.name in done.stdout and "1 of 1" in done.stdout
    return path.read_text("utf-8")


def test_report_has_device_driver_selftest_and_tuning(tmp_path: Path) -> None:
    caps = quick_device().caps
    save([new_record("softmax_cpu", caps, {"T_ROWS": 2})])
    found = json.loads(_report(tmp_path / "device.json"))
    assert DeviceCaps.from_json(json.dumps(found["device"])) == caps
    assert found["driver"]["version"].startswith("OpenCL ")
    assert found["takes"]["OpenCL C 3.0"] == (caps.opencl_c >= (3, 0))
    assert set(found["quirks"]) == caps.quirks
    assert [case["kernels"] for case in found["self_test"]] == [["softmax_cpu"]]
    assert found["measured"]["gbs"] == 6 and found["measured"]["launch_us"] == pytest.approx(1)
    (record,) = found["tuned"]
    assert (record["kernel"], record["tunables"]["T_ROWS"]) == ("softmax_cpu", 2)


def test_report_omits_host_name_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = f"cc1: /home/{getpass.getuser()}/x.cl:3: no 'half' on {socket.gethostname()}"
    failed = Outcome("softmax", ("softmax_cpu",), 0.0, 0.1, note)
    right = Outcome("softmax", ("softmax_cpu",), 0.0, 0.1)
    monkeypatch.setattr(device_report, "check_device", lambda session: (right, failed))
    arguments = ["report-device", "--device", str(quick_device().index)]
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, arguments).exit_code == 0
    text = (tmp_path / "clrt-device.json").read_text("utf-8")
    for private in (socket.gethostname(), os.path.expanduser("~"), str(tmp_path), "x.cl"):
        assert private not in text
    assert "does not run: softmax" in json.loads(text)["deviations"]


def test_paths_are_redacted_from_messages() -> None:
    text = r"bad half at C:\Users\me\k.cl:3 and /tmp/k.cl, line 3"
    assert shown_to_others(text) == "bad half at …:3 and …, line 3"
