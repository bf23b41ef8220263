"""Image classification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from clrt.errors import InputError, ModelError
from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass
from clrt.vision.boxes import check_task, sigmoid
from clrt.vision.image_inputs import ImageLike, Picture
from clrt.vision.image_model import ImageModel
from clrt.vision.preprocessor import Preprocessor

_PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
# Default height and width of images in pixels, as of ImageNet models.
_EDGE = 224


@dataclass(frozen=True)
class Classification:
    """A class that an image may belong to, with its score.

    Attributes:
        index: Class index.
        label: Class name.
        score: Probability; the raw output for models with problem_type "regression".
    """

    index: int
    label: str
    score: float


class Classifier(ImageModel):
    """Classifies images by models such as ViT, ConvNeXT, Swin and MobileNet.

    Scores are softmax probabilities, or sigmoid ones if config.json has the problem_type
    "multi_label_classification" or the model has one class.

        clrt.vision.Classifier("vit-base-patch16-224")("cat.jpg")

    Source: transformers' ImageClassificationPipeline.
    """

    def _resolve_outputs(self) -> None:
        check_task(self.export, "Classifier", ("classify",))
        self._logits = self._output(("logits", "output"), 2, "classes, [images, classes]")
        self._problem = self.config.get("problem_type")
        if self._problem not in (None, *_PROBLEMS):
            raise ModelError(
                f"The config.json has the problem_type {self._problem!r:.80}; expected one of "
                f"{', '.join(_PROBLEMS)}."
            )

    def _default_preprocessor(self, path: Path) -> Preprocessor:
        if self.export is None:
            return super()._default_preprocessor(path)
        size = self.canvas or self.export.size or (_EDGE, _EDGE)
        if size[0] != size[1]:
            return Preprocessor(size=size)
        return Preprocessor(size=size, fit="shortest", crop=size)

    @overload
    def __call__(
        self, images: list[Any] | tuple[Any, ...], top: int = 5
    ) -> list[list[Classification]]: ...

    @overload
    def __call__(self, images: ImageLike, top: int = 5) -> list[Classification]: ...

    def __call__(
        self, images: ImageLike | Sequence[ImageLike], top: int = 5
    ) -> list[Classification] | list[list[Classification]]:
        """Returns the most likely classes of an image, best first; a list of lists for several
        images.

        Args:
            images: Images in the forms of `Preprocessor.prepare`.
            top: Maximum number of classes per image.

        Raises:
            InputError: An image cannot be read, or `top` is less than 1.
            DeviceError: The driver fails.
        """
        opened, alone = self._open_images(images)
        found = self.classify(opened, top)
        return found[0] if alone else found

    def classify(self, images: Sequence[Picture], top: int = 5) -> list[list[Classification]]:
        """Returns the `top` most likely classes of each opened image, best first.

        Raises:
            InputError: An image cannot be read, or `top` is less than 1.
        """
        if top < 1:
            raise InputError(f"top is {top!r}; expected 1 or more.")
        name = self._logits
        runs = self._run_images(images, [name])
        return [self._best(outputs[name].astype(np.float64), top) for _, outputs in runs]

    def _best(self, logits: Array, top: int) -> list[Classification]:
        scores = self._scores(logits)
        order = np.argsort(-scores, kind="stable")[:top]
        return [Classification(int(k), self.label(int(k)), float(scores[k])) for k in order]

    def _scores(self, logits: Array) -> Array:
        if self._problem == "regression" or self.export is not None:
            return logits  # exports of Ultralytics output probabilities
        if self._problem == "multi_label_classification" or len(logits) == 1:
            return sigmoid(logits)
        return softmax(logits)


def softmax(logits: Array) -> Array:
    """Returns the softmax over the last axis.

    Returns `logits` unchanged if all are probabilities already: none is negative, and each row has
    sum 1.
    """
    total = logits.sum(-1)
    if (logits >= 0).all() and np.allclose(total, 1, atol=1e-3):
        return logits
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))
