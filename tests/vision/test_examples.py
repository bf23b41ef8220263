"""The vision examples: each is short, and runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from tests.harness import quick_device
from tests.vision import small_models as small

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("classify_images", "detect_things", "segment_image", "search_images")


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_vision_example_is_at_most_40_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


def test_vision_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLRT_DEVICE", str(quick_device().index))
    photo, target = str(tmp_path / "photo.png"), tmp_path / "result.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 80, 3), np.uint8)).save(photo)
    models = {n: tmp_path / n for n in ("a", "b", "c")}
    _example("classify_images").main(str(small.classifier(models["a"])), photo, photo)
    assert capsys.readouterr().out.count(photo) == 2
    for name, model in (
        ("detect_things", small.yolo(tmp_path / "yolo.onnx")),
        ("segment_image", small.segmenter(models["b"])),
    ):
        _example(name).main(str(model), photo, str(target))
        assert "%" in capsys.readouterr().out
        with Image.open(target) as result:
            assert result.size == (80, 60)
        target.unlink()
    _example("search_images").main(str(small.clip(models["c"], False)), "a cat", photo)
    assert capsys.readouterr().out.endswith(f"{photo}\n")


@pytest.mark.parametrize("name", NAMES)
def test_vision_example_without_arguments_prints_usage(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpy

    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=f"python examples/{name}.py MODEL"):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
