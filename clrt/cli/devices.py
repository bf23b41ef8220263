"""The command `clrt devices`: lists the OpenCL devices of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from clrt.cli.console import echo_json, say_error, stderr, stdout
from clrt.errors import counted
from clrt.runtime.opencl.devices import DeviceInfo, no_device_text
from clrt.runtime.opencl.devices import devices as find_devices
from clrt.runtime.opencl.icd_loader import load_failure
from clrt.util.formatting import format_bytes
from clrt.util.table_text import PlainText


def devices(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list, one object per device.")
    ] = False,
) -> None:
    """List the OpenCL devices of this machine and what clrt knows about each."""
    found = find_devices()
    if as_json:
        echo_json([_as_object(d) for d in found], indent=1)
    elif found:
        stdout().print(device_table(found))
    if not any(d.is_default for d in found):
        say_error(no_device_text(found))
        raise typer.Exit(1)
    if (failure := load_failure()) and not as_json:
        stderr().print(PlainText(failure.strip(), style="yellow"), soft_wrap=True)


def device_table(found: Sequence[DeviceInfo]) -> Table:
    """Returns a table with a row per device; `*` marks the device that device="auto" selects."""
    table = Table(
        caption="* selected by device='auto'; choose another by index, kind or part of a name"
    )
    table.add_column("", style="green", no_wrap=True)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("device", overflow="fold", ratio=2)
    table.add_column("kind", no_wrap=True)
    table.add_column("what clrt knows", overflow="fold", ratio=3)
    for device in found:
        caps = device.caps
        cells = (
            ["*" if device.is_default else ""],
            [str(device.index)],
            [caps.name, caps.platform],
            [caps.kind],
            _facts(device),
        )
        style = "" if device.usable else "dim"
        table.add_row(*(PlainText.stacked(*c) for c in cells), style=style, end_section=True)
    return table


def _as_object(device: DeviceInfo) -> dict[str, object]:
    """Returns the facts about a device as JSON values."""
    return {
        "index": device.index,
        "default": device.is_default,
        "usable": device.usable,
        "note": device.note,
        **json.loads(device.caps.to_json()),
    }


def _facts(device: DeviceInfo) -> list[str]:
    """Returns lines about a device: versions, units, memory, float types, quirks, ids and note."""
    caps = device.caps
    version = ".".join(map(str, caps.cl_version))
    lines = [
        f"OpenCL {version}, driver {caps.driver}",
        f"{counted(caps.compute_units, 'unit')}, {format_bytes(caps.global_mem_bytes)}, "
        f"{_floats(caps.has_fp16, caps.has_fp64)}",
    ]
    if caps.quirks:
        lines.append(f"quirks: {', '.join(sorted(caps.quirks))}")
    ids = device.ids
    lines += [
        f"{k} {v}" for k, v in (("PCI", ids.pci), ("UUID", ids.uuid), ("LUID", ids.luid)) if v
    ]
    if device.note:
        lines.append(device.note)
    return lines


def _floats(fp16: bool, fp64: bool) -> str:
    return " ".join(n for n, has in (("fp16", fp16), ("fp32", True), ("fp64", fp64)) if has)
