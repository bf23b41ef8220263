"""Import paths of earlier releases."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest

from clrt.ir.dtypes import DType
from clrt.util.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_old_paths_import_the_module_that_stands_elsewhere(old: str) -> None:
    real = importlib.import_module(MOVED[old])
    assert importlib.import_module(old) is real
    assert real.__name__ == MOVED[old]
    assert real.__spec__ is not None and real.__spec__.name == MOVED[old]
    sys.modules.pop(old)  # as in a process that had not imported it
    assert importlib.import_module(old) is real


def test_pickles_of_earlier_releases_load() -> None:
    from clrt.runtime.execution.signature import TensorSpec

    spec = TensorSpec("x", DType.FLOAT32, (1, "n"))
    written = pickle.dumps(spec, protocol=0)
    old = written.replace(b"clrt.runtime.execution.signature", b"clrt.signature")
    assert old != written
    assert pickle.loads(old) == spec
