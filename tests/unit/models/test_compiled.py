"""Compiled models round-trip; damaged files are refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from clrt.errors import InputError, ModelError
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value, all_graphs
from clrt.ir.op import Array, PackedConstant, TensorType
from clrt.ir.text import print_graph
from clrt.kernels.panel_layout import Panels
from clrt.models.compiled import CompiledModel, read_compiled, write_compiled
from clrt.models.compiled_file import read_extras
from clrt.ops.matmul.matmul import MatMul

BATCH = symbol("batch")


def _constant(name: str, array: Array) -> Value:
    return Value(name, TensorType.of(array))


def _graph() -> Graph:
    rng = np.random.default_rng(0)
    shape = np.empty(2, object)
    shape[:] = (BATCH, 37)
    w = rng.standard_normal((37, 50)).astype(np.float32)
    constants = [
        _constant("a name", w),
        _constant("half", w.astype(np.float16)),
        _constant("b", rng.standard_normal(30).astype(ml_dtypes.bfloat16)),
        _constant("i", np.array([-8, -1, 0, 3, 7], ml_dtypes.int4)),
        _constant("long", np.arange(20)),
        _constant("short", np.arange(3)),
        _constant("scalar", np.array(0.1, np.float32)),
        _constant("nan", np.array([np.nan, -0.0, np.inf], np.float64)),
        _constant("empty", np.zeros((0, 3), np.float32)),
        _constant("text", np.array(["a", "é\n"])),
        Value("dims", TensorType(DType.INT64, (2,), shape)),
    ]
    x = Value("x", TensorType(DType.FLOAT32, (BATCH, 37)))
    y = Value("y", TensorType(DType.FLOAT32, (BATCH, 50)))
    node = Node("layer 0", MatMul(), [x, constants[0]], [y], ("MatMul_0", "Add_1"), "fuse")
    names = ["logits", *(c.name for c in constants)]
    return Graph("main", [x], [y, *constants], [node], names)


def _write(path: Path, **extras: object) -> Graph:
    graph = _graph()
    write_compiled(CompiledModel(graph, [{"x": (2, 37)}], extras), path, "a test")
    return graph


def _arrays(graph: Graph) -> dict[str, Array]:
    found = ((v.name, v.numbers) for g in all_graphs(graph) for v in g.constants())
    return {name: array for name, array in found if array is not None}


def test_compiled_model_round_trips(tmp_path: Path) -> None:
    graph = _write(tmp_path / "m.clrt", tokenizer={"é": [1, 2]})
    read = read_compiled(tmp_path / "m.clrt")
    assert print_graph(read.graph) == print_graph(graph)
    assert read.graph.nodes[0].origins == ("MatMul_0", "Add_1")
    assert read.graph.nodes[0].made_by == "fuse"
    assert read.shapes == [{"x": (2, 37)}]
    assert read.extras == read_extras(tmp_path / "m.clrt") == {"tokenizer": {"é": [1, 2]}}
    before, after = _arrays(graph), _arrays(read.graph)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.dtype == after[name].dtype
        assert array.tobytes() == after[name].tobytes()


def test_compiled_model_is_aligned_safetensors_file(tmp_path: Path) -> None:
    """The safetensors library reads the file; tensors start at multiples of 128 bytes."""
    graph = _write(tmp_path / "m.clrt")
    with safe_open(tmp_path / "m.clrt", framework="np") as file:
        assert file.metadata()["format"] == "clrt"
        (key,) = (k for k in file.keys() if k.endswith("/a name") and k[0] != "p")  # noqa: SIM118
        np.testing.assert_array_equal(file.get_tensor(key), _arrays(graph)["a name"])
    with (tmp_path / "m.clrt").open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    del header["__metadata__"]
    starts = [e["data_offsets"][0] for k, e in header.items() if not k.startswith("padding/")]
    assert all(start % 128 == 0 for start in starts)


@pytest.mark.parametrize("transposed", [False, True])
def test_packed_weights_are_restored(tmp_path: Path, transposed: bool) -> None:
    graph = _graph()
    weight = graph.nodes[0].arg(1)
    k, n = (50, 37) if transposed else (37, 50)
    panels = Panels(k, n, 16, transposed)
    path = tmp_path / "m.clrt"
    write_compiled(CompiledModel(graph), path, "a test", [panels.of(weight)])
    stored = read_compiled(path).graph.nodes[0].arg(1)
    assert isinstance(stored.type.known_elements, PackedConstant)
    assert stored.type.known_elements.layout == panels.layout
    assert weight.numbers is not None
    np.testing.assert_array_equal(stored.type.known_elements.array, panels.pack(weight.numbers))
    np.testing.assert_array_equal(stored.numbers, weight.numbers)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    _write(path)
    data = path.read_bytes()
    rng = np.random.default_rng(1)
    for length in (*range(9), *rng.integers(0, len(data), 200)):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"damaged|not a compiled"):
            read_compiled(path)


def test_flipped_bytes_are_detected(tmp_path: Path) -> None:
    """Every flip is detected, except in whitespace after the header."""
    path = tmp_path / "m.clrt"
    graph = _write(path)
    data = path.read_bytes()
    rng = np.random.default_rng(2)
    header = 8 + int.from_bytes(data[:8], "little")
    places = (*rng.integers(0, header, 500), *rng.integers(header, len(data), 500))
    for place in places:
        changed = bytearray(data)
        changed[place] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        try:
            read = read_compiled(path)
        except ModelError:
            continue
        assert data[place : place + 1].isspace()
        assert print_graph(read.graph) == print_graph(graph)


def test_missing_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read_compiled(path)
    from safetensors.numpy import save_file

    save_file({"w": np.ones(3, np.float32)}, path)
    with pytest.raises(
        ModelError, match="not a compiled model of clrt; create one by clrt-convert"
    ):
        read_compiled(path)
    save_file({"w": np.ones(3, np.float32)}, path, {"format": "clrt", "version": "99"})
    with pytest.raises(ModelError, match=r"version 99 .* upgrade clrt"):
        read_compiled(path)


def test_failed_write_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    _write(path)
    before = path.read_bytes()

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_compiled(CompiledModel(_graph()), path, "a test", progress=fail)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.clrt"]
    with pytest.raises(InputError, match="cannot be written"):
        write_compiled(CompiledModel(_graph()), tmp_path / "missing" / "m.clrt", "a test")


def test_killed_write_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.clrt"
    _write(path)
    before = path.read_bytes()
    code = f"""
        import os, signal
        from pathlib import Path
        from clrt.models.compiled import CompiledModel, write_compiled
        from tests.unit.models.test_compiled import _graph
        def die(done, total):
            os.kill(os.getpid(), signal.SIGKILL)
        write_compiled(CompiledModel(_graph()), Path({str(path)!r}), "a test", progress=die)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
