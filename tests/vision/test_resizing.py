"""Image decoding and resizing on a device, against Pillow."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, features
from PIL import __version__ as pillow_version
from PIL.PngImagePlugin import PngImageFile

import clrt
from clrt.errors import InputError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.session import session_for
from clrt.vision import Preprocessor
from clrt.vision.image_inputs import pictures
from clrt.vision.resample_tables import NAMES, downwards_first
from tests.harness import all_devices, name_of, quick_device

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=name_of)
SIZES = [(1, 1), (5, 7), (225, 223), (9, 400), (400, 9)]
OUTPUTS = [(1, 1), (7, 5), (32, 48), (224, 224)]
# Before, Pillow resampled rows first always.
TURNS = int(pillow_version.partition(".")[0]) >= 13


def _pixels(height: int, width: int, *channels: int) -> Array:
    rng = np.random.default_rng(height * 1000 + width)
    return rng.integers(0, 256, (height, width, *channels), np.uint8)


def _resized(image: Any, size: tuple[int, int], name: str, device: DeviceInfo) -> Array:
    """uint8 `[height, width, 3]` by clrt."""
    found = Preprocessor(size=size, resample=name, scale=1.0)(image, device=device)
    assert isinstance(found, np.ndarray)
    assert found.shape == (1, 3, *size) and found.dtype == np.float32
    np.testing.assert_array_equal(found, np.rint(found))
    return found[0].transpose(1, 2, 0)


def _check(image: Any, size: tuple[int, int], name: str, device: DeviceInfo, pillow: Any) -> None:
    """Within one step of a byte, and mostly equal."""
    expected = pillow.convert("RGB").resize(size[::-1], NAMES.index(name))
    found = _resized(image, size, name, device)
    difference = np.abs(found - np.asarray(expected, np.float32))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 1e-3


@DEVICES
@pytest.mark.parametrize("name", NAMES)
def test_resize_filters_match_pillow(name: str, device: DeviceInfo) -> None:
    for size, output in product(SIZES, OUTPUTS):
        if TURNS or not downwards_first(size, output, name):
            pixels = _pixels(*size, 3)
            _check(pixels, output, name, device, Image.fromarray(pixels))


@DEVICES
def test_resize_axis_order_minimizes_work(device: DeviceInfo) -> None:
    """Pillow resizes one axis per call: its own order for both axes varies by version."""
    pixels = _pixels(300, 50, 3)
    image = Image.fromarray(pixels)
    for size in ((64, 48), (60, 60), (299, 20)):
        high, wide = size
        first = (50, high) if downwards_first((300, 50), size, "lanczos") else (wide, 300)
        expected = image.resize(first, Image.Resampling.LANCZOS)
        expected = expected.resize((wide, high), Image.Resampling.LANCZOS)
        found = _resized(pixels, size, "lanczos", device)
        np.testing.assert_array_equal(found, np.asarray(expected))


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "YCbCr", "HSV", "PA"])
def test_image_modes_convert_to_rgb_like_pillow(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(_pixels(33, 21, 3)).convert("RGBA" if mode in ("LA", "PA") else "RGB")
    image = image.convert("P").convert("PA") if mode == "PA" else image.convert(mode)
    _check(image, (20, 30), "bicubic", quick_device(), image)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "PPM", "WEBP", "JPEG"])
def test_image_file_formats_are_read_from_path_or_bytes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"image.{kind.lower()}"
    Image.fromarray(_pixels(33, 21, 3)).save(path, kind)
    with Image.open(path) as image:
        for given in (path, str(path), path.read_bytes(), memoryview(path.read_bytes())):
            _check(given, (11, 17), "bilinear", quick_device(), image)


def test_grey_palette_rgba_and_cmyk_files_become_rgb(tmp_path: Path) -> None:
    base = Image.fromarray(_pixels(40, 30, 3))
    for mode, kind in (("L", "png"), ("P", "png"), ("RGBA", "png"), ("CMYK", "jpeg")):
        path = tmp_path / f"{mode}.{kind}"
        base.convert(mode).save(path)
        with Image.open(path) as image:
            assert image.mode == mode
            _check(path, (16, 20), "lanczos", quick_device(), image)


def test_grey_and_rgba_arrays_become_rgb() -> None:
    device = quick_device()
    grey, clear = _pixels(12, 9), _pixels(12, 9, 4)
    for given, image in (
        (grey, Image.fromarray(grey)),
        (grey[..., None], Image.fromarray(grey)),
        (clear, Image.fromarray(clear)),
        (clear[::2, ::-1], Image.fromarray(np.ascontiguousarray(clear[::2, ::-1]))),
    ):
        _check(given, (7, 8), "bicubic", device, image)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    image = Image.fromarray(_pixels(30, 50, 3))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    image.save(stream, "PNG", exif=exif)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(stream.getvalue())))
    assert turned.size == ((50, 30) if orientation < 5 else (30, 50))
    _check(stream.getvalue(), (20, 10), "bilinear", quick_device(), turned)


@DEVICES
def test_mixed_size_batch_is_cropped_and_normalized(device: DeviceInfo) -> None:
    """In both layouts; expected values are NumPy's in float64."""
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    images = [_pixels(*s, 3) for s in ((40, 60), (60, 40), (17, 90), (33, 33))]
    expected = []
    for pixels in images:
        height, width = pixels.shape[:2]
        high, wide = (
            (int(36 * height / width), 36) if width <= height else (36, 36 * width // height)
        )
        resized = np.asarray(Image.fromarray(pixels).resize((wide, high), Image.Resampling.BICUBIC))
        top, left = (high - 32) // 2, (wide - 32) // 2
        part = resized[top : top + 32, left : left + 32].astype(np.float64)
        expected.append((part / 255 - mean) / std)
    args: dict[str, Any] = dict(size=(36, 36), fit="shortest", crop=(32, 32), resample="bicubic")
    preprocessor = Preprocessor(**args, mean=mean, std=std)
    found = preprocessor(images, device=device)
    np.testing.assert_allclose(found, np.stack(expected).transpose(0, 3, 1, 2), atol=2e-6)
    last = Preprocessor(**args, mean=mean, std=std, channels_last=True)(images, device=device)
    np.testing.assert_array_equal(last, np.transpose(found, (0, 2, 3, 1)))


def test_crop_beyond_image_has_border() -> None:
    pixels = _pixels(10, 7, 3)
    made = Preprocessor(size=None, crop=(13, 12), mean=(0.5,) * 3, std=(0.25,) * 3)
    found = np.asarray(made(pixels, device=quick_device()))[0].transpose(1, 2, 0)
    expected = np.full((13, 12, 3), -2.0)
    expected[2:12, 3:10] = (pixels / 255 - 0.5) / 0.25
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_letterbox_and_bgr_match_pillow() -> None:
    pixels = _pixels(50, 100, 3)
    made = Preprocessor(size=(64, 64), fit="letterbox", fill=114, scale=1.0, bgr=True)
    batch = made.prepare([pixels], device=quick_device())
    found = batch.pixels.numpy()[0].transpose(1, 2, 0)
    expected = np.full((64, 64, 3), 114.0)
    expected[16:48] = np.asarray(
        Image.fromarray(pixels).resize((64, 32), Image.Resampling.BILINEAR)
    )
    np.testing.assert_array_equal(found, expected[..., ::-1])
    assert batch.pixel_mask[0, 15:17, 5].tolist() == [0, 1]
    boxes = batch.frames[0].boxes_in_image(np.array([[0, 16, 64, 48], [32, 0, 90, 32.0]]))
    np.testing.assert_allclose(boxes, [[0, 0, 100, 50], [50, 0, 100, 25]])


def test_new_image_sizes_compile_no_program() -> None:
    device = quick_device()
    made = Preprocessor(size=(24, 24), fit="shortest", crop=(24, 24))
    for size in ((200, 300), (300, 200), (400, 30), (30, 31)):  # each order of passes
        made(_pixels(*size, 3), device=device)
    builds = session_for(device).programs.builds
    for size in ((123, 77), (77, 123), (999, 31), (24, 24), (25, 1000), (1, 1)):
        found = made(_pixels(*size, 3), device=device, device_outputs=True)
        assert isinstance(found, clrt.DeviceTensor) and found.shape == (1, 3, 24, 24)
    assert session_for(device).programs.builds == builds


def _bomb() -> bytes:
    """A PNG of 2^14 x 2^14 that takes 300 bytes."""
    stream = io.BytesIO()
    Image.new("1", (1 << 14, 1 << 14)).save(stream, "PNG", compress_level=9)
    return stream.getvalue()


def _jpeg() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(_pixels(64, 64, 3)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "is not an image"),
        (b"not an image at all", "is not an image of a supported format: .*PNG"),
        (_jpeg()[:300], "cannot be read: .*[Tt]runcated"),
        (_jpeg()[:30], "cannot be read|is not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "is not an image"),
        ("/nonexistent/cat.jpg", "'/nonexistent/cat.jpg' cannot be read: No such file"),
        (Path("/"), "cannot be read"),
        (_bomb(), "has more pixels than PIL.Image.MAX_IMAGE_PIXELS"),
        (np.zeros((4, 4, 3), np.float32), r"float32\[4, 4, 3\].*astype"),
        (np.zeros((3, 8, 8), np.uint8), r"\.transpose\(1, 2, 0\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), "list of arrays"),
        (np.zeros((0, 8, 3), np.uint8), "has pixels"),
        (np.zeros((8, 8, 5), np.uint8), r"uint8\[8, 8, 5\]"),
        (np.zeros(8, np.uint8), r"uint8\[8\]"),
        ([], "list of images is empty"),
        ([_pixels(4, 4, 3), None], "Image 1 is a NoneType"),
        (7, "The image is a int; pass a path"),
    ],
)
def test_invalid_image_file_error_is_one_line(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Preprocessor()(given, device=quick_device())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, ZeroDivisionError, MemoryError])
@pytest.mark.parametrize("when", ["open", "load", "getexif"])
def test_decoder_exception_becomes_input_error(
    when: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, "PNG")

    def fail(*_: Any, **__: Any) -> None:
        raise kind("broken")

    monkeypatch.setattr(Image if when == "open" else Image.Image, when, fail)
    monkeypatch.setattr(PngImageFile, "load", fail if when == "load" else PngImageFile.load)
    with pytest.raises(InputError, match=r"The image cannot be read: .*broken"):
        pictures(content.getvalue())


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_damaged_avif_becomes_input_error() -> None:
    content = io.BytesIO()
    Image.effect_noise((64, 64), 60).convert("RGB").save(content, "AVIF")
    whole = content.getvalue()
    refused = 0
    for at in range(0, len(whole), max(len(whole) // 60, 1)):
        for damaged in (whole[:at], whole[:at] + b"\xff" * 8 + whole[at + 8 :]):
            try:
                pictures(damaged)[0][0].array()
            except InputError:
                refused += 1
    assert refused


def test_image_without_pixels_is_refused() -> None:
    with pytest.raises(InputError, match="0 x 5 pixels; expected at least 1 x 1"):
        Preprocessor()(Image.new("RGB", (0, 5)), device=quick_device())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"size": (0, 4)}, "size is"),
        ({"crop": (4,)}, "crop is"),
        ({"fit": "cover"}, "fit is 'cover'; expected one of"),
        ({"resample": "cubic"}, "The filter is 'cubic'; expected one of"),
        ({"resample": 9}, "The filter is 9"),
        ({"std": (1, 0, 1)}, "std is"),
        ({"mean": (1, float("nan"), 1)}, "mean is"),
        ({"multiple": 0}, "multiple is 0"),
    ],
)
def test_invalid_preprocessor_arguments_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Preprocessor(**args)


