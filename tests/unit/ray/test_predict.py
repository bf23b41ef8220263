"""`clrt.ray.Predict` on batches in Ray Data's format, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt.ray
from clrt.errors import InputError
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.sources import read_graph
from clrt.passes.pipeline import optimize
from tests.models.onnx_text import parsed

FREE = """g (float[n, 3] x, int32[n] k) => (float[n, 3] y, float[n] z)
    { f = Cast<to = 1>(k)
      z = Mul(f, f)
      y = Softmax(x) }"""
FIXED = "g (float[4, 3] x) => (float[4, 3] y) { y = Softmax(x) }"


def columns(rows: int) -> dict[str, np.ndarray]:
    """Returns columns with 64-bit elements, as Ray makes of Python numbers."""
    noise = np.random.default_rng(0)
    return {"x": noise.standard_normal((rows, 3)), "k": np.arange(rows), "id": np.arange(rows)}


def by_onnxruntime(model: bytes, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def test_predict_adds_output_columns(tmp_path: Path) -> None:
    model = parsed(FREE)
    given = columns(7)
    feeds = {"x": given["x"].astype(np.float32), "k": given["k"].astype(np.int32)}
    wanted = by_onnxruntime(model, feeds)
    graph = read_graph(model)
    optimize(graph)
    write_compiled(CompiledModel(graph), tmp_path / "model.clrt", "")
    for source in (model, tmp_path / "model.clrt"):
        found = clrt.ray.Predict(source, device="cpu")(given)
        assert found.keys() == {"x", "k", "id", "y", "z"}
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_predict_maps_column_and_output_names(tmp_path: Path) -> None:
    given = columns(5)
    rows = {"rows": np.array([*given["x"], None], object)[:5], "number": given["k"]}
    predict = clrt.ray.Predict(
        parsed(FREE), device="cpu", inputs={"x": "rows", "k": "number"}, outputs={"z": "square"}
    )
    found = predict(rows)
    assert found.keys() == {"rows", "number", "square"}
    np.testing.assert_array_equal(found["square"], np.arange(5.0) ** 2)


@pytest.mark.parametrize("rows", [1, 4, 5, 11])
def test_fixed_batch_size_is_padded(rows: int) -> None:
    given = columns(rows)
    predict = clrt.ray.Predict(parsed(FIXED), device="cpu")
    e = np.exp(given["x"])
    np.testing.assert_allclose(predict(given)["y"], e / e.sum(1, keepdims=True), rtol=1e-5)


def test_mismatched_columns_and_names_are_refused() -> None:
    predict = clrt.ray.Predict(parsed(FREE), device="cpu")
    given = columns(3)
    with pytest.raises(InputError, match="no column 'k'"):
        predict({"x": given["x"]})
    ragged = np.empty(2, object)
    ragged[:] = [np.zeros(3), np.zeros(4)]
    with pytest.raises(InputError, match="no common shape"):
        predict({"x": ragged, "k": np.arange(2)})
    with pytest.raises(InputError, match="'k'"):
        predict({"x": given["x"], "k": np.array([0.5, 1.5, 2.5])})
    with pytest.raises(InputError, match="no output 'w'; it has 'y', 'z'"):
        clrt.ray.Predict(parsed(FREE), device="cpu", outputs={"w": "w"})
    with pytest.raises(InputError, match="no input 'w'; it has 'x', 'k'"):
        clrt.ray.Predict(parsed(FREE), device="cpu", inputs={"w": "w"})


def test_output_without_batch_axis_is_refused() -> None:
    text = """g (float[n, 3] x) => (float[3] y, float[n, 3] z)
        <int64[1] a = {0}> { y = ReduceSum<keepdims = 0>(x, a)
        z = Relu(x) }"""
    with pytest.raises(InputError, match=r"Output 'y' has shape \[3\] for 5 rows"):
        clrt.ray.Predict(parsed(text), device="cpu")(columns(5))
    found = clrt.ray.Predict(parsed(text), device="cpu", outputs={"z": "z"})(columns(5))
    assert found["z"].shape == (5, 3)
