"""Programs that other people made for ONNX Runtime, as they are, on clrt: the same answers.

Each brings its own models and is a package of the extra `programs`: `make test-programs`.
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
PROGRAMS = {
    "read_texts": "rapidocr_onnxruntime",
    "tell_types": "magika",
    "read_captchas": "ddddocr",
}


def _output(*arguments: str) -> Any:
    """What a program prints, as JSON; both runtimes compute in float32, in other orders."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
def test_answers_are_the_same(name: str) -> None:
    if find_spec(PROGRAMS[name]) is None:
        pytest.skip(f"{PROGRAMS[name]} comes with `make test-programs`")
    path = str(Path(__file__).parent / f"{name}.py")
    expected = _output(path)
    assert len(expected) > 3
    _same(_output("-m", "clrt.onnxruntime", path), expected)
