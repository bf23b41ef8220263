"""Classifier, Detector, Segmenter and ImageEncoder against ONNX Runtime and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clrt.cli.convert import app as convert
from clrt.errors import InputError, ModelError
from clrt.ir.op import Array
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.runtime.model.model import load
from clrt.vision import Classifier, Detection, Detector, ImageEncoder, Preprocessor, Segmenter
from clrt.vision.drawing import with_boxes
from clrt.vision.image_model import ImageModel
from clrt.vision.segmenter import _candidate_classes
from tests.harness import quick_device
from tests.vision import small_models as small

BILINEAR = Image.Resampling.BILINEAR
SIZES = [(60, 80), (33, 50), (90, 41)]


def _images() -> list[Array]:
    rng = np.random.default_rng(3)
    small_ones = [rng.integers(0, 256, (h // 8, w // 8, 3), np.uint8) for h, w in SIZES]
    return [
        np.asarray(Image.fromarray(x).resize(s[::-1], BILINEAR))
        for x, s in zip(small_ones, SIZES, strict=True)
    ]


def _pixels(image: Array, size: tuple[int, int], mean: Any = 0.5, std: Any = 0.5) -> Array:
    """float32 `[1, 3, height, width]`, by Pillow."""
    resized = np.asarray(Image.fromarray(image).resize(size[::-1], BILINEAR))
    return ((resized / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("dims", [(), (1, 3, 32, 48), (2, 3, 32, 48)])
def test_classifier_matches_onnxruntime(dims: tuple[Any, ...], tmp_path: Path) -> None:
    folder, images = small.classifier(tmp_path, *dims), _images()
    with Classifier(folder, device=quick_device(), batch_size=2) as classify:
        found = classify(images, top=3)
        one = classify(Image.fromarray(images[1]), top=99)
    for image, classes in zip(images, found, strict=True):
        pixels = np.repeat(_pixels(image, (32, 48)), dims[0] if dims else 1, 0)
        logits = small.oracle(folder / "onnx/model.onnx", pixel_values=pixels)["logits"]
        scores = _softmax(logits[0])
        order = np.argsort(-scores)[:3]
        assert [c.label for c in classes] == [small.LABELS[str(k)] for k in order]
        np.testing.assert_allclose([c.score for c in classes], scores[order], atol=1e-4)
    assert one[:3] == found[1] and len(one) == 5


def test_onnx_file_uses_neighboring_or_given_configs(tmp_path: Path) -> None:
    folder, image = small.classifier(tmp_path), _images()[0]
    path = folder / "onnx" / "model.onnx"
    expected = Classifier(folder, device=quick_device())(image)
    assert Classifier(path, device=quick_device())(image) == expected
    made = Preprocessor(size=(32, 48), mean=(0.5,) * 3, std=(0.5,) * 3)
    for name in ("config.json", "preprocessor_config.json"):
        (folder / name).unlink()
    with pytest.raises(InputError, match=r"No preprocessor_config\.json is beside"):
        Classifier(path, device=quick_device())
    found = Classifier(path, device=quick_device(), preprocessor=made, labels="abcde")(image)
    assert [c.index for c in found] == [c.index for c in expected]
    assert [c.label for c in found] == ["abcde"[c.index] for c in found]


@pytest.mark.parametrize("kind", ["Detr", "DeformableDetr"])
def test_detr_boxes_match_onnxruntime(kind: str, tmp_path: Path) -> None:
    folder, images = small.detr(tmp_path, kind), _images()
    with Detector(folder, device=quick_device()) as detect:
        found = detect(images, threshold=0.3)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    sizes = [Preprocessor.from_config(folder).frame((h, w)).resized for h, w in SIZES]
    high, wide = (max(s[a] for s in sizes) for a in (0, 1))
    for image, size, things in zip(images, sizes, found, strict=True):
        pixels = np.zeros((1, 3, high, wide), np.float32)
        pixels[..., : size[0], : size[1]] = _pixels(image, size, mean, std)
        out = small.oracle(folder / "model.onnx", pixel_values=pixels,
                           pixel_mask=np.ones((1, 64, 64), np.int64))  # fmt: skip
        logits = out["logits"][0].astype(np.float64)
        if kind == "Detr":  # each query is one thing, else one of each class
            scores = _softmax(logits)[:, :-1]
            scores *= scores == scores.max(-1, keepdims=True)
        else:
            scores = 1 / (1 + np.exp(-logits))
        order = np.argsort(-scores, axis=None)[: (scores > 0.3).sum()]
        queries, classes = np.divmod(order, scores.shape[1])
        x, y, w, h = (out["pred_boxes"][0][queries] * np.tile(image.shape[1::-1], 2)).T
        boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1)
        boxes = np.clip(boxes, 0, np.tile(image.shape[1::-1], 2))
        assert things and [t.index for t in things] == classes.tolist()
        np.testing.assert_allclose([t.score for t in things], scores.flat[order], atol=1e-3)
        np.testing.assert_allclose([t.box for t in things], boxes, atol=0.05)


def _overlap(a: Array, b: Array) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    common = float(np.prod(np.maximum(high - low, 0)))
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


def test_yolo_letterbox_boxes_match_onnxruntime(tmp_path: Path) -> None:
    path, image = small.yolo(tmp_path / "yolo.onnx"), _images()[0]  # 60 x 80
    labels = list(small.LABELS.values())
    with Detector(path, device=quick_device(), labels=labels) as detect:
        found = detect(image, threshold=0.6, overlap=0.4)
        assert detect([image], threshold=1.0) == [[]]
    canvas = np.full((64, 64, 3), 114, np.uint8)
    canvas[8:56] = np.asarray(Image.fromarray(image).resize((64, 48), BILINEAR))
    pixels = (canvas / 255).astype(np.float32).transpose(2, 0, 1)[None]
    rows = small.oracle(path, images=pixels)["output0"][0].astype(np.float64)
    (x, y, w, h), scores = rows[:4], rows[4:]
    boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1)
    kept: list[tuple[float, int, int]] = []
    for number, row in enumerate(scores):  # of each class, the best first
        chosen: list[int] = []
        for k in np.argsort(-row):
            if row[k] > 0.6 and all(_overlap(boxes[k], boxes[c]) <= 0.4 for c in chosen):
                chosen.append(int(k))
        kept += [(float(row[k]), number, k) for k in chosen]
    kept.sort(reverse=True)
    candidates = int((scores > 0.6).sum())
    assert 1 < len(kept) < candidates
    assert [d.index for d in found] == [c for _, c, _ in kept]
    np.testing.assert_allclose([d.score for d in found], [s for s, _, _ in kept], atol=1e-4)
    moved = (boxes[[k for _, _, k in kept]] - [0, 8, 0, 8]) * 80 / 64
    expected = np.clip(moved, 0, [80, 60, 80, 60])
    np.testing.assert_allclose([d.box for d in found], expected, atol=0.05)
    assert found[0].label == labels[found[0].index]


def test_with_boxes_draws_outlines_only() -> None:
    pixels = np.zeros((100, 120, 3), np.uint8)
    found = [Detection(3, "sheep", 0.9, (20.0, 30.0, 80.0, 90.0))]
    drawn = np.asarray(with_boxes(pixels, found))
    assert drawn.shape == pixels.shape
    assert drawn[60, 20].any() and drawn[90, 50].any() and not drawn[60, 50].any()
    with_boxes(pixels[:2, :2], [Detection(0, "long " * 20, 1.0, (5.0, 5.0, 1.0, 1.0))])


def _enlarged(logits: Array, size: tuple[int, int]) -> Array:
    """Linear interpolation in float64, between the centres of pixels."""
    for axis, wanted in enumerate(size, start=1):
        has = logits.shape[axis]
        places = np.clip((np.arange(wanted) + 0.5) * has / wanted - 0.5, 0, has - 1)
        first = places.astype(int)
        share = (places - first).reshape(-1, *[1] * (2 - axis))
        near, far = (np.take(logits, np.minimum(first + k, has - 1), axis) for k in (0, 1))
        logits = near * (1 - share) + far * share
    return logits


def test_segmenter_mask_matches_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, images = small.segmenter(tmp_path), _images()
    monkeypatch.setattr("clrt.vision.segmenter._BAND_BYTES", 4 * 5 * 80 * 7)  # bands of 7 rows
    with Segmenter(folder, device=quick_device()) as segment:
        found = segment(images)
        assert np.array_equal(segment(images[0]).mask, found[0].mask)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    for image, segmentation in zip(images, found, strict=True):
        pixels = _pixels(image, (64, 64), mean, std)
        logits = small.oracle(folder / "model.onnx", pixel_values=pixels)["logits"][0]
        large = np.sort(_enlarged(logits.astype(np.float64), image.shape[:2]), 0)
        clear = large[-1] - large[-2] > 1e-3
        expected = _enlarged(logits.astype(np.float64), image.shape[:2]).argmax(0)
        assert segmentation.mask.shape == image.shape[:2] and clear.mean() > 0.95
        np.testing.assert_array_equal(segmentation.mask[clear], expected[clear])
        assert set(segmentation.labels) == set(np.unique(segmentation.mask))
        assert sum(segmentation.shares().values()) == pytest.approx(1)
        mixed = segmentation.overlay(image)
        assert mixed.shape == image.shape and not np.array_equal(mixed, image)
        np.testing.assert_array_equal(segmentation.overlay(image, 0), image)
    with pytest.raises(InputError, match="pass the image that was segmented"):
        found[0].overlay(images[1])


@pytest.mark.parametrize("one", [True, False], ids=["one file", "two files"])
def test_image_encoder_matches_onnxruntime_for_images_and_texts(one: bool, tmp_path: Path) -> None:
    folder, images = small.clip(tmp_path, one), _images()
    texts = ["a photo of a dog", "cat", "boat boat boat boat boat boat"]
    with ImageEncoder(folder, device=quick_device(), batch_size=2) as encoder:
        vectors, words = encoder.encode(images), encoder.encode_text(texts)
        single = encoder.encode(images[2], normalize=False)
        assert encoder.encode_text("cat").shape == (6,)
    names = ("model.onnx",) * 2 if one else ("vision_model.onnx", "text_model.onnx")
    ids = np.array([[0, 2, 3, 4, 1], [0, 5, 1, 1, 1], [0, 7, 7, 7, 1]])  # at most five tokens
    mask = np.array([[1] * 5, [1, 1, 1, 0, 0], [1] * 5])
    made = Preprocessor.from_config(folder)
    pixels = np.asarray(made(images, device=quick_device()))
    feeds = {"pixel_values": pixels, "input_ids": ids, "attention_mask": mask}
    image, text = (
        small.oracle(folder / "onnx" / name, **feeds)[output]
        for name, output in zip(names, ("image_embeds", "text_embeds"), strict=True)
    )
    np.testing.assert_allclose(single, image[2], rtol=1e-4, atol=1e-5)
    for found, expected in ((vectors, image), (words, text)):
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(found, expected / lengths, atol=1e-5)


def test_image_encoder_without_text_model_refuses_texts(tmp_path: Path) -> None:
    folder = small.clip(tmp_path, one=False)
    (folder / "onnx" / "text_model.onnx").unlink()
    encoder = ImageEncoder(folder, device=quick_device())
    with pytest.raises(InputError, match=r"has no text_model\.onnx"):
        encoder.encode_text("cat")


def test_unfit_vision_models_and_options_are_refused(tmp_path: Path) -> None:
    device, image = quick_device(), _images()[0]
    graph = small.Graph(0)
    graph.add("Relu", "x", name="y")
    other = graph.save(tmp_path / "other.onnx", {"x": (1, ["n", 7])}, {"y": ["n", 7]})
    with pytest.raises(
        InputError, match=r"Expected a model with the single input.*inputs are x: float32"
    ):
        Classifier(other, device=device)
    with pytest.raises(ModelError, match=r"No file or folder .*gone\.onnx' exists"):
        Classifier(tmp_path / "gone.onnx", device=device)
    folder = small.segmenter(tmp_path / "a")
    for cls, what in ((Classifier, "classes"), (Detector, "boxes")):
        with pytest.raises(InputError, match=f"has no output for {what}"):
            cls(folder, device=device)(image)
    fixed = small.classifier(tmp_path / "b", 1, 3, 16, 16)
    with pytest.raises(
        InputError, match="takes images of 16 x 16, but its preprocessor returns 32"
    ):
        Classifier(fixed, device=device)(image)
    model = Classifier(small.classifier(tmp_path / "c"), device=device)
    with pytest.raises(InputError, match="top is 0"):
        model(image, top=0)
    with pytest.raises(InputError, match="batch_size is 0"):
        ImageModel(tmp_path / "c", device=device, batch_size=0)
    yolo = Detector(small.yolo(tmp_path / "yolo.onnx"), device=device)
    for options in ({"threshold": 1.5}, {"overlap": -0.1}):
        with pytest.raises(InputError, match="expected 0 to 1"):
            yolo(image, **options)
    (tmp_path / "c" / "config.json").write_text('{"id2label": {"x": 1}}')
    with pytest.raises(ModelError, match="id2label is not a map"):
        Classifier(tmp_path / "c", device=device)


def test_candidate_classes_contain_argmax_of_every_pixel() -> None:
    """Smooth logits leave out most classes; NaN logits leave out none."""
    rng = np.random.default_rng(4)
    coarse = rng.standard_normal((40, 4, 5))
    logits = _enlarged(coarse, (12, 15)).astype(np.float32)
    whole = _enlarged(logits.astype(np.float64), (97, 203)).argmax(0)
    rows = np.arange(11)
    kept = _candidate_classes(logits, rows, rows + 1)
    assert set(np.unique(whole)) <= set(kept) and len(kept) < 40
    band = _candidate_classes(logits, rows[:1], rows[:1] + 1)
    assert set(np.unique(whole[:8])) <= set(band) and len(band) < len(kept)
    assert len(_candidate_classes(logits[:, :1], rows[:1], rows[:1])) >= 1
    assert (
        len(_candidate_classes(np.full((3, 2, 2), np.nan, np.float32), rows[:1], rows[:1] + 1)) == 3
    )


@pytest.mark.parametrize("cls", [Classifier, Detector, Segmenter, ImageEncoder])
def test_compiled_vision_model_runs_without_config_files(cls: Any, tmp_path: Path) -> None:
    """Labels, score function and preprocessor are stored in the file."""
    made = {Classifier: small.classifier, Detector: small.detr, Segmenter: small.segmenter,
            ImageEncoder: lambda f: small.clip(f, one=False)}  # fmt: skip
    folder, image = made[cls](tmp_path / "model"), _images()[0]
    source = folder / "onnx" / "vision_model.onnx" if cls is ImageEncoder else folder
    (tmp_path / "alone").mkdir()
    target = tmp_path / "alone" / "model.clrt"
    with pytest.raises(SystemExit) as end:
        convert([str(source), "-o", str(target)])
    assert not end.value.code
    with cls(source, device=quick_device()) as plain, cls(target, device=quick_device()) as alone:
        assert alone.preprocessor == plain.preprocessor and alone.labels == plain.labels
        if cls is ImageEncoder:
            np.testing.assert_allclose(alone.encode(image), plain.encode(image), atol=1e-5)
        elif cls is Segmenter:
            np.testing.assert_array_equal(alone(image).mask, plain(image).mask)
        else:
            found, wanted = alone(image), plain(image)
            assert [x.label for x in found] == [x.label for x in wanted] and found
            np.testing.assert_allclose(
                [x.score for x in found], [x.score for x in wanted], atol=1e-5
            )


@pytest.mark.parametrize("held", [[], {"config": {}}, {"config": 3, "preprocessor": {}}])
def test_compiled_model_with_damaged_vision_extras_is_refused(held: Any, tmp_path: Path) -> None:
    graph = load(small.classifier(tmp_path / "m"), device=quick_device())._graph
    path = tmp_path / "model.clrt"
    write_compiled(CompiledModel(graph, (), {"vision": held}), path, "a test")
    with pytest.raises(ModelError, match="is damaged: its image settings are not objects"):
        Classifier(path, device=quick_device())
