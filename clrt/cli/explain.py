"""`clrt explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clrt.cli.console import stdout
from clrt.cli.tune import default_shapes, parse_shapes
from clrt.model import load


def explain(
    model: Annotated[Path, typer.Argument(help="An ONNX file or Hugging Face folder.")],
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Input shapes, as input_ids=8x128,mask=8x128; may be repeated."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, gpu, part of a device name, or an index.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list, one per shape.")] = False,
) -> None:
    """Explain why a model runs as it does: where each node runs, by which kernel, what it moves.

    Without --shape it takes a small one of batch 1. Nothing is run.
    """
    with load(model, device=device) as loaded:
        sets = [parse_shapes(s, loaded) for s in shape or ()] or default_shapes(loaded)[:1]
        found = [loaded.explain(shapes) for shapes in sets]
    if as_json:
        typer.echo(json.dumps([e.to_dict() for e in found], indent=1))
        return
    console = stdout()
    for explanation in found:
        if console.is_terminal:
            console.print(explanation)
        else:
            typer.echo(str(explanation))
