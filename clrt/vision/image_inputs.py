"""Images as users give them: files, bytes, Pillow's images and arrays, read as RGB."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import ClrtError, InputError, explain_missing_extra
from clrt.ir.op import Array
from clrt.util import env_vars
from clrt.util.files import expanded, read_regular
from clrt.util.host_limits import check_host_bytes

# A path, the bytes of a file, an image of Pillow, or uint8 [H, W], [H, W, 1], [H, W, 3] or
# [H, W, 4], whose fourth channel is left out.
ImageLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Array | Any"

# Pillow knows others, of which some run programs.
_FORMATS = {
    "AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP",
}  # fmt: skip
_ORIENTATION = 0x0112
# Rows are taken out of Pillow's memory in bands that stay in a cache: all of a photo at once takes
# five times as long, most of it for new pages.
_BAND_BYTES = 1 << 20
_OPENING = Lock()


@dataclass(frozen=True)
class Picture:
    """An image whose pixels can be read.

    Attributes:
        title: Names it in messages.
        source: uint8 `[H, W]` or `[H, W, channels]`, or an image of Pillow.
    """

    title: str
    source: Any

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        if isinstance(self.source, np.ndarray):
            return self.source.shape[0], self.source.shape[1]
        return self.source.height, self.source.width

    def read(self, rows: tuple[int, int], columns: tuple[int, int], target: Array) -> None:
        """Writes some pixels as RGB.

        Args:
            rows: The first, and the one behind the last.
            columns: The same.
            target: uint8 `[rows, columns, 3]`.

        Raises:
            InputError: Pillow cannot decode or convert them.
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
                if band.mode != "RGB":  # which would be one more copy
                    band = band.convert("RGB")
                target[y - top : end - top] = np.asarray(band)

    def array(self) -> Array:
        """All of it, uint8 `[H, W, 3]`.

        Raises:
            InputError: As `read`.
        """
        height, width = self.size
        pixels = np.empty((height, width, 3), np.uint8)
        self.read((0, height), (0, width), pixels)
        return pixels


def pictures(images: ImageLike | Sequence[ImageLike]) -> tuple[list[Picture], bool]:
    """Images that can be read, turned as their EXIF data say, and whether one alone was given.

    Raises:
        InputError: One is no image, is damaged, empty, or too large.
    """
    if isinstance(images, (list, tuple)):
        if not images:
            raise InputError("There is no image in the list; give one or more.")
        return [_picture(image, f"Image {k}") for k, image in enumerate(images)], False
    return [_picture(images, "The image")], True


def _picture(image: ImageLike, title: str) -> Picture:
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
            with _OPENING, warnings.catch_warnings():  # filters are those of all threads
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                source = Image.open(source, formats=_formats())
        width, height = source.size
        if not width * height:
            raise InputError(f"{title} is {width} x {height} pixels; it has none.")
        check_host_bytes(8 * width * height, f"{title}, of {width} x {height} pixels,")
        source.load()
        if source.getexif().get(_ORIENTATION, 1) != 1:
            from PIL import ImageOps

            source = ImageOps.exif_transpose(source)
    return Picture(title, source)


def _content(path: Path, title: str) -> bytes:
    """The bytes of a file; those of pipes and devices have no end."""
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
    """Around calls of Pillow: what it raises of files becomes one sentence.

    Raises:
        InputError: It raised something.
    """
    image = sys.modules["PIL.Image"]
    bombs = (image.DecompressionBombError, image.DecompressionBombWarning)
    try:
        yield
    except ClrtError:
        raise
    except image.UnidentifiedImageError as error:
        known = ", ".join(_formats())
        raise InputError(f"{title} is no image that is read here; these are: {known}.") from error
    except bombs as error:
        raise InputError(
            f"{title} has more pixels than PIL.Image.MAX_IMAGE_PIXELS, {image.MAX_IMAGE_PIXELS}, "
            "allows; raise that where the image is meant."
        ) from error
    except Exception as error:  # of any kind: Pillow's decoders raise what they like
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
