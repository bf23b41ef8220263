"""Map types: ZipMap outputs, CastMap and DictVectorizer inputs, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.cli.bench import largest_difference
from clrt.cli.shapes import default_shapes
from clrt.errors import InputError, ModelError, ShapeError, UnsupportedError
from clrt.ir.parse import parse_graph
from clrt.ir.text import print_graph
from clrt.models.onnx.export.exporter import export_model
from clrt.models.sources import read_graph
from clrt.ops import REGISTRY
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.tools.convert import Options, compare, convert, write
from tests.harness import all_devices

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
FLOAT, DOUBLE, INT64, STRING = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.STRING,
)
X = np.float32([[0.5, -1, np.nan], [3, 0.1, np.inf]])


def _tensor(dtype: int, *shape: Any) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(dtype, shape or None)


def _map(key: int, value: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, _tensor(value, 1))


def _maps(key: int) -> onnx.TypeProto:
    return helper.make_sequence_type_proto(_map(key, FLOAT))


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, onnx.TypeProto],
    outputs: dict[str, onnx.TypeProto],
) -> bytes:
    infos = [
        [helper.make_value_info(name, type_) for name, type_ in types.items()]
        for types in (inputs, outputs)
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", *infos)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(model.SerializeToString())


def _one(op: str, given: onnx.TypeProto, made: onnx.TypeProto, **attrs: Any) -> bytes:
    node = helper.make_node(op, ["x"], ["y"], "n", domain="ai.onnx.ml", **attrs)
    return _model([node], {"x": given}, {"y": made})


def _classifier() -> bytes:
    """Returns a classifier in the form that scikit-learn converters export."""
    attrs = {"coefficients": [0.5, -1.0, 1.0], "intercepts": [0.25], "classlabels_ints": [7, 3]}
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "numbers"],
            domain="ai.onnx.ml",
            post_transform="LOGISTIC",
            **attrs,
        ),
        helper.make_node(
            "ZipMap", ["numbers"], ["maps"], "zip", domain="ai.onnx.ml", classlabels_int64s=[7, 3]
        ),
    ]
    outputs = {"label": _tensor(INT64, None), "maps": _maps(INT64)}
    return _model(nodes, {"x": _tensor(FLOAT, None, 3)}, outputs)


def _onnxruntime(model: bytes, given: Any) -> Any:
    return onnxruntime.InferenceSession(model).run(None, {"x": given})


def _run(model: bytes, given: Any, device: DeviceInfo) -> Any:
    return clrt.load(model, device=device.index).run({"x": given})["y"]


@DEVICES
@pytest.mark.parametrize(
    ("key", "labels"),
    [
        (INT64, {"classlabels_int64s": [5, -2, 3]}),
        (INT64, {"classlabels_int64s": [1, 1, 2]}),
        (STRING, {"classlabels_strings": ["z", "é", "a"]}),
    ],
    ids=["int64", "equal", "string"],
)
def test_zip_map_matches_onnxruntime(key: int, labels: dict[str, Any], device: DeviceInfo) -> None:
    model = _one("ZipMap", _tensor(FLOAT), _maps(key), **labels)
    for x in (X, X[:1], X[:0], X[1]):
        # The same text: keys and values of Python's types, in the same order.
        assert repr(_run(model, x, device)) == repr(_onnxruntime(model, x)[0])


@DEVICES
def test_classifier_with_zip_map_matches_onnxruntime(device: DeviceInfo, tmp_path: Path) -> None:
    content, x = _classifier(), np.nan_to_num(X, nan=2, posinf=-4)
    model = clrt.load(content, device=device.index)
    assert str(model.outputs[1]) == "maps: sequence of map from int64 to float32"
    labels, maps = _onnxruntime(content, x)
    for on_device in (False, True):
        found = model.run(x, device_outputs=on_device)
        np.testing.assert_array_equal(np.asarray(found["label"]), labels)
        assert [list(m) for m in found["maps"]] == [list(m) for m in maps]
        for ours, theirs in zip(found["maps"], maps, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
    assert not model.host_nodes
    source, target = tmp_path / "m.onnx", tmp_path / "m.clrt"
    source.write_bytes(content)
    write(convert(content, Options()), target, [{"x": (2, 3)}], device=device.index)
    differences, _ = compare(source, target, {"x": x}, device.index)
    assert len(differences) == 2
    assert max(d.relative for d in differences) <= 1e-6
    assert default_shapes(model)[0] == {"x": (1, 3)}


def test_classifier_round_trips_as_text_and_onnx() -> None:
    content, x = _classifier(), np.nan_to_num(X, nan=2, posinf=-4)
    graph = read_graph(content)
    text = print_graph(graph)
    assert "sequence(map(int64, float32[]))" in text
    assert print_graph(parse_graph(text, REGISTRY)) == text
    exported = export_model(graph)
    onnx.checker.check_model(exported)
    for ours, theirs in zip(
        _onnxruntime(exported.SerializeToString(), x), _onnxruntime(content, x), strict=True
    ):
        assert largest_difference({"y": ours}, {"y": theirs})[0] < 1e-6


def test_largest_difference_compares_maps() -> None:
    one = [{1: 0.5, 2: 0.25}]
    assert largest_difference({"y": one}, {"y": [{1: 0.5, 2: 0.5}]}) == (0.5, "y")
    assert largest_difference({"y": one}, {"y": [{1: 0.5, 3: 0.25}]})[0] == np.inf
    assert largest_difference({"y": one}, {"y": one * 2})[0] == np.inf


@DEVICES
@pytest.mark.parametrize("form", [{}, {"map_form": "SPARSE", "max_map": 4}], ids=["", "sparse"])
@pytest.mark.parametrize("to", ["FLOAT", "INT64", "STRING"])
def test_cast_map_matches_onnxruntime(to: str, form: dict[str, Any], device: DeviceInfo) -> None:
    made = _tensor(getattr(TensorProto, to))
    model = _one("CastMap", _map(INT64, FLOAT), made, cast_to=f"TO_{to}", **form)
    for given in ({3: 1.75, 1: -2.6, 7: 0.1}, {0: 1e20, 2: 4}, {9: 1.0}):
        found, expected = _run(model, given, device), _onnxruntime(model, given)[0]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    # What ONNX Runtime's Python takes no feeds of: nothing, and text.
    assert _run(model, {}, device).shape == (1, form.get("max_map", 0))
    model = _one("CastMap", _map(INT64, STRING), made, cast_to=f"TO_{to}")
    text = ["-7", "21"] if to == "STRING" else [-7, 21]
    assert _run(model, {4: "21", 0: "-7"}, device).tolist() == [text]


@DEVICES
def test_dict_vectorizer_matches_onnxruntime(device: DeviceInfo) -> None:
    words = {"string_vocabulary": ["b", "a", "c", "b"]}
    model = _one("DictVectorizer", _map(STRING, FLOAT), _tensor(FLOAT), **words)
    for given in ({"a": 0.1, "b": 2.0, "d": 3.0}, {"d": 1.0}, {"a": np.float32(4)}):
        np.testing.assert_array_equal(_run(model, given, device), _onnxruntime(model, given)[0])
    numbers = {"int64_vocabulary": [3, 1, 2]}
    for dtype, value, nothing in ((DOUBLE, 0.1, 0.0), (STRING, "q", "")):
        model = _one("DictVectorizer", _map(INT64, dtype), _tensor(dtype), **numbers)
        assert _run(model, {1: value, np.int64(5): value}, device).tolist() == [
            [nothing, value, nothing]
        ]
    model = _one("DictVectorizer", _map(STRING, INT64), _tensor(INT64), **words)
    found = _run(model, {}, device)
    assert found.dtype == np.int64 and found.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("op", "given", "attrs", "error", "text"),
    [
        (
            "ZipMap",
            _tensor(FLOAT),
            {},
            ModelError,
            "'n': expected exactly one of classlabels_int64s",
        ),
        ("ZipMap", _tensor(FLOAT, 2, 3), {"classlabels_int64s": [1]}, ShapeError, r"\[N,1\]"),
        ("ZipMap", _tensor(DOUBLE), {"classlabels_int64s": [1]}, ShapeError, "expected float32"),
        ("ZipMap", _map(INT64, FLOAT), {"classlabels_int64s": [1]}, ModelError, "does not allow"),
        ("CastMap", _tensor(FLOAT), {}, ModelError, "expected a map"),
        ("CastMap", _map(STRING, FLOAT), {}, ModelError, "expected keys of int64"),
        ("CastMap", _map(INT64, FLOAT), {"cast_to": "FLOAT"}, ModelError, "TO_STRING"),
        ("CastMap", _map(INT64, FLOAT), {"map_form": "FULL"}, ModelError, "one of DENSE, SPARSE"),
        (
            "CastMap",
            _map(INT64, FLOAT),
            {"map_form": "SPARSE", "max_map": 0},
            ModelError,
            "1 or more",
        ),
        ("DictVectorizer", _map(INT64, FLOAT), {}, ModelError, "one of string_vocabulary and"),
        (
            "DictVectorizer",
            _map(INT64, FLOAT),
            {"string_vocabulary": ["a"]},
            ModelError,
            "the vocabulary string",
        ),
        ("CastMap", _map(DOUBLE, FLOAT), {}, ModelError, "its keys must be integers or text"),
        (
            "DictVectorizer",
            helper.make_map_type_proto(INT64, _maps(INT64)),
            {"int64_vocabulary": [1]},
            UnsupportedError,
            "a map to a sequence",
        ),
    ],
)
def test_invalid_map_models_are_refused(
    op: str, given: onnx.TypeProto, attrs: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        clrt.load(_one(op, given, _tensor(FLOAT), **attrs))


def test_sequence_input_of_tensor_op_is_refused() -> None:
    sequence = helper.make_sequence_type_proto(_tensor(FLOAT))
    nested = helper.make_sequence_type_proto(sequence)
    joined = {"axis": 0}
    for op, given, attributes in (
        ("Relu", sequence, {}),
        ("ConcatFromSequence", nested, joined),
        ("SequenceAt", _maps(7), {}),
    ):
        node = helper.make_node(op, ["x"], ["y"], "n", **attributes)
        with pytest.raises(ModelError, match=r"'n': its input 0 \('x'\) is sequence\("):
            clrt.load(_model([node], {"x": given}, {"y": _tensor(FLOAT)}))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([{1: 1.0}], "is a map from int64 to float32; pass a dict"),
        (np.float32([1]), "pass a dict"),
        ({"1": 1.0}, r"its keys \['1'\] are not int64"),
        ({1.5: 1.0}, "its keys"),
        ({1: "2"}, r"its values \['2'\] are not float32"),
        ({1: None}, "its values"),
        ({1: [1.0]}, "its values"),
        ({1: 1e300}, "its values"),
    ],
)
def test_invalid_map_feeds_are_refused(given: Any, text: str) -> None:
    model = clrt.load(
        _one("DictVectorizer", _map(INT64, FLOAT), _tensor(FLOAT), int64_vocabulary=[1])
    )
    with pytest.raises(InputError, match=text):
        model.run({"x": given})


def test_map_ops_refuse_mismatched_data() -> None:
    model = clrt.load(_one("ZipMap", _tensor(FLOAT), _maps(INT64), classlabels_int64s=[1, 2]))
    for x in (X, X[None], X[0, 0]):
        with pytest.raises(ShapeError, match=r"'n': .*expected float32 \[N,2\]"):
            model.run(x)
    sparse = {"map_form": "SPARSE", "max_map": 3}
    model = clrt.load(_one("CastMap", _map(INT64, FLOAT), _tensor(FLOAT), **sparse))
    with pytest.raises(InputError, match=r"'n': .*has the key -1"):
        model.run({"x": {1: 1.0, -1: 2.0}})


def test_sequence_of_maps_passes_through() -> None:
    model = clrt.load(_model([], {"x": _maps(STRING)}, {"x": _maps(STRING)}))
    given = [{"a": 1, "b": 0.5}, {}]
    found = model.run({"x": given})["x"]
    assert found == given and isinstance(found[0]["a"], float) and found[0] is not given[0]
    with pytest.raises(InputError, match="is a sequence; pass a list of dicts"):
        model.run({"x": given[0]})
    with pytest.raises(InputError, match="pass a dict"):
        model.run({"x": [1]})


def test_map_input_needs_no_shape_in_plan() -> None:
    content = _one("DictVectorizer", _map(INT64, FLOAT), _tensor(FLOAT), int64_vocabulary=[1, 2])
    model = clrt.load(content)
    assert str(model.inputs[0]) == "x: map from int64 to float32"
    (shapes,) = default_shapes(model)
    assert not model.plan(shapes).graph.inputs
    assert "DictVectorizer" in str(model.explain(shapes))
    assert model.profile({"x": {1: 1.0}}, repeat=1)
