"""Changed numbers and names in executables whose digests are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.formats.checksum import text_digest, write_with_digest
from clrt.formats.safetensors import read_header
from clrt.ir.op import Array
from clrt.runtime.executables.stored_graph import StoredGraph
from tests.harness import quick_device
from tests.models.onnx_text import parsed

MODEL = """g (float[n, 4] x, float[4] b) => (float[n, 4] y)
           { s = Add(x, b)  e = Softmax(s)  t = ReduceSum <keepdims=1> (e)  y = Mul(e, t) }"""
FEEDS = {"x": np.ones((3, 4), np.float32), "b": np.arange(4, dtype=np.float32)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    """Returns a folder with a model and its executable, and the model's output."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "m.onnx").write_bytes(parsed(MODEL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLRT_EXECUTABLES", "1")
        patch.setenv("CLRT_VERIFY", "0")
        with _load(folder) as model:
            expected = model.run(FEEDS)["y"]
            model.save_programs()
    return folder, expected


def _load(folder: Path) -> clrt.Model:
    return clrt.load(folder / "m.onnx", device=quick_device().index, cache_dir=folder / "cache")


def _rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes each template of an executable, and makes all digests fit."""
    header = read_header(path)
    data = header.map()
    parts = {name: data[e.start : e.stop].tobytes() for name, e in header.tensors.items()}
    record = json.loads(parts["record"])
    for row in record["templates"]:
        template = json.loads(parts[row[2]])
        change(template)
        text = json.dumps(template)
        parts[row[2]], row[3] = text.encode(), text_digest([text])
    text = json.dumps(record)
    parts["record"] = text.encode()
    metadata = {n: v for n, v in header.metadata.items() if n != "digest"}
    metadata["record_digest"] = text_digest([text])
    kept = {n: np.frombuffer(p, np.uint8) for n, p in parts.items() if "padding" not in n}
    write_with_digest(path, metadata, {n: partial(np.asarray, a) for n, a in kept.items()})


def _buffer_args(template: dict[str, Any]) -> list[list[Any]]:
    return [arg for launch in template["launches"] for arg in launch[4] if arg[0] == "b"]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "source outside": lambda t: t["kernels"][0].__setitem__(0, "../clrt/errors.py"),
    "source unknown": lambda t: t["kernels"][0].__setitem__(0, "none.cl"),
    "entry": lambda t: t["kernels"][0].__setitem__(1, "a; b"),
    "macro": lambda t: t["kernels"][0][2].append(["A\n#include", "1"]),
    "kernel index": lambda t: t["launches"][0].__setitem__(0, -1),
    "buffer index": lambda t: _buffer_args(t)[0].__setitem__(1, -1),
    "large buffer index": lambda t: _buffer_args(t)[0].__setitem__(1, 1 << 40),
    "offset": lambda t: _buffer_args(t)[0].__setitem__(2, 1 << 30),
    "negative offset": lambda t: _buffer_args(t)[0].__setitem__(2, -8),
    "grid": lambda t: t["launches"][0].__setitem__(1, [1 << 40]),
    "work-group": lambda t: t["launches"][0].__setitem__(2, [0]),
    "lifetime": lambda t: t["spans"].__setitem__(0, [5, 1]) if t["spans"] else t.pop("spans"),
    "layout": lambda t: t["layout"].__setitem__(0, [7]),
    "guard": lambda t: t["trace"][3].append([0, 0, 1 << 20, 1]),
    "operation": lambda t: t["trace"][4].append("clrt.util.files:expanded"),
    "missing table": lambda t: t.pop("buffers"),
    "text in place of numbers": lambda t: t.__setitem__("costs", "abc"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_template_is_planned_anew(
    change: Callable[[dict[str, Any]], object],
    stored: tuple[Path, Array],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLRT_EXECUTABLES", "1")
    monkeypatch.setenv("CLRT_VERIFY", "0")
    folder, expected = stored
    (path,) = (folder / "cache" / "executables").glob("*.clexe")
    whole = path.read_bytes()
    try:
        _rewrite(path, lambda template: None)
        with _load(folder) as model:
            assert np.array_equal(model.run(FEEDS)["y"], expected)
            assert isinstance(model._graph, StoredGraph)
            assert not model._graph.is_open
        _rewrite(path, change)
        with _load(folder) as model:
            assert np.array_equal(model.run(FEEDS)["y"], expected)
            assert isinstance(model._graph, StoredGraph)
            assert model._graph.is_open
    finally:
        path.write_bytes(whole)
