"""`clrt tunables`."""

from __future__ import annotations

from itertools import groupby
from textwrap import wrap
from typing import Annotated

import typer

import clrt.passes.device_pipeline
import clrt.runtime.execution.launch_rows
import clrt.runtime.execution.plan_maker  # noqa: F401  (declare tunables, as all ops do)
from clrt.cli.console import echo, echo_json
from clrt.cli.shapes import DeviceOption
from clrt.errors import InputError
from clrt.kernels.tunables import TunableValue, list_tunables
from clrt.ops.module_index import import_all
from clrt.runtime.opencl.devices import choose_device

# Maximum width of the output in columns.
_WIDTH = 100
_SOURCES = {"shipped": "shipped record", "user": "your record"}


def tunables(
    name: Annotated[
        str, typer.Argument(help="Part of a kernel's or tunable's name; default: all.")
    ] = "",
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list instead.")] = False,
) -> None:
    """List the numbers that decide the speed of kernels on a device, with unit and reason.

    A record in the cache folder's tuning.json sets them, under the name of a kernel or group.
    """
    import_all()  # declares the tunables of all kernels
    caps = choose_device(device).caps
    found = list(list_tunables(caps, name))
    if not found:
        raise InputError(f"No tunable's name contains '{name}'; `clrt tunables` lists all.")
    if as_json:
        echo_json([t.to_dict() for t in found], indent=1)
        return
    echo(f"Tunables on {caps.name}")
    for kernel, group in groupby(found, lambda t: t.kernel):
        echo(f"\n{kernel}")
        for each in group:
            for line in _lines(each):
                echo(line)


def _lines(each: TunableValue) -> list[str]:
    """Returns the lines for a tunable: name, value, unit and source; then the wrapped reason."""
    head = f"  {each.name} = {each.value} {each.declared.unit}"
    if each.source != "default":
        head += f"  ({_SOURCES[each.source]}; default {each.declared.default})"
    indent = " " * 6
    reason = wrap(each.declared.reason, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return [head, *reason]
