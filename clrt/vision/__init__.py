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
    "Classification": "clrt.vision.classifier",
    "Classifier": "clrt.vision.classifier",
    "Detection": "clrt.vision.detector",
    "Detector": "clrt.vision.detector",
    "ImageBatch": "clrt.vision.preprocessor",
    "ImageEncoder": "clrt.vision.image_encoder",
    "Preprocessor": "clrt.vision.preprocessor",
    "Segmentation": "clrt.vision.segmenter",
    "Segmenter": "clrt.vision.segmenter",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clrt.vision' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
