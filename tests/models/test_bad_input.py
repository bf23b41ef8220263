"""User errors in files, inputs and arguments: error class and message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clrt


def _info(name: str, dtype: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _embedding() -> onnx.ModelProto:
    """Returns a model that gathers rows of a 10-row table and scales them by a second input."""
    table = onnx.numpy_helper.from_array(np.eye(10, 4, dtype=np.float32), "table")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["rows"], "embed"),
            helper.make_node("Mul", ["rows", "scale"], ["y"], "scaled"),
        ],
        "g",
        [
            _info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            _info("scale", TensorProto.FLOAT, ["batch", "sequence", 4]),
        ],
        [_info("y", TensorProto.FLOAT, ["batch", "sequence", 4])],
        [table],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


IDS = np.array([[0, 9, 3]])
SCALE = np.ones((1, 3, 4), np.float32)


@pytest.fixture(scope="module")
def model() -> Iterator[clrt.Model]:
    with clrt.load(_embedding(), device="cpu", strict=True) as loaded:
        yield loaded


def _says(model: clrt.Model, error: type[Exception], text: str, **inputs: object) -> None:
    with pytest.raises(error, match=text):
        model.run(inputs)


def test_missing_model_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(clrt.ModelError, match=r"absent\.onnx' does not exist"):
        clrt.load(tmp_path / "absent.onnx")


def test_folder_without_standard_model_name_lists_candidates(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    for name in ("config.json", "onnx/model_int8.onnx", "mine.onnx"):
        (tmp_path / name).touch()
    with pytest.raises(clrt.ModelError, match=r"but .*model_int8\.onnx, .*mine\.onnx; give"):
        clrt.load(tmp_path)


def test_text_file_named_onnx_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("Dear diary,\ntoday I exported nothing.\n")
    with pytest.raises(clrt.ModelError, match="text file"):
        clrt.load(path)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_truncated_onnx_file_is_refused(tmp_path: Path, part: float) -> None:
    data = _embedding().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(clrt.ModelError, match=r"cut\.onnx|damaged|truncated"):
        clrt.load(path)


def test_missing_external_data_is_refused(tmp_path: Path) -> None:
    proto = _embedding()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(clrt.ModelError, match=r"w\.bin.*'table'"):
        clrt.load(path)


def test_unsupported_op_error_names_every_node() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Frobnicate", ["x"], ["a"], "first", domain="acme"),
            helper.make_node("Relu", ["a"], ["b"], "middle"),
            helper.make_node("Mangle", ["b"], ["y"], "second", domain="acme"),
        ],
        "g",
        [_info("x", TensorProto.FLOAT, [2])],
        [_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    with pytest.raises(clrt.UnsupportedError) as info:
        clrt.load(helper.make_model(graph, opset_imports=opsets))
    assert len(info.value.nodes) == 2
    assert "Frobnicate 'first'" in str(info.value)
    assert "Mangle 'second'" in str(info.value)


def test_missing_and_unknown_input_names_are_refused(model: clrt.Model) -> None:
    _says(
        model, clrt.InputError, r"Missing input scale: float32\[batch, sequence, 4\]", input_ids=IDS
    )
    _says(
        model,
        clrt.InputError,
        "no input 'input_id'. Did you mean 'input_ids'",
        input_id=IDS,
        scale=SCALE,
    )
    _says(model, clrt.InputError, "no input 'mask'", input_ids=IDS, scale=SCALE, mask=IDS)
    with pytest.raises(clrt.InputError, match="takes 2 inputs; pass a dict"):
        model.run(IDS)


def test_mismatched_input_shapes_are_refused(model: clrt.Model) -> None:
    _says(model, clrt.ShapeError, "'input_ids' has rank 1", input_ids=IDS[0], scale=SCALE)
    _says(model, clrt.ShapeError, "'scale' has 5 at axis 2; the model expects 4",
          input_ids=IDS, scale=np.ones((1, 3, 5), np.float32))  # fmt: skip
    _says(model, clrt.ShapeError, "sequence=2 .*'input_ids' has sequence=3",
          input_ids=IDS, scale=SCALE[:, :2])  # fmt: skip


def test_only_lossless_input_dtypes_are_accepted(model: clrt.Model) -> None:
    lossless = model.run({"input_ids": IDS.astype(np.int32), "scale": SCALE.astype(np.float16)})
    np.testing.assert_array_equal(lossless["y"], model.run({"input_ids": IDS, "scale": SCALE})["y"])
    as_lists = model.run({"input_ids": IDS.tolist(), "scale": SCALE.tolist()})
    np.testing.assert_array_equal(as_lists["y"], lossless["y"])
    _says(
        model,
        clrt.InputError,
        "must be int64; float32",
        input_ids=IDS.astype(np.float32),
        scale=SCALE,
    )
    _says(
        model, clrt.InputError, "must be float32; float64", input_ids=IDS, scale=SCALE.astype(float)
    )
    _says(model, clrt.InputError, "'input_ids'", input_ids=[[1, 2], [3]], scale=SCALE)


class Refuses:
    """Array-like whose conversion raises, as torch tensors that require a gradient."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise RuntimeError("Call detach() first.")


