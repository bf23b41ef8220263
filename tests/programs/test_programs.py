"""Unchanged third-party ONNX Runtime programs give the same results on clrt.

Their packages are the extra `programs`, and torch, which exports models for those that bring none:
`make test-programs`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Programs that are given models, and the packages that they need.
ON_MODELS = {
    "run_optimum": ("optimum.onnxruntime",),
    "embed_texts": ("fastembed", "sentence_transformers"),
}
PROGRAMS = {
    "read_texts": "rapidocr_onnxruntime",
    "tell_types": "magika",
    "read_captchas": "ddddocr",
}


def _run(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _output(*arguments: str) -> Any:
    """What a program prints, as JSON; both runtimes compute in float32, in other orders."""
    return json.loads(_run(*arguments))


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of small models, exported by Optimum."""
    folder = str(tmp_path_factory.mktemp("models"))
    _run(str(Path(__file__).parent / "make_models.py"), folder)
    return folder


def _same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, (list, dict)):
        assert len(found) == len(expected)
        pairs = expected.items() if isinstance(expected, dict) else enumerate(expected)
        for key, value in pairs:
            _same(found[key], value)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    else:
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_onnxruntime_programs_give_same_results_on_clrt(name: str) -> None:
    if find_spec(PROGRAMS[name]) is None:
        pytest.skip(f"{PROGRAMS[name]} comes with `make test-programs`")
    path = str(Path(__file__).parent / f"{name}.py")
    expected = _output(path)
    assert len(expected) > 3
    _same(_output("-m", "clrt.onnxruntime", path), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_MODELS)
def test_programs_on_exported_models_give_same_results_on_clrt(name: str, request: Any) -> None:
    if not all(map(_is_there, ON_MODELS[name])):
        pytest.skip(f"{', '.join(ON_MODELS[name])} come with `make test-programs`")
    path, folder = str(Path(__file__).parent / f"{name}.py"), request.getfixturevalue("models")
    expected = _output(path, folder)
    assert len(expected) >= 7
    _same(_output("-m", "clrt.onnxruntime", path, folder), expected)
