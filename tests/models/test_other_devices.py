"""Compiled models and executables made for one device, on a device that can do less."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import clrt
from clrt.ir.dtypes import DType
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.opencl.devices import DeviceInfo, devices
from clrt.tools import convert as conversion
from clrt.tools.convert import Options, convert
from tests.harness import quick_device
from tests.models.onnx_text import parsed

MODEL = """g (float[n, 64] x) => (float[n, 32] y) {
             h = MatMul (x, w)  a = Gelu (h)  o = MatMul (a, v)  y = Softmax (o) }"""


def _here(lanes: int, **limits: Any) -> DeviceInfo:
    """Returns the quick device with another vector width, and without what `limits` take away."""
    device = quick_device()
    return replace(device, caps=replace(device.caps, float_lanes=lanes, **limits))


def _wide() -> DeviceInfo:
    """Returns a device with vectors of 512 bits."""
    return _here(16)


def _any() -> DeviceInfo:
    """Returns a device with OpenCL 1.2 alone, as any has it."""
    nothing: frozenset[Any] = frozenset()
    older = {"cl_version": (1, 2), "opencl_c": (1, 2), "sub_group_sizes": nothing}
    device = _here(4, matrix_shapes=nothing, extensions=nothing, has_twin=False, **older)
    return replace(device, twin=None)


def _model(path: Path) -> None:
    proto = onnx.load_from_string(parsed(MODEL, opset=20))
    noise = np.random.default_rng(0)
    for name, shape in {"w": (64, 48), "v": (48, 32)}.items():
        array = noise.standard_normal(shape, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, path)


@pytest.mark.parametrize("weights", [None, DType.FLOAT16, DType.INT8], ids=str)
@pytest.mark.parametrize("narrow_first", [False, True], ids=["from wide", "from any"])
def test_compiled_model_runs_on_other_devices(
    weights: DType | None, narrow_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLRT_EXECUTABLES", "1")
    monkeypatch.setenv("CLRT_VERIFY", "0")
    _model(tmp_path / "m.onnx")
    pair = [_wide(), _any()]
    maker, other = reversed(pair) if narrow_first else pair
    made, cache = tmp_path / "m.clrt", tmp_path / "maker"
    converted = convert(tmp_path / "m.onnx", Options(weights=weights))
    load = clrt.load
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "load", lambda *a, **o: load(*a, **o, cache_dir=cache))
        conversion.write(converted, made, [{"x": (3, 64)}], device=maker)  # type: ignore[arg-type]
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 64), np.float32)}
    with load(made, device=maker, cache_dir=cache) as model:
        expected = model.run(feeds)["y"]
        model.save_programs()
    shutil.copytree(cache / "executables", tmp_path / "other/executables")
    with load(made, device=other, cache_dir=tmp_path / "other") as model:
        assert not isinstance(model._graph, StoredGraph)
        np.testing.assert_allclose(model.run(feeds)["y"], expected, rtol=1e-4, atol=1e-6)
    with load(made, device=maker, cache_dir=cache) as model:
        assert isinstance(model._graph, StoredGraph)
        np.testing.assert_array_equal(model.run(feeds)["y"], expected)


@pytest.mark.parametrize("device", [d for d in devices() if d.usable], ids=lambda d: d.platform)
def test_compiled_model_of_wide_device_runs_on_each_device_here(
    device: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _model(tmp_path / "m.onnx")
    load, cache = clrt.load, tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "load", lambda *a, **o: load(*a, **o, cache_dir=cache))
        converted = convert(tmp_path / "m.onnx", Options())
        made = tmp_path / "m.clrt"
        conversion.write(converted, made, [{"x": (3, 64)}], device=_wide())  # type: ignore[arg-type]
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 64), np.float32)}
    with (
        load(tmp_path / "m.onnx", device=device.index) as plain,
        load(made, device=device.index) as model,
    ):
        np.testing.assert_allclose(
            model.run(feeds)["y"], plain.run(feeds)["y"], rtol=1e-4, atol=1e-6
        )
