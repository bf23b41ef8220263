"""The command `clrt run`: runs a model on the arrays of an .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from clrt.cli.console import stderr, stdout
from clrt.cli.random_inputs import read_feeds
from clrt.cli.shapes import DeviceOption, ModelArgument
from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.models.locate import find_model
from clrt.models.sources import model_files
from clrt.runtime.model.model import load
from clrt.util.files import atomic_write, check_targets
from clrt.util.table_text import PlainText


def run(
    model: ModelArgument,
    inputs: Annotated[
        Path, typer.Option("--inputs", "-i", help="An .npz with an array per input.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write an .npz with an array per output."),
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Run a model on the arrays of an .npz file, and write its outputs to another.

    Without --output the outputs' dtypes, shapes and ranges are printed.
    """
    source = find_model(model)
    read = [*model_files(source), inputs]
    check_targets({"--output": output}, read, {"--output": (".npz",)})
    feeds = read_feeds(inputs)
    with load(source, device=device) as loaded:
        outputs = loaded.run(feeds)
        name = loaded.device.name
    if output is None:
        stdout().print(output_table(outputs))
        return
    others = [k for k, v in outputs.items() if not isinstance(v, np.ndarray)]
    if others:
        raise InputError(f"Output '{others[0]}' is not a tensor; .npz files hold arrays only.")
    with atomic_write(output) as stream:
        np.savez(stream, **outputs)
    text = f"{', '.join(map(_type_text, outputs.items()))} in {output} (made on {name})"
    stderr().print(PlainText(text), soft_wrap=True)


def output_table(outputs: dict[str, Array]) -> Table:
    """Returns a table with dtype, shape, minimum, mean and maximum of each output."""
    table = Table(title="outputs")
    table.add_column("output", overflow="fold")
    table.add_column("type", overflow="fold")
    for column in ("least", "mean", "largest"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, array in outputs.items():
        is_array = isinstance(array, np.ndarray)
        numbers = is_array and array.size and array.dtype.kind not in "OSU"
        wide = array.astype(np.float64) if numbers else None
        ranges = [] if wide is None else [f"{f(wide):.6g}" for f in (np.min, np.mean, np.max)]
        type_ = _type_text(("", array)) if is_array else type(array).__name__
        table.add_row(*map(PlainText, (name, type_.strip(), *ranges)))
    return table


def _type_text(item: tuple[str, Array]) -> str:
    name, array = item
    return f"{name} {array.dtype}[{', '.join(map(str, array.shape))}]"
