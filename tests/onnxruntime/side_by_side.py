"""Runs the same calls on ONNX Runtime and clrt.onnxruntime; results or exceptions must be equal."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt.onnxruntime
from clrt.errors import ClrtError
from tests.models.onnx_text import parsed

CPU = ["CPUExecutionProvider"]
# A call on a runtime, which is a module.
Call = Callable[[Any], Any]


def session(runtime: Any, text: str, options: Any = None, **kwargs: int) -> Any:
    """A session of a runtime for a graph as text."""
    return runtime.InferenceSession(parsed(text, **kwargs), options, CPU)


def agree(call: Call) -> None:
    """Both runtimes give the same, or raise an exception of the same name."""
    try:
        wanted = call(onnxruntime)
    except Exception as error:
        theirs = type(error)
        with pytest.raises(ClrtError) as raised:
            call(clrt.onnxruntime)
        found = type(raised.value)
        is_plain = hasattr(builtins, theirs.__name__) and theirs.__module__ == "builtins"
        names = [c.__name__ for c in found.__mro__]
        assert issubclass(found, theirs) if is_plain else theirs.__name__ in names, error
        return
    same(call(clrt.onnxruntime), wanted)


def same(found: Any, expected: Any) -> None:
    """Compares arrays to the last digits, all else exactly."""
    if isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype == object:
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, Mapping):
        assert set(found) == set(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected)
    else:
        assert found == expected
