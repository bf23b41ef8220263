"""Pickles and copies of models and encoders."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import clrt
from clrt.errors import DeviceError, ModelError
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.sources import read_graph
from clrt.runtime.model import pickling
from tests.harness import quick_device
from tests.models.fixtures import load_family
from tests.models.onnx_text import parsed

DEVICE = quick_device()
FEED = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
WEIGHTS = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def _model() -> onnx.ModelProto:
    """Returns a model with a product, an If on the row count, and strings."""
    proto = onnx.load_from_string(
        parsed(
            """g (float[n, 4] x) => (float[n, 6] y, string[1] name) {
                 name = Constant<value_strings = ["a \\"b\\" ü"]>()
                 z = MatMul(x, w)
                 size = Size(x)
                 few = Constant<value_int = 20>()
                 small = Less(size, few)
                 y = If(small) <
                   then_branch = a () => (float[n, 6] p) { p = Neg(z) },
                   else_branch = b () => (float[n, 6] q) { q = Relu(z) }
                 >
               }"""
        )
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    return proto


def _source(kind: str, folder: Path) -> Any:
    proto = _model()
    if kind == "proto":
        return proto
    if kind == "bytes":
        return proto.SerializeToString()
    if kind == "graph":
        return read_graph(proto.SerializeToString())
    if kind == "compiled":
        write_compiled(CompiledModel(read_graph(proto), [{"x": (3, 4)}]), folder / "m.clrt", "")
        return folder / "m.clrt"
    onnx.save(proto, folder / "m.onnx")
    return str(folder / "m.onnx")


def _same(again: clrt.Model, model: clrt.Model) -> None:
    assert again is not model
    assert (again.inputs, again.outputs, again.shapes) == (
        model.inputs,
        model.outputs,
        model.shapes,
    )
    assert again.device == model.device
    assert again.memory_limit == model.memory_limit
    for feed in (FEED, {"x": np.tile(FEED["x"], (2, 1))}):
        wanted = model.run(feed)
        for name, found in again.run(feed).items():
            np.testing.assert_array_equal(found, wanted[name])


@pytest.mark.parametrize("kind", ["path", "compiled", "bytes", "proto", "graph"])
def test_pickled_and_copied_models_give_same_results(kind: str, tmp_path: Path) -> None:
    source = _source(kind, tmp_path)
    model = clrt.load(source, device=DEVICE.index, memory_limit="64MiB")
    for again in (
        pickle.loads(pickle.dumps(model)),
        pickle.loads(pickle.dumps(copy.copy(model))),
        copy.copy(model),
        copy.deepcopy(model),
    ):
        _same(again, model)
        again.close()
    assert model.run(FEED)["y"].shape == (3, 6)


def test_pickle_stores_path_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(load_family("distilbert_dynamo20"), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    model = clrt.load("m.onnx", device=DEVICE.index)
    data = pickle.dumps(model)
    assert len(data) < 1000 and str(tmp_path).encode() in data
    monkeypatch.chdir("/")
    assert pickle.loads(data).inputs == model.inputs
    copied = copy.copy(model)
    (tmp_path / "m.onnx").unlink()
    assert copy.deepcopy(copied).inputs == model.inputs
    for gone in (data, pickle.dumps(copied)):
        with pytest.raises(ModelError, match=r"m\.onnx"):
            pickle.loads(gone)


def test_pickle_keeps_load_options() -> None:
    model = clrt.load(_model(), device=DEVICE.index, strict=False, optimize_level=0)
    again = pickle.loads(pickle.dumps(model))
    assert again._graph.nodes[0].op == model._graph.nodes[0].op
    assert again._recipe.options == {"strict": False, "optimize_level": 0, "device": DEVICE.index}


def test_pickle_keeps_node_origins() -> None:
    model = clrt.load(load_family("distilbert_dynamo20"), device=DEVICE.index)
    again = pickle.loads(pickle.dumps(model))
    assert [(n.name, n.origins, n.made_by) for n in again._graph.nodes] == [
        (n.name, n.origins, n.made_by) for n in model._graph.nodes
    ]
    assert any(n.made_by for n in again._graph.nodes)


def test_pickled_device_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index may change; of two devices with equal names the same one is chosen."""
    twin = replace(DEVICE, index=DEVICE.index + 10)
    monkeypatch.setattr(pickling, "devices", lambda: [DEVICE, twin])
    first, second = pickling.DeviceName.of(DEVICE), pickling.DeviceName.of(twin)
    assert [n.index() for n in (first, second)] == [DEVICE.index, DEVICE.index + 10]
    moved = [replace(DEVICE, index=3), replace(DEVICE, index=7)]
    monkeypatch.setattr(pickling, "devices", lambda: moved)
    assert [n.index() for n in (first, second)] == [3, 7]
    monkeypatch.setattr(pickling, "devices", lambda: [])
    with pytest.raises(DeviceError, match="this machine does not have"):
        first.index()


def _shape_in_worker(model: Any, feed: dict[str, Any]) -> Any:
    return model.run(feed)["y"]


def _vector_in_worker(encoder: Any, text: str) -> Any:
    return encoder.encode(text)


def test_models_pickle_to_spawned_processes() -> None:
    model = clrt.load(_model(), device=DEVICE.index)
    encoder = clrt.SentenceEncoder("all-MiniLM-L6-v2", device=DEVICE.index)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        made = pool.submit(_shape_in_worker, model, FEED)
        vector = pool.submit(_vector_in_worker, encoder, "A cat sleeps.")
        np.testing.assert_array_equal(made.result(), model.run(FEED)["y"])
        np.testing.assert_array_equal(vector.result(), encoder.encode("A cat sleeps."))
    again = copy.copy(encoder)
    encoder.close()
    assert again.encode("A cat sleeps.").shape == (384,)


def test_sentence_encoder_pickles_as_arguments(tmp_path: Path) -> None:
    encoder = clrt.SentenceEncoder(
        "all-MiniLM-L6-v2", device=DEVICE.index, pooling="cls", max_length=32
    )
    data = pickle.dumps(encoder)
    again = pickle.loads(data)
    assert len(data) < 1000
    assert (again.pooling, again.max_length) == (("cls",), 32)
    assert again.model.device == encoder.model.device
    np.testing.assert_array_equal(again.encode("text"), encoder.encode("text"))
