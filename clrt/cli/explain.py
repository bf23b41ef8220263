"""`clrt explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from clrt.cli.console import echo, echo_json, stdout
from clrt.cli.shapes import (
    DeviceOption,
    ModelArgument,
    ShapesOption,
    default_shapes,
    parse_shapes,
)
from clrt.models.locate import find_model
from clrt.runtime.model.model import load


def explain(
    model: ModelArgument,
    shape: ShapesOption = None,
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list, one per shape.")] = False,
) -> None:
    """Explain why a model runs as it does: where each node runs, by which kernel, what it moves.

    Without --shape it takes a small one of batch 1. Nothing is run.
    """
    with load(find_model(model), device=device) as loaded:
        sets = [parse_shapes(s, loaded) for s in shape or ()] or default_shapes(loaded)[:1]
        found = [loaded.explain(shapes) for shapes in sets]
    if as_json:
        echo_json([e.to_dict() for e in found], indent=1)
        return
    console = stdout()
    for explanation in found:
        if console.is_terminal:
            console.print(explanation)
        else:
            echo(str(explanation))
