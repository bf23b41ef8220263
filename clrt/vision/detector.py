"""Detector: where things are in an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from clrt.errors import InputError
from clrt.ir.builder import Builder
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.model import Model, load
from clrt.ops.vision.non_max_suppression import NonMaxSuppression
from clrt.vision.classifier import softmax
from clrt.vision.frames import Frame
from clrt.vision.image_model import ImageModel
from clrt.vision.pictures import ImageLike, Picture
from clrt.vision.preprocessor import Preprocessor

_YOLO_EDGE = 640
_MOST_BOXES = 300


@dataclass(frozen=True)
class Detection:
    """A thing in an image.

    Attributes:
        index: Its class.
        label: The name of the class.
        score: How sure the model is, up to 1.
        box: Left, top, right and bottom, in pixels of the image.
    """

    index: int
    label: str
    score: float
    box: tuple[float, float, float, float]


class Detector(ImageModel):
    """Finds things in images, by models such as DETR and YOLOS, or with heads as YOLO's.

    DETR's have the outputs `logits` [images, boxes, classes and none] and `pred_boxes`
    [images, boxes, 4]. YOLO's have one, [images, 4 + classes, anchors]: boxes as centre and size in
    pixels of the input, and scores; where no `preprocessor_config.json` lies beside them, images
    are laid in the middle of a grey canvas.
    """

    _suppressor: Model | None = None

    def _default(self, path: Path) -> Preprocessor:
        if self._is_detr():
            return super()._default(path)
        size = self.canvas or (_YOLO_EDGE, _YOLO_EDGE)
        return Preprocessor(size=size, fit="letterbox", fill=114)

    def _is_detr(self) -> bool:
        return {"logits", "pred_boxes"} <= {s.name for s in self.model.outputs}

    def close(self) -> None:
        """Frees the device memory; the model cannot run afterwards."""
        super().close()
        if self._suppressor is not None:
            self._suppressor.close()

    @overload
    def __call__(
        self, images: list[Any] | tuple[Any, ...], threshold: float = 0.5, overlap: float = 0.7
    ) -> list[list[Detection]]: ...

    @overload
    def __call__(
        self, images: ImageLike, threshold: float = 0.5, overlap: float = 0.7
    ) -> list[Detection]: ...

    def __call__(
        self, images: ImageLike | Sequence[ImageLike], threshold: float = 0.5, overlap: float = 0.7
    ) -> list[Detection] | list[list[Detection]]:
        """What is in an image, the surest first; of a list of images, a list for each.

        Args:
            images: As `Preprocessor.prepare` takes them.
            threshold: The least score.
            overlap: Of two boxes of a class that have more of their area in common (intersection
                over union) the less sure one goes; DETR's are not compared.

        Raises:
            InputError: An image cannot be read, or a number is outside 0..1.
            DeviceError: The driver fails.
        """
        opened, alone = self._opened(images)
        found = self.detect(opened, threshold, overlap)
        return found[0] if alone else found

    def detect(
        self, images: Sequence[Picture], threshold: float = 0.5, overlap: float = 0.7
    ) -> list[list[Detection]]:
        """The same of images that have been opened."""
        for name, number in (("threshold", threshold), ("overlap", overlap)):
            if not 0 <= number <= 1:
                raise InputError(f"{name} is {number!r}; it is within 0..1.")
        if self._is_detr():
            runs = self._runs(images, ["logits", "pred_boxes"])
            return [self._of_detr(f, o["logits"], o["pred_boxes"], threshold) for f, o in runs]
        name = self._output(("output0", "output"), 3, "boxes, [images, 4 + classes, anchors]")
        return [
            self._of_yolo(frame, found[name], threshold, overlap)
            for frame, found in self._runs(images, [name])
        ]

    def _of_detr(
        self, frame: Frame, logits: Array, boxes: Array, threshold: float
    ) -> list[Detection]:
        """Where the last class is that of nothing a softmax tells them, else each has its own."""
        logits = logits.astype(np.float64)
        if logits.shape[-1] == len(self.labels):
            scores = 1 / (1 + np.exp(-np.clip(logits, -80, 80)))
        else:
            scores = softmax(logits)[:, :-1]
        best = scores.argmax(-1)
        sure = scores[np.arange(len(best)), best]
        middle, size = boxes[:, :2], boxes[:, 2:]
        corners = np.concatenate([middle - size / 2, middle + size / 2], 1)
        # Of the image itself, not of the border around it.
        (top, low), (left, right) = map(frame.visible, (0, 1))
        high, wide = low - top, right - left
        row, column = frame.offset[0] + top, frame.offset[1] + left
        corners = corners * [wide, high, wide, high] + [column, row, column, row]
        kept = np.flatnonzero(sure > threshold)
        return self._found(frame, corners[kept], best[kept], sure[kept])

    def _of_yolo(
        self, frame: Frame, output: Array, threshold: float, overlap: float
    ) -> list[Detection]:
        if output.shape[0] < 5:
            shape = list(output.shape)
            raise InputError(f"The model gives {shape} per image; expected [4 + classes, anchors].")
        rows = output.astype(np.float32)
        boxes, scores = np.ascontiguousarray(rows[:4].T), np.ascontiguousarray(rows[4:])
        chosen = self._suppressed(boxes, scores, threshold, overlap)
        classes, places = chosen[:, 1], chosen[:, 2]
        middle, size = boxes[places, :2], boxes[places, 2:]
        corners = np.concatenate([middle - size / 2, middle + size / 2], 1)
        return self._found(frame, corners, classes, scores[classes, places])

    def _suppressed(self, boxes: Array, scores: Array, threshold: float, overlap: float) -> Array:
        """int64 `[kept, 3]`: 0, the class and the anchor of each box that is kept."""
        if self._suppressor is None:
            make = Builder()
            inputs = [
                make.input("boxes", DType.FLOAT32, (1, symbol("anchors"), 4)),
                make.input("scores", DType.FLOAT32, (1, symbol("classes"), symbol("anchors"))),
                make.input("most", DType.INT64, (1,)),
                make.input("overlap", DType.FLOAT32, (1,)),
                make.input("threshold", DType.FLOAT32, (1,)),
            ]
            result = make.add(NonMaxSuppression(center_point_box=True), *inputs)
            graph = make.graph("suppress", inputs, [result])
            self._suppressor = load(graph, device=self.model.device)
        feeds: dict[str, Any] = {
            "boxes": boxes[None],
            "scores": scores[None],
            "most": np.array([_MOST_BOXES]),
            "overlap": np.array([overlap], np.float32),
            "threshold": np.array([threshold], np.float32),
        }
        (kept,) = self._suppressor.run(feeds).values()
        return np.asarray(kept)

    def _found(
        self, frame: Frame, corners: Array, classes: Array, scores: Array
    ) -> list[Detection]:
        boxes = frame.boxes_in_image(corners)
        order = np.argsort(-scores, kind="stable")[:_MOST_BOXES]
        return [
            Detection(
                int(classes[k]),
                self.label(int(classes[k])),
                float(scores[k]),
                (float(boxes[k, 0]), float(boxes[k, 1]), float(boxes[k, 2]), float(boxes[k, 3])),
            )
            for k in order
        ]
