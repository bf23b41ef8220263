"""Cases of ONNX's backend suite, generated once and stored in the test cache folder."""

from __future__ import annotations

import os
import pickle
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase

from clrt.util.files import atomic_write


@cache
def cases_of(kind: str) -> tuple[TestCase, ...]:
    """Returns the cases of one kind: "node", "simple", "pytorch-operator" or "pytorch-converted".

    ONNX computes the expected results in Python when they are loaded, which takes ten seconds for
    the nodes; later processes read these from a file. Those of other kinds lie in files of onnx.
    """
    versions = f"onnx-{onnx.__version__}-numpy-{np.__version__}"
    path = Path(os.environ["CLRT_CACHE_DIR"]) / f"{versions}.pickle"
    if kind == "node" and path.is_file():
        return tuple(pickle.loads(path.read_bytes()))
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, where the expected results are computed
        found = tuple(load_model_tests(kind=kind))
    if kind != "node":
        return found
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with atomic_write(path, sync=False) as stream:
        pickle.dump(found, stream, protocol=pickle.HIGHEST_PROTOCOL)
    return found
