"""Segments an image by class and colours the classes, by a model such as SegFormer.

python examples/segment_image.py MODEL IMAGE OVERLAY.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from clrt.errors import ClrtError
from clrt.vision import Segmenter
from clrt.vision.drawing import write_png


def main(model: str, image: str, target: str) -> None:
    with Image.open(image) as file:
        pixels = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
    with Segmenter(model) as segment:
        found = segment(pixels)
    for number, share in found.shares().items():
        print(f"{share:6.1%}  {found.labels[number]}")
    write_png(found.overlay(pixels), Path(target))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ClrtError as error:
        sys.exit(f"Error: {error}")
