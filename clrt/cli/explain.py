"""The command `clrt explain`: shows where and by which kernel each node of a model runs."""

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
    """Explain how a model runs: the device, kernel and memory traffic of each node.

    Without --shape a small shape of batch 1 is used. Nothing is run.
    """
    with load(find_model(model), device=device) as loaded:
        sets = [parse_shapes(s, loaded) for s in shape or ()] or default_shapes(loaded)[:1]
        explanations = [loaded.explain(shapes) for shapes in sets]
    if as_json:
        echo_json([e.to_dict() for e in explanations], indent=1)
        return
    console = stdout()
    for explanation in explanations:
        if console.is_terminal:
            console.print(explanation)
        else:
            echo(str(explanation))
