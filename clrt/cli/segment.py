"""The command `clrt segment`: segments images by class."""

from __future__ import annotations

from typing import Annotated

import typer

from clrt.cli.images import (
    DeviceOption,
    ImagesArgument,
    JsonOption,
    KeepGoingOption,
    ModelOption,
    OutputOption,
    ResultTable,
    Shown,
    show_findings,
    targets_of,
)
from clrt.errors import InputError
from clrt.vision.image_inputs import Picture
from clrt.vision.segmenter import Segmenter


def segment(
    images: ImagesArgument,
    model: ModelOption,
    output: OutputOption = None,
    strength: Annotated[
        float, typer.Option(help="Opacity of the colours, from 0 to 1; 1 hides the image.")
    ] = 0.5,
    as_json: JsonOption = False,
    keep_going: KeepGoingOption = True,
    device: DeviceOption = None,
) -> None:
    """Segment images by class, and draw the classes as colours."""
    if not 0 <= strength <= 1:
        raise InputError(f"--strength is {strength}; expected 0 to 1.")
    targets = targets_of(output, images)
    table = ResultTable("class", "of the image")
    with Segmenter(model, device=device) as segmenter:

        def find(picture: Picture) -> Shown:
            (found,) = segmenter.segment([picture])
            shares = [(k, found.labels[k], share) for k, share in found.shares().items()]
            classes = [{"class": k, "label": name, "share": share} for k, name, share in shares]
            rows = [(name, f"{share:.1%}") for _, name, share in shares]
            return Shown(
                {"classes": classes}, rows, lambda: found.overlay(picture.array(), strength)
            )

        show_findings(find, images, table, as_json, targets, keep_going=keep_going)
