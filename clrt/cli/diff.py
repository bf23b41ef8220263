"""The command `clrt diff`: finds the first node whose result differs from another runtime's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import ml_dtypes
import typer
from rich.table import Table

from clrt.cli.console import EXIT_DIFFERS, renamed, stdout
from clrt.cli.random_inputs import note_sampled, read_feeds, sample_inputs
from clrt.cli.shapes import DeviceOption, ModelArgument, ShapeOption, one_shape
from clrt.errors import InputError, counted
from clrt.ir.dtypes import DType
from clrt.models.locate import find_model
from clrt.tools.diff import OTHERS, Deviation, Diff
from clrt.util.table_text import PlainText

_MAX_ORIGINS = 2  # ONNX nodes listed per row of the table.
_MAX_NAMES = 8  # Names listed in a message.


class Side(str, Enum):
    """Implementation that `clrt diff` compares clrt with."""

    onnxruntime = "onnxruntime"
    reference = "reference"


class Storage(str, Enum):
    """Storage dtype of weights that `clrt diff` tries."""

    float16 = "float16"
    bfloat16 = "bfloat16"


def diff(
    model: ModelArgument,
    against: Annotated[
        Side, typer.Option(help="ONNX Runtime, or the NumPy reference of each op.")
    ] = Side.onnxruntime,
    feeds: Annotated[
        Path | None,
        typer.Option("--inputs", help="Inputs by name (NumPy .npz); random ones by default."),
    ] = None,
    old_feeds: Annotated[Path | None, typer.Option("--input", hidden=True)] = None,
    shape: ShapeOption = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Error allowed, relative to the largest element: 1e-4, with --precision 1e-2.",
        ),
    ] = None,
    precision: Annotated[
        Storage | None,
        typer.Option(
            help="Store weights as this dtype, and show weights and values that overflow."
        ),
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Find the first node whose result differs from another runtime's.

    Compares every float value that both sides have, in topological order. Exits with code 3 at the
    first difference. With --precision it compares all values, to show every overflow.
    """
    feeds = renamed("--input", old_feeds, "--inputs", feeds)
    if feeds is not None and shape is not None:
        raise InputError("--inputs already determine the shapes; leave out --shape.")
    path = find_model(model)
    weights = None if precision is None else DType(precision.value)
    found = Diff(path, OTHERS[against.value](path), device, weights)
    allowed = tolerance if tolerance is not None else 1e-4 if weights is None else 1e-2
    limit = None if weights is None else float(ml_dtypes.finfo(weights.numpy).max)
    with found.model as probed:
        if feeds is not None:
            inputs = read_feeds(feeds)
        else:
            inputs = sample_inputs(probed, one_shape(shape, probed))
        with note_sampled(feeds is None):
            steps = list(found.steps(inputs, allowed, weights is not None))
    console = stdout()
    console.print(step_table(steps, f"{path.name} beside {against.value}", limit))
    for text in _overflows(found.overflows, steps, precision, limit):
        console.print(PlainText(text, style="yellow"), soft_wrap=True)
    last = next((s for s in steps if s.departs), steps[-1])
    alone = counted(found.alone, "float value")
    rest = f"{alone} of clrt {'has' if found.alone == 1 else 'have'} no name there"
    if last.departs:
        node, behind = last.probe.node, len(found.probes) - steps.index(last) - 1
        stands = ", ".join(node.origins)
        first = f"{node} departs first. It stands for {stands}."
        verdict = PlainText.stacked(first, f"{behind} behind it; {rest}.")
        console.print(verdict, style="red", soft_wrap=True)
        raise typer.Exit(EXIT_DIFFERS)
    console.print(PlainText(f"No value of {len(steps)} departs by more than {allowed:g}; {rest}."))


def _overflows(
    weights: Sequence[str],
    steps: Sequence[Deviation],
    precision: Storage | None,
    limit: float | None,
) -> Iterator[str]:
    """Yields lines on weights and values beyond the range of a storage dtype, and the remedy.

    Args:
        weights: Names of the weights that overflow.
        steps: Compared values.
        precision: Storage dtype; None for no lines.
        limit: Largest finite number of the storage dtype; None for no lines.
    """
    if precision is None or limit is None:
        return
    values = [s.probe.name for s in steps if s.largest > limit]
    for what, names in (("weight", weights), ("value", values)):
        listing = f": {_listing(names, _MAX_NAMES)}" if names else ""
        holds = "holds" if len(names) == 1 else "hold"
        past = f"numbers past {precision.value}'s {limit:g}"
        yield f"{counted(len(names), what)} {holds} {past}{listing}."
    if weights:
        yield "Convert with --precision auto, which leaves these weights in float32."


def step_table(steps: Sequence[Deviation], title: str, limit: float | None = None) -> Table:
    """Returns a table with a row per compared value, red if it differs by more than allowed.

    Args:
        steps: Compared values.
        title: Title of the table.
        limit: Largest finite number of the storage dtype; values with a larger element are marked
            as overflowing. None marks no value.
    """
    table = Table(title=PlainText(title))
    for column in ("value", "op", "dtype"):
        table.add_column(column, overflow="fold")
    for column in ("largest", "largest error", "relative"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("ONNX nodes", overflow="fold")
    for step in steps:
        node, value = step.probe.node, step.probe.value
        mark = " departs" if step.departs else ""
        row = (
            step.probe.name,
            node.op.name,
            str(value.type),
            f"{step.largest:.1e}{' overflows' if limit and step.largest > limit else ''}",
            f"{step.error:.1e}",
            f"{step.relative:.1e}{mark}",
            _listing(node.origins, _MAX_ORIGINS),
        )
        table.add_row(*(PlainText(c) for c in row), style="red" if step.departs else None)
    return table


def _listing(names: Sequence[str], limit: int) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
