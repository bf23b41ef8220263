"""External data from memory, and the TypeHelper that Optimum imports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clrt.onnxruntime as ort
from clrt.onnxruntime.exceptions import RuntimeException, WrongType
from clrt.onnxruntime.transformers.io_binding_helper import TypeHelper
from tests.models.onnx_text import parsed

WEIGHTS = np.arange(6, dtype=np.float32)


def _model(folder: Path) -> str:
    """The path of a model whose weights start at byte 8 of "w.bin", which is not there."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[6])
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "8"), ("length", "24")):
        weights.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [6]) for n in "xy")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [weights])
    path = folder / "model.onnx"
    path.write_bytes(
        helper.make_model(
            graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
        ).SerializeToString()
    )
    return str(path)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.frombuffer])
def test_external_data_from_memory_matches_onnxruntime(kind: Any, tmp_path: Path) -> None:
    content = bytes(8) + WEIGHTS.tobytes() + b"behind"
    buffer = kind(content, np.uint8) if kind is np.frombuffer else kind(content)
    answers = []
    for runtime in (onnxruntime, ort):
        options = runtime.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["w.bin"], [buffer], [32])
        made = runtime.InferenceSession(_model(tmp_path), options, ["CPUExecutionProvider"])
        answers.append(made.run(None, {"x": WEIGHTS})[0])
    np.testing.assert_array_equal(answers[1], 2 * WEIGHTS)
    np.testing.assert_array_equal(*answers)


def test_external_data_of_wrong_size_is_refused(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    add = options.add_external_initializers_from_files_in_memory
    for arguments in ((["a"], [], []), (["a"], [b"1"], [2]), (["a"], [b"1"], [-1])):
        with pytest.raises(RuntimeException):
            add(*arguments)
    with pytest.raises(WrongType, match="no bytes"):
        add(["a"], ["text"], [1])
    add(["w.bin"], [bytes(31)], [31])
    with pytest.raises(ort.InvalidGraph, match="truncated"):
        ort.InferenceSession(_model(tmp_path), options)
    with pytest.raises(ort.InvalidGraph, match="does not exist"):
        ort.InferenceSession(_model(tmp_path))


def test_wrong_input_dims_error_matches_onnxruntime_text() -> None:
    model = parsed("g (float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }")
    feed = {"x": np.ones((4, 5), np.float32)}
    messages = []
    for runtime in (onnxruntime, ort):
        made = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        with pytest.raises(Exception, match="Got invalid dimensions") as raised:
            made.run(None, feed)
        messages.append(str(raised.value))
    assert messages[0] == messages[1] and messages[1].count("\n") == 3


def test_type_helper_maps_types_to_numpy_onnx_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ort.InferenceSession(
        parsed("g (float[n] x, bool[n] b) => (float[n] y) { y = Where(b, x, x) }")
    )
    assert TypeHelper.get_input_type(made, "b") == "tensor(bool)"
    assert TypeHelper.get_output_type(made, "y") == "tensor(float)"
    numpy_types = {"x": np.float32, "b": bool, "y": np.float32}
    assert TypeHelper.get_io_numpy_type_map(made) == numpy_types
    onnx_types = {"x": TensorProto.FLOAT, "b": TensorProto.BOOL, "y": TensorProto.FLOAT}
    assert TypeHelper.get_io_onnx_type_map(made) == onnx_types

    class Torch:
        float32, bool, float8_e4m3fn = "f", "b", "f8"

    monkeypatch.setitem(sys.modules, "torch", Torch)  # type: ignore[arg-type]
    assert TypeHelper.get_io_torch_type_map(made) == {"x": "f", "b": "b", "y": "f"}
    assert TypeHelper.ort_type_to_torch_type("tensor(float8e4m3fn)") == "f8"
    assert TypeHelper.numpy_type_to_torch_type(np.float32) == "f"
    assert TypeHelper.torch_type_to_numpy_type("torch.float32") is np.float32
    for unknown in ("tensor(string)", "seq(tensor(float))", "tensor(complex256)"):
        with pytest.raises(ValueError, match="not found in map"):
            TypeHelper.ort_type_to_numpy_type(unknown)
    with pytest.raises(ValueError, match="not found"):
        TypeHelper.get_input_type(made, "none")
    assert TypeHelper.ort_type_to_onnx_type("tensor(float)") == onnx.TensorProto.FLOAT
