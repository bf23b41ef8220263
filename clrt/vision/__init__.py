"""Images: read, resampled and normalised on the device, classified, searched and cut out.

preprocess = clrt.vision.Preprocessor.from_config("vit-base-patch16-224")
model.run(preprocess("cat.jpg", device_outputs=True))
"""

from __future__ import annotations

from clrt.vision.preprocessor import ImageBatch, Preprocessor

__all__ = ["ImageBatch", "Preprocessor"]
