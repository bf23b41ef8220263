"""Changed numbers and names in executables whose digests are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import ModelError, OutOfMemoryError
from clrt.formats.checksum import text_digest, write_with_digest
from clrt.formats.safetensors import read_header
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, StoredTrace
from clrt.plan.stored_checks import checked
from clrt.runtime.executables.stored_graph import StoredGraph
from tests.harness import quick_device
from tests.models.onnx_text import parsed
from tests.security.mutate_executables import Parts

MODEL = """g (float[n, 4] x, float[4] b) => (float[n, 4] y)
           { s = Add(x, b)  e = Softmax(s)  t = ReduceSum <keepdims=1> (e)  y = Mul(e, t) }"""
FEEDS = {"x": np.ones((3, 4), np.float32), "b": np.arange(4, dtype=np.float32)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    """Returns a folder with a model and its executable, and the model's output."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "m.onnx").write_bytes(parsed(MODEL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLRT_EXECUTABLES", "1")
        patch.setenv("CLRT_VERIFY", "0")
        with _load(folder) as model:
            expected = model.run(FEEDS)["y"]
            model.save_programs()
    return folder, expected


@pytest.fixture
def executable(
    stored: tuple[Path, Array], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Path, Array]]:
    """Yields a model's folder, its executable for tests to change, and the model's output."""
    monkeypatch.setenv("CLRT_EXECUTABLES", "1")
    monkeypatch.setenv("CLRT_VERIFY", "0")
    folder, expected = stored
    (path,) = (folder / "cache" / "executables").glob("*.clexe")
    whole = path.read_bytes()
    yield folder, path, expected
    path.write_bytes(whole)


def _load(folder: Path) -> clrt.Model:
    return clrt.load(folder / "m.onnx", device=quick_device().index, cache_dir=folder / "cache")


def _rewrite(
    path: Path,
    change: Callable[[dict[str, Any]], object],
    change_record: Callable[[dict[str, Any]], object] = lambda record: None,
) -> None:
    """Changes the record and each template of an executable, and makes all digests fit."""
    header = read_header(path)
    data = header.map()
    parts = {name: data[e.start : e.stop].tobytes() for name, e in header.tensors.items()}
    record = json.loads(parts["record"])
    for row in record["templates"]:
        template = json.loads(parts[row[2]])
        change(template)
        text = json.dumps(template)
        parts[row[2]], row[3] = text.encode(), text_digest([text])
    change_record(record)
    text = json.dumps(record)
    parts["record"] = text.encode()
    metadata = {n: v for n, v in header.metadata.items() if n != "digest"}
    metadata["record_digest"] = text_digest([text])
    kept = {n: np.frombuffer(p, np.uint8) for n, p in parts.items() if "padding" not in n}
    write_with_digest(path, metadata, {n: partial(np.asarray, a) for n, a in kept.items()})


def _buffer_args(template: dict[str, Any]) -> list[list[Any]]:
    return [arg for launch in template["launches"] for arg in launch[4] if arg[0] == "b"]


def _without_arena(template: dict[str, Any]) -> None:
    """Removes the buffers from the arena."""
    template["owners"], template["spans"], template["layout"] = [], [], [[], [], []]


def _square(template: dict[str, Any], times: int) -> None:
    """Adds formulas that square a number so many times."""
    _, numbers, steps, _, texts = template["trace"]
    texts.append("mul")
    numbers.append(1)
    for _ in range(times):
        steps.append([len(numbers), len(texts) - 1, len(numbers) - 1, len(numbers) - 1])
        numbers.append(1)


