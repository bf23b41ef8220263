"""Detects objects in an image, and draws boxes around them: DETR, YOLOS, or YOLO heads.

python examples/detect_things.py MODEL IMAGE BOXES.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from clrt.vision import Detector
from clrt.vision.drawing import with_boxes, write_png


def main(model: str, image: str, target: str) -> None:
    with Image.open(image) as file:
        pixels = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
    with Detector(model) as detect:
        found = detect(pixels, threshold=0.5)
    for thing in found:
        print(f"{thing.score:6.1%}  {thing.label}  at {[round(edge) for edge in thing.box]}")
    write_png(with_boxes(pixels, found), Path(target))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
