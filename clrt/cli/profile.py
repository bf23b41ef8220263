"""The command `clrt profile`: shows the time per kernel of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clrt.cli.console import PAGE_SUFFIXES, echo, stderr
from clrt.cli.random_inputs import note_sampled, sample_inputs
from clrt.cli.shapes import DeviceOption, ModelArgument, ShapeOption, one_shape
from clrt.models.locate import find_model
from clrt.models.sources import model_files
from clrt.runtime.model.model import load
from clrt.util.files import check_targets
from clrt.util.table_text import PlainText


def profile(
    model: ModelArgument,
    shape: ShapeOption = None,
    device: DeviceOption = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of runs; times are medians.")] = 20,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for ui.perfetto.dev here (JSON).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page here.")] = None,
) -> None:
    """Show the time per kernel of a run on random inputs."""
    source = find_model(model)
    check_targets(
        {"--trace": trace, "--html": html},
        model_files(source),
        {"--trace": (".json",), "--html": PAGE_SUFFIXES},
    )
    with load(source, device=device, tiers=False) as loaded:
        inputs = sample_inputs(loaded, one_shape(shape, loaded))
        with note_sampled():
            result = loaded.profile(inputs, repeat)
    echo(str(result))
    for path, save in ((trace, result.save_trace), (html, result.save_html)):
        if path is not None:
            save(path)
            stderr().print(PlainText(f"Written to {path}"), soft_wrap=True)
