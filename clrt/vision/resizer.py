"""Resamples and normalizes images on a device, from stored pixels to a model's input batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.op_builder import OpBuilder
from clrt.ops.vision.resize_image import ResizeImage
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.session import session_for
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import round_up
from clrt.vision.configs import RGB
from clrt.vision.frames import Frame
from clrt.vision.image_inputs import Picture
from clrt.vision.resample_tables import axis_table, downwards_first

# Number of pixels of a row that the kernel reads at a time.
_PIXELS = 4


@dataclass(frozen=True)
class Colours:
    """Conversion of color bytes to floats, `byte * scale + offset`, and the border color.

    Attributes:
        scale: Factor, one number per channel.
        offset: Summand, one number per channel.
        fill: Border color after conversion, one number per channel.
        bgr: Whether the channel order is blue, green, red.
    """

    scale: RGB
    offset: RGB = (0.0, 0.0, 0.0)
    fill: RGB = (0.0, 0.0, 0.0)
    bgr: bool = False


@lru_cache(maxsize=16)
def _resizer(device: DeviceInfo, channels_last: bool, transposed: bool) -> Model:
    """Returns the model that resamples an image of any size and writes it into a batch.

    Args:
        device: Device to load the model for.
        channels_last: Whether the batch is `[images, height, width, 3]`.
        transposed: Whether columns are resampled before rows.
    """
    build = OpBuilder()
    sizes = ("n", "h", "w", 3) if channels_last else ("n", 3, "h", "w")
    build.feed("batch", DType.FLOAT32, *sizes)
    build.feed("pixels", DType.UINT8, "height", "width", 3)
    build.feed("columns", DType.INT32, "outputs")
    build.feed("column_weights", DType.INT32, "outputs", "taps")
    build.feed("rows", DType.INT32, "outputs_down")
    build.feed("row_weights", DType.INT32, "outputs_down", "taps_down")
    build.feed("colours", DType.FLOAT32, 3, 3)
    build.feed("place", DType.INT32, 3)
    result = build(ResizeImage(channels_last, transposed), *build.inputs)
    return load(build.graph("resize_image", build.inputs, [result]), device=device)


def resized(
    images: Sequence[Picture],
    frames: Sequence[Frame],
    name: str,
    colours: Colours,
    device: DeviceInfo,
    channels_last: bool = False,
) -> DeviceTensor:
    """Resamples images into a batch, float32 `[images, 3, height, width]`.

    Args:
        images: Opened images.
        frames: Placement of each image; all canvases have the same size.
        name: Name of the filter.
        colours: Conversion of color bytes.
        device: Device of the batch.
        channels_last: Whether the batch is `[images, height, width, 3]` instead.

    Raises:
        InputError: The canvases differ, or an image cannot be read.
        DeviceError: The driver fails.
        OutOfMemoryError: The batch does not fit on the device.
    """
    canvases = {frame.canvas for frame in frames}
    if len(canvases) > 1:
        shown = " and ".join(f"{h} x {w}" for h, w in sorted(canvases)[:2])
        raise InputError(
            f"The images become {shown}, which cannot form a batch; pass images of one size, or "
            "one by one."
        )
    ((high, wide),) = canvases
    shape = (high, wide, 3) if channels_last else (3, high, wide)
    batch = session_for(device).tensor((len(images), *shape), DType.FLOAT32)
    table = np.array([colours.scale, colours.offset, colours.fill], np.float32)
    for index, (image, frame) in enumerate(zip(images, frames, strict=True)):
        # Image axes along the columns and rows of the kernel.
        axes = (0, 1) if downwards_first(frame.image, frame.resized, name) else (1, 0)
        feeds = _feeds(image, frame, name, axes, colours.bgr, device)
        inside = all(b > a for a, b in map(frame.visible, axes))
        across, down = (frame.offset[a] + frame.visible(a)[0] if inside else 0 for a in axes)
        place = np.array([index, down, across], np.int32)
        feeds |= {"batch": batch, "colours": table, "place": place}
        model = _resizer(device, channels_last, axes == (0, 1))
        (batch,) = model.run(feeds, device_outputs=True, donate=["batch"]).values()
    return batch


def _feeds(
    image: Picture, frame: Frame, name: str, axes: Sequence[int], bgr: bool, device: DeviceInfo
) -> dict[str, object]:
    """Returns the inputs of the resampling model: visible pixels and filter weights of an image.

    Args:
        image: The image.
        frame: Placement of the image in the model's input.
        name: Name of the filter.
        axes: Axes in the order of resampling: 0 for rows, 1 for columns.
        bgr: Whether the channel order is blue, green, red.
        device: Device of the model.
    """
    tables = {
        a: axis_table(frame.image[a], frame.resized[a], name, *frame.visible(a)) for a in axes
    }
    across, down = (tables[a] for a in axes)
    length = across.end - across.begin
    width = max(length, round_up(across.weights.shape[1], _PIXELS))
    rows, columns = ((tables[a].begin, tables[a].end) for a in (0, 1))

    def write(pixels: Array) -> None:
        pixels[:, length:] = 0
        part = pixels[:, :length]
        image.read(rows, columns, part if axes[0] == 1 else part.swapaxes(0, 1))
        if bgr:
            part[..., [0, 2]] = part[..., [2, 0]]

    shape = (down.end - down.begin, width, 3)
    return {
        "pixels": session_for(device).tensor_written(shape, DType.UINT8, write),
        "columns": across.firsts,
        "column_weights": across.weights,
        "rows": down.firsts,
        "row_weights": down.weights,
    }
