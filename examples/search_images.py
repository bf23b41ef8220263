"""Searches images by a text, by CLIP: texts and images have vectors in one space.

    python examples/search_images.py MODEL "a cat on a sofa" IMAGE...

MODEL is a folder with onnx/vision_model.onnx and onnx/text_model.onnx, or one onnx/model.onnx.
"""

from __future__ import annotations

import sys

import numpy as np

from clrt.errors import ClrtError
from clrt.vision import ImageEncoder


def main(model: str, text: str, *images: str) -> None:
    with ImageEncoder(model) as encoder:
        likeness = encoder.encode(images) @ encoder.encode_text(text)
    for place in np.argsort(-likeness)[:10]:
        print(f"{likeness[place]:.3f}  {images[place]}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ClrtError as error:
        sys.exit(f"Error: {error}")
