"""Draws detected boxes on images, and writes PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clrt.errors import explain_missing_extra
from clrt.ir.op import Array
from clrt.util.files import atomic_write
from clrt.vision.detector import Detection
from clrt.vision.segmenter import colour_of


def with_boxes(pixels: Array, detections: Sequence[Detection]) -> Any:
    """Returns a Pillow image with a labeled box around each detected object.

    Args:
        pixels: uint8 `[height, width, 3]`.
        detections: Objects, with boxes in pixels of the image.
    """
    with explain_missing_extra("Drawing boxes"):
        from PIL import Image, ImageDraw, ImageFont
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    size = max(10, min(image.size) // 40)
    font = ImageFont.load_default(size)
    for detection in reversed(detections):  # the highest score is drawn last, on top
        colour, (left, top, right, bottom) = colour_of(detection.index), detection.box
        draw.rectangle((left, top, max(left, right), max(top, bottom)), None, colour, size // 6 + 1)
        text = f"{detection.label} {detection.score:.0%}"
        place = (left + 2, max(top - 1.3 * size, 0))
        back = draw.textbbox(place, text, font=font)
        draw.rectangle(back, colour)
        draw.text(place, text, (0, 0, 0), font)
    return image


def write_png(image: Any, path: Path) -> None:
    """Writes a PNG file atomically.

    Args:
        image: A Pillow image, or uint8 `[height, width, 3]`.
        path: File to write.

    Raises:
        InputError: The file cannot be written.
    """
    with explain_missing_extra("Writing a PNG"):
        from PIL import Image
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    with atomic_write(path) as stream:
        picture.save(stream, "PNG")
