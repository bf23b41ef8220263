"""`clrt classify`, `detect`, `segment` and `embed --image`, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from clrt.cli.main import app
from clrt.vision import Classifier, Detector, ImageEncoder, Segmenter
from tests.harness import quick_device
from tests.vision import small_models as small

DEVICE = str(quick_device().index)


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    """A JPEG and a PNG of other sizes."""
    rng = np.random.default_rng(8)
    names = []
    for name, size in (("cat.jpg", (80, 60)), ("dög.png", (41, 90))):
        image = Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8)).resize(size)
        image.save(tmp_path / name)
        names.append(str(tmp_path / name))
    return names


def _run(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*args, "--device", DEVICE])
    assert result.exit_code == code, result.output
    return result


def _lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_classify_command_matches_classifier(photos: list[str], tmp_path: Path) -> None:
    folder = str(small.classifier(tmp_path / "model"))
    expected = Classifier(folder, device=DEVICE)(photos, top=2)
    table = _run("classify", *photos, "--model", folder, "--top", "2").stdout
    found = _lines(_run("classify", *photos, "--model", folder, "--top", "2", "--json"))
    for path, classes, one in zip(photos, expected, found, strict=True):
        assert one["image"] == path
        assert [(c["label"], c["class"]) for c in one["classes"]] == [
            (c.label, c.index) for c in classes
        ]
        for c in classes:
            assert c.label in table and f"{c.score:.1%}" in table


def test_detect_command_matches_detector_and_draws_boxes(photos: list[str], tmp_path: Path) -> None:
    folder = str(small.detr(tmp_path / "model"))
    args = ("detect", *photos, "-m", folder, "--threshold", "0.3")
    detector = Detector(folder, device=DEVICE)
    expected = [detector(photo, threshold=0.3) for photo in photos]
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    found = _lines(_run(*args, "--json", "--output", str(drawn)))
    for path, things, one in zip(photos, expected, found, strict=True):
        assert [d["label"] for d in one["detections"]] == [t.label for t in things]
        np.testing.assert_allclose([d["box"] for d in one["detections"]], [t.box for t in things])
        with Image.open(path) as image, Image.open(drawn / f"{Path(path).stem}.png") as result:
            assert result.size == image.size and result.format == "PNG"
            assert not np.array_equal(np.asarray(result), np.asarray(image.convert("RGB")))
    table = _run(*args).stdout
    assert all(t.label in table for things in expected for t in things)
    nothing = _run("detect", photos[0], "-m", folder, "--threshold", "1").stdout
    assert "nothing" in nothing


def test_detect_command_runs_yolo_model(photos: list[str], tmp_path: Path) -> None:
    model = str(small.yolo(tmp_path / "yolo.onnx"))
    (one,) = _lines(_run("detect", photos[0], "-m", model, "--json", "--overlap", "0.3"))
    assert one["detections"] and all(0 <= d["box"][0] <= 80 for d in one["detections"])


def test_segment_command_matches_segmenter_and_draws_overlay(
    photos: list[str], tmp_path: Path
) -> None:
    folder = str(small.segmenter(tmp_path / "model"))
    expected = Segmenter(folder, device=DEVICE)(photos[0])
    target = tmp_path / "overlay.png"
    shown = _run("segment", photos[0], "-m", folder, "-o", str(target), "--strength", "0.25")
    with Image.open(photos[0]) as image, Image.open(target) as result:
        pixels = expected.overlay(np.asarray(image), 0.25)
        np.testing.assert_array_equal(np.asarray(result), pixels)
    (one,) = _lines(_run("segment", photos[0], "-m", folder, "--json"))
    assert {c["class"]: c["share"] for c in one["classes"]} == expected.shares()
    assert all(name in shown.stdout for name in expected.labels.values())


@pytest.mark.parametrize("one", [True, False], ids=["one file", "two files"])
def test_embed_command_matches_image_encoder(one: bool, photos: list[str], tmp_path: Path) -> None:
    folder = str(small.clip(tmp_path / "model", one))
    encoder = ImageEncoder(folder, device=DEVICE)
    expected = np.concatenate([encoder.encode(photos), encoder.encode_text(["a cat"])])
    images = ("--image", photos[0], "--image", photos[1])
    lines = _lines(_run("embed", "a cat", *images, "-m", folder, "--json"))
    assert [line["text"] for line in lines] == [*photos, "a cat"]
    np.testing.assert_allclose([line["embedding"] for line in lines], expected, atol=1e-6)
    _run("embed", *images, "-m", folder, "-o", str(tmp_path / "v.npy"), "--batch-size", "1")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected[:2], atol=1e-6)
    assert "cosine similarity" in _run("embed", "a cat", *images, "-m", folder).stdout
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    mixed = ("embed", "a cat", "--image", str(broken), *images, "-m", folder, "--json")
    result = _run(*mixed, code=1)
    assert [line["text"] for line in _lines(result)] == [*photos, "a cat"]
    assert result.stderr.count("Error: ") == 1 and "broken.png" in result.stderr
    assert not _run(*mixed, "--stop-at-error", code=1).stdout
    assert not _run("embed", "--image", str(broken), "-m", folder, code=1).stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["classify", "{model}/config.json", "-m", "{model}"],
            "is not an image of a supported format",
        ),
        (
            ["classify", "{photo}", "gone.jpg", "-m", "{model}"],
            "'gone.jpg' cannot be read: No such",
        ),
        (["classify", "{photo}", "-m", "{model}/gone.onnx"], "No file or folder"),
        (["classify", "{photo}", "-m", "{model}/config.json"], "config.json"),
        (["classify", "{photo}", "-m", "{model}", "--top", "0"], "top is 0"),
        (["detect", "{photo}", "-m", "{model}"], "no output for boxes"),
        (
            ["detect", "{photo}", "-m", "{model}", "-o", "{model}/a/b.png"],
            "--output needs an existing one",
        ),
        (["detect", "{photo}", "{photo}", "-m", "{model}", "-o", "{model}/b.png"], "not a folder"),
        (["detect", "{photo}", "{photo}", "-m", "{model}", "-o", "{model}"], "both be written"),
        (["detect", "{photo}", "-m", "{model}", "-o", "{photo}"], "what is read"),
        (["segment", "{photo}", "-m", "{model}", "--strength", "2"], "--strength is 2.0"),
        (["segment", "{photo}", "-m", "{model}"], "no output for pixels"),
        (
            ["embed", "--image", "{photo}", "-m", "{model}", "--prompt", "x"],
            "--prompt cannot be combined",
        ),
        (["embed", "a", "--image", "{photo}", "-m", "{model}"], "has no text input"),
    ],
)
def test_vision_command_errors_are_one_line(
    args: list[str], said: str, photos: list[str], tmp_path: Path
) -> None:
    folder = small.classifier(tmp_path / "model")
    given = [a.format(model=folder, photo=photos[0]) for a in args]
    result = _run(*given, code=1)
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.output