def test_inputs_not_convertible_to_arrays_are_refused(model: clrt.Model) -> None:
    none = r"^Input scale: float32\[batch, sequence, 4\] is None"
    _says(model, clrt.InputError, none, input_ids=IDS, scale=None)
    _says(model, clrt.InputError, "Call detach", input_ids=IDS, scale=Refuses())


def test_inexact_integers_for_float8_input_are_refused() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT8E4M3FN, [2])
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    out = helper.make_empty_tensor_value_info("y")
    opsets = [helper.make_opsetid("", 21)]
    graph = helper.make_graph([cast], "g", [info], [out])
    with clrt.load(helper.make_model(graph, opset_imports=opsets, ir_version=10)) as model:
        _says(model, clrt.InputError, "without loss", x=np.array([1, 101], np.int8))
        assert list(model.run({"x": [1, 96]})["y"]) == [1, 96]


def _cast(source: int, to: int) -> onnx.ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    infos = [[helper.make_tensor_value_info(n, t, [None])] for n, t in (("x", source), ("y", to))]
    graph = helper.make_graph([node], "g", *infos)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_string_and_numeric_inputs_are_not_interchangeable() -> None:
    """Numeric inputs refuse strings, string inputs refuse numbers; casts need numeric strings."""
    number, text = TensorProto.FLOAT, TensorProto.STRING
    for source, given, says in (
        (number, ["1"], "must be float32"),
        (text, ["1", 2], "it has 2 in it"),
        (text, [1], "it has 1 in it"),
        (text, np.array([1]), "it is int64"),
        (text, ["1", "x"], "the text 'x' is not a number"),
        (text, ["0x10"], "the text '0x10' is not a number"),
    ):
        with clrt.load(_cast(source, number)) as model:
            _says(model, clrt.InputError, says, x=given)
    with clrt.load(_cast(text, TensorProto.INT64)) as model:
        _says(model, clrt.InputError, "'nan' is not a number", x=["nan"])
        _says(model, clrt.InputError, "more than 64 bits", x=[str(1 << 64)])


@pytest.mark.parametrize("to", ["FLOAT", "DOUBLE", "INT64", "INT32", "UINT8", "UINT64", "BOOL"])
def test_cast_from_string_matches_onnxruntime(to: str) -> None:
    texts = ["1", "1.5", " -3", "-2.5e1", "300", "+5", "3z", "1_000", "9" * 9]
    texts += ["nan", "-INF", "infinity", ".5"] if to in ("FLOAT", "DOUBLE") else []
    content = _cast(TensorProto.STRING, getattr(TensorProto, to)).SerializeToString()
    feeds = {"x": np.array(texts, object)}
    (expected,) = onnxruntime.InferenceSession(content).run(None, feeds)
    with clrt.load(content) as model:
        found = model.run(feeds)["y"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_, np.int64])
def test_cast_to_string_matches_onnxruntime(dtype: type) -> None:
    x = np.array([0.1, 1, -0.0, np.nan, np.inf, 123456789, 1e20, 2.5e-5, 1 / 3])
    x = (x[:3] if dtype in (np.bool_, np.int64) else x[:5] if dtype is np.float16 else x).astype(
        dtype
    )
    source = helper.np_dtype_to_tensor_dtype(x.dtype)
    content = _cast(source, TensorProto.STRING).SerializeToString()
    (expected,) = onnxruntime.InferenceSession(content).run(None, {"x": x})
    with clrt.load(content) as model:
        assert model.run({"x": x})["y"].tolist() == expected.tolist()


