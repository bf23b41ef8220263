"""Initializers also listed as inputs: runs may override them, as in ONNX Runtime."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.errors import ClrtError, InputError
from tests.harness import quick_device
from tests.models.onnx_text import parsed

TEXT = (
    "g (float[4] x, float[4] w, float[4] v) => (float[4] y) <{weights}> {{ a=Add(x,w) y=Mul(a,v) }}"
)
WEIGHTS = "float[4] w={1,2,3,4}, float[4] v={2,2,3,3}"
X, OTHER = np.arange(4, dtype=np.float32), np.full(4, 9, np.float32)
GIVEN: list[dict[str, Any]] = [
    {"x": X},
    {"x": X, "w": OTHER},
    {"x": X, "v": OTHER},
    {"x": X, "v": X, "w": OTHER},
    {"x": X},
]


def model_bytes(ir_version: int = 8) -> bytes:
    return parsed(TEXT.format(weights=WEIGHTS), ir_version)


def test_overridable_initializers_match_onnxruntime() -> None:
    theirs = onnxruntime.InferenceSession(model_bytes(), providers=["CPUExecutionProvider"])
    with clrt.load(model_bytes(), device=quick_device().index) as model:
        assert [s.name for s in model.inputs] == [i.name for i in theirs.get_inputs()] == ["x"]
        names = [i.name for i in theirs.get_overridable_initializers()]
        assert sorted(model.overridable) == sorted(names)
        for feeds in GIVEN:
            (wanted,) = theirs.run(None, feeds)
            for found in (model.run(feeds), model.submit(feeds).wait()):
                np.testing.assert_array_equal(found["y"], wanted)
            found = asyncio.run(model.run_async(feeds))
            np.testing.assert_array_equal(found["y"], wanted)
            assert model.feeds(feeds).keys() == feeds.keys()


def test_invalid_feeds_of_overridable_model_are_refused() -> None:
    with clrt.load(model_bytes(), device=quick_device().index) as model:
        with pytest.raises(InputError, match="no input 'u'"):
            model.run({"x": X, "w": X, "u": X})
        with pytest.raises(InputError, match="Missing input x"):
            model.run({"w": X})
        with pytest.raises(ClrtError, match="'w'"):
            model.run({"x": X, "w": np.zeros(5, np.float32)})
    with pytest.raises(ClrtError, match="closed"):
        model.run({"x": X, "w": OTHER})


def test_ir_version_3_has_no_overridable_initializers() -> None:
    with clrt.load(model_bytes(3), device=quick_device().index) as model:
        assert model.overridable == ()
        with pytest.raises(InputError, match="no input 'w'"):
            model.run({"x": X, "w": OTHER})
