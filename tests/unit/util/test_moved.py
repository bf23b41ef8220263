"""Import paths of earlier releases."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import pytest

from clrt.generation.options import Sampling
from clrt.ir.dtypes import DType
from clrt.runtime.execution.signature import TensorSpec
from clrt.util.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_old_import_paths_return_moved_modules(old: str) -> None:
    real = importlib.import_module(MOVED[old])
    assert importlib.import_module(old) is real
    assert real.__name__ == MOVED[old]
    assert real.__spec__ is not None and real.__spec__.name == MOVED[old]
    sys.modules.pop(old)  # as in a process that had not imported it
    assert importlib.import_module(old) is real


def test_pickles_of_earlier_releases_load() -> None:
    """Pickle file written before modules moved: inspection results, options, capabilities."""
    written = pickle.loads((Path(__file__).parent / "data" / "before_move.pickle").read_bytes())
    loaded = {name: pickle.loads(content) for name, content in written.items()}
    assert loaded["spec"] == TensorSpec("x", DType.FLOAT32, ("n", 4))
    assert loaded["sampling"] == Sampling()
    assert "steps as run" in str(loaded["profile"])
    assert "1 kernel launch" in str(loaded["explain"])
