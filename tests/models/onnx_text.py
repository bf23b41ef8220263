"""Models in ONNX's text format, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import clrt
from clrt.ir.op import Array
from clrt.ops.reference_interpreter import evaluate
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def parsed(text: str, ir_version: int = 8, opset: int = 18) -> bytes:
    """Returns a model from a graph in ONNX's text format."""
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n'
    return bytes(parser.parse_model(head + text).SerializeToString())


def agree(model: bytes, device: DeviceInfo, *feeds: dict[str, Any]) -> clrt.Model:
    """Compares optimized, unoptimized and reference runs with ONNX Runtime; returns the model."""
    ours = clrt.load(model, device=device.index, strict=True)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    plain = clrt.load(model, device=device.index, optimize_level=0)
    for feed in feeds:
        wanted = theirs.run(None, feed)
        for found in (ours.run(feed), plain.run(feed), evaluate(ours._graph, feed)):
            for a, b in zip(found.values(), wanted, strict=True):
                same(a, b)
    return ours


def same(found: Any, expected: Any) -> None:
    """Compares values, and sequences of them."""
    if isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
        return
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def normal(seed: int, *shape: int) -> Array:
    """Returns normally distributed float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
