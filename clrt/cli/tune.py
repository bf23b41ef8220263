"""The command `clrt tune`: finds the fastest tunables of kernels on a device."""

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
from clrt.tools.twin_costs import measure_twin_costs
from clrt.util.table_text import PlainText


def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            help="ONNX file, Hugging Face folder or name in a cache; default: a transformer layer."
        ),
    ] = None,
    shape: ShapesOption = None,
    device: DeviceOption = None,
    budget: Annotated[float, typer.Option(min=1.0, help="Time budget in seconds.")] = 120.0,
) -> None:
    """Measure the fastest tunables of the kernels on this device, and save them.

    Records are saved in the user's cache and apply to models loaded later. The machine should be
    otherwise idle. Ctrl-C ends early and keeps the results so far.
    """
    writable_file()  # Fail before measuring if the records cannot be written.
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
        costs = measure_twin_costs(loaded.device)
        if costs is not None:
            results.append(costs)
        caps = loaded.device.caps
    better = [r for r in results if r.after != r.before]
    stdout().print(result_table(results, loaded.device.name))
    text = "Nothing was faster than what this device has."
    if not results:
        text = "No kernel that this model uses on this device has variants to choose from."
    elif better:  # A record that is no faster would hide records of later versions.
        text = f"Kept in {save([new_record(r.kernel, caps, r.after) for r in better])}"
    stderr().print(PlainText(text), soft_wrap=True)


def result_table(results: list[Tuned], device: str) -> Table:
    """Returns a table of tuned kernels: tunables before and after, and the ratio of run times.

    Args:
        results: Result of each kernel.
        device: Name of the device.
    """
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