def test_list_inputs_match_arrays_or_are_refused(model: clrt.Model) -> None:
    numbers = [[[0.1, float("nan"), 1e30, 2], [1, 2, 3, 4], [5, 6, 7, 8]]]
    as_array = np.array(numbers, np.float32)
    found = [model.run({"input_ids": IDS, "scale": s})["y"] for s in (numbers, as_array)]
    np.testing.assert_array_equal(*found)
    for bad in (1e300, 2**24 + 1):
        whole = [[[bad] * 4] * 3]
        _says(model, clrt.InputError, "without loss", input_ids=IDS, scale=whole)
    _says(model, clrt.InputError, "without loss", input_ids=[[0.5, 1, 2]], scale=SCALE)


@pytest.mark.parametrize("shape", ["2x3", 3, None, (-1, 3, 4), ("n", 3, 4), (2.5, 3, 4)])
def test_invalid_shape_arguments_are_refused(model: clrt.Model, shape: Any) -> None:
    shapes = {"input_ids": (1, 3), "scale": shape}
    for method in (model.warmup, model.memory, model.plan):
        with pytest.raises(clrt.InputError, match="'scale' must be sizes"):
            method(shapes)
    with pytest.raises(clrt.InputError, match="dict by input name"):
        model.memory([(1, 3)])  # type: ignore[arg-type]
    with pytest.raises(clrt.InputError, match="dict by input name, not 3"):
        model.warmup(3)  # type: ignore[arg-type]


def test_shapes_above_element_limit_are_refused(model: clrt.Model) -> None:
    shapes = {"input_ids": (10**9, 3), "scale": (10**9, 3, 4)}
    for method in (model.warmup, model.memory, model.plan):
        with pytest.raises(clrt.ShapeError, match="more elements than a tensor may have"):
            method(shapes)


@pytest.mark.parametrize("bad", [10, -11, 2**40, -(2**62)])
def test_token_id_out_of_range_is_refused(model: clrt.Model, bad: int) -> None:
    ids = IDS.copy()
    ids[0, 1] = bad
    _says(model, clrt.InputError, "Gather 'embed'", input_ids=ids, scale=SCALE)
    assert model.run({"input_ids": IDS, "scale": SCALE})["y"].shape == (1, 3, 4)


def test_unknown_output_name_is_refused(model: clrt.Model) -> None:
    with pytest.raises(clrt.InputError, match="no output 'yy'"):
        model.run({"input_ids": IDS, "scale": SCALE}, ["yy"])
    for outputs in ("y", (name for name in ["y"])):
        assert list(model.run({"input_ids": IDS, "scale": SCALE}, outputs)) == ["y"]


def test_non_list_outputs_argument_is_refused(model: clrt.Model) -> None:
    with pytest.raises(clrt.InputError, match="outputs is 5; expected a list of: y"):
        model.run({"input_ids": IDS, "scale": SCALE}, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b"])
def test_unreadable_path_is_refused_in_short_message(source: str) -> None:
    with pytest.raises(clrt.ModelError, match="cannot be read") as caught:
        clrt.load(source)
    assert len(str(caught.value)) < 200


def test_invalid_load_arguments_are_refused() -> None:
    with pytest.raises(clrt.InputError, match="this is NoneType"):
        clrt.load(None)  # type: ignore[arg-type]
    with pytest.raises(clrt.InputError, match="optimize_level is 3"):
        clrt.load(_embedding(), optimize_level=3)


def test_closed_model_refuses_runs() -> None:
    model = clrt.load(_embedding(), device="cpu")
    model.close()
    with pytest.raises(clrt.InputError, match="closed"):
        model.run({"input_ids": IDS, "scale": SCALE})


def test_unknown_device_name_is_refused() -> None:
    with pytest.raises(clrt.DeviceError, match="There is"):
        clrt.load(_embedding(), device="voodoo 2")
