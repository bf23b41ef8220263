"""The command `clrt classify`: classifies images."""

from __future__ import annotations

from typing import Annotated

import typer

from clrt.cli.images import (
    DeviceOption,
    ImagesArgument,
    JsonOption,
    KeepGoingOption,
    ModelOption,
    ResultTable,
    Shown,
    show_findings,
)
from clrt.vision.classifier import Classifier
from clrt.vision.image_inputs import Picture


def classify(
    images: ImagesArgument,
    model: ModelOption,
    top: Annotated[int, typer.Option(help="Number of classes to show.")] = 5,
    as_json: JsonOption = False,
    keep_going: KeepGoingOption = True,
    device: DeviceOption = None,
) -> None:
    """Classify images."""
    table = ResultTable("class", "score")
    with Classifier(model, device=device) as classifier:

        def find(picture: Picture) -> Shown:
            (found,) = classifier.classify([picture], top)
            classes = [{"class": c.index, "label": c.label, "score": c.score} for c in found]
            return Shown({"classes": classes}, [(c.label, f"{c.score:.1%}") for c in found])

        show_findings(find, images, table, as_json, keep_going=keep_going)