def test_images_of_different_output_sizes_are_refused() -> None:
    made = Preprocessor(size=(24, 24), fit="shortest")
    with pytest.raises(InputError, match="24 x 48 and 48 x 24, which cannot form a batch"):
        made([_pixels(10, 20, 3), _pixels(20, 10, 3)], device=quick_device())
    with pytest.raises(InputError, match="would become 0 x 24"):
        Preprocessor(size=(24, 24), fit="within")(_pixels(1, 100, 3), device=quick_device())


def test_named_pipe_is_refused_as_image(tmp_path: Path) -> None:
    """Reading a pipe would block until a writer opens it."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes with names")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot be read: it is not a regular file"):
        Preprocessor()(tmp_path / "pipe", device=quick_device())


def test_arrays_are_preprocessed_without_pillow() -> None:
    code = (
        "import sys, numpy as np\nsys.modules['PIL'] = None\n"
        "from clrt.vision import Preprocessor\n"
        "print(Preprocessor()(np.zeros((5, 7, 3), np.uint8)).shape)\n"
        "Preprocessor()(b'')\n"
    )
    environment = os.environ | {"CLRT_DEVICE": str(quick_device().index)}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout == "(1, 3, 224, 224)\n" and done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert "Decoding images needs the package PIL" in said and 'pip install "pillow>=10"' in said
