"""`clrt run`, `clrt cache`, `python -m clrt`, and behaviour common to all commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image
from typer.testing import CliRunner

import clrt
from clrt.cli import app
from clrt.cli.main import COMMANDS
from clrt.errors import UnsupportedError
from clrt.runtime.opencl import devices as device_list
from tests.generation.text_folders import write_texts
from tests.harness import quick_device
from tests.unit.cli.language_models import write_model
from tests.unit.text import tiny
from tests.vision.small_models import classifier


def run(*args: str | Path, **options: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, args)), **options)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """ONNX file that computes y = -x."""
    info = helper.make_tensor_value_info
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [info("x", 1, ["n", 2])], [info("y", 1, None)])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_run_writes_outputs(model: Path, tmp_path: Path) -> None:
    device = str(quick_device().index)
    np.savez(tmp_path / "in.npz", x=np.array([[1, 2], [3, 4]], ">f4"))
    given = ("run", model, "--inputs", tmp_path / "in.npz", "--device", device)
    result = run(*given, "--output", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    assert "float32[2, 2]" in result.stderr
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["y"], [[-1, -2], [-3, -4]])
    shown = run(*given)
    assert all(text in shown.stdout for text in ("float32[2, 2]", "-4", "-2.5", "-1"))
    assert "does not end in .npz" in run(*given, "--output", tmp_path / "out.csv").stderr
    np.savez(tmp_path / "in.npz", z=np.ones((1, 2), np.float32))
    assert "no input 'z'" in run(*given).stderr


def test_diff_accepts_input_and_inputs_options(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 2), np.float32))
    given = ("diff", model, "--against", "reference", "--device", str(quick_device().index))
    new = run(*given, "--inputs", tmp_path / "in.npz")
    old = run(*given, "--input", tmp_path / "in.npz")
    assert new.exit_code == old.exit_code == 0, old.output
    assert new.stdout == old.stdout
    assert "--input is now called --inputs" in old.stderr and not new.stderr


def test_cache_command_lists_and_clears_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path))
    for name in ("a.clbin", "self-tests/a.json", "pocl/x/y.so", "tuning.json", "mine.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(100))
    found = json.loads(run("cache", "--json").stdout)
    assert found == {"folder": str(tmp_path), "files": 4, "bytes": 400, "removed": 0}
    assert "3 files removed." in run("cache", "--clear").stdout
    assert (tmp_path / "tuning.json").is_file() and (tmp_path / "mine.json").is_file()
    assert run("cache", "--clear", "--records").exit_code == 0
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["mine.json"]
    assert run("cache", "--records").exit_code == 1


def test_devices_json_lists_every_device() -> None:
    found = json.loads(run("devices", "--json").stdout)
    assert [d["index"] for d in found] == [d.index for d in clrt.devices()]
    assert sum(d["default"] for d in found) <= 1 and all("name" in d for d in found)


@pytest.mark.parametrize("name", COMMANDS)
def test_h_option_equals_help(name: str) -> None:
    short, long = run(name, "-h"), run(name, "--help")
    assert short.exit_code == 0 and short.stdout == long.stdout


def test_python_m_clrt_runs_cli() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "clrt", "--version"], capture_output=True, text=True, check=True
    )
    assert made.stdout == f"clrt {clrt.__version__}\n"


def test_unreadable_image_does_not_stop_batch(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    classifier(folder)
    for name in ("a", "c"):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    files = [tmp_path / f"{name}.png" for name in "abc"]
    given = ("classify", "-m", folder, *files, "--json", "--device", str(quick_device().index))
    result = run(*given)
    assert result.exit_code == 1
    shown = [json.loads(line)["image"] for line in result.stdout.splitlines()]
    assert shown == [str(files[0]), str(files[2])]
    assert result.stderr.count("Error: ") == 1 and "b.png" in result.stderr
    stopped = run(*given, "--stop-at-error")
    assert stopped.exit_code == 1 and len(stopped.stdout.splitlines()) == 1


def test_load_error_names_class_for_model_folder(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "llm", [2])
    whisper = tmp_path / "whisper"
    whisper.mkdir()
    (whisper / "config.json").write_text('{"model_type": "whisper"}')
    for folder, wanted in ((texts, "clrt.TextGenerator"), (whisper, "clrt.Transcriber")):
        with pytest.raises(UnsupportedError, match=wanted):
            clrt.load(folder)
        for command in ("inspect", "bench", "explain", "profile"):
            result = run(command, folder)
            assert result.exit_code == 1 and wanted in result.stderr, result.output
            assert "export" not in result.stderr


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("run", "MODEL", "-i", "in.npz", "-o"), ("out.npy", "out")),
        (("embed", "a", "-m", "MODEL", "-o"), ("v.npz", "v.json", "v")),
        (("detect", "a.png", "-m", "MODEL", "-o"), ("a.jpg", "out")),
        (("segment", "a.png", "-m", "MODEL", "-o"), ("a.webp", "out")),
        (("transcribe", "a.wav", "-m", "MODEL", "-o"), ("a.doc", "a.wav.gz")),
        (("transcribe", "a.wav", "-m", "MODEL", "-f", "srt", "-o"), ("a.vtt", "a.json")),
        (("transcribe", "a.wav", "-m", "MODEL", "--json", "-o"), ("a.txt",)),
        (("profile", "MODEL", "--html"), ("page.json", "page")),
        (("profile", "MODEL", "--trace"), ("trace.html", "trace.json.gz")),
        (("report-device", "-o"), ("report.txt", "report")),
    ],
    ids=lambda value: value[0],
)
def test_output_with_wrong_suffix_is_refused(
    model: Path, tmp_path: Path, args: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """Other programs choose a format by suffix."""
    before = set(tmp_path.iterdir())
    for name in names:
        target = str(tmp_path / name)
        result = run(*(str(model) if a == "MODEL" else a for a in args), target)
        assert result.exit_code == 1 and "does not end in ." in result.stderr, result.output
        assert f"'{target}'" in result.stderr
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "args",
    [
        ("run", "MODEL", "-i", "in.npz"),
        ("explain", "MODEL"),
        ("inspect", "MODEL"),
        ("profile", "MODEL"),
        ("bench", "MODEL"),
        ("diff", "MODEL"),
        ("tune", "MODEL"),
        ("classify", "a.png", "-m", "IMAGES"),
        ("embed", "a", "-m", "TEXTS"),
        ("generate", "LANGUAGE", "a"),
        ("perplexity", "LANGUAGE", "a.txt"),
        ("report-device",),
        ("devices",),
        ("devices", "--json"),
    ],
    ids=" ".join,
)
def test_every_command_reports_missing_device(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device_list, "_handles", list)
    monkeypatch.delenv("CLRT_DEVICE", raising=False)
    Image.new("RGB", (8, 8)).save("a.png")
    Path("a.txt").write_text("a text", "utf-8")
    np.savez("in.npz", x=np.ones((1, 2), np.float32))
    makers = {"IMAGES": classifier, "TEXTS": tiny.make_folder, "LANGUAGE": write_model}
    for name in makers.keys() & set(args):
        Path(name).mkdir()
        makers[name](tmp_path / name)
    result = run(*(str(model) if a == "MODEL" else a for a in args))
    assert result.exit_code == 1, result.output
    assert result.stderr == f"Error: {device_list.no_device_text([])}\n"
    assert "--json" not in args or json.loads(result.stdout) == []
