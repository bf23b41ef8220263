"""`clrt segment`."""

from __future__ import annotations

from typing import Annotated

import typer

from clrt.cli.images import (
    DeviceOption,
    ImagesArgument,
    JsonOption,
    ModelOption,
    OutputOption,
    ResultTable,
    each_picture,
    print_json,
    targets_of,
)
from clrt.errors import InputError
from clrt.vision.drawing import write_png
from clrt.vision.segmenter import Segmenter


def segment(
    images: ImagesArgument,
    model: ModelOption,
    output: OutputOption = None,
    strength: Annotated[
        float, typer.Option(help="Of the colours, from 0 to 1; 1 hides the image.")
    ] = 0.5,
    as_json: JsonOption = False,
    device: DeviceOption = None,
) -> None:
    """Say what each pixel of images shows, and colour it."""
    if not 0 <= strength <= 1:
        raise InputError(f"--strength is {strength}; it is within 0..1.")
    targets = targets_of(output, images)
    table = ResultTable("class", "of the image")
    with Segmenter(model, device=device) as segmenter:
        for (path, picture), target in zip(each_picture(images), targets, strict=True):
            (found,) = segmenter.segment([picture])
            if target is not None:
                write_png(found.overlay(picture.array(), strength), target)
            shares = [(k, found.labels[k], share) for k, share in found.shares().items()]
            if as_json:
                classes = [{"class": k, "label": name, "share": share} for k, name, share in shares]
                print_json(path, {"classes": classes})
            else:
                table.add(path, [(name, f"{share:.1%}") for _, name, share in shares])
    if not as_json:
        table.print()
