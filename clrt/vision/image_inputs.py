"""Image inputs: files, bytes, Pillow images and arrays, read as RGB."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import ClrtError, InputError, explain_missing_extra
from clrt.ir.op import Array
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import expanded, read_regular
from clrt.util.host_limits import check_host_bytes

# A path, the bytes of a file, a Pillow image, or a uint8 array [H, W], [H, W, 1], [H, W, 3] or
# [H, W, 4], whose fourth channel is ignored.
ImageLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Array | Any"

# Accepted formats: some others of Pillow run external programs.
_FORMATS = {
    "AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP",
}  # fmt: skip
# Exif tag of the orientation.
_ORIENTATION = 0x0112
# Size of the bands of rows copied from Pillow, so that they stay in the cache: copying a whole
# photo at once takes five times as long, mostly for page faults.
_BAND_BYTES = 1 << 20
_OPENING = Lock()


@dataclass(frozen=True)
class Picture:
    """An opened image, with its pixels in memory.

    Attributes:
        title: Name in messages.
        source: uint8 array `[height, width]` or `[height, width, channels]`, or a Pillow image.
    """

    title: str
    source: Any

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        if isinstance(self.source, np.ndarray):
            return self.source.shape[0], self.source.shape[1]
        return self.source.height, self.source.width

    def read(self, rows: tuple[int, int], columns: tuple[int, int], target: Array) -> None:
        """Writes a rectangle of pixels as RGB to `target`.

        Args:
            rows: First row, and the end, exclusive.
            columns: First column, and the end, exclusive.
            target: uint8 `[rows, columns, 3]`.

        Raises:
            InputError: Pillow cannot decode or convert the image.
        """
        (top, bottom), (left, right) = rows, columns
        if isinstance(self.source, np.ndarray):
            part = self.source[top:bottom, left:right]
            target[...] = part[..., None] if part.ndim == 2 else part[..., :3]
            return
        step = max(1, _BAND_BYTES // (4 * max(right - left, 1)))
        with _pillow_errors(self.title):
            for y in range(top, bottom, step):
                end = min(y + step, bottom)
                band = self.source.crop((left, y, right, end))
                if band.mode != "RGB":  # convert would copy
                    band = band.convert("RGB")
                target[y - top : end - top] = np.asarray(band)

    def array(self) -> Array:
        """Returns all pixels, uint8 `[height, width, 3]`.

        Raises:
            InputError: Pillow cannot decode or convert the image.
        """
        height, width = self.size
        pixels = np.empty((height, width, 3), np.uint8)
        self.read((0, height), (0, width), pixels)
        return pixels


def pictures(images: ImageLike | Sequence[ImageLike]) -> tuple[list[Picture], bool]:
    """Opens images, rotated according to their EXIF data.

    Args:
        images: One image, or a list or tuple of them.

    Returns:
        The opened images, and whether `images` was one image instead of a list or tuple.

    Raises:
        InputError: An input is not an image, or is damaged, empty, or too large.
    """
    if isinstance(images, (list, tuple)):
        if not images:
            raise InputError("The list of images is empty; pass at least one.")
        return [_picture(image, f"Image {k}") for k, image in enumerate(images)], False
    return [_picture(images, "The image")], True


def _picture(image: ImageLike, title: str) -> Picture:
    """Opens one image: decodes it and rotates it by its EXIF data; an array is only checked.

    Args:
        image: A path, the bytes of a file, a Pillow image, or an array.
        title: Name in messages; for a path, the path is used instead.

    Raises:
        InputError: The input is not an image, or is damaged, empty, or too large.
    """
    if isinstance(image, np.ndarray):
        _check_array(image, title)
        return Picture(title, image)
    with explain_missing_extra("Decoding images"):
        from PIL import Image
    source: Any = image
    if isinstance(image, (str, os.PathLike)):
        title = f"'{image}'"
        source = io.BytesIO(_content(expanded(Path(image)), title))
    elif isinstance(image, (bytes, bytearray, memoryview)):
        source = io.BytesIO(image)
    elif not isinstance(image, Image.Image):
        raise InputError(
            f"{title} is a {type(image).__name__}; pass a path, the bytes of a file, an image of "
            "Pillow, or a uint8 array [height, width, 3]."
        )
    with _pillow_errors(title):
        if not isinstance(source, Image.Image):
            with _OPENING, warnings.catch_warnings():  # warning filters are shared by all threads
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                source = Image.open(source, formats=_formats())
        width, height = source.size
        if not width * height:
            raise InputError(f"{title} is {width} x {height} pixels; expected at least 1 x 1.")
        check_host_bytes(8 * width * height, f"{title}, of {width} x {height} pixels,")
        source.load()
        if source.getexif().get(_ORIENTATION, 1) != 1:
            from PIL import ImageOps

            source = ImageOps.exif_transpose(source)
    return Picture(title, source)


def _content(path: Path, title: str) -> bytes:
    """Reads an image file of at most CLRT_HOST_LIMIT bytes.

    Args:
        path: The file. Pipes and devices are refused, because they may not end.
        title: Name of the image in messages.

    Raises:
        InputError: The file cannot be read, is too large, or is a pipe or device.
    """
    try:
        return read_regular(path, env_vars.HOST_LIMIT.get())
    except OSError as error:
        raise InputError(f"{title} cannot be read: {error.strerror or error}.") from error


@cache
def _formats() -> list[str]:
    from PIL import Image

    Image.init()
    return sorted(_FORMATS & set(Image.OPEN))


@contextmanager
def _pillow_errors(title: str) -> Iterator[None]:
    """Converts exceptions of Pillow within the context to InputError.

    Args:
        title: Name of the image in messages.

    Raises:
        InputError: Pillow raised an exception.
    """
    image = sys.modules["PIL.Image"]
    bombs = (image.DecompressionBombError, image.DecompressionBombWarning)
    try:
        yield
    except ClrtError:
        raise
    except image.UnidentifiedImageError as error:
        known = ", ".join(_formats())
        raise InputError(f"{title} is not an image of a supported format: {known}.") from error
    except bombs as error:
        raise InputError(
            f"{title} has more pixels than PIL.Image.MAX_IMAGE_PIXELS, {image.MAX_IMAGE_PIXELS}, "
            "allows; raise that limit to read it."
        ) from error
    except Exception as error:  # any type: Pillow's decoders raise several
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{title} cannot be read: {reason.rstrip('.')}.") from error


def _check_array(image: Array, title: str) -> None:
    fits = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3, 4))
    if image.dtype == np.uint8 and fits and image.size:
        return
    shape = f"{image.dtype}{list(image.shape)}"
    hint = "an array is uint8 [height, width] or [height, width, 1, 3 or 4 channels]"
    if image.dtype != np.uint8:
        hint += "; scale it to 0..255 and convert it by .astype(np.uint8)"
    elif fits:
        hint += ", and has pixels"
    elif image.ndim == 4:
        hint += "; pass a batch as a list of arrays"
    elif image.ndim == 3 and image.shape[0] in (1, 3, 4):
        hint += "; bring the channels to the end by .transpose(1, 2, 0)"
    raise InputError(f"{title} is {shape}; {hint}.")
