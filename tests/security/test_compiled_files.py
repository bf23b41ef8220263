"""Compiled models with a valid checksum and inconsistent contents: refused before they run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clrt
from clrt.errors import ModelError, OutOfMemoryError, ShapeError
from clrt.formats.safetensors import read_header
from clrt.ir.graph import Value
from clrt.ir.op import TensorType
from clrt.ir.parse import parse_graph
from clrt.kernels.panel_layout import Panels
from clrt.models.compiled import CompiledModel, read_compiled, write_compiled
from clrt.ops import REGISTRY
from clrt.ops.ml.decision_trees import DecisionTrees
from clrt.text.config import read_config
from tests.harness import all_devices, sample_graph
from tests.ops.samples import samples
from tests.security.mutate_compiled import TakenApart
from tests.unit.text.tiny import make_folder

Change = Callable[[TakenApart], None]

_TEXT = """
graph "main" (%x: float32[n,8]) {
  const %w: float32[8,24] = ...
  const %b: float32[40] = ...
  const %flags: bool[40] = ...
  const %few: int4[40] = ...
  %y: float32[n,24] = MatMul(%x, %w) @"product"
  %z: float32[n,24] = Relu(%y) @"relu"
  return %z as "z", %b as "b", %flags as "flags", %few as "few"
}
"""
_KEYS = {"w": "0/w", "b": "1/b", "flags": "2/flags", "few": "3/few"}


def _write(path: Path, *, packed: bool = True) -> TakenApart:
    graph = parse_graph(_TEXT, REGISTRY)
    weight = graph.nodes[0].arg(1)
    forms = [Panels(8, 24, 16, False).of(weight)] if packed else []
    write_compiled(CompiledModel(graph, [{"x": (2, 8)}]), path, "a test", forms)
    file = TakenApart.of(path.read_bytes())
    assert {k for k in file.entries if not k.startswith("padding/")} == {*_KEYS.values()}
    return file


def _refuse(path: Path, file: TakenApart, match: str) -> None:
    path.write_bytes(file.encode())
    with pytest.raises(ModelError, match=match) as caught:
        read_compiled(path)
    assert path.name in str(caught.value)
    assert len(str(caught.value)) < 1000


def _entry(file: TakenApart, name: str, **values: Any) -> None:
    file.entries[_KEYS[name]] |= values


def _text(old: str, new: str) -> Change:
    def change(file: TakenApart) -> None:
        assert old in file.metadata["graph"]
        file.metadata["graph"] = file.metadata["graph"].replace(old, new)

    return change


def _smaller(file: TakenApart) -> None:
    """The panels are 2 x 8 x 16; one of them is stored, and the rest of the bytes is padding."""
    start, stop = file.entries[_KEYS["w"]]["data_offsets"]
    middle = (start + stop) // 2
    _entry(file, "w", shape=[1, 1, 8, 16], data_offsets=[start, middle])
    file.entries["padding/more"] = {
        "dtype": "U8",
        "shape": [stop - middle],
        "data_offsets": [middle, stop],
    }


def _layout(name: str) -> Change:
    def change(file: TakenApart) -> None:
        file.metadata["layouts"] = json.dumps({_KEYS["w"]: name})

    return change


def _overlap(file: TakenApart) -> None:
    b = file.entries[_KEYS["b"]]
    b["data_offsets"] = [n - 128 for n in b["data_offsets"]]


def _hole(file: TakenApart) -> None:
    del file.entries[next(k for k in file.entries if k.startswith("padding/"))]


def _behind(file: TakenApart) -> None:
    file.data += b"12345678"


def _byte(name: str, value: int) -> Change:
    def change(file: TakenApart) -> None:
        file.data[file.entries[_KEYS[name]]["data_offsets"][0]] = value

    return change


def _metadata(**values: Any) -> Change:
    def change(file: TakenApart) -> None:
        for key, value in values.items():
            file.metadata[key] = value if isinstance(value, str) else json.dumps(value)

    return change


def _twice(file: TakenApart) -> None:
    table = json.dumps({"__metadata__": file.metadata, **file.entries})
    file.raw_text = (table[:-1] + f', "0/w": {json.dumps(file.entries["0/w"])}}}').encode()


def _nodes(product: Any) -> list[Any]:
    return [{"product": product, "relu": [["relu"], ""]}]


_SYMBOL = '  const %s: int64[1] = [q]\n  return %s as "s",'
_DEEP = "clrt.Fused{steps=[" * 200 + "]}" * 200

_LIES: dict[str, tuple[Change, str]] = {
    "fewer panels": (_smaller, r"'0/w' is F32\[1, 1, 8, 16\], which does not match"),
    "panels of other sizes": (_layout("panels16:24x8"), "which does not match"),
    "panels of no such matrix": (_layout("panels16:9x24"), "not one for float32"),
    "panels of no width": (_layout("panels0:8x24"), "is unknown"),
    "panels of a width in two spellings": (_layout("panels016:8x24"), "is unknown"),
    "another layout": (_layout("blocks_of_panels16:8x24"), "is unknown"),
    "no layout": (_metadata(layouts={}), "which does not match"),
    "layouts of another type": (_metadata(layouts=[]), "its layouts have the wrong type"),
    "a layout of another type": (_metadata(layouts={"0/w": 1}), "its layouts have the wrong type"),
    "fewer elements": (lambda f: _entry(f, "b", shape=[39]), "not have the bytes its shape needs"),
    "other elements": (lambda f: _entry(f, "b", dtype="I32"), "'1/b' is I32"),
    "another shape": (lambda f: _entry(f, "b", shape=[10, 4]), r"is F32\[10, 4\]"),
    "a shape below 0": (lambda f: _entry(f, "b", shape=[-40]), "no valid dtype, shape"),
    "a shape of floats": (lambda f: _entry(f, "b", shape=[40.0]), "no valid dtype, shape"),
    "a shape of truths": (lambda f: _entry(f, "b", shape=[True]), "no valid dtype, shape"),
    "a shape past 63 bits": (lambda f: _entry(f, "b", shape=[2**63]), "no valid dtype, shape"),
    "a shape of 65 axes": (lambda f: _entry(f, "b", shape=[1] * 65), "65 axes"),
    "a dtype of another type": (lambda f: _entry(f, "b", dtype=3), "no valid dtype"),
    "one offset": (lambda f: _entry(f, "b", data_offsets=[0]), "no valid dtype"),
    "more in an entry": (lambda f: _entry(f, "b", more=1), "must have dtype, shape"),
    "an overlap": (_overlap, "overlaps the one before it"),
    "a hole": (_hole, "has a hole before it"),
    "bytes behind": (_behind, "8 bytes at its end belong to no tensor"),
    "a key twice": (_twice, "'0/w' is there twice"),
    "a truth of 2": (_byte("flags", 2), "'2/flags' has elements that are not bool"),
    "four bits of 8": (_byte("few", 255), "'3/few' has elements that are not int4"),
    "metadata that is no text": (lambda f: f.metadata.update(producer=1), "not text by name"),
    "a version that is not a number": (_metadata(version="\u00b2"), "has version"),
    "nodes of another type": (_metadata(nodes={}), "its node records are not for"),
    "a node less": (_metadata(nodes=[{}]), "its node records do not match"),
    "origins of another type": (_metadata(nodes=_nodes([[1], ""])), "not valid"),
    "a pass of another type": (_metadata(nodes=_nodes([["a"], 1])), "not valid"),
    "shapes of another type": (_metadata(shapes=[{"x": 3}]), "its input shapes are not lists"),
    "shapes of other inputs": (_metadata(shapes=[{"q": [3]}]), "input shapes name unknown inputs"),
    "shapes that are no sizes": (_metadata(shapes=[{"x": [-1]}]), "have invalid sizes"),
    "extras of another type": (_metadata(extras=[]), "its extras have the wrong type"),
    "JSON in JSON without end": (_metadata(extras="[" * 100_000), "its extras cannot be read"),
    "a type that differs": (_text("%y: float32[n,24]", "%y: float32[n,25]"), "'product' gives"),
    "a dtype that differs": (_text("%z: float32", "%z: int32"), "'relu' gives"),
    "a sequence": (_text("%z: float32[n,24]", "%z: sequence(float32[n,24])"), "'relu' gives"),
    "a rank that differs": (_text("%y: float32[n,24]", "%y: float32[n]"), "'product' gives"),
    "elided elements": (_text('@"1/b"', "..."), "IR text, line 3: expected|elements of float32"),
    "no such tensor": (_text('@"1/b"', '@"1/c"'), "no tensor '1/c'"),
    "a tensor that nobody reads": (
        _text('@"3/few"', f"[{', '.join('0' * 40)}]"),
        "no constant of its graph is tensor '3/few'",
    ),
    "a size below 0": (_text("n,8", "n,-8"), "a size out of range"),
    "too many axes": (_text("[n,8]", f"[{'1,' * 65}n]"), "a type of 66 axes"),
    "an attribute that is not there": (_text("Relu(", "Relu{a=1}("), "unexpected keyword"),
    "an attribute twice": (_text("Relu(", "Relu{a=1, a=1}("), "attribute a is there twice"),
    "no op": (_text("Relu(", "Reluu("), "there is no op Reluu"),
    "an input that is not there": (_text("Relu(%y)", "Relu(%q)"), "'q' is not declared"),
    "a name twice": (_text("%z", "%y"), "'y' is declared twice"),
    "an output twice": (_text('"flags"', '"b"'), "two outputs of graph 'main'"),
    "more behind the end": (_text("}", "} graph"), "expected end"),
    "a name that is no Unicode": (_text('"relu"', '"\\ud800"'), "surrogates not allowed"),
    "a step that is no elementwise op": (
        _text("Relu(", "clrt.Fused{steps=[MatMul(0, 0)]}("),
        "MatMul, which is not an elementwise op",
    ),
    "a step that reads what comes after it": (
        _text("Relu(", "clrt.Fused{steps=[Add(0, 1)]}("),
        "reads a value that is not computed before it",
    ),
    "a step that counts from behind": (
        _text("Relu(", "clrt.Fused{steps=[Relu(-1)]}("),
        "an operand is a number from 0 on",
    ),
    "ops without end": (_text("Relu(", f"{_DEEP}("), "nesting deeper than 64 levels"),
    "a symbol that nothing tells": (_text("  return", _SYMBOL), "symbol 'q' of '"),
    "a size that nothing tells": (
        _text("%z: float32[n,24]", "%z: float32[q*q,24]"),
        "is not a dim of any value",
    ),
    "text without end": (_text("}\n", ""), "expected"),
}


@pytest.mark.parametrize("lie", _LIES)
def test_compiled_file_with_inconsistent_contents_is_refused(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "m.clrt"
    file = _write(path)
    path.write_bytes(file.encode())
    read_compiled(path)
    change, match = _LIES[lie]
    change(file)
    _refuse(path, file, match)


def test_compiled_string_constant_is_limited_by_padded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLRT_HOST_LIMIT", "64MiB")
    path = tmp_path / "m.clrt"
    file = _write(path)
    wide = json.dumps(["x" * 100_000, *[""] * 1999])
    _text("  %y:", f"  const %t: string[2000] = {wide}\n  %y:")(file)
    path.write_bytes(file.encode())
    with pytest.raises(OutOfMemoryError, match="CLRT_HOST_LIMIT"):
        read_compiled(path)


def test_intact_packed_weights_match_reference(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    _write(path)
    x = np.ones((3, 8), np.float32)
    for device in all_devices():
        with clrt.load(path, device=device.index) as model:
            found = model.run(x)["z"]
            weight = read_compiled(path).graph.nodes[0].arg(1).numbers
            assert weight is not None
            np.testing.assert_allclose(found, np.maximum(x @ weight, 0), rtol=1e-5)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_named_pipe_is_refused_as_compiled_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.clrt")
    with pytest.raises(ModelError, match="is a pipe or a device"):
        read_header(tmp_path / "m.clrt")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((1, (0, 2)), 6),  # a node that is not there
        ((1, (0, 2)), ~7),  # a leaf that is not there
        ((1, (0, 2)), 0),  # a cycle
        ((1, (0, 0)), -1),  # a feature below 0
        ((3, (0,)), 6),  # a root that is not there
        ((4, (1,)), 9),  # weights of a leaf that are not there
        ((5, (0,)), -1),  # a target below 0
        ((5, (0,)), 99),  # a target past the last
    ],
)
def test_decision_trees_with_out_of_range_indices_are_refused(
    tmp_path: Path, place: tuple[int, Any], value: int
) -> None:
    sample = next(s for s in samples(DecisionTrees) if s.inputs[0] is not None)
    index, at = place
    path = tmp_path / "m.clrt"
    for change in (False, True):
        inputs = [None if a is None else a.copy() for a in sample.inputs]
        table = inputs[index]
        assert table is not None
        if change:
            table[at] = value
        graph = sample_graph(sample)
        for read, array in zip(graph.nodes[0].inputs[1:], inputs[1:], strict=True):
            assert array is not None
            assert read is not None
            read.type = TensorType.of(array)
        graph.inputs = graph.inputs[:1]
        write_compiled(CompiledModel(graph), path, "a test")
        if change:
            with pytest.raises(ModelError, match="DecisionTrees"):
                read_compiled(path)
        else:
            read_compiled(path)


def test_decision_trees_with_run_time_tables_are_refused(tmp_path: Path) -> None:
    """Tables passed at run time are not checked."""
    graph = sample_graph(next(samples(DecisionTrees)))
    write_compiled(CompiledModel(graph), tmp_path / "m.clrt", "a test")
    with pytest.raises(ModelError, match="its tables are not constants"):
        read_compiled(tmp_path / "m.clrt")


@pytest.mark.parametrize("device", all_devices(), ids=str)
def test_kernels_ignore_false_declared_dims(device: Any) -> None:
    """%s has one element, despite its type; a kernel that trusts the type reads past its end."""
    text = """
    graph "main" (%x: float32[m]) {
      const %axes: int64[1] = [0]
      %e: float32[m] = Exp(%x)
      %s: float32[m] = ReduceSum{keepdims=1}(%e, %axes)
      %y: float32[m] = Sub(%s, %x)
      return %y as "y"
    }
    """
    x = np.linspace(-1, 1, 37, dtype=np.float32)
    graph = parse_graph(text, REGISTRY)
    with clrt.load(graph, device=device.index, optimize_level=0) as model:
        np.testing.assert_allclose(model.run(x)["y"], np.exp(x).sum() - x, rtol=1e-4)


@pytest.mark.parametrize("device", all_devices(), ids=str)
def test_loop_body_input_of_other_dtype_is_refused(device: Any) -> None:
    """8-byte values would be copied into a buffer for 4-byte values."""
    text = """
    graph "main" (%x: int64[n], %trips: int64[], %go: bool[]) {
      %a: int64[n] = Neg(%x)
      %y: float32[n] = Loop{body=graph "body" (%i: int64[], %c: bool[], %h: float32[n]) {
          %more: float32[n] = Neg(%h)
          return %c as "c", %more as "more"
        }}(%trips, %go, %a)
      return %y as "y"
    }
    """
    with pytest.raises((ModelError, ShapeError), match=r"Loop|declared"):
        model = clrt.load(parse_graph(text, REGISTRY), device=device.index, optimize_level=0)
        model.run({"x": np.arange(64), "trips": np.array(2), "go": np.array(True)})


_SETTINGS: dict[str, Any] = {
    "modes": ["nothing", [], ["mode"], [["mean"]], None, 3],
    "include_prompt": [1, None, "yes"],
    "normalize": [1, None],
    "max_length": [0, -1, 1.5, True, "7", 2**40],
    "positions": ["x", 2**31],
    "lower_case": [0],
    "class": ["Other", None, []],
    "prompts": [None, [], {"query": 1}],
    "default_prompt_name": [1, "missing"],
    "similarity": [3, []],
    "token_types": [1, None],
    "pad_token": [None, []],
    "truncation_side": ["up", 0, None],
    "hidden": ["x", -3],
    "truncate_dim": [0, [1]],
    "normalizer": [None, [], {"lowercase": 1}, {"other": True}],
    "prefix_space": [1],
    "added_tokens": [None, [1], [{}], [{"content": 1}], [{"content": "a", "lstrip": 1}]],
    "tokenizer": [None, {}, "{}", "", '{"version": "1.0", "model": {}}'],
}


@pytest.mark.parametrize("name", _SETTINGS)
def test_compiled_encoder_with_invalid_settings_is_refused(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model")
    graph = parse_graph(_TEXT, REGISTRY)
    settings = read_config(folder).for_compiled((folder / "tokenizer.json").read_text("utf-8"))
    path = tmp_path / "m.clrt"
    for value in [*_SETTINGS[name], "left out"]:
        changed = {**settings, name: value}
        if value == "left out":
            del changed[name]
        write_compiled(CompiledModel(graph, [], {"encoder": changed}), path, "a test")
        with pytest.raises(ModelError):
            clrt.SentenceEncoder(path)


def test_sub_byte_elements_stay_within_their_bits() -> None:
    """The check of compiled files relies on this."""
    from clrt.ir.dtypes import DType

    for dtype in DType:
        if dtype.element_bits < 8 and dtype not in (DType.BOOL, DType.STRING):
            every = np.arange(256, dtype=np.float32) - 128
            with np.errstate(all="ignore"):
                codes = every.astype(dtype.numpy).view(np.uint8)
            assert codes.max() < 1 << dtype.element_bits, dtype
    assert np.array([-1], ml_dtypes.int4).view(np.uint8)[0] == 15


def test_value_names_like_grammar_tokens_round_trip(tmp_path: Path) -> None:
    """Value names may equal tokens of the graph grammar."""
    names = ["_", "const", "return", "as", "graph", "a:", "a::", "", "%", "\n", "}"]
    for name in names:
        graph = parse_graph(_TEXT, REGISTRY)
        product, relu = graph.nodes
        value = Value(name, product.output.type, product)
        product.outputs, relu.inputs = [value], [value]
        write_compiled(CompiledModel(graph), tmp_path / "m.clrt", "a test")
        read = read_compiled(tmp_path / "m.clrt").graph
        assert read.nodes[1].arg(0) is read.nodes[0].output
        assert read.nodes[0].output.name == name
