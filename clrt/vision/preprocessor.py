"""Preprocessor: images as the input of a model, by the file that Hugging Face keeps beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.runtime.opencl.tensors import DeviceTensor
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
    """Images as a model takes them.

    Attributes:
        pixels: float32 `[images, 3, height, width]` on the device, or with the channels last.
        frames: Where each image lies in it.
    """

    pixels: DeviceTensor
    frames: tuple[Frame, ...]

    @property
    def pixel_mask(self) -> Array:
        """int64 `[images, height, width]`: 1 where there is an image, 0 in the border."""
        mask = np.zeros((len(self.frames), *self.frames[0].canvas), np.int64)
        for plane, frame in zip(mask, self.frames, strict=True):
            (top, low), (left, right) = map(frame.visible, (0, 1))
            row, column = frame.offset
            plane[row + top : row + low, column + left : column + right] = 1
        return mask


@dataclass(frozen=True)
class Preprocessor:
    """Resizes, crops or pads, and normalises images on a device.

    Make one by `from_config`, or by its arguments. Resizing gives what Pillow gives.

    Attributes:
        size: `(height, width)`; None leaves images as large as they are.
        fit: How images get there: "exact" stretches, "shortest" makes `size[0]` the shortest edge,
            with no edge over `longest`, "edges" the same as DETR counts, "within" is the largest
            that fits, "letterbox" lays that on a canvas of `size`.
        longest: The longest edge; None for any.
        multiple: Edges become multiples of this number.
        keep_aspect: Of a `multiple`: whether one scale serves both edges, as in Depth Anything.
        crop: `(height, width)` of the middle that is kept, with a border where images are smaller.
        resample: The filter: "nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", or
            Pillow's number of it.
        scale: Bytes are multiplied by it; then `mean` is taken off, and they are divided by `std`.
        mean, std: Of each channel.
        fill: A byte: the colour of borders before they are normalised; None makes them 0 after.
        pad: Whether images of a batch get borders at the right and below up to the largest.
        pad_size: `(height, width)` up to which they get them; None goes by the largest.
        pad_multiple: Images get borders around them, so that edges are multiples of this number.
        bgr: Whether blue comes first.
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
            raise InputError(f"fit is {self.fit!r}; it is one of: {', '.join(_FITS)}.")
        sizes = (("size", self.size), ("crop", self.crop), ("pad_size", self.pad_size))
        for name, size in sizes:
            if size is not None and (len(size) != 2 or min(size) < 1):
                raise InputError(f"{name} is {size!r}; it is a height and a width above 0.")
        for name, number in (("multiple", self.multiple), ("pad_multiple", self.pad_multiple)):
            if number < 1:
                raise InputError(f"{name} is {number!r}; it is 1 or more.")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3 or not np.isfinite(values).all() or (name == "std" and 0 in values):
                raise InputError(f"{name} is {values!r}; it is three numbers, of std none 0.")

    @classmethod
    def from_config(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Preprocessor:
        """What a model's `preprocessor_config.json` asks for.

        Args:
            source: The file, the folder that it lies in, or its content.

        Raises:
            InputError: It is of a kind, or asks for something, that is not known here.
            ModelError: The file is missing, or no JSON.
        """
        return cls(**arguments_of(source))

    def frame(self, image: Size) -> Frame:
        """Where an image of some height and width lies in what the model takes.

        Raises:
            InputError: It would have no pixels.
        """
        if self.fit == "letterbox" and self.size is not None:
            found = letterboxed(image, self.size)
        else:
            found = whole(image, self._resized(image))
        if min(found.resized) < 1:
            high, wide = found.resized
            raise InputError(
                f"An image of {image[0]} x {image[1]} pixels would become {high} x {wide}; crop it."
            )
        if self.crop is not None:
            found = center_cropped(found, self.crop)
        return centred_to_multiple(found, self.pad_multiple)

    def _resized(self, image: Size) -> Size:
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
        """A batch of images on a device, and where each of them lies in it.

        Args:
            images: An image or a list of them: a path, the bytes of a file, an image of Pillow, or
                uint8 `[height, width]` or `[height, width, channels]`. They are turned as their
                EXIF data say.
            device: As in `clrt.load`.

        Raises:
            InputError: One is no image, is damaged, or they become no batch.
            UnsupportedError: Pillow is not installed.
            DeviceError: The device is absent, or its driver fails.
            OutOfMemoryError: There is no room for it.
        """
        return self.prepared(pictures(images)[0], choose_device(device))

    def prepared(self, images: Sequence[Picture], device: DeviceInfo) -> ImageBatch:
        """`prepare` of images that have been opened."""
        frames = [self.frame(p.size) for p in images]
        if self.pad:
            high, wide = (max(f.canvas[a] for f in frames) for a in (0, 1))
            size = self.pad_size or (high, wide)
            if high > size[0] or wide > size[1]:
                raise InputError(
                    f"An image becomes {high} x {wide}, which is more than its pad_size of "
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
        """A batch of images: float32 `[images, 3, height, width]`.

        Args:
            images: As for `prepare`; one image is a batch of one.
            device: As in `clrt.load`.
            device_outputs: Whether the batch stays on the device, where models read it.

        Raises:
            InputError, UnsupportedError, DeviceError: As `prepare`.
        """
        pixels = self.prepare(images, device=device).pixels
        return pixels if device_outputs else pixels.numpy()

    def with_size(self, size: Size) -> Preprocessor:
        """The same for a model that takes images of one size."""
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
