"""Classifier: what is in an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.vision.image_model import ImageModel
from clrt.vision.pictures import ImageLike, Picture


@dataclass(frozen=True)
class Classification:
    """A class of an image.

    Attributes:
        index: The class.
        label: Its name.
        score: Its probability.
    """

    index: int
    label: str
    score: float


class Classifier(ImageModel):
    """Classifies images, by models such as ViT, ConvNeXT, Swin and MobileNet.

    clrt.vision.Classifier("vit-base-patch16-224")("cat.jpg")
    """

    @overload
    def __call__(
        self, images: list[Any] | tuple[Any, ...], top: int = 5
    ) -> list[list[Classification]]: ...

    @overload
    def __call__(self, images: ImageLike, top: int = 5) -> list[Classification]: ...

    def __call__(
        self, images: ImageLike | Sequence[ImageLike], top: int = 5
    ) -> list[Classification] | list[list[Classification]]:
        """The likeliest classes of an image, best first; of a list of images, a list for each.

        Args:
            images: As `Preprocessor.prepare` takes them.
            top: How many classes.

        Raises:
            InputError: An image cannot be read, or `top` is less than 1.
            DeviceError: The driver fails.
        """
        opened, alone = self._opened(images)
        found = self.classify(opened, top)
        return found[0] if alone else found

    def classify(self, images: Sequence[Picture], top: int = 5) -> list[list[Classification]]:
        """The same of images that have been opened."""
        if top < 1:
            raise InputError(f"top is {top!r}; it is 1 or more.")
        name = self._output(("logits", "output"), 2, "classes, [images, classes]")
        runs = self._runs(images, [name])
        return [self._best(found[name].astype(np.float64), top) for _, found in runs]

    def _best(self, logits: Array, top: int) -> list[Classification]:
        scores = softmax(logits)
        order = np.argsort(-scores, kind="stable")[:top]
        return [Classification(int(k), self.label(int(k)), float(scores[k])) for k in order]


def softmax(logits: Array) -> Array:
    """Probabilities along the last axis. A model that ends in a softmax gives them itself."""
    total = logits.sum(-1)
    if (logits >= 0).all() and np.allclose(total, 1, atol=1e-3):
        return logits
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))
