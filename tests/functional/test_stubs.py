"""Type stubs of `clrt.functional` match the functions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.pages import ROOT
from tools.functional_stubs import TARGET, stub

USE = """
import numpy as np
import clrt
import clrt.functional as F

x = np.ones((2, 3), np.float32)
reveal_type(F.Softmax(x, axis=-1))
reveal_type(F.softmax(clrt.tensor(x)))
reveal_type(F.Add(x, clrt.tensor(x)))
reveal_type(F.TopK(x, [1]))
F.Softmax(x, axs=1)
F.Nonsense(x)
F.microsoft.BiasGelu(x, x)
"""


def test_stub_file_matches_ops() -> None:
    assert TARGET.read_text("utf-8") == stub(), "run tools/functional_stubs.py"


@pytest.mark.slow
def test_mypy_reveals_types_and_rejects_wrong_calls(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "use.py")],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    revealed = re.findall(r"Revealed type is \"(?:numpy|tuple\[numpy|clrt)[^\"]*", done.stdout)
    kinds = [("tuple" in r, "DeviceTensor" in r) for r in revealed]
    assert kinds == [(False, False), (False, True), (False, True), (True, False)], done.stdout
    errors = re.findall(r"use\.py:(\d+): error", done.stdout)
    assert set(errors) == {"11", "12"}, done.stdout
