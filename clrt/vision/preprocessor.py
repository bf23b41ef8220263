"""Image preprocessing, as configured by a model's preprocessor_config.json."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

import numpy as np

from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.fast_dataclass import dataclass
from clrt.vision.configs import RGB
from clrt.vision.frames import (
    Frame,
    Size,
    center_cropped,
    centred_to_multiple,
    edges_within,
    letterboxed,
    multiple_of,
    shortest_edge,
    whole,
    within,
)
from clrt.vision.image_inputs import ImageLike, Picture, pictures
from clrt.vision.presets import arguments_of
from clrt.vision.resample_tables import filter_name
from clrt.vision.resizer import Colours, resized


@dataclass(frozen=True)
class ImageBatch:
    """A batch of preprocessed images.

    Attributes:
        pixels: float32 `[images, 3, height, width]` on the device; `[images, height, width, 3]` if
            the preprocessor has `channels_last`.
        frames: Placement of each image in the model's input.
    """

    pixels: DeviceTensor
    frames: tuple[Frame, ...]

    @property
    def pixel_mask(self) -> Array:
        """int64 `[images, height, width]`: 1 for pixels of the image, 0 for the border."""
        mask = np.zeros((len(self.frames), *self.frames[0].canvas), np.int64)
        for plane, frame in zip(mask, self.frames, strict=True):
            (top, low), (left, right) = map(frame.visible, (0, 1))
            row, column = frame.offset
            plane[row + top : row + low, column + left : column + right] = 1
        return mask


@dataclass(frozen=True)
class Preprocessor:
    """Resizes, crops or pads, and normalizes images on a device.

    Created by `from_config` or by its arguments. Resizing matches Pillow's.

    Attributes:
        size: `(height, width)`; None to keep the size.
        fit: How images are resized: "exact" stretches to `size`; "shortest" makes `size[0]` the
            shortest edge, with no edge over `longest`; "edges" does the same with DETR's rounding;
            "within" keeps the aspect ratio and fits the image into `size`; "letterbox" does so and
            centers the image on a canvas of `size`.
        longest: Maximum longest edge in pixels, for "shortest" and "edges"; None for any.
        multiple: Edges of the resized image become multiples of this, in pixels; only for "exact"
            and "edges".
        keep_aspect: Whether "exact" scales both edges by the same factor, as in Depth Anything.
        crop: `(height, width)` of a center crop, with a border if images are smaller; None for
            none.
        resample: Filter: "nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", or Pillow's
            number of the filter.
        scale: Factor of the bytes 0..255: a pixel becomes `(byte * scale - mean) / std`.
        mean: Number per color channel, subtracted after scaling.
        std: Number per color channel, by which the difference is divided.
        fill: Color of borders as a byte, before normalization; None for 0 after normalization.
        pad: Whether images of a batch are padded at the right and bottom to the largest.
        pad_size: `(height, width)` to which `pad` pads images; None for the batch's largest.
        pad_multiple: Images get a centered border, so that their edges are multiples of this, in
            pixels; 1 for no border.
        bgr: Whether the channel order is blue, green, red.
        channels_last: Whether batches are `[images, height, width, 3]`.
    """

    size: Size | None = (224, 224)
    fit: str = "exact"
    longest: int | None = None
    multiple: int = 1
    keep_aspect: bool = False
    crop: Size | None = None
    resample: str | int = "bilinear"
    scale: float = 1 / 255
    mean: RGB = (0.0, 0.0, 0.0)
    std: RGB = (1.0, 1.0, 1.0)
    fill: float | None = 0.0
    pad: bool = False
    pad_size: Size | None = None
    pad_multiple: int = 1
    bgr: bool = False
    channels_last: bool = False
    _filter: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "_filter", filter_name(self.resample))
        if self.fit not in _FITS:
            raise InputError(f"fit is {self.fit!r}; expected one of: {', '.join(_FITS)}.")
        sizes = (("size", self.size), ("crop", self.crop), ("pad_size", self.pad_size))
        for name, size in sizes:
            if size is not None and (len(size) != 2 or min(size) < 1):
                raise InputError(f"{name} is {size!r}; expected a height and a width above 0.")
        for name, number in (("multiple", self.multiple), ("pad_multiple", self.pad_multiple)):
            if number < 1:
                raise InputError(f"{name} is {number!r}; expected 1 or more.")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not np.isfinite(values).all() or (name == "std" and 0 in values):
                raise InputError(
                    f"{name} is {values!r}; expected three finite numbers, for std other than 0."
                )

    @classmethod
    def from_config(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Preprocessor:
        """Creates the preprocessor of a model's `preprocessor_config.json`.

        Args:
            source: The file, its folder, or its contents.

        Raises:
            InputError: The image processor or an option is not supported.
            ModelError: The file is missing, or not JSON.
        """
        return cls(**arguments_of(source))

    def frame(self, image: Size) -> Frame:
        """Returns the placement in the model's input of an image of size `image`.

        Args:
            image: Height and width, in pixels.

        Raises:
            InputError: The resized image would have no pixels.
        """
        if self.fit == "letterbox" and self.size is not None:
            placed = letterboxed(image, self.size)
        else:
            placed = whole(image, self._resized(image))
        if min(placed.resized) < 1:
            high, wide = placed.resized
            raise InputError(
                f"An image of {image[0]} x {image[1]} pixels would become {high} x {wide}, which "
                "is too large; crop it."
            )
        if self.crop is not None:
            placed = center_cropped(placed, self.crop)
        return centred_to_multiple(placed, self.pad_multiple)

    def _resized(self, image: Size) -> Size:
        """Returns the size to which an image of size `image` is resized; not for "letterbox"."""
        size = self.size
        if size is None:
            return image
        if self.fit == "shortest":
            return shortest_edge(image, size[0], self.longest)
        if self.fit == "edges":
            return edges_within(image, size[0], self.longest, self.multiple)
        if self.fit == "within":
            return within(image, size)
        if self.multiple > 1 or self.keep_aspect:
            return multiple_of(image, size, self.multiple, self.keep_aspect)
        return size

    def prepare(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        device: str | int | DeviceInfo | None = None,
    ) -> ImageBatch:
        """Preprocesses images to a batch on a device, with the placement of each.

        Args:
            images: An image or a list of images: a path, the bytes of a file, a Pillow image, or a
                uint8 array `[height, width]` or `[height, width, channels]`. Images are
                rotated according to their EXIF data.
            device: As in `clrt.load`.

        Raises:
            InputError: An input is not an image or damaged, or the images have different sizes.
            UnsupportedError: Pillow is not installed.
            DeviceError: The device is absent, or its driver fails.
            OutOfMemoryError: The batch does not fit into memory.
        """
        return self.prepared(pictures(images)[0], choose_device(device))

    def prepared(self, images: Sequence[Picture], device: DeviceInfo) -> ImageBatch:
        """Preprocesses opened images to a batch on a device.

        Args:
            images: Opened images.
            device: The device.

        Raises:
            InputError: The preprocessed images have different sizes, one exceeds `pad_size`, or one
                cannot be decoded.
            DeviceError: The driver fails.
            OutOfMemoryError: The batch does not fit into memory.
        """
        frames = [self.frame(p.size) for p in images]
        if self.pad:
            high, wide = (max(f.canvas[a] for f in frames) for a in (0, 1))
            size = self.pad_size or (high, wide)
            if high > size[0] or wide > size[1]:
                raise InputError(
                    f"An image becomes {high} x {wide}, which exceeds its pad_size of "
                    f"{size[0]} x {size[1]}; pass a Preprocessor with a larger one."
                )
            frames = [f.padded(size) for f in frames]
        args = images, frames, self._filter, self._colours(), device, self.channels_last
        pixels = resized(*args)
        return ImageBatch(pixels, tuple(frames))

    def __call__(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        device: str | int | DeviceInfo | None = None,
        device_outputs: bool = False,
    ) -> Array | DeviceTensor:
        """Preprocesses images to a batch, float32 `[images, 3, height, width]`.

        With `channels_last` the batch is `[images, height, width, 3]`.

        Args:
            images: As in `prepare`; one image is a batch of one.
            device: As in `clrt.load`.
            device_outputs: Whether the batch stays on the device, as input of models.

        Raises:
            InputError: An input is not an image or damaged, or the images have different sizes.
            UnsupportedError: Pillow is not installed.
            DeviceError: The device is absent, or its driver fails.
            OutOfMemoryError: The batch does not fit into memory.
        """
        pixels = self.prepare(images, device=device).pixels
        return pixels if device_outputs else pixels.numpy()

    def with_size(self, size: Size) -> Preprocessor:
        """Returns a copy of this preprocessor for another size of the model's input."""
        if self.crop is not None:
            return replace(self, crop=size)
        return replace(self, size=size)

    def _colours(self) -> Colours:
        mean, std = np.array(self.mean, np.float64), np.array(self.std, np.float64)
        scale, offset = self.scale / std, -mean / std
        fill = np.zeros(3) if self.fill is None else self.fill * scale + offset
        factor, more, around = (cast(RGB, tuple(map(float, v))) for v in (scale, offset, fill))
        return Colours(factor, more, around, self.bgr)


_FITS = ("exact", "shortest", "edges", "within", "letterbox")
