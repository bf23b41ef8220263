"""Programs that import `onnxruntime` run on clrt."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

import clrt.onnxruntime as ours
from clrt.onnxruntime.__main__ import main
from tests.models.onnx_text import parsed

ROOT = Path(__file__).resolve().parents[2]
# What programs do at their top. The blocker stands for a machine without ONNX Runtime.
PROGRAM = """
import importlib.metadata
import importlib.util
import sys

import numpy as np
import onnxruntime as rt
import onnxruntime.capi.onnxruntime_pybind11_state as state
from onnxruntime import InferenceSession
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

assert __name__ == "__main__"
assert importlib.util.find_spec("onnxruntime") is not None
assert rt.capi.onnxruntime_pybind11_state is state and C.InvalidArgument is InvalidArgument
assert OrtValue is rt.OrtValue and "ClrtExecutionProvider" in C.get_available_providers()
made = InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
try:
    made.run(None, {"x": np.ones(3)})
except InvalidArgument as error:
    print([c.__name__ for c in type(error).__mro__ if c.__module__ == "clrt.errors"])
print(made.run(None, {"x": np.ones(3, np.float32)})[0].tolist(), sys.argv[1:])
print(importlib.metadata.version("onnxruntime"))
"""
WITHOUT = """
import sys
from importlib import metadata

class Blocker(metadata.DistributionFinder):
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(name)
    def find_distributions(self, context=None):
        return ()

hidden = metadata.MetadataPathFinder.find_distributions
def others(context=metadata.DistributionFinder.Context()):
    return () if context.name == "onnxruntime" else hidden(context)
metadata.MetadataPathFinder.find_distributions = others
sys.meta_path.insert(0, Blocker())
sys.argv = ["clrt.onnxruntime", *sys.argv[1:]]
from clrt.onnxruntime.__main__ import main
main(sys.argv[1:])
"""


def _run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    paths = f"{ROOT}:{folder}"
    done = subprocess.run(
        command, cwd=folder, env=_environment(paths), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment(paths: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": paths}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "twice.onnx").write_bytes(parsed("g (float[n] x) => (float[n] y) {y = Add(x, x)}"))
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "program.py").write_text("import helper\n" + PROGRAM)
    (tmp_path / "without.py").write_text(WITHOUT)
    return tmp_path


EXPECTED = ["['InputError', 'ClrtError']", "[2.0, 2.0, 2.0] ['twice.onnx', '-v']"]


def test_program_runs_by_clrt_onnxruntime_module(folder: Path) -> None:
    """The program gets its own modules, its arguments, and clrt."""
    out = _run(folder, "-m", "clrt.onnxruntime", "program.py", "twice.onnx", "-v").splitlines()
    assert out[:2] == EXPECTED


def test_module_runs_without_onnxruntime_installed(folder: Path) -> None:
    out = _run(folder, "without.py", "-m", "program", "twice.onnx", "-v").splitlines()
    assert out == [*EXPECTED, "1.32.0"]


def test_install_warns_if_onnxruntime_is_already_imported() -> None:
    """Earlier imports keep ONNX Runtime; later imports get clrt."""
    modules, finders = dict(sys.modules), list(sys.meta_path)
    try:
        with pytest.warns(UserWarning, match="was imported before") as caught:
            ours.install()
            ours.install()
        assert len(caught) == 1
        assert importlib.import_module("onnxruntime") is ours and onnxruntime is not ours
        with pytest.raises(ModuleNotFoundError, match="quantization"):
            importlib.import_module("onnxruntime.quantization")
    finally:
        sys.modules.update(modules)
        sys.meta_path[:] = finders


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), ([], 2), (["-m"], 2)])
def test_runner_without_program_prints_usage(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status and "PROGRAM" in capsys.readouterr().out
