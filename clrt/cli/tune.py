"""`clrt tune`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from clrt.cli.console import stderr, stdout
from clrt.cli.shapes import DeviceOption, ShapesOption, default_shapes, parse_shapes
from clrt.kernels.tuning_records import new_record, save, writable_file
from clrt.models.locate import find_model
from clrt.runtime.model.model import load
from clrt.tools.tune import Tuned, Tuner, encoder_layer
from clrt.util.table_text import PlainText


def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            help="ONNX file, Hugging Face folder, or name in a cache; else a transformer's layer."
        ),
    ] = None,
    shape: ShapesOption = None,
    device: DeviceOption = None,
    budget: Annotated[float, typer.Option(min=1.0, help="Seconds to spend.")] = 120.0,
) -> None:
    """Measure which variants of the kernels are fastest on this device, and remember them.

    The records go to the user's cache and hold from the next load on. Use the machine for nothing
    else meanwhile. Ctrl-C ends it early and keeps what was found.
    """
    writable_file()  # what would be in the way after the measuring is noticed before it
    loaded = load(
        encoder_layer() if model is None else find_model(model), device=device, strict=True
    )
    with loaded, _progress() as bar:
        task = bar.add_task("starting", total=budget)
        tuner = Tuner(
            loaded,
            [parse_shapes(s, loaded) for s in shape or ()] or default_shapes(loaded),
            budget,
            lambda spent, what: bar.update(task, completed=min(spent, budget), description=what),
        )
        results = tuner.run()
        caps = loaded.device.caps
    better = [r for r in results if r.after != r.before]
    stdout().print(result_table(results, loaded.device.name))
    text = "Nothing was faster than what this device has."
    if not results:
        text = "No kernel that this model uses on this device has variants to choose from."
    elif better:  # a record of what is no better would hide the records of later versions
        text = f"Kept in {save([new_record(r.kernel, caps, r.after) for r in better])}"
    stderr().print(PlainText(text), soft_wrap=True)


def result_table(results: list[Tuned], device: str) -> Table:
    """One row per kernel: what it had, what it has, and what that saves."""
    table = Table(title=f"kernels on {device}")
    for column in ("kernel", "before", "after"):
        table.add_column(column, overflow="fold")
    table.add_column("time", justify="right")
    for r in results:
        before, after = (
            " ".join(f"{k.removeprefix('T_')}={v}" for k, v in t.items())
            for t in (r.before, r.after)
        )
        table.add_row(r.kernel, before, after if after != before else "=", f"{r.ratio:.2f} x")
    return table


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=stderr()
    )
