"""Semantic segmentation."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.movement.gather import Gather
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.table import Add, Mul, Sub
from clrt.ops.reduce.argmax import ArgMax
from clrt.runtime.model.model import Model, load
from clrt.util.fast_dataclass import dataclass
from clrt.vision.boxes import check_task
from clrt.vision.frames import Frame
from clrt.vision.image_inputs import ImageLike, Picture
from clrt.vision.image_model import ImageModel

# Maximum size in bytes of the enlarged logits of a band of rows: the logits of a whole photo take
# gigabytes.
_BAND_BYTES = 64 << 20
# Assumed minimum number of classes when choosing the rows of a band; with more, a band has fewer
# rows.
_FEW_CLASSES = 16


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Classes of an image's pixels.

    Attributes:
        mask: Class indices, int32 `[height, width]`.
        labels: Names of the classes that occur, by index.
    """

    mask: Array
    labels: Mapping[int, str]

    def shares(self) -> dict[int, float]:
        """Returns class index -> fraction of the image's pixels, by descending fraction."""
        classes, counts = np.unique(self.mask, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {int(classes[k]): float(counts[k] / self.mask.size) for k in order}

    def overlay(self, pixels: Array, strength: float = 0.5) -> Array:
        """Blends the image with the colors of its classes; returns uint8 `[height, width, 3]`.

        Args:
            pixels: uint8 `[height, width, 3]`.
            strength: Opacity of the colors: 0 for the image alone, 1 for the colors alone.

        Raises:
            InputError: The image has another size than the mask.
        """
        if pixels.shape != (*self.mask.shape, 3):
            raise InputError(
                f"The image is {list(pixels.shape)} and the mask {list(self.mask.shape)}; pass the "
                "image that was segmented."
            )
        table = np.array([colour_of(k) for k in range(int(self.mask.max()) + 1)], np.float32)
        mixed = pixels * np.float32(1 - strength)
        mixed += table[self.mask] * np.float32(strength)
        return np.rint(mixed).astype(np.uint8)


def colour_of(number: int) -> tuple[int, int, int]:
    """Returns the RGB color of class `number`; classes with adjacent indices have distinct hues."""
    hue, value = number * 0.618033988749895 % 1.0, 1.0 - 0.25 * (number // 7 % 3)
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.75, value)
    return round(255 * red), round(255 * green), round(255 * blue)


class Segmenter(ImageModel):
    """Segments images by models such as SegFormer.

    The models' output is `logits` `[images, classes, height, width]`, smaller than the image. The
    output is enlarged to the image's size on the device, and the most likely class of each pixel is
    selected.
    """

    _enlarger: Model | None = None

    def _resolve_outputs(self) -> None:
        check_task(self.export, "Segmenter", ())
        self._logits = self._output(
            ("logits", "output"), 4, "pixels, [images, classes, height, width]"
        )

    def close(self) -> None:
        """Frees the device memory; the model cannot run afterwards."""
        super().close()
        if self._enlarger is not None:
            self._enlarger.close()

    @overload
    def __call__(self, images: list[Any] | tuple[Any, ...]) -> list[Segmentation]: ...

    @overload
    def __call__(self, images: ImageLike) -> Segmentation: ...

    def __call__(
        self, images: ImageLike | Sequence[ImageLike]
    ) -> Segmentation | list[Segmentation]:
        """Returns the segmentation of an image, or a list of them for a list of images.

        Args:
            images: Images in the forms of `Preprocessor.prepare`.

        Raises:
            InputError: An image cannot be read.
            DeviceError: The driver fails.
        """
        opened, alone = self._open_images(images)
        found = self.segment(opened)
        return found[0] if alone else found

    def segment(self, images: Sequence[Picture]) -> list[Segmentation]:
        """Returns the segmentation of each opened image, in order."""
        name = self._logits
        results = []
        for frame, outputs in self._run_images(images, [name]):
            mask = self._mask(frame, outputs[name].astype(np.float32))
            labels = {int(k): self.label(int(k)) for k in np.unique(mask)}
            results.append(Segmentation(mask, labels))
        return results

    def _mask(self, frame: Frame, logits: Array) -> Array:
        """Returns the class of each pixel of the image, int32 `[height, width]`.

        Args:
            frame: Placement of the image in the model's input.
            logits: float32 `[classes, height, width]`.
        """
        if self._enlarger is None:
            self._enlarger = _enlarger(self.model)
        height, width = frame.image
        down, across = (_interpolation(frame, axis, logits.shape[axis + 1]) for axis in (0, 1))
        mask = np.empty((height, width), np.int32)
        top = 0
        while top < height:
            rows = _rows_of(_FEW_CLASSES, width)
            classes = _candidate_classes(
                logits, down[0][top : top + rows], down[1][top : top + rows]
            )
            rows = min(rows, _rows_of(len(classes), width))
            feeds: dict[str, Any] = {"logits": logits[classes].transpose(1, 2, 0)}
            for name, table in (("row", [t[top : top + rows] for t in down]), ("column", across)):
                names = (f"{name}0", f"{name}1", f"{name}_share")
                feeds |= dict(zip(names, table, strict=True))
            feeds["row_share"] = feeds["row_share"][:, None, None]
            feeds["column_share"] = feeds["column_share"][:, None]
            (band,) = self._enlarger.run(feeds).values()
            mask[top : top + rows] = classes[band]
            top += rows
        return mask


def _rows_of(classes: int, width: int) -> int:
    """Returns the number of image rows whose logits take at most `_BAND_BYTES`; at least 1.

    Args:
        classes: Number of classes.
        width: Width of the image, in pixels.
    """
    return max(1, _BAND_BYTES // (4 * classes * width))


def _candidate_classes(logits: Array, first: Array, second: Array) -> Array:
    """Returns the indices of the classes that can be the most likely one at some pixel.

    A pixel's logit is interpolated between four logits of its class, so it lies between their
    minimum and maximum. A class is left out if at each pixel the maximum of its four logits is
    below the minimum of another class.

    Args:
        logits: `[classes, height, width]`.
        first: For each row of pixels, the index of the first row of logits to interpolate between.
        second: For each row of pixels, the index of the second row of logits.
    """
    rows = logits[:, int(first.min()) : int(second.max()) + 1]
    for axis in (1, 2):
        if rows.shape[axis] == 1:
            rows = np.concatenate([rows, rows], axis)
    corners = [rows[:, y : y - 1 or None, x : x - 1 or None] for y in (0, 1) for x in (0, 1)]
    minimum, maximum = (function(corners, 0) for function in (np.min, np.max))
    bound = minimum.max(0)
    candidates = np.flatnonzero((maximum >= bound).any((1, 2)))
    return candidates if len(candidates) else np.arange(len(logits))  # NaN fails all comparisons


def _interpolation(frame: Frame, axis: int, size: int) -> list[Array]:
    """Returns how to interpolate each image pixel linearly between two logits along an axis.

    Args:
        frame: Placement of the image in the model's input.
        axis: 0 for rows, 1 for columns.
        size: Number of logits along the axis.

    Returns:
        For each pixel the index of the first logit, the index of the second one, and the weight of
        the second one (0 to 1); three arrays `[pixels]`.

    Source: PyTorch's interpolate, mode linear, with pixel centers at half integers.
    """
    pixels = np.arange(frame.image[axis]) + 0.5
    on_canvas = pixels * (frame.resized[axis] / frame.image[axis]) + frame.offset[axis]
    places = np.clip(on_canvas * (size / frame.canvas[axis]) - 0.5, 0, size - 1)
    first = places.astype(np.int64)
    return [first, np.minimum(first + 1, size - 1), (places - first).astype(np.float32)]


def _enlarger(model: Model) -> Model:
    """Builds a model that enlarges logits to a band of image rows and selects each pixel's class.

    The model interpolates linearly between two rows, then between two columns of logits. Its inputs
    are the logits `[height, width, classes]`, then for rows and for columns the indices and weights
    from `_interpolation`. Classes are last because Gather reads whole vectors then: reading single
    elements takes ten times as long.

    Args:
        model: Segmentation model, whose device is used.

    Returns:
        The model; its output is the index of each pixel's class, `[rows, columns]`.
    """
    build = OpBuilder()
    value = build.feed("logits", DType.FLOAT32, "h", "w", "classes")
    for axis, name, size, shape in (
        (0, "row", "rows", ("rows", 1, 1)),
        (1, "column", "columns", ("columns", 1)),
    ):
        first, second = (build.feed(f"{name}{k}", DType.INT64, size) for k in (0, 1))
        share = build.feed(f"{name}_share", DType.FLOAT32, *shape)
        near, far = (build(Gather(axis), value, i) for i in (first, second))
        value = build(Add(), near, build(Mul(), build(Sub(), far, near), share))
    result = build(ArgMax(2, keepdims=False), value)
    return load(build.graph("enlarge", build.inputs, [result]), device=model.device)
