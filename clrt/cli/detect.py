"""The command `clrt detect`: detects objects in images."""

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
from clrt.vision.detector import Detector
from clrt.vision.drawing import with_boxes
from clrt.vision.image_inputs import Picture


def detect(
    images: ImagesArgument,
    model: ModelOption,
    threshold: Annotated[float, typer.Option(help="Minimum score, within 0..1.")] = 0.5,
    overlap: Annotated[
        float, typer.Option(help="Boxes with a larger IoU are one object, within 0..1.")
    ] = 0.7,
    output: OutputOption = None,
    as_json: JsonOption = False,
    keep_going: KeepGoingOption = True,
    device: DeviceOption = None,
) -> None:
    """Detect objects in images, and draw boxes around them."""
    targets = targets_of(output, images)
    table = ResultTable("thing", "score", "left", "top", "right", "bottom", nothing="nothing")
    with Detector(model, device=device) as detector:

        def find(picture: Picture) -> Shown:
            (found,) = detector.detect([picture], threshold, overlap)
            things = [
                {"class": d.index, "label": d.label, "score": d.score, "box": list(d.box)}
                for d in found
            ]
            rows = [(d.label, f"{d.score:.1%}", *(f"{x:.0f}" for x in d.box)) for d in found]
            return Shown({"detections": things}, rows, lambda: with_boxes(picture.array(), found))

        show_findings(find, images, table, as_json, targets, keep_going=keep_going)
