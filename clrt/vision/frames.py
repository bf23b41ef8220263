"""Geometry of preprocessing: resized sizes, crops and borders."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass

Size = tuple[int, int]


@dataclass(frozen=True)
class Frame:
    """Placement of a resized image on a canvas, which may crop the image or add a border.

    Attributes:
        image: Height and width of the original image, in pixels.
        resized: Height and width of the resized image.
        canvas: Height and width of the canvas, which is the model's input.
        offset: Row and column of the canvas at which the resized image starts; negative if it is
            cropped.
    """

    image: Size
    resized: Size
    canvas: Size
    offset: Size = (0, 0)

    def visible(self, axis: int) -> tuple[int, int]:
        """Returns which pixels of the resized image are on the canvas, along one axis.

        Args:
            axis: 0 for rows, 1 for columns.

        Returns:
            First pixel and end (exclusive), in the resized image; equal if none is on the canvas.
        """
        begin = min(max(0, -self.offset[axis]), self.resized[axis])
        return begin, max(begin, min(self.resized[axis], self.canvas[axis] - self.offset[axis]))

    def boxes_in_image(self, boxes: Array) -> Array:
        """Converts boxes (x1, y1, x2, y2) from canvas pixels to image pixels, clipped to the image.

        Args:
            boxes: `[n, 4]`.

        Returns:
            float32 `[n, 4]`.
        """
        (top, left), (high, wide), (height, width) = self.offset, self.resized, self.image
        scale = np.array([width / wide, height / high] * 2)
        scaled = (boxes - np.array([left, top] * 2)) * scale
        inside = np.clip(scaled, 0, np.array([width, height] * 2))
        return np.asarray(inside, np.float32)

    def padded(self, canvas: Size) -> Frame:
        """Returns this placement on a larger canvas, with the border at the right and bottom."""
        return replace(self, canvas=canvas)


def whole(image: Size, resized: Size) -> Frame:
    """Returns the placement of an image whose canvas has the size of the resized image."""
    return Frame(image, resized, resized)


def center_cropped(frame: Frame, size: Size) -> Frame:
    """Returns a placement whose canvas is the center of the resized image.

    Args:
        frame: Placement of a resized image; its canvas is replaced.
        size: Height and width of the new canvas; a border surrounds a smaller image.
    """
    (high, wide), (height, width) = frame.resized, size
    return replace(frame, canvas=size, offset=(-((high - height) // 2), -((wide - width) // 2)))


def letterboxed(image: Size, canvas: Size, enlarge: bool = True) -> Frame:
    """Returns the placement of an image centered on a canvas, as large as fits on the canvas.

    Args:
        image: Height and width of the image.
        canvas: Height and width of the canvas.
        enlarge: Whether images smaller than the canvas are enlarged; if not, they keep their size.
    """
    (height, width), (high, wide) = image, canvas
    scale = min(high / height, wide / width)
    scale = scale if enlarge else min(scale, 1.0)
    resized = max(round(height * scale), 1), max(round(width * scale), 1)
    # An odd remaining pixel goes to the bottom or right.
    top, left = ((c - r) / 2 - 0.1 for c, r in zip(canvas, resized, strict=True))
    return Frame(image, resized, canvas, (round(top), round(left)))


def shortest_edge(image: Size, size: int, most: int | None = None) -> Size:
    """Computes the size of a resized image from its shortest edge, keeping the aspect ratio.

    Args:
        image: Height and width of the image.
        size: Shortest edge after resizing, in pixels.
        most: Maximum longest edge, which may make the shortest edge smaller than `size`; None for
            no limit.

    Source: transformers' get_resize_output_image_size.
    """
    height, width = image
    short, long = min(image), max(image)
    new_short, new_long = size, int(size * long / short)
    if most is not None and new_long > most:
        new_short, new_long = int(most * new_short / new_long), most
    return (new_long, new_short) if width <= height else (new_short, new_long)


def edges_within(image: Size, size: int, most: int | None, multiple: int = 1) -> Size:
    """Computes the size of a resized image from its shortest edge, with DETR's rounding.

    Args:
        image: Height and width of the image.
        size: Shortest edge after resizing, in pixels.
        most: Maximum longest edge, which may make the shortest edge smaller than `size`; None for
            no limit.
        multiple: Edges are rounded down to multiples of this.

    Source: get_size_with_aspect_ratio of transformers' DETR, and of YOLOS with `multiple` 16.
    """
    height, width = image
    short, long = float(min(image)), float(max(image))
    raw = None
    if most is not None and long / short * size > most:
        raw = most * short / long
        size = round(raw)
    exact = size if raw is None else raw
    if min(image) == size and multiple == 1:
        resized = image
    elif width < height:
        resized = int(exact * height / width), size
    elif height == size:
        resized = image
    else:
        resized = size, int(exact * width / height)
    return resized[0] - resized[0] % multiple, resized[1] - resized[1] % multiple


def within(image: Size, most: Size) -> Size:
    """Returns the largest size within size `most` that has the aspect ratio of size `image`."""
    scale = min(most[0] / image[0], most[1] / image[1])
    return int(image[0] * scale), int(image[1] * scale)


def multiple_of(image: Size, size: Size, multiple: int, keep_aspect: bool) -> Size:
    """Computes the size of a resized image whose edges are multiples of a number.

    Args:
        image: Height and width of the image.
        size: Requested height and width.
        multiple: Edges are rounded to the nearest multiple of this.
        keep_aspect: Whether both edges are scaled by the same factor, the one closer to 1. If
            False, each edge is scaled to its size in `size`.

    Source: get_resize_output_image_size of transformers' DPT.
    """
    scale = [s / i for s, i in zip(size, image, strict=True)]
    if keep_aspect:
        scale = [scale[1] if abs(1 - scale[1]) < abs(1 - scale[0]) else scale[0]] * 2
    edges = [s * i for s, i in zip(scale, image, strict=True)]
    high, wide = (round(f / multiple) * multiple for f in edges)
    return high, wide


def centred_to_multiple(frame: Frame, divisor: int) -> Frame:
    """Returns a placement on a larger canvas, whose edges are multiples of `divisor`.

    A border of equal widths on opposite sides is added to the canvas of `frame`.
    """
    high, wide = (math.ceil(s / divisor) * divisor for s in frame.canvas)
    top, left = (high - frame.canvas[0]) // 2, (wide - frame.canvas[1]) // 2
    row, column = frame.offset
    return replace(frame, canvas=(high, wide), offset=(row + top, column + left))
