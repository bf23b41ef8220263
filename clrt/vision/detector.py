"""Object detection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.op_builder import OpBuilder
from clrt.ops.vision.non_max_suppression import NonMaxSuppression
from clrt.runtime.model.model import Model, load
from clrt.util.fast_dataclass import dataclass
from clrt.vision.boxes import BoxHead, QueryHead, RawDetections, as_corners, box_head, query_head
from clrt.vision.frames import Frame
from clrt.vision.image_inputs import ImageLike, Picture
from clrt.vision.image_model import ImageModel
from clrt.vision.preprocessor import Preprocessor

# Default height and width of images in pixels, if an export does not state it.
_YOLO_EDGE = 640
# Maximum number of detections per image.
_MAX_BOXES = 300


@dataclass(frozen=True)
class Detection:
    """A detected object.

    Attributes:
        index: Class index.
        label: Class name.
        score: Confidence, up to 1.
        box: Left, top, right and bottom, in pixels of the image.
    """

    index: int
    label: str
    score: float
    box: tuple[float, float, float, float]


class Detector(ImageModel):
    """Detects objects in images with DETR-like or YOLO-like models.

    DETR-like models have outputs `logits` `[images, queries, classes]` and `pred_boxes`
    `[images, queries, 4]`; the image processor, else the model_type, determines the scoring.
    YOLO-like models have one output with boxes. Its form is one of these:
    `[images, 4 + classes + more, anchors]`: center and size in input pixels, and scores;
    `[images, anchors, 5 + classes + more]`: with an objectness score (YOLOv5's own exporter);
    `[images, boxes, 6 + more]`: corners, score and class after suppression of overlaps;
    `[images, queries, 4 + classes]`: Ultralytics' RT-DETR, with boxes relative to the image.
    `more` is the number of mask coefficients or keypoint values per box, which are not returned.
    Other heads are refused. Without a `preprocessor_config.json`, images are letterboxed on gray,
    or stretched for Ultralytics' RT-DETR.
    """

    _suppressor: Model | None = None
    _head: QueryHead | BoxHead

    def _resolve_outputs(self) -> None:
        shapes = {s.name: s.shape for s in self.model.outputs}
        if shapes.keys() >= {"logits", "pred_boxes"}:
            model_type, classes = str(self.config.get("model_type") or ""), shapes["logits"]
            last = classes[-1] if classes else None
            self._head = query_head(self._processor, model_type, last, self.labels)
            return
        name = self._output(("output0", "output"), 3, "boxes, [images, 4 + classes, anchors]")
        others = (s for n, s in shapes.items() if n != name and s is not None and len(s) == 4)
        protos = next((s[1] for s in others), None)
        self._head = box_head(name, protos, self.export, self.labels)

    def _default_preprocessor(self, path: Path) -> Preprocessor:
        if isinstance(self._head, QueryHead):
            return super()._default_preprocessor(path)
        recorded = None if self.export is None else self.export.size
        size = self.canvas or recorded or (_YOLO_EDGE, _YOLO_EDGE)
        if self.export is not None and self.export.is_rtdetr:
            return Preprocessor(size=size)
        return Preprocessor(size=size, fit="letterbox", fill=114)

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
        """Returns the objects in an image, by descending score; a list of lists for several images.

        Args:
            images: Images in the forms of `Preprocessor.prepare`.
            threshold: Minimum score, exclusive.
            overlap: Maximum intersection over union of two boxes of a class; otherwise the box with
                the lower score is dropped. Ignored for models that need no suppression of
                overlaps, such as DETR-like ones.

        Raises:
            InputError: An image cannot be read, or a number is outside 0..1.
            UnsupportedError: The output's shape or numbers fit no supported head.
            DeviceError: The driver fails.
        """
        opened, alone = self._open_images(images)
        found = self.detect(opened, threshold, overlap)
        return found[0] if alone else found

    def detect(
        self, images: Sequence[Picture], threshold: float = 0.5, overlap: float = 0.7
    ) -> list[list[Detection]]:
        """Returns the objects in each opened image, by descending score.

        Args:
            images: Opened images.
            threshold: Minimum score, exclusive.
            overlap: Maximum intersection over union of two boxes of a class; ignored for models
                that need no suppression of overlaps.

        Raises:
            InputError: An image cannot be read, or a number is outside 0..1.
            UnsupportedError: The output's shape or numbers fit no supported head.
        """
        for name, number in (("threshold", threshold), ("overlap", overlap)):
            if not 0 <= number <= 1:
                raise InputError(f"{name} is {number!r}; expected 0 to 1.")
        head = self._head
        if isinstance(head, QueryHead):
            runs = self._run_images(images, ["logits", "pred_boxes"])
            return [
                self._above_threshold(f, head.things(o["logits"], o["pred_boxes"]), threshold)
                for f, o in runs
            ]
        detections = []
        for frame, outputs in self._run_images(images, [head.output]):
            things = head.things(outputs[head.output])
            if isinstance(things, RawDetections):
                detections.append(self._above_threshold(frame, things, threshold))
            else:
                detections.append(self._suppress_overlaps(frame, *things, threshold, overlap))
        return detections

    def _above_threshold(
        self, frame: Frame, things: RawDetections, threshold: float
    ) -> list[Detection]:
        """Returns the objects with a score above `threshold`, with boxes in pixels of the image.

        Args:
            frame: Placement of the image in the model's input.
            things: Objects with boxes in the model's input.
            threshold: Minimum score, exclusive.
        """
        corners = things.boxes
        if things.relative:  # relative to the visible image, without the border
            (top, low), (left, right) = map(frame.visible, (0, 1))
            high, wide = low - top, right - left
            row, column = frame.offset[0] + top, frame.offset[1] + left
            corners = corners * [wide, high, wide, high] + [column, row, column, row]
        selected = np.flatnonzero(things.scores > threshold)
        return self._as_detections(
            frame, corners[selected], things.classes[selected], things.scores[selected]
        )

    def _suppress_overlaps(
        self, frame: Frame, boxes: Array, scores: Array, threshold: float, overlap: float
    ) -> list[Detection]:
        """Runs non-maximum suppression on candidate boxes, and returns the remaining objects.

        Args:
            frame: Placement of the image in the model's input.
            boxes: Center and size, float32 `[anchors, 4]`.
            scores: float32 `[classes, anchors]`.
            threshold: Minimum score, exclusive.
            overlap: Maximum intersection over union of two boxes of a class.
        """
        scores = np.ascontiguousarray(scores)
        chosen = self._run_suppression(boxes, scores, threshold, overlap)
        classes, places = chosen[:, 1], chosen[:, 2]
        return self._as_detections(
            frame, as_corners(boxes[places]), classes, scores[classes, places]
        )

    def _run_suppression(
        self, boxes: Array, scores: Array, threshold: float, overlap: float
    ) -> Array:
        """Runs non-maximum suppression on the device; keeps at most `_MAX_BOXES` boxes per class.

        Args:
            boxes: Center and size, float32 `[anchors, 4]`.
            scores: float32 `[classes, anchors]`.
            threshold: Minimum score, exclusive.
            overlap: Maximum intersection over union of two boxes of a class.

        Returns:
            int64 `[kept, 3]`: for each kept box the image index 0, the class index and the anchor
            index.
        """
        if self._suppressor is None:
            build = OpBuilder()
            build.feed("boxes", DType.FLOAT32, 1, "anchors", 4)
            build.feed("scores", DType.FLOAT32, 1, "classes", "anchors")
            build.feed("most", DType.INT64, 1)
            build.feed("overlap", DType.FLOAT32, 1)
            build.feed("threshold", DType.FLOAT32, 1)
            result = build(NonMaxSuppression(center_point_box=True), *build.inputs)
            graph = build.graph("suppress", build.inputs, [result])
            self._suppressor = load(graph, device=self.model.device)
        feeds: dict[str, Any] = {
            "boxes": boxes[None],
            "scores": scores[None],
            "most": np.array([_MAX_BOXES]),
            "overlap": np.array([overlap], np.float32),
            "threshold": np.array([threshold], np.float32),
        }
        (kept,) = self._suppressor.run(feeds).values()
        return np.asarray(kept)

    def _as_detections(
        self, frame: Frame, corners: Array, classes: Array, scores: Array
    ) -> list[Detection]:
        boxes = frame.boxes_in_image(corners)
        order = np.argsort(-scores, kind="stable")[:_MAX_BOXES]
        return [
            Detection(
                int(classes[k]),
                self.label(int(classes[k])),
                float(scores[k]),
                (float(boxes[k, 0]), float(boxes[k, 1]), float(boxes[k, 2]), float(boxes[k, 3])),
            )
            for k in order
        ]