def _varying_dim(template: dict[str, Any]) -> None:
    """Replaces the second dim of x, 4, by a formula that is 4 at the first sizes only."""
    _, numbers, steps, _, texts = template["trace"]
    texts.append("add")
    steps.append([len(numbers) + 1, len(texts) - 1, 0, len(numbers)])
    numbers += [4 - numbers[0], 4]
    template["buffers"][template["graph"][2][0]][3][1] = [len(numbers) - 1]


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "source outside": lambda t: t["kernels"][0].__setitem__(0, "../clrt/errors.py"),
    "source unknown": lambda t: t["kernels"][0].__setitem__(0, "none.cl"),
    "entry": lambda t: t["kernels"][0].__setitem__(1, "a; b"),
    "macro": lambda t: t["kernels"][0][2].append(["A\n#include", "1"]),
    "kernel index": lambda t: t["launches"][0].__setitem__(0, -1),
    "buffer index": lambda t: _buffer_args(t)[0].__setitem__(1, -1),
    "large buffer index": lambda t: _buffer_args(t)[0].__setitem__(1, 1 << 40),
    "offset": lambda t: _buffer_args(t)[0].__setitem__(2, 1 << 30),
    "negative offset": lambda t: _buffer_args(t)[0].__setitem__(2, -8),
    "grid": lambda t: t["launches"][0].__setitem__(1, [1 << 40]),
    "work-group": lambda t: t["launches"][0].__setitem__(2, [0]),
    "lifetime": lambda t: t["spans"].__setitem__(0, [5, 1]) if t["spans"] else t.pop("spans"),
    "layout": lambda t: t["layout"].__setitem__(0, [7]),
    "guard": lambda t: t["trace"][3].append([0, 0, 1 << 20, 1]),
    "operation": lambda t: t["trace"][4].append("clrt.util.files:expanded"),
    "missing table": lambda t: t.pop("buffers"),
    "text in place of numbers": lambda t: t.__setitem__("costs", "abc"),
    "macro of several lines": lambda t: t["kernels"][0][2].append(["A", "1\n#include <a>"]),
    "compiler option": lambda t: t["kernels"][0][4].append("-I/"),
    "OpenCL C": lambda t: t["kernels"][0].__setitem__(3, [9, 9]),
    "input name": lambda t: t["buffers"][t["graph"][2][0]].__setitem__(1, "z"),
    "input dtype": lambda t: t["buffers"][t["graph"][2][0]].__setitem__(2, "int32"),
    "input dim": lambda t: t["buffers"][t["graph"][2][0]][3].__setitem__(1, 3),
    "formula in place of input dim": _varying_dim,
    "input dim in place of symbol": lambda t: t["buffers"][t["graph"][2][0]][3].__setitem__(0, 3),
    "output name": lambda t: t["graph"].__setitem__(1, ["z"]),
    "no output": lambda t: t["graph"].__setitem__(3, []),
    "buffer without memory": _without_arena,
    "constant as owner": lambda t: t["owners"].__setitem__(0, t["owners"][-1]),
    "value of a formula": lambda t: t["trace"][1].__setitem__(t["trace"][2][-1][0], 77),
    "fraction": lambda t: t["trace"][1].append(0.5),
    "factors": lambda t: _square(t, 40),
}


RECORD_CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "output name twice": lambda r: r["graphs"][0][4].__setitem__(3, ["y", "y"]),
    "output without name": lambda r: r["graphs"][0][4].__setitem__(3, []),
    "number as name": lambda r: r["graphs"][0][4][1][0].__setitem__(0, 7),
    "branch with other outputs": lambda r: r["graphs"].append(
        [0, [], [], False, [*r["graphs"][0][4][:2], [], [], {}]]
    ),
    "constant beyond its file": lambda r: r["constants"].append(
        [-1, "", "c", "float32", [4], ["<f4", [4]], [0, 0, 1 << 40]]
    ),
    "constant beyond its tensor": lambda r: r["constants"].append(
        [-1, "", "c", "float32", [4], ["<f4", [4]], ["t0", 1 << 20, (1 << 20) + 16]]
    ),
    "constant before its tensor": lambda r: r["constants"].append(
        [-1, "", "c", "float32", [4], ["<f4", [4]], ["t0", -16, 0]]
    ),
    "constant of other dims": lambda r: r["constants"].append(
        [-1, "", "c", "float32", [9], ["<f4", [4]], [0, 0, 16]]
    ),
    "list in place of an object": lambda r: r.__setitem__("shapes", [[[0]]]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_template_is_planned_anew(
    change: Callable[[dict[str, Any]], object],
    executable: tuple[Path, Path, Array],
) -> None:
    folder, path, expected = executable
    _rewrite(path, lambda template: None)
    with _load(folder) as model:
        assert np.array_equal(model.run(FEEDS)["y"], expected)
        assert isinstance(model._graph, StoredGraph)
        assert not model._graph.is_open
    _rewrite(path, change)
    with _load(folder) as model:
        assert np.array_equal(model.run(FEEDS)["y"], expected)
        assert isinstance(model._graph, StoredGraph)
        assert model._graph.is_open


@pytest.mark.parametrize("change", RECORD_CHANGES.values(), ids=RECORD_CHANGES)
def test_executable_with_changed_record_is_not_used(
    change: Callable[[dict[str, Any]], object],
    executable: tuple[Path, Path, Array],
) -> None:
    folder, path, expected = executable
    _rewrite(path, lambda template: None, change)
    with _load(folder) as model:
        assert not isinstance(model._graph, StoredGraph)
        assert np.array_equal(model.run(FEEDS)["y"], expected)


def test_mutated_formula_counts_as_code(stored: tuple[Path, Array]) -> None:
    (path,) = (stored[0] / "cache" / "executables").glob("*.clexe")
    old, mutated = Parts(path), Parts(path)
    assert old.code() == mutated.code()
    for template in mutated.templates.values():
        template["trace"][2][0][1] += 1
    assert old.code() != mutated.code()


def test_tables_of_copied_axis_are_limited() -> None:
    taps = "clrt.kernels.resample_tables:sampling_taps"
    with pytest.raises(OutOfMemoryError, match="Tables of a Resize"):
        ShapeTrace.from_stored(StoredTrace(["n"], [1 << 50, 1], [[1, 0, 0, 0]], [], [taps]))


def test_computed_constant_beyond_memory_is_model_error() -> None:
    read = checked(lambda at: np.zeros(at.numbers[0]), [0])
    with pytest.raises(ModelError, match="stored plan"):
        read(Evaluation([1 << 55]))
