"""ImageDecoder: decodes an image file in memory."""

from __future__ import annotations

import importlib.util
import io
from typing import Literal

import numpy as np

from clrt.errors import ClrtError, InputError, ShapeError, UnsupportedError, install_command
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dims
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import check_host_bytes

# Formats that ONNX lists. Pillow supports more, some of which run external programs.
_FILES = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_FORMATS = {"RGB": 3, "BGR": 3, "Grayscale": 1}


@register
@dataclass(frozen=True)
class ImageDecoder(Op):
    """Decodes an image file, uint8 `[length]`, to pixels, uint8 `[height, width, channels]`.

    Runs on the host, with Pillow (the extra `image`).

    Attributes:
        pixel_format: Order of the channels; "Grayscale" for one channel.

    Source: ONNX ImageDecoder, opset 20.
    """

    pixel_format: Literal["RGB", "BGR", "Grayscale"] = "RGB"

    accuracy = Accuracy.EXACT

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        if importlib.util.find_spec("PIL") is None:
            raise UnsupportedError(f"{cls.name} needs Pillow: {install_command('PIL')}.")
        return super().from_onnx(node)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.dtype is not DType.UINT8 or (x.shape is not None and len(x.shape) != 1):
            raise ShapeError(f"ImageDecoder: its input is {x}; expected the bytes of a file.")
        return [TensorType(DType.UINT8, (*fresh_dims(2), _FORMATS[self.pixel_format]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        from PIL import Image

        (x,) = inputs
        assert x is not None
        try:
            image = Image.open(io.BytesIO(x.tobytes()), formats=_FILES)
            width, height = image.size
            check_host_bytes(8 * width * height, f"{self.name}: an image of {width} x {height}")
            pixels = np.asarray(image.convert("L" if self.pixel_format == "Grayscale" else "RGB"))
        except Image.DecompressionBombError as error:
            raise InputError(
                f"ImageDecoder: {error} To allow it, raise PIL.Image.MAX_IMAGE_PIXELS."
            ) from error
        except ClrtError:
            raise
        except Exception as error:  # Pillow's decoders raise exceptions of any class
            reason = str(error) or type(error).__name__
            raise InputError(
                f"ImageDecoder: Pillow cannot read its input: {reason.rstrip('.')}."
            ) from error
        if self.pixel_format == "Grayscale":
            return (pixels[..., None],)
        return (np.ascontiguousarray(pixels[..., ::-1] if self.pixel_format == "BGR" else pixels),)
