"""`clrt classify`."""

from __future__ import annotations

from typing import Annotated

import typer

from clrt.cli.images import (
    DeviceOption,
    ImagesArgument,
    JsonOption,
    ModelOption,
    ResultTable,
    each_picture,
    print_json,
)
from clrt.vision.classifier import Classifier


def classify(
    images: ImagesArgument,
    model: ModelOption,
    top: Annotated[int, typer.Option(help="How many classes to show.")] = 5,
    as_json: JsonOption = False,
    device: DeviceOption = None,
) -> None:
    """Say what is in images."""
    table = ResultTable("class", "score")
    with Classifier(model, device=device) as classifier:
        for path, picture in each_picture(images):
            (found,) = classifier.classify([picture], top)
            if as_json:
                classes = [{"class": c.index, "label": c.label, "score": c.score} for c in found]
                print_json(path, {"classes": classes})
            else:
                table.add(path, [(c.label, f"{c.score:.1%}") for c in found])
    if not as_json:
        table.print()
