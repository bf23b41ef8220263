"""clrt-convert --to onnx: exported files run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnxruntime
import pytest

import clrt
from clrt.cli import conversion
from clrt.ops.recurrent.dynamic_quantize_lstm import DynamicQuantizeLSTM
from tests.models.test_convert import _run
from tests.ops.samples.recurrent.dynamic_quantize_lstm import quantized_inputs
from tests.ops.test_microsoft_quantised import Case


def _product(**weights: Any) -> onnx.ModelProto:
    """Returns a model of x [N, 256] times weights: MatMul, or MatMulNBits for packed levels."""
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["h"])
    if "B" in weights:
        options = {"K": 256, "N": 128, "bits": 4, "block_size": 32}
        names = ["x", *weights]
        node = onnx.helper.make_node("MatMulNBits", names, ["h"], domain="com.microsoft", **options)
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node, onnx.helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [make("x", onnx.TensorProto.FLOAT, ["N", 256])],
        [make("y", onnx.TensorProto.FLOAT, ["N", 128])],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    opsets = [onnx.helper.make_opsetid(d, v) for d, v in (("", 17), ("com.microsoft", 1))]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("options", [("--quantize", "int8"), ("--quantize", "int4"), ()])
def test_quantized_onnx_export_runs_in_onnxruntime(tmp_path: Path, options: Sequence[str]) -> None:
    rng, out = np.random.default_rng(0), tmp_path / "out.onnx"
    if options:
        model = _product(w=rng.standard_normal((256, 128)).astype(np.float32))
    else:
        levels = rng.integers(0, 256, (128, 8, 16), np.uint8)
        model = _product(B=levels, s=np.full((128, 8), 0.05, np.float32))
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    result = _run(tmp_path / "in.onnx", "-o", out, "--to", "onnx", "--verify", *options)
    assert result.exit_code == 0, result.output
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    x = rng.standard_normal((3, 256)).astype(np.float32)
    (theirs,) = session.run(None, {"x": x})
    with clrt.load(out) as loaded:
        np.testing.assert_allclose(loaded.run(x)["y"], theirs, atol=1e-4)
    used = {n.op_type for n in onnx.load(out).graph.node}
    assert "MatMulNBits" in used and len(list(tmp_path.iterdir())) == 2


def test_quantized_lstm_export_runs_in_onnxruntime(tmp_path: Path) -> None:
    inputs = quantized_inputs(DynamicQuantizeLSTM(), (2, 1, 3, 4), (False,) * 5)
    case = Case("DynamicQuantizeLSTM", inputs, (1, 2, 8, 9, 10, 11), 3, {"hidden_size": 4})
    source, out, (model, feeds) = tmp_path / "in.onnx", tmp_path / "out.onnx", case.model()
    source.write_bytes(model.SerializeToString())
    result = _run(source, "-o", out, "--to", "onnx")
    assert result.exit_code == 0, result.output
    found, wanted = (onnxruntime.InferenceSession(path).run(None, feeds) for path in (out, source))
    for array, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("wrong", ["attribute", "type"])
def test_invalid_onnx_export_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """An example is a file with an attribute that only clrt defines."""
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    levels = np.zeros((128, 8, 16), np.uint8)
    model = _product(B=levels, s=np.ones((128, 8), np.float32))
    source.write_bytes(model.SerializeToString())
    out.write_bytes(b"old")

    def save(graph: object, path: Path) -> None:
        if wrong == "attribute":
            model.graph.node[0].attribute.append(onnx.helper.make_attribute("a_bits", 0))
        else:
            model.graph.output[0].type.tensor_type.elem_type = 99
        path.write_bytes(model.SerializeToString())

    monkeypatch.setattr(conversion, "save_model", save)
    result = _run(source, "-o", out, "--to", "onnx")
    assert result.exit_code == 1 and "out.onnx' is not written: " in result.stderr
    assert {f.name for f in tmp_path.iterdir()} == {"in.onnx", "out.onnx"}
    assert out.read_bytes() == b"old"
