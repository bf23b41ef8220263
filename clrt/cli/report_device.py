"""The command `clrt report-device`: writes a report about a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from clrt.cli.console import stderr, stdout
from clrt.cli.shapes import DeviceOption
from clrt.runtime.opencl.devices import choose_device
from clrt.runtime.opencl.session import session_for
from clrt.tools.device_report import report_device as make_report
from clrt.util.files import atomic_write, check_targets
from clrt.util.table_text import PlainText

_WHERE = (
    "Attach it to a new issue of the project's issue tracker. It contains no names of users, "
    "machines or files; it is text, so you can check it first."
)


def report_device(
    device: DeviceOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path(
        "clrt-device.json"
    ),
) -> None:
    """Write a report about a device for the project: capabilities, self-test results, speed.

    Takes about ten seconds. The device should be otherwise idle.
    """
    check_targets({"--output": output}, suffixes={"--output": (".json",)})
    session = session_for(choose_device(device))
    report = make_report(session, lambda what: stderr().print(PlainText(f"{what} …", style="dim")))
    with atomic_write(output) as stream:
        stream.write((json.dumps(report, indent=1) + "\n").encode())
    for line in _summary(report):
        stdout().print(PlainText(line), soft_wrap=True)
    stdout().print(PlainText(f"Written to {output}. {_WHERE}"), soft_wrap=True)


def _summary(report: dict[str, Any]) -> list[str]:
    """Returns lines that summarize a device report: device, self-test, speed and deviations."""
    caps, measured, cases = report["device"], report["measured"], report["self_test"]
    right = sum(c["error"] <= c["limit"] and not c["note"] for c in cases)
    lines = [f"{caps['platform']}: {caps['name']}, driver {caps['driver']}"]
    lines.append(f"Self-test: {right} of {len(cases)} cases right")
    if "error" not in measured:
        lines.append(
            f"{measured['gflops']:.0f} GFLOP/s, {measured['gbs']:.0f} GB/s, a launch "
            f"{measured['launch_us']:.1f} us"
        )
    return [*lines, *report["deviations"]]
