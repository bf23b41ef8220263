"""Application code on simulated Windows and macOS: see `disguise.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import clrt
from tests.harness import quick_device
from tests.unit.models.encoders.checkpoints import make_config, make_tensors, write
from tests.unit.text import tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs what Linux tells of files")
CHECKS = ["loads", "encodes", "converts", "keeps_open_files", "caches", "explains"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Application files in a folder with spaces and non-ASCII letters."""
    folder = tmp_path / "Büro 模型 файлы"
    folder.mkdir()
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((64, 8), np.float32), rng.standard_normal((3, 64), np.float32)
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(
        f"{head} m (float[batch, 64] x) => (float[batch, 8] y) {{h = MatMul(x, w) y = Relu(h)}}"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(
        model,
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.weights",
        size_threshold=0,
    )
    small = onnx.parser.parse_model(f"{head} s (float[n] x) => (float[n] y) {{y = Add(x, x)}}")
    onnx.save(small, folder / "small.onnx")
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", np.maximum(x @ w, 0))
    tiny.make_folder(folder / "encoder")
    write(folder / "encoder", make_config("bert"), make_tensors("bert"))
    with clrt.SentenceEncoder(folder / "encoder", device=quick_device().index) as encoder:
        np.save(folder / "vectors.npy", encoder.encode(["a b c", "d"]))
    return folder


@pytest.mark.lengthy
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_application_checks_pass_on_simulated_systems(system: str, folder: Path) -> None:
    program = [sys.executable, "-X", "warn_default_encoding", "-m", "tests.platforms.application"]
    done = subprocess.run(
        [*program, system, str(folder), str(quick_device().index)],
        capture_output=True,
        encoding="cp1252",
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [line for line in done.stdout.splitlines() if line in CHECKS] == CHECKS
