"""`clrt profile` and `clrt bench`, and their generated inputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

import clrt
from clrt.cli import app
from clrt.cli.bench import largest_difference
from clrt.cli.random_inputs import sample_inputs
from clrt.cli.shapes import default_shapes, one_shape, parse_shapes
from tests.models.test_profile import small_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(small_model(), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def run(*args: object, columns: int = 150) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": str(columns)})


def test_profile_prints_tables_and_writes_files(path: Path) -> None:
    trace, page = path.parent / "trace.json", path.parent / "page.html"
    result = run("profile", path, "--shape", "x=4x64", "--repeat", 2)
    assert result.exit_code == 0, result.output
    assert "steps as run" in result.output and "slowest first" in result.output
    result = run("profile", path, "--repeat", 1, "--trace", trace, "--html", page)
    assert result.exit_code == 0, result.output
    assert json.loads(trace.read_text())["traceEvents"]
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        ("profile", "# node kernel us share GFLOP/s GB/s calls"),
        ("diff", "value op dtype largest relative"),
        ("inspect", "inputs compute kernels host weights arena"),
    ],
)
def test_tables_keep_all_columns_in_narrow_terminal(path: Path, command: str, columns: str) -> None:
    lines = run(command, path, columns=30).output.replace("┃", " ").splitlines()
    words = [line.split() for line in lines]
    assert all(any(name in line for line in words) for name in columns.split())


def test_bench_compares_times_and_outputs(path: Path) -> None:
    result = run("bench", path, "--against", "onnxruntime", "--shape", "x=4x64", "--seconds", 0.2)
    assert result.exit_code == 0, result.output
    assert "median ms" in result.output and "onnxruntime" in result.output
    assert "Largest difference of the outputs" in result.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("profile", "absent.onnx"), "absent.onnx"),
        (("profile", "MODEL", "--shape", "y=1x64"), "no input 'y'; it has x"),
        (("profile", "MODEL", "--shape", "x=1x-64"), "'x=1x-64' is not a shape"),
        (("profile", "MODEL", "--shape", "x=1x65"), "expects 64"),
        (("profile", "MODEL", "--shape", "x=1x64,x=2x64"), "gives 'x' two shapes"),
        (("profile", "MODEL", "--shape", "x=99999999999x64"), "more than a tensor may have"),
        (("profile", ""), "No file or folder '' exists"),
        (
            ("profile", "MODEL", "--html", "absent/page.html"),
            "is not a folder; --html needs an existing one",
        ),
        (("profile", "MODEL", "--trace", "MODEL"), "belongs to what is read; name another"),
        (("bench", "absent.onnx"), "absent.onnx"),
    ],
)
def test_argument_errors_print_message_and_exit_1(
    path: Path, args: tuple[str, ...], message: str
) -> None:
    result = run(*(path if a == "MODEL" else a for a in args))
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")


def test_bench_without_onnxruntime_prints_install_command(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run("bench", path)
    assert result.exit_code == 1
    assert "pip install onnxruntime" in result.output


def test_largest_difference_counts_nan_and_shape_mismatch() -> None:
    one, nan = np.float32([1, 4]), np.float32([np.nan, 4])
    assert largest_difference({"a": one}, {"a": one}) == (0, "a")
    assert largest_difference({"a": one}, {"a": np.float32([2, 4])}) == (0.25, "a")
    assert largest_difference({"a": nan}, {"a": nan}) == (0, "a")
    assert largest_difference({"a": nan, "b": one}, {"a": one, "b": one}) == (np.inf, "a")
    assert largest_difference({"a": one}, {"a": one[:1]})[0] == np.inf


def text_model() -> clrt.Model:
    """Returns a model with the inputs of a transformer, and an image."""
    rows = ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, rows)
        for name in ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    ]
    inputs.append(helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", 3]))
    nodes = [helper.make_node("Identity", [i.name], [f"{i.name}_out"]) for i in inputs]
    outputs = [onnx.ValueInfoProto(name=f"{i.name}_out", type=i.type) for i in inputs]
    graph = helper.make_graph(nodes, "text", inputs, outputs)
    opset = [helper.make_opsetid("", 20)]
    return clrt.load(helper.make_model(graph, opset_imports=opset, ir_version=10))


def test_default_shapes_and_sample_inputs_suit_graph() -> None:
    """A symbol has one size, images are not tiny, and indices lie within their table."""
    dims = {"ids": ["n", 8], "edges": [2, "n"], "pixels": ["batch", 3, "height", "width"]}
    types = {"ids": TensorProto.INT32}
    inputs = [
        helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)
        for name, shape in dims.items()
    ]
    table = onnx.numpy_helper.from_array(np.ones((7, 4), np.float32), "table")
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide"], ["rows"]),
        helper.make_node("Neg", ["edges"], ["negated"]),
        helper.make_node("Neg", ["pixels"], ["inverted"]),
    ]
    outputs = [onnx.ValueInfoProto(name=n) for n in ("rows", "negated", "inverted")]
    for output in outputs:
        output.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(nodes, "g", inputs, outputs, [table])
    opset = [helper.make_opsetid("", 20)]
    with clrt.load(helper.make_model(graph, opset_imports=opset, ir_version=10)) as model:
        shapes = default_shapes(model)[0]
        feeds = sample_inputs(model, shapes)
    assert shapes == {"ids": (1, 8), "edges": (2, 1), "pixels": (1, 3, 64, 64)}
    assert feeds["ids"].min() >= 0 and 3 < feeds["ids"].max() < 7


def test_sum_of_symbolic_dims_is_resolved() -> None:
    """For example the length of a decoder's mask: past plus new tokens."""
    dims = {"mask": ("batch", "past + new"), "past": ("batch", "past"), "ids": ("batch", "new")}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in dims.items()]
    both = helper.make_node("Concat", ["past", "ids"], ["whole"], axis=1)
    nodes = [both, helper.make_node("Mul", ["whole", "mask"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims["mask"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opset = [helper.make_opsetid("", 20)]
    with clrt.load(helper.make_model(graph, opset_imports=opset, ir_version=10)) as model:
        assert parse_shapes("past=2x5,ids=2x3", model)["mask"] == (2, 8)
        for shapes in default_shapes(model):
            assert shapes["mask"][1] == shapes["past"][1] + shapes["ids"][1]


def test_sample_inputs_depend_on_name_and_dtype() -> None:
    with text_model() as model:
        shapes = parse_shapes("input_ids=2x8", model)
        assert shapes["attention_mask"] == (2, 8) and shapes["pixels"] == (2, 3)
        assert one_shape(None, model)["input_ids"] == (1, 128)
        feeds = sample_inputs(model, shapes)
        again = sample_inputs(model, shapes)
    assert {n: a.dtype for n, a in feeds.items()}["pixels"] == np.uint8
    assert feeds["attention_mask"].min() == 1 and feeds["token_type_ids"].max() == 0
    assert feeds["input_ids"].min() >= 0 and feeds["input_ids"].max() < 100
    assert feeds["position_ids"][1].tolist() == list(range(8))
    assert all(np.array_equal(feeds[n], again[n]) for n in feeds)
