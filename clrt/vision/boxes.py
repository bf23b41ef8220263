"""Heads of detectors: decodes outputs of transformers' models and of YOLO-like exports."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass
from clrt.vision.exports import Export

# Image processor or model type -> how transformers scores logits [queries, classes]. _SOFTMAX: a
# softmax, whose last class means no object. Otherwise a sigmoid of each (query, class) pair, and
# the value is the maximum number of pairs that are kept (0: the number of queries).
_SOFTMAX = -1
_BY_PROCESSOR = {"Detr": _SOFTMAX, "Yolos": _SOFTMAX, "ConditionalDetr": 100,
                 "DeformableDetr": 100, "RTDetr": 0}  # fmt: skip
_BY_MODEL = {"detr": _SOFTMAX, "table-transformer": _SOFTMAX, "yolos": _SOFTMAX,
             "conditional_detr": 100, "dab-detr": 100, "deformable_detr": 100, "lw_detr": 100,
             "rt_detr": 0, "rt_detr_v2": 0, "d_fine": 0, "deimv2": 0, "rf_detr": 0}  # fmt: skip
_BOXES = ("detect", "segment", "pose")
# Tolerance of scores beyond 0 and 1, for rounding in half precision.
_SCORE_TOLERANCE = 0.01


@dataclass(frozen=True)
class RawDetections:
    """Objects that a detection head found, before any threshold on the score.

    Attributes:
        boxes: float `[n, 4]`: left, top, right, bottom.
        classes: Class indices, int `[n]`.
        scores: Scores from 0 to 1, float `[n]`.
        relative: Whether boxes are fractions of the size that the image has in the model's input,
            without borders; if False, they are pixels of the model's input.
    """

    boxes: Array
    classes: Array
    scores: Array
    relative: bool


@dataclass(frozen=True)
class QueryHead:
    """Head of DETR-like models: `logits` `[queries, classes]` and `pred_boxes` `[queries, 4]`.

    Scores are a softmax over the classes of each query, or a sigmoid of each logit.

    Attributes:
        pairs: If scores are sigmoids, the maximum number of (query, class) pairs to return; 0 for
            the number of queries. -1 (`_SOFTMAX`) if scores are a softmax: each query then gives
            one pair, and the last class means no object.
    """

    pairs: int

    def things(self, logits: Array, boxes: Array) -> RawDetections:
        """Decodes one image's outputs: each query's best class, or the best (query, class) pairs.

        Args:
            logits: `[queries, classes]`.
            boxes: Center x, y and width, height, as fractions of the image's size, `[queries, 4]`.
        """
        logits = logits.astype(np.float64)
        if self.pairs == _SOFTMAX:
            powers = np.exp(logits - logits.max(-1, keepdims=True))
            scores = (powers / powers.sum(-1, keepdims=True))[:, :-1]
            queries, classes = np.arange(len(scores)), scores.argmax(-1)
        else:
            scores = sigmoid(logits)
            best = np.argsort(-scores, axis=None, kind="stable")[: self.pairs or len(scores)]
            queries, classes = np.divmod(best, scores.shape[1])
        best_scores = scores[queries, classes]
        return RawDetections(as_corners(boxes[queries]), classes, best_scores, True)


def query_head(
    processor: str, model_type: str, classes: object, labels: Mapping[int, str]
) -> QueryHead:
    """Returns the head of a model with outputs `logits` and `pred_boxes`.

    Args:
        processor: Prefix of the model's image processor class, such as "Detr"; "" if unknown.
        model_type: `model_type` in the model's config.json; "" if unknown.
        classes: Size of the last axis of `logits`; not an int if it is dynamic.
        labels: Class names by index.

    Raises:
        UnsupportedError: The scoring cannot be inferred, or is not supported.
    """
    if processor in _BY_PROCESSOR:
        return QueryHead(_BY_PROCESSOR[processor])
    if model_type in _BY_MODEL:
        return QueryHead(_BY_MODEL[model_type])
    if model_type:
        raise UnsupportedError(
            f"The model has logits and pred_boxes, and its config.json the model_type "
            f"{model_type!r}, whose scores are not supported; supported are: "
            f"{', '.join(_BY_MODEL)}."
        )
    if labels and isinstance(classes, int) and classes - len(labels) in (0, 1):
        return QueryHead(0 if classes == len(labels) else _SOFTMAX)
    raise UnsupportedError(
        f"The model has logits of {classes} classes and pred_boxes, and no config.json or "
        "preprocessor_config.json says whether one class means 'no object'; copy these beside it, "
        "or pass labels= with the name of each class."
    )


@dataclass(frozen=True)
class BoxHead:
    """Head of YOLO-like models: one output with a box and scores per anchor or query.

    Attributes:
        output: Name of the output.
        classes: Number of classes; None if unknown.
        extra: Number of mask coefficients or keypoint values per box, which are ignored.
        export: Ultralytics' metadata in the model file; None if it has none.
    """

    output: str
    classes: int | None
    extra: int
    export: Export | None

    def things(self, output: Array) -> tuple[Array, Array] | RawDetections:
        """Decodes the output of one image.

        Args:
            output: Model output for one image, with two axes.

        Returns:
            `RawDetections` if the model suppresses overlapping boxes itself, or for an RT-DETR
            head. Otherwise candidate boxes as center and size in input pixels, float32 `[n, 4]`,
            and their scores, float32 `[classes, n]`.

        Raises:
            UnsupportedError: The shape matches no supported head, or a score or class is out of
                range.
        """
        rows = output.astype(np.float32)
        relative = self.export is not None and self.export.is_rtdetr
        row_size = None if self.classes is None else 4 + self.classes + self.extra
        if self._is_suppressed(rows.shape, row_size, relative):
            return self._decode_suppressed(rows)
        if relative and self.classes is not None and rows.shape[1] == row_size:
            queries, classes = np.divmod(
                np.argsort(-rows[:, 4:row_size], axis=None, kind="stable")[: len(rows)],
                self.classes,
            )
            best_scores = self._checked(rows[queries, 4 + classes])
            return RawDetections(as_corners(rows[queries, :4]), classes, best_scores, True)
        if self._has_objectness(rows.shape):
            assert self.classes is not None
            scores = rows[:, 4:5] * rows[:, 5 : 5 + self.classes]
            return np.ascontiguousarray(rows[:, :4]), self._checked(scores.T)
        guessed = row_size is None and 4 + self.extra < len(rows) <= rows.shape[1]
        if relative or not (guessed or len(rows) == row_size):
            raise self._unsupported(rows.shape)
        scores = rows[4 : len(rows) - self.extra]
        return np.ascontiguousarray(rows[:4].T), self._checked(scores)

    def _is_suppressed(self, shape: tuple[int, ...], wide: int | None, relative: bool) -> bool:
        """Returns whether the output is `[boxes, 6 + extra]`: corners, score, class, extra values.

        This is the form of heads that suppress overlapping boxes themselves.

        Args:
            shape: Shape of the output of one image.
            wide: Numbers per anchor if the head does not suppress boxes; None if unknown.
            relative: Whether the head is RT-DETR's.

        Raises:
            UnsupportedError: The metadata say that boxes are suppressed, but the shape differs.
        """
        recorded = None if self.export is None else self.export.suppressed
        fits = shape[1] == 6 + self.extra
        if recorded and not fits:
            raise self._unsupported(shape)
        if recorded or relative:  # RT-DETR exports before 2026 have the scores of all classes
            return bool(recorded)
        return fits and not (recorded is False and shape[0] == wide)

    def _has_objectness(self, shape: tuple[int, ...]) -> bool:
        """Returns whether the output is `[boxes, 5 + classes + extra]`, with an objectness score.

        Only YOLOv5's own exporter writes this form.
        """
        is_yolov5 = self.export is not None and self.export.task == ""
        return is_yolov5 and self.classes is not None and shape[1] == 5 + self.classes + self.extra

    def _decode_suppressed(self, rows: Array) -> RawDetections:
        scores, classes = self._checked(rows[:, 4]), rows[:, 5]
        known = (classes == np.rint(classes)) & (classes >= 0) & (classes < (self.classes or 1e6))
        if not known.all():
            raise UnsupportedError(
                f"'{self.output}' has rows of {rows.shape[1]}, like heads that already removed "
                f"overlapping boxes, but contains the invalid class {classes[~known][0]:.4g}; "
                f"{self._metadata_hint()}"
            )
        relative = self.export is not None and self.export.is_rtdetr
        boxes = as_corners(rows[:, :4]) if relative else rows[:, :4]
        return RawDetections(boxes, classes.astype(np.int64), scores, relative)

    def _checked(self, scores: Array) -> Array:
        """Returns scores unchanged, after checking that they are from 0 to 1, with a tolerance.

        Raises:
            UnsupportedError: A score is out of range.
        """
        if (
            scores.size
            and not -_SCORE_TOLERANCE <= scores.min() <= scores.max() <= 1 + _SCORE_TOLERANCE
        ):
            raise UnsupportedError(
                f"'{self.output}' has {scores.min():.4g} to {scores.max():.4g} instead of scores "
                f"within 0..1; {self._metadata_hint()}"
            )
        return scores

    def _unsupported(self, shape: tuple[int, ...]) -> UnsupportedError:
        classes = "an unknown number of" if self.classes is None else self.classes
        return UnsupportedError(
            f"'{self.output}' is {list(shape)} per image, which is not a supported head for "
            f"{classes} classes and {self.extra} more numbers per box: [4 + classes + more, "
            f"anchors], or [boxes, 6 + more] without overlaps; {self._metadata_hint()}"
        )

    def _metadata_hint(self) -> str:
        if self.export is None:
            return "the file has no metadata of Ultralytics; pass labels= with all names."
        return f"its metadata has the task {self.export.task!r} and {len(self.export.names)} names."


def box_head(
    output: str, protos: object, export: Export | None, labels: Mapping[int, str]
) -> BoxHead:
    """Returns the head of a YOLO-like model: one output with a box and scores per anchor.

    Args:
        output: Name of the output.
        protos: Number of mask coefficients per box: the channels of the output with mask
            prototypes. Not an int if there is no such output.
        export: Ultralytics' metadata in the model file; None if it has none.
        labels: Class names by index.

    Raises:
        UnsupportedError: The metadata name a task other than detection, segmentation and pose; or
            a pose model's metadata lack `kpt_shape`.
    """
    whole = labels.keys() == set(range(len(labels)))
    classes = len(labels) if labels and whole else None
    extra = protos if isinstance(protos, int) else 0
    if export is not None:
        check_task(export, "Detector", ("", *_BOXES))
        classes = len(export.names) or classes
        if export.task == "pose" and not export.keypoints:
            raise UnsupportedError(
                "The file's metadata has the task 'pose' and no kpt_shape, which gives the number "
                "of values per keypoint; export the model again."
            )
        extra = {"detect": 0, "pose": export.keypoints}.get(export.task, extra)
    return BoxHead(output, classes, extra, export)


def check_task(export: Export | None, name: str, tasks: tuple[str, ...]) -> None:
    """Checks that a class of clrt can run the task that the metadata of a model file names.

    A file without metadata is accepted.

    Args:
        export: Ultralytics' metadata; None if the file has none.
        name: Name of the clrt class, for the message.
        tasks: Tasks that the class runs; "" accepts metadata without a task.

    Raises:
        UnsupportedError: The metadata have another task.
    """
    if export is None or export.task in tasks:
        return
    owner = {"classify": "Classifier", **dict.fromkeys(_BOXES, "Detector")}.get(export.task)
    remedy = f"open it by {owner}" if owner else "no class of clrt.vision runs that"
    raise UnsupportedError(
        f"The file's metadata has the task {export.task!r}, which {name} does not support; "
        f"{remedy}."
    )


def as_corners(boxes: Array) -> Array:
    """Converts boxes `[..., 4]` from center x, y and width, height to corners x1, y1, x2, y2."""
    middle, size = boxes[..., :2], boxes[..., 2:4]
    return np.concatenate([middle - size / 2, middle + size / 2], -1)


def sigmoid(logits: Array) -> Array:
    """Returns 1 / (1 + exp(-logits)) of each element, without overflow."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -80, 80))))
