"""Preprocessors from Hugging Face configs, against transformers' algorithms written with Pillow."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clrt.errors import InputError, ModelError
from clrt.ir.op import Array
from clrt.vision import Preprocessor
from tests.harness import quick_device

Steps = Callable[[Image.Image], Array]
HALF = (0.5, 0.5, 0.5)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
SIZES = [(480, 640), (333, 200), (64, 64), (31, 300)]


def _normalised(image: Image.Image | Array, mean: Any, std: Any) -> Array:
    """`[3, height, width]`: rescale, then normalise."""
    pixels = np.asarray(image).astype(np.float64) * (1 / 255)
    scaled = (pixels.astype(np.float32) - np.array(mean)) / np.array(std)
    return scaled.transpose(2, 0, 1)


def _shortest(image: Image.Image, edge: int, how: Any) -> Image.Image:
    width, height = image.size
    short, long = min(image.size), max(image.size)
    other = int(edge * long / short)
    return image.resize((edge, other) if width <= height else (other, edge), how)


def _center(image: Image.Image, size: int) -> Array:
    """transformers.image_transforms.center_crop, for images of at least that size."""
    pixels = np.asarray(image)
    top, left = (pixels.shape[0] - size) // 2, (pixels.shape[1] - size) // 2
    assert top >= 0 and left >= 0
    return pixels[top : top + size, left : left + size]


def _vit(image: Image.Image) -> Array:
    return _normalised(image.resize((224, 224), BILINEAR), HALF, HALF)


def _clip(image: Image.Image) -> Array:
    return _normalised(_center(_shortest(image, 224, BICUBIC), 224), CLIP_MEAN, CLIP_STD)


def _dinov2(image: Image.Image) -> Array:
    return _normalised(_center(_shortest(image, 256, BICUBIC), 224), MEAN, STD)


def _convnext(image: Image.Image) -> Array:
    return _normalised(_center(_shortest(image, int(224 / 0.875), BICUBIC), 224), MEAN, STD)


def _convnext_large(image: Image.Image) -> Array:
    return _normalised(image.resize((384, 384), BICUBIC), MEAN, STD)


def _segformer(image: Image.Image) -> Array:
    return _normalised(image.resize((512, 512), BILINEAR), MEAN, STD)


def _mobilenet(image: Image.Image) -> Array:
    return _normalised(_center(_shortest(image, 256, BILINEAR), 224), HALF, HALF)


def _mobilevit(image: Image.Image) -> Array:
    pixels = _center(_shortest(image, 288, BILINEAR), 256).astype(np.float64) * (1 / 255)
    return pixels[..., ::-1].transpose(2, 0, 1)


def _deit(image: Image.Image) -> Array:
    return _normalised(_center(image.resize((256, 256), BICUBIC), 224), MEAN, STD)


def _depth_anything(image: Image.Image) -> Array:
    width, height = image.size
    scale_height, scale_width = 518 / height, 518 / width
    if abs(1 - scale_width) < abs(1 - scale_height):
        scale_height = scale_width
    else:
        scale_width = scale_height
    high, wide = (round(s * e / 14) * 14 for s, e in ((scale_height, height), (scale_width, width)))
    return _normalised(image.resize((wide, high), BICUBIC), MEAN, STD)


def _detr_size(width: int, height: int, size: int, most: int) -> tuple[int, int]:
    """(width, height), by get_size_with_aspect_ratio."""
    raw = None
    short, long = float(min(width, height)), float(max(width, height))
    if long / short * size > most:
        raw = most * short / long
        size = round(raw)
    if size in (width, height) and size == min(width, height):
        return width, height
    exact = size if raw is None else raw
    if width < height:
        return size, int(exact * height / width)
    return int(exact * width / height), size


def _detr(image: Image.Image) -> Array:
    return _normalised(image.resize(_detr_size(*image.size, 800, 1333), BILINEAR), MEAN, STD)


def _yolos(image: Image.Image) -> Array:
    width, height = _detr_size(*image.size, 512, 864)
    size = width - width % 16, height - height % 16
    return _normalised(image.resize(size, BILINEAR), MEAN, STD)


def _rtdetr(image: Image.Image) -> Array:
    return (np.asarray(image.resize((640, 640), BILINEAR)) / 255).transpose(2, 0, 1)


_IMAGENET = {"image_mean": list(MEAN), "image_std": list(STD)}
_CLIPS = {"image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD)}
CASES: dict[str, tuple[dict[str, Any], Steps]] = {
    "vit": ({"feature_extractor_type": "ViTFeatureExtractor", "size": 224, "resample": 2}, _vit),
    "vit, new": (
        {"image_processor_type": "ViTImageProcessorFast", "size": {"height": 224, "width": 224},
         "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_convert_rgb": None}, _vit,
    ),
    "swin": ({"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224},
              "resample": 3, **_IMAGENET},
             lambda x: _normalised(x.resize((224, 224), BICUBIC), MEAN, STD)),
    "clip": ({"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 224, "size": 224,
              "do_center_crop": True, "resample": 3, **_CLIPS}, _clip),
    "clip, new": ({"image_processor_type": "CLIPImageProcessor",
                   "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 224}},
                  _clip),
    "dinov2": ({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256},
                "crop_size": {"height": 224, "width": 224}, **_IMAGENET}, _dinov2),
    "convnext": ({"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224,
                  "crop_pct": 0.875, "resample": 3, **_IMAGENET}, _convnext),
    "convnext, large": ({"image_processor_type": "ConvNextImageProcessor",
                         "size": {"shortest_edge": 384}}, _convnext_large),
    "segformer": ({"image_processor_type": "SegformerImageProcessor", "reduce_labels": True,
                   "size": {"height": 512, "width": 512}}, _segformer),
    "mobilenet": ({"image_processor_type": "MobileNetV2ImageProcessor",
                   "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 256}},
                  _mobilenet),
    "mobilevit": ({"image_processor_type": "MobileViTImageProcessor", "size": 288,
                   "crop_size": 256}, _mobilevit),
    "deit": ({"image_processor_type": "DeiTImageProcessor", "size": 256}, _deit),
    "depth anything": (
        {"image_processor_type": "DPTImageProcessor", "ensure_multiple_of": 14, "do_pad": False,
         "keep_aspect_ratio": True, "size": {"height": 518, "width": 518}, "resample": 3,
         "size_divisor": None, **_IMAGENET}, _depth_anything,
    ),
    "detr": ({"feature_extractor_type": "DetrFeatureExtractor", "size": 800, "max_size": 1333,
              "format": "coco_detection"}, _detr),
    "yolos": ({"image_processor_type": "YolosImageProcessor",
               "size": {"shortest_edge": 512, "longest_edge": 864}}, _yolos),
    "rt-detr": ({"image_processor_type": "RTDetrImageProcessor",
                 "size": {"height": 640, "width": 640}}, _rtdetr),
}  # fmt: skip


def _image(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(height + width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("name", CASES)
def test_preprocessor_config_matches_transformers_algorithm(name: str, tmp_path: Path) -> None:
    config, steps = CASES[name]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    made = Preprocessor.from_config(tmp_path)
    assert made == Preprocessor.from_config(config)
    for size in SIZES:
        image = _image(*size)
        found, expected = np.asarray(made(image, device=quick_device())), steps(image)
        assert found.shape == (1, *expected.shape)
        np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_detr_batch_is_padded_and_masked() -> None:
    images = [_image(120, 160), _image(160, 100)]
    batch = Preprocessor.from_config(
        {"image_processor_type": "DetrImageProcessor", **_IMAGENET,
         "size": {"shortest_edge": 60, "longest_edge": 90}}
    ).prepare(images, device=quick_device())  # fmt: skip
    pixels = batch.pixels.numpy()
    assert pixels.shape == (2, 3, 90, 80)
    for plane, mask, image in zip(pixels, batch.pixel_mask, images, strict=True):
        width, height = _detr_size(*image.size, 60, 90)
        expected = np.zeros((3, 90, 80))
        expected[:, :height, :width] = _normalised(
            image.resize((width, height), BILINEAR), MEAN, STD
        )
        np.testing.assert_allclose(plane, expected, atol=1e-5)
        wanted = np.zeros((90, 80), np.int64)
        wanted[:height, :width] = 1
        np.testing.assert_array_equal(mask, wanted)


@pytest.mark.parametrize("kind", ["Detr", "Yolos", "DeformableDetr", "ViT"])
def test_pad_size_sets_batch_size(kind: str) -> None:
    """Applies to DETR models and processors of transformers 5 that share one implementation."""
    size: Any = {"height": 64, "width": 48} if kind == "ViT" else {"shortest_edge": 48}
    config = {"image_processor_type": f"{kind}ImageProcessor", "size": size, "do_pad": True,
              "pad_size": {"height": 70, "width": 90}, **_IMAGENET}  # fmt: skip
    image = _image(64, 48)
    made = Preprocessor.from_config(config)
    batch = made.prepare(image, device=quick_device())
    expected = np.zeros((3, 70, 90))
    expected[:, :64, :48] = _normalised(image, MEAN, STD)
    np.testing.assert_allclose(batch.pixels.numpy()[0], expected, atol=1e-5)
    assert batch.pixel_mask.sum() == 64 * 48
    with pytest.raises(InputError, match=r"exceeds its pad_size of 70 x 90"):
        replace(made, size=None)(_image(64, 99), device=quick_device())
    assert Preprocessor.from_config({**config, "do_pad": False}).frame((64, 48)).canvas == (64, 48)


def test_size_divisor_pads_image_on_all_sides() -> None:
    config = {"image_processor_type": "DPTImageProcessor", "size": 60, "do_pad": True,
              "size_divisor": 14, "ensure_multiple_of": 2}  # fmt: skip
    image = _image(50, 80)
    found = np.asarray(Preprocessor.from_config(config)(image, device=quick_device()))[0]
    expected = np.zeros((3, 70, 70))
    expected[:, 5:65, 5:65] = _normalised(image.resize((60, 60), BICUBIC), HALF, HALF)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_crop_beyond_image_pads_zeros_before_normalization() -> None:
    """center_crop of transformers pads with zeros before the channels are normalised."""
    config = {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "crop_size": 9}
    image = _image(6, 20)
    found = np.asarray(Preprocessor.from_config(config)(image, device=quick_device()))[0]
    pixels = np.zeros((9, 9, 3))
    top, left = math.ceil((9 - 6) / 2), (20 - 9) // 2
    pixels[top : top + 6] = np.asarray(image)[:, left : left + 9]
    np.testing.assert_allclose(found, _normalised(pixels, CLIP_MEAN, CLIP_STD), atol=1e-5)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "no image_processor_type; add it: one of ViTImageProcessor"),
        ({"image_processor_type": "PixtralImageProcessor"}, "PixtralImageProcessor, which is not"),
        ({"image_processor_type": "ViTImageProcessor", "size": "big"}, "size is 'big'; expected"),
        ({"image_processor_type": "ViTImageProcessor", "size": {"edge": 4}}, "size is"),
        ({"image_processor_type": "ViTImageProcessor", "size": -4}, "size is -4"),
        ({"image_processor_type": "ViTImageProcessor", "do_resize": 1}, "do_resize is 1; expected"),
        ({"image_processor_type": "ViTImageProcessor", "resample": 8}, "The filter is 8"),
        ({"image_processor_type": "ViTImageProcessor", "image_mean": [1, 2]}, "image_mean is"),
        ({"image_processor_type": "ViTImageProcessor", "rescale_factor": 0}, "rescale_factor is 0"),
        ({"image_processor_type": "ViTImageProcessor", "image_std": [1, 0, 1]}, "std is"),
        ({"image_processor_type": "DPTImageProcessor", "ensure_multiple_of": 1.5}, "ensure_mul"),
        ({"image_processor_type": "DetrImageProcessor", "pad_size": {"width": 9}}, "pad_size is"),
        ({"image_processor_type": "CLIPImageProcessor", "do_thumbnail": True}, "do_thumbnail is"),
    ],
)
def test_unsupported_preprocessor_config_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Preprocessor.from_config(config)


def test_missing_or_malformed_preprocessor_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"preprocessor_config.json is missing"):
        Preprocessor.from_config(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    for text, said in (("{", "not valid JSON"), ("[1]", "a JSON object"), ("[" * 99999, "JSON")):
        path.write_text(text)
        with pytest.raises(ModelError, match=said):
            Preprocessor.from_config(path)
