"""Image models: preprocessing on the device, classification, detection, segmentation, embeddings.

clrt.vision.Classifier("vit-base-patch16-224")("cat.jpg")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clrt.vision.classifier import Classification, Classifier
    from clrt.vision.detector import Detection, Detector
    from clrt.vision.image_encoder import ImageEncoder
    from clrt.vision.preprocessor import ImageBatch, Preprocessor
    from clrt.vision.segmenter import Segmentation, Segmenter

__all__ = [
    "Classification",
    "Classifier",
    "Detection",
    "Detector",
    "ImageBatch",
    "ImageEncoder",
    "Preprocessor",
    "Segmentation",
    "Segmenter",
]

# Modules of the public classes, imported at first use.
_HOMES = {
    "Classification": "classifier",
    "Classifier": "classifier",
    "Detection": "detector",
    "Detector": "detector",
    "ImageBatch": "preprocessor",
    "ImageEncoder": "image_encoder",
    "Preprocessor": "preprocessor",
    "Segmentation": "segmenter",
    "Segmenter": "segmenter",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clrt.vision' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"clrt.vision.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
