"""Arrays of any byte order and memory layout, in every API that accepts arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import clrt
import clrt.functional
import clrt.onnxruntime as ort
from clrt.audio.streams import read_audio
from clrt.cli.random_inputs import read_feeds
from clrt.errors import ClrtError
from clrt.ir.dtypes import DType, native
from tests.harness import quick_device

W = np.arange(64, dtype=np.float32).reshape(8, 8)
X = np.arange(24, dtype=np.float32).reshape(3, 8)


def _bytes() -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [info("x", 1, ["n", 8])],
        [info("y", 1, None)],
        [numpy_helper.from_array(W, "w")],
    )
    opsets = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


@pytest.fixture(scope="module")
def model() -> Iterator[clrt.Model]:
    with clrt.load(_bytes(), device=quick_device().index) as loaded:
        yield loaded


def _read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "little-endian": lambda a: a.astype(a.dtype.newbyteorder("<")),
    "big-endian columns": lambda a: np.asfortranarray(a.astype(a.dtype.newbyteorder(">"))),
    "reversed": lambda a: a[::-1].copy()[::-1],
    "strided": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "read-only": lambda a: _read_only(a.copy()),
    "read-only big-endian": lambda a: _read_only(a.astype(a.dtype.newbyteorder(">"))),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@each_layout
def test_run_and_tensor_accept_any_array_layout(model: clrt.Model, layout: Any) -> None:
    x, device = layout(X), quick_device().index
    tensor = clrt.tensor(x, device=device)
    np.testing.assert_array_equal(tensor.numpy(), X)
    for given in (x, tensor):
        np.testing.assert_array_equal(model.run(given)["y"], X @ W)
    np.testing.assert_array_equal(model.submit({"x": x}).wait()["y"], X @ W)
    typed = clrt.tensor(x, np.dtype(">f4"), device=device)
    np.testing.assert_array_equal(typed.numpy(), X)
    for kind in (">i8", ">i2", ">f8", ">u4"):
        whole = clrt.tensor(layout(X.astype(kind)), device=device)
        np.testing.assert_array_equal(whole.numpy(), X)


@each_layout
def test_functional_op_accepts_any_array_layout(layout: Any) -> None:
    found = clrt.functional.MatMul(layout(X), layout(W))
    np.testing.assert_array_equal(np.asarray(found), X @ W)


@each_layout
def test_onnxruntime_api_accepts_any_array_layout(layout: Any) -> None:
    session = ort.InferenceSession(_bytes())
    value = ort.OrtValue.ortvalue_from_numpy(layout(X))
    np.testing.assert_array_equal(value.numpy(), X)
    np.testing.assert_array_equal(session.run(None, {"x": layout(X)})[0], X @ W)
    (found,) = session.run_with_ort_values(None, {"x": value})
    np.testing.assert_array_equal(found.numpy(), X @ W)
    binding = session.io_binding()
    binding.bind_cpu_input("x", layout(X))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X @ W)
    options = ort.SessionOptions()
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(layout(2 * W)))
    doubled = ort.InferenceSession(_bytes(), options)
    np.testing.assert_array_equal(doubled.run(None, {"x": X})[0], X @ W * 2)
    target = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(X))
    target.update_inplace(layout(X))
    np.testing.assert_array_equal(target.numpy(), X)
    typed = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(layout(X), onnx.TensorProto.FLOAT)
    np.testing.assert_array_equal(typed.numpy(), X)


@each_layout
def test_read_feeds_accepts_any_array_layout(layout: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=layout(X))
    found = read_feeds(tmp_path / "x.npz")["x"]
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, X)


@each_layout
@pytest.mark.parametrize("kind", ["i2", "f4", "f8"])
def test_read_audio_accepts_any_array_layout(kind: str, layout: Any) -> None:
    sound = (np.sin(np.arange(1600)) * 1000).astype(kind)
    wanted, found = (read_audio(s, 16000, to=16000) for s in (sound, layout(sound)))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(8, [("a", np.float32)]),
        np.zeros(8, [("a", ">f4"), ("b", "i1")]),
        np.zeros(8, "V4"),
        np.zeros(8, "M8[s]"),
        np.zeros(8, complex),
    ],
    ids=lambda a: str(a.dtype),
)
def test_unsupported_numpy_dtypes_are_refused(model: clrt.Model, wrong: Any) -> None:
    with pytest.raises(ClrtError):
        clrt.tensor(wrong, device=quick_device().index)
    with pytest.raises(ClrtError):
        model.run(wrong[None])
    with pytest.raises(ClrtError):
        clrt.functional.Neg(wrong)


def test_non_native_byte_order_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="byte order"):
        DType.of(np.dtype(">f4"))
    array = np.ones((2, 3), np.float32)
    assert native(array) is array
