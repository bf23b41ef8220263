"""`clrt diff`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from clrt.cli.console import stdout
from clrt.cli.samples import made_up_inputs, sample_inputs
from clrt.cli.shapes import DeviceOption, ModelArgument, ShapeOption, one_shape
from clrt.diff import OTHERS, Diff, Step
from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.text.locate import find_model

_DEPARTED = 2
_MAX_ORIGINS = 2


class Side(str, Enum):
    """What clrt is compared with."""

    onnxruntime = "onnxruntime"
    reference = "reference"


def diff(
    model: ModelArgument,
    against: Annotated[
        Side, typer.Option(help="ONNX Runtime, or the NumPy reference of each op.")
    ] = Side.onnxruntime,
    feeds: Annotated[
        Path | None,
        typer.Option("--input", help="Inputs by name (.npz of NumPy); random ones else."),
    ] = None,
    shape: ShapeOption = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Error allowed, relative to the largest element.")
    ] = 1e-4,
    device: DeviceOption = None,
) -> None:
    """Find the first node at which clrt departs from another runtime.

    Compares every float value that both sides have, in order. Ends with exit code 2 where one
    departs.
    """
    path = find_model(model)
    found = Diff(path, OTHERS[against.value](path), device)
    with found.model as probed:
        if feeds is not None:
            steps = list(found.steps(read_feeds(feeds), tolerance))
        else:
            inputs = sample_inputs(probed, one_shape(shape, probed))
            with made_up_inputs():
                steps = list(found.steps(inputs, tolerance))
    console = stdout()
    console.print(step_table(steps, f"{path.name} beside {against.value}"))
    last = steps[-1]
    rest = f"{found.alone} float values of clrt have no name there"
    if last.departs:
        node, behind = last.probe.node, len(found.probes) - len(steps)
        stands = ", ".join(node.origins)
        lines = f"{node} departs first. It stands for {stands}.\n{behind} behind it; {rest}."
        console.print(Text(lines, style="red"), soft_wrap=True)
        raise typer.Exit(_DEPARTED)
    console.print(Text(f"No value of {len(steps)} departs by more than {tolerance:g}; {rest}."))


def read_feeds(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file.

    Raises:
        InputError: It is none.
    """
    try:
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"'{path}' is no .npz file of inputs ({error}); write one with numpy.savez."
        ) from error


def step_table(steps: Sequence[Step], title: str) -> Table:
    """One row per value, the one that departs in red."""
    table = Table(title=title)
    for column in ("value", "op", "dtype"):
        table.add_column(column, overflow="fold")
    for column in ("largest error", "relative"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("ONNX nodes", overflow="fold")
    for step in steps:
        node, value = step.probe.node, step.probe.value
        mark = " departs" if step.departs else ""
        row = (
            step.probe.name,
            node.op.name,
            str(value.type),
            f"{step.error:.1e}",
            f"{step.relative:.1e}{mark}",
            _listing(node.origins, _MAX_ORIGINS),
        )
        table.add_row(*(Text(c) for c in row), style="red" if step.departs else None)
    return table


def _listing(names: Sequence[str], limit: int) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
