"""Classifies images by a model such as ViT, ConvNeXT or MobileNet.

    python examples/classify_images.py MODEL IMAGE...

MODEL is a Hugging Face folder with an ONNX file, for one google/vit-base-patch16-224 of
transformers.js.
"""

from __future__ import annotations

import sys

from clrt.errors import ClrtError
from clrt.vision import Classifier


def main(model: str, *images: str) -> None:
    with Classifier(model) as classify:
        for image, classes in zip(images, classify(images), strict=True):
            print(image)
            for found in classes:
                print(f"  {found.score:6.1%}  {found.label}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ClrtError as error:
        sys.exit(f"Error: {error}")
