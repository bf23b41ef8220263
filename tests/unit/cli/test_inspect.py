"""`clrt inspect` and `clrt explain` on small files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from clrt.cli import app
from tests.models.fixtures import load_family

WIDE = {"COLUMNS": "200"}


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args], env=WIDE)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert.onnx"
    onnx.save(load_family("bert_torchscript17"), path)
    return path


def _save(path: Path, nodes: list[onnx.NodeProto], shape: list[str | int] | None) -> Path:
    info = helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, shape)],
        [info("y", TensorProto.FLOAT, None)],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_inspect_lists_inputs_ops_and_shapes(bert: Path) -> None:
    # It has 80 positions, so that the larger of the usual shapes do not fit.
    result = run("inspect", bert, "--device", "cpu")
    assert result.exit_code == 0, result.output
    for wanted in (
        "opset ai.onnx 17",
        "input   input_ids: int64[batch, sequence]",
        "dim     batch: input_ids axis 0",
        "clrt.FusedAttention",
        "float32",
        "1x16 ",
        "on the host: 0 nodes",
    ):
        assert wanted in result.output


def test_inspect_json_has_ops_memory_and_parameters(bert: Path) -> None:
    shape = "input_ids=2x8"
    result = run("inspect", bert, "--device", "cpu", "--shape", shape, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["file"]["opsets"] == {"ai.onnx": 17}
    assert found["ops"]["MatMul"]["file"] > found["ops"]["MatMul"]["optimised"]
    assert found["ops"]["clrt.FusedMatMul"]["file"] == 0
    assert found["unsupported"] == []
    (at,) = found["at"]
    assert at["shapes"]["attention_mask"] == [2, 8]
    assert at["flops"] > 0
    assert at["memory"]["device_bytes"] > 0
    assert at["host"] == {}
    counted = sum(p["elements"] for p in found["parameters"])
    assert counted == sum(np.prod(t.dims, dtype=int) for t in onnx.load(bert).graph.initializer)


def test_inspect_marks_every_unsupported_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], "n1", domain="com.acme"),
        helper.make_node("MatMul", ["a", "w"], ["b"], "n2"),
        helper.make_node("Foo", ["b"], ["y"], "n3", domain="com.acme"),
    ]
    path = _save(tmp_path / "bad.onnx", nodes, ["b", 4])
    result = run("inspect", path, "--device", "cpu")
    assert result.exit_code == 1
    assert "2 not supported" in result.output
    assert "not supported: Foo 'n1'" in result.output
    assert "not supported: Foo 'n3'" in result.output
    assert "input   x: float32[b, 4]" in result.output
    assert "needs 2 things" in result.output
    result = run("inspect", path, "--device", "cpu", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert len(found["unsupported"]) == 2
    assert found["ops"]["MatMul"] == {"file": 1, "optimised": None}


def test_inspect_reports_shape_errors_and_missing_file(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], ["b", 4])
    result = run("inspect", path, "--device", "cpu", "--shape", "x=2x4", "--shape", "x=2x5")
    assert result.exit_code == 0
    assert "the model expects 4" in result.output
    assert "Error: 'x=a' is not a shape" in run("inspect", path, "--shape", "x=a").output
    assert "rank 0; it has rank 2" in run("inspect", path, "--shape", "x=").output
    missing = run("inspect", tmp_path / "none.onnx")
    assert missing.exit_code == 1
    assert "No file or folder" in missing.output


def test_unknown_rank_asks_for_shape_option(tmp_path: Path) -> None:
    path = _save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], None)
    result = run("inspect", path, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "give --shape" in result.output
    result = run("inspect", path, "--device", "cpu", "--shape", "x=3x4x5", "--json")
    assert json.loads(result.stdout)["at"][0]["launches"] == 1


def test_explain_prints_each_node(bert: Path) -> None:
    result = run("explain", bert, "--device", "cpu", "--shape", "input_ids=2x8")
    assert result.exit_code == 0, result.output
    assert "input_ids=2x8" in result.output
    assert "FusedAttention" in result.output
    result = run("explain", bert, "--device", "cpu", "--json")
    (found,) = json.loads(result.stdout)
    assert found["shapes"]["input_ids"] == [1, 16]
    assert found["launches"] == sum(len(r["kernels"]) for r in found["rows"])
