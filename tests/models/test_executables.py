"""Models run by the plans of earlier processes, which are stored in the cache."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import clrt
from clrt.errors import InputError, ModelError
from clrt.ir.op import Array
from clrt.kernels.spec import Launch
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.model import executable_store
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of, quick_device
from tests.models.fixtures import load_family
from tests.models.onnx_text import parsed
from tests.models.oracle import model_folder
from tests.models.test_branch_specializer import _at, _rates

DEVICE = quick_device()
# One of each way to compute constants from sizes, and one with fixed sizes.
FAMILIES = ("bert_dynamo18", "gpt2_torchscript17", "mpnet_dynamo20", "vit_dynamo20")
TABLE = np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(autouse=True)
def _stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_EXECUTABLES", "1")
    monkeypatch.setenv("CLRT_VERIFY", "0")


def _small(path: Path, external: bool = False) -> Path:
    """Writes a model that looks up rows and multiplies them."""
    text = """g (int64[n] i, float[n, 4] x) => (float[n, 4] y) {
                rows = Gather(table, i)
                z = Mul(rows, x)
                y = MatMul(z, w)
              }"""
    proto = onnx.load_from_string(parsed(text))
    weights = np.arange(16, dtype=np.float32).reshape(4, 4)
    tensors = {"table": TABLE, "w": weights}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()
    )
    save = {"save_as_external_data": True, "location": "data.bin", "size_threshold": 0}
    onnx.save(proto, path, **(save if external else {}))
    return path


def _feeds(rows: int) -> dict[str, Array]:
    x = np.linspace(0, 1, 4 * rows, dtype=np.float32).reshape(rows, 4)
    return {"i": np.arange(rows) % 10, "x": x}


def _expected(rows: int) -> Array:
    feeds = _feeds(rows)
    return (TABLE[feeds["i"]] * feeds["x"]) @ np.arange(16, dtype=np.float32).reshape(4, 4)


def _load(path: Path, folder: Path, device: DeviceInfo = DEVICE, **options: Any) -> clrt.Model:
    return clrt.load(path, device=device.index, cache_dir=folder / "cache", **options)


def _run_and_store(
    path: Path, feeds: Mapping[str, Any], device: DeviceInfo = DEVICE
) -> dict[str, Array]:
    """Runs a model as the first process does, and stores its plans."""
    with _load(path, path.parent, device) as model:
        assert not isinstance(model._graph, StoredGraph)
        results = model.run(feeds)
        model.save_programs()
    return results


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "executables").glob("*"))


def _is_closed(model: clrt.Model) -> bool:
    """Returns whether a model runs by stored plans alone."""
    graph = model._graph
    return isinstance(graph, StoredGraph) and not graph.is_open


@pytest.mark.parametrize("device", all_devices(), ids=name_of)
@pytest.mark.parametrize("name", FAMILIES)
def test_stored_plan_results_match_fresh_planning(
    name: str, device: DeviceInfo, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(load_family(name), path)
    fresh = _load(path, tmp_path, device)
    sizes = [(2, 16), (1, 7)] if name != "vit_dynamo20" else [(2,), (3,)]
    feeds = [_random_feeds(fresh, *size) for size in sizes]
    expected = [fresh.run(each) for each in feeds]
    fresh.save_programs()
    stored = _load(path, tmp_path, device)
    for each, wanted in zip(feeds, expected, strict=True):
        found = stored.run(each)
        assert all(np.array_equal(found[n], wanted[n]) for n in wanted)
    assert _is_closed(stored)
    assert stored._session.programs.builds == fresh._session.programs.builds


def _random_feeds(model: clrt.Model, batch: int, sequence: int = 16) -> dict[str, Array]:
    noise = np.random.default_rng(batch)
    feeds: dict[str, Array] = {}
    for spec in model.inputs:
        assert spec.shape is not None
        names = {"batch": batch, "sequence": sequence}
        shape = tuple(d if isinstance(d, int) else names[d] for d in spec.shape)
        if spec.dtype.is_float:
            feeds[spec.name] = noise.standard_normal(shape, dtype=np.float32)
        else:
            feeds[spec.name] = np.ones(shape, spec.dtype.numpy)
    return feeds


def test_stored_plan_launches_equal_fresh_launches(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    model, fresh = _load(path, tmp_path), _load(path, tmp_path / "other")
    shapes = {"i": (5,), "x": (5, 4)}
    stored = model._runner.planner.stage(model._graph, shapes).plan
    planned = fresh.plan(shapes)
    assert _is_closed(model)
    facts = [[_facts(x) for s in p.steps for x in s.launches] for p in (stored, planned)]
    assert facts[0] == facts[1]
    assert stored.arena == planned.arena


def _facts(launch: Launch) -> tuple[Any, ...]:
    numbers = [a for a in launch.args if isinstance(a, np.generic)]
    return launch.kernel, launch.global_size, launch.local_size, numbers, launch.flops


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_executable_of_changed_model_file_is_not_used(external: bool, tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx", external)
    _run_and_store(path, _feeds(3))
    model = _load(path, tmp_path)
    assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))
    assert _is_closed(model)
    model.close()
    changed = tmp_path / ("data.bin" if external else "m.onnx")
    data = changed.read_bytes()
    place = data.index(TABLE.tobytes())
    changed.write_bytes(data[:place] + (2 * TABLE).tobytes() + data[place + TABLE.nbytes :])
    model = _load(path, tmp_path)
    assert np.array_equal(model.run(_feeds(4))["y"], 2 * _expected(4))
    assert not isinstance(model._graph, StoredGraph)


@pytest.mark.parametrize("option", ["level", "tuning", "switch"])
def test_stored_plan_of_other_options_is_not_used(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    if option == "tuning":
        monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path / "tuned"))
        (tmp_path / "tuned").mkdir(mode=0o700)
        (tmp_path / "tuned/tuning.json").write_text("[]")
    elif option == "switch":
        monkeypatch.setenv("CLRT_EXECUTABLES", "0")
    options = {"optimize_level": 0} if option == "level" else {}
    model = _load(path, tmp_path, **options)
    assert not isinstance(model._graph, StoredGraph)
    assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))


def test_damaged_executable_is_not_used(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    (file,) = _files(tmp_path)
    whole = file.read_bytes()
    noise = np.random.default_rng(5)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[noise.integers(len(whole))] ^= 1 << int(noise.integers(8))
        file.write_bytes(damaged[: noise.choice([len(whole), noise.integers(len(whole))])])
        model = _load(path, tmp_path)
        assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))


@pytest.mark.skipif(os.name == "nt", reason="Windows lets no mapped file be replaced")
def test_executable_replaced_after_it_was_found_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may write it while this one still opens the device."""
    path = tmp_path / "m.onnx"
    path.write_bytes(parsed("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"))
    feeds = {"x": np.float32([[1, -1, 2, -2]])}
    _run_and_store(path, feeds)
    (file,) = _files(tmp_path)
    read = executable_store.read_executable

    def read_and_replace(*args: Any) -> Any:
        found = read(*args)
        other = file.with_suffix(".new")
        other.write_bytes(bytes(file.stat().st_size))
        other.replace(file)
        return found

    monkeypatch.setattr(executable_store, "read_executable", read_and_replace)
    with _load(path, tmp_path) as model:
        assert model.run(feeds)["y"].tolist() == [[1, 0, 2, 0]]
        assert isinstance(model._graph, StoredGraph) and not model._graph.is_open


def test_executable_holds_constant_without_elements(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = """g (float[n, 4] x) => (float[n, 4] y, float[0, 4] z)
              <float[0, 4] z = {}> { y = Relu(x) }"""
    path.write_bytes(parsed(text))
    feeds = {"x": np.float32([[1, -1, 2, -2]])}
    _run_and_store(path, feeds)
    with _load(path, tmp_path) as model:
        assert isinstance(model._graph, StoredGraph)
        assert model.run(feeds)["z"].shape == (0, 4)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no group and other permissions")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_executable_writable_by_others_is_not_used(what: str, tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    (file,) = _files(tmp_path)
    (file if what == "file" else file.parent).chmod(0o777)
    model = _load(path, tmp_path)
    assert not isinstance(model._graph, StoredGraph)
    assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))


@pytest.mark.parametrize("batch", [1, 3])
def test_executable_serves_batch_of_one_and_several(batch: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(load_family("bert_dynamo18"), path)
    fresh = _load(path, tmp_path)
    fresh.run(_random_feeds(fresh, batch))
    fresh.save_programs()
    model = _load(path, tmp_path)
    for feeds in (_random_feeds(fresh, 1, 9), _random_feeds(fresh, 2)):
        found, expected = model.run(feeds), fresh.run(feeds)
        assert all(np.array_equal(found[n], expected[n]) for n in expected)
    assert _is_closed(model)


def test_run_without_stored_plan_opens_graph_and_adds_plan(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    model = _load(path, tmp_path)
    model.run(_feeds(3))
    assert _is_closed(model)
    kept = model.run(_feeds(4), device_outputs=True)  # other outputs on the device: another plan
    assert np.array_equal(kept["y"].numpy(), _expected(4))
    assert not _is_closed(model)
    assert np.array_equal(model.run(_feeds(5))["y"], _expected(5))
    assert model.allocated_bytes < 2 * _load(path, tmp_path / "other").weight_bytes + (1 << 16)
    model.save_programs()
    model.close()
    again = _load(path, tmp_path)
    assert np.array_equal(again.run(_feeds(6), device_outputs=True)["y"].numpy(), _expected(6))
    assert np.array_equal(again.run(_feeds(2))["y"], _expected(2))
    assert _is_closed(again)


@pytest.mark.parametrize(
    "look",
    [
        lambda m: [n.name for n in m.graph.nodes],
        lambda m: [(r.name, len(r.hits)) for r in m.report.records],
        lambda m: str(m.explain({"i": (3,), "x": (3, 4)})),
        lambda m: [s.variant for s in m.plan({"i": (3,), "x": (3, 4)}).steps],
        lambda m: m.memory({"i": (3,), "x": (3, 4)}).arena_bytes,
        lambda m: m.best_batch_size({"i": (3,), "x": (3, 4)}, "1MiB"),
        lambda m: len(m.profile(_feeds(3), repeat=1).kernels),
        lambda m: copy.copy(m).run(_feeds(3))["y"].tolist(),
        lambda m: pickle.loads(pickle.dumps(m)).run(_feeds(3))["y"].tolist(),
        lambda m: [str(m.inputs), str(m.outputs), m.properties, m.weight_bytes, m.overridable],
    ],
    ids=[
        "graph",
        "report",
        "explain",
        "plan",
        "memory",
        "batch",
        "profile",
        "copy",
        "pickle",
        "interface",
    ],
)
def test_stored_model_inspection_matches_fresh_model(
    look: Callable[[clrt.Model], Any], tmp_path: Path
) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    stored, planned = _load(path, tmp_path), _load(path, tmp_path / "other")
    stored.run(_feeds(3))
    assert _is_closed(stored)
    assert look(stored) == look(planned)
    assert np.array_equal(stored.run(_feeds(4))["y"], _expected(4))


def test_index_error_of_stored_plan_names_input(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    feeds = _feeds(3) | {"i": np.array([0, 10, 1])}
    messages = []
    for folder in (tmp_path, tmp_path / "other"):
        model = _load(path, folder)
        with pytest.raises(InputError, match="'i'") as found:
            model.run(feeds)
        messages.append(str(found.value))
        assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))
    assert messages[0] == messages[1]


def test_stored_plans_cover_device_tensors_and_states(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")

    def results(model: clrt.Model) -> list[Array]:
        feeds = _feeds(3)
        state = model.new_state({"x": "y"}, {"x": feeds["x"]})
        outputs = [model.run({"i": feeds["i"]}, ["y"], state=state)["y"] for _ in range(2)]
        kept = model.run(feeds, device_outputs=True)["y"]
        return [*outputs, kept.numpy(), model.run(feeds | {"x": kept})["y"]]

    fresh = _load(path, tmp_path)
    expected = results(fresh)
    fresh.save_programs()
    stored = _load(path, tmp_path)
    found = results(stored)
    assert _is_closed(stored)
    assert all(map(np.array_equal, found, expected))


def test_trim_keeps_stored_plans(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    model = _load(path, tmp_path)
    model.run(_feeds(3))
    model.trim()
    assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))
    assert _is_closed(model)


def test_model_file_changed_after_load_is_reported(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    _run_and_store(path, _feeds(3))
    model = _load(path, tmp_path)
    other = parsed("g (float[n] a) => (float[n] b) { b = Neg(a) }")
    path.unlink()
    path.write_bytes(other)
    with pytest.raises(ModelError, match="changed since it was loaded"):
        model.explain({"i": (3,), "x": (3, 4)})
    assert np.array_equal(model.run(_feeds(3))["y"], _expected(3))


def test_compiled_model_and_folder_have_executables(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    write_compiled(CompiledModel(_load(path, tmp_path).graph), tmp_path / "m.clrt", "test")
    _run_and_store(tmp_path / "m.clrt", _feeds(3))
    model = _load(tmp_path / "m.clrt", tmp_path)
    assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))
    assert _is_closed(model)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/model.onnx").write_bytes(path.read_bytes())
    folder = tmp_path / "folder"
    with _load(folder, tmp_path / "other") as first:
        first.run(_feeds(3))
        first.save_programs()
    again = _load(folder, tmp_path / "other")
    assert np.array_equal(again.run(_feeds(4))["y"], _expected(4))
    assert _is_closed(again)


RESIZES = {
    "scales": """y = Resize <mode = "linear"> (x, , scales)""",
    "sizes": """shape = Shape (x)
                twos = Constant <value_ints = [1, 1, 2, 3]> ()
                sizes = Mul (shape, twos)
                y = Resize <mode = "cubic", antialias = 1> (x, , , sizes)""",
    "shrunk": """shape = Shape (x)
                 twos = Constant <value_ints = [1, 1, 2, 2]> ()
                 sizes = Div (shape, twos)
                 y = Resize <mode = "linear", antialias = 1> (x, , , sizes)""",
}


@pytest.mark.parametrize("device", all_devices(), ids=name_of)
@pytest.mark.parametrize("kind", RESIZES)
def test_resize_at_new_sizes_has_stored_plans(
    kind: str, device: DeviceInfo, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    text = f"""g (float[1, 2, h, w] x) => (float[1, 2, v, u] y) {{
                 scales = Constant <value_floats = [1.0, 1.0, 2.0, 1.5]> ()
                 {RESIZES[kind]}
               }}"""
    path.write_bytes(parsed(text))
    fresh = _load(path, tmp_path, device)
    feeds = [{"x": np.random.default_rng(h).random((1, 2, h, 9), np.float32)} for h in (6, 11)]
    expected = [fresh.run(each)["y"] for each in feeds]
    fresh.save_programs()
    stored = _load(path, tmp_path, device)
    for each, wanted in zip(feeds, expected, strict=True):
        assert np.array_equal(stored.run(each)["y"], wanted)
    assert _is_closed(stored)


def test_packed_weight_of_input_size_has_stored_plan_for_first_shape(tmp_path: Path) -> None:
    text = """g (float[n, 4] x) => (float[n, n] y) {
                shape = Shape <end = 1> (x)
                first = Constant <value_ints = [0]> ()
                rows = Slice (table, first, shape, first)
                columns = Transpose <perm = [1, 0]> (rows)
                y = MatMul (x, columns)
              }"""
    proto = onnx.load_from_string(parsed(text))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(TABLE, "table"))
    onnx.save(proto, tmp_path / "m.onnx")
    feeds = [{"x": np.random.default_rng(n).random((n, 4), np.float32)} for n in (5, 7)]
    _run_and_store(tmp_path / "m.onnx", feeds[0])
    model = _load(tmp_path / "m.onnx", tmp_path)
    for each, is_closed in zip(feeds, (True, False), strict=True):
        expected = each["x"] @ TABLE[: len(each["x"])].T
        np.testing.assert_allclose(model.run(each)["y"], expected, rtol=1e-5, atol=1e-6)
        assert _is_closed(model) == is_closed


BY_SHAPE = """g (float[b, n] x) => (float[b, n] y) {
                shape = Shape (x)
                one = Constant <value_ints = [1]> ()
                four = Constant <value_ints = [4]> ()
                width = Gather (shape, one)
                is_four = Equal (width, four)
                y = If (is_four) <
                  then_branch = a () => (float[b, n] u) { u = MatMul (x, w) },
                  else_branch = e () => (float[b, n] v) { v = Tanh (x) }
                >
              }"""


def _by_shape(path: Path) -> list[dict[str, Array]]:
    """Writes a model whose widths decide an If; returns inputs of different widths."""
    proto = onnx.load_from_string(parsed(BY_SHAPE))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(TABLE[:4], "w"))
    onnx.save(proto, path)
    noise = np.random.default_rng(1)
    return [{"x": noise.random((2, n), np.float32)} for n in (4, 5, 4)]


def _by_values(path: Path) -> list[dict[str, Array]]:
    """Writes a model in which a rate and a flag decide Ifs; returns inputs of different ones."""
    path.write_bytes(_rates())
    return [_at(rate, cached) for rate in (8000, 16000) for cached in (True, False)]


@pytest.mark.parametrize("device", all_devices(), ids=name_of)
@pytest.mark.parametrize("write", [_by_shape, _by_values])
def test_branches_chosen_by_inputs_have_stored_plans(
    write: Callable[[Path], list[dict[str, Array]]], device: DeviceInfo, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    first, *others = write(path)
    plain = _load(path, tmp_path / "other", device)
    with _load(path, tmp_path, device) as model:
        model.run(first)
        model.save_programs()
    with _load(path, tmp_path, device) as model:
        for feeds in (first, first, *others):
            found, expected = model.run(feeds), plain.run(feeds)
            assert all(np.array_equal(found[n], expected[n]) for n in expected)
            assert _is_closed(model) == (feeds is first)
        model.save_programs()
    model = _load(path, tmp_path, device)
    for feeds in (first, *others):
        found, expected = model.run(feeds), plain.run(feeds)
        assert all(np.array_equal(found[n], expected[n]) for n in expected)
    assert _is_closed(model)


def test_branch_at_other_sizes_opens_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    feeds, *_ = _by_values(path)
    _run_and_store(path, feeds)
    model, plain = _load(path, tmp_path), _load(path, tmp_path / "other")
    model.run(feeds)
    assert _is_closed(model)
    kept = model.run(feeds, device_outputs=True)["y"]  # another plan of the same branch
    assert np.array_equal(kept.numpy(), plain.run(feeds)["y"])
    assert not _is_closed(model)
    rate = clrt.tensor(feeds["rate"], device=DEVICE.index)  # nobody reads it before the plan
    assert np.array_equal(model.run(feeds | {"rate": rate})["y"], plain.run(feeds)["y"])


_PLAY = """
import sys
import weakref
import numpy as np
import clrt

feeds = dict(np.load(sys.argv[2]))
y = clrt.load(sys.argv[1], device=sys.argv[3]).run(feeds)["y"]
np.save(sys.argv[4], y)
heavy = ("clrt.ops", "clrt.passes", "clrt.models.onnx", "clrt.plan.specialise", "onnx")
print(*[m for m in sys.modules if m.startswith(heavy)])
"""


def test_second_process_runs_plans_stored_at_exit_of_first(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    np.savez(tmp_path / "feeds.npz", **_feeds(5))
    environment = os.environ | {"CLRT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", _PLAY, str(path), str(tmp_path / "feeds.npz")]
    command += [str(DEVICE.index), str(tmp_path / "y.npy")]
    imported = []
    for _ in range(2):
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        imported.append(found.stdout.split())
        assert np.array_equal(np.load(tmp_path / "y.npy"), _expected(5))
    assert "clrt.ops.base" in imported[0]
    assert imported[1] == []


def test_sentence_encoder_starts_from_executables(tmp_path: Path) -> None:
    texts = ["Hello, world!", "a longer second text"]
    options: dict[str, Any] = {"device": DEVICE.index, "cache_dir": tmp_path}
    folder = model_folder()
    first = clrt.SentenceEncoder(folder, **options)
    expected = first.encode(texts)
    for model in (first.model, *first._pooling._models.values()):
        model.save_programs()
    second = clrt.SentenceEncoder(folder, **options)
    assert np.array_equal(second.encode(texts), expected)
    assert all(map(_is_closed, (second.model, *second._pooling._models.values())))


def test_collected_model_frees_memory_and_is_stored_at_exit(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")

    def run() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        model = _load(path, tmp_path)
        model.run(_feeds(3))
        return weakref.ref(model), weakref.ref(model._runner.room)

    references = run()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    executable_store._AT_EXIT.save()
    model = _load(path, tmp_path)
    assert np.array_equal(model.run(_feeds(4))["y"], _expected(4))
    assert _is_closed(model)


def test_executable_of_file_changed_in_place_is_not_written(tmp_path: Path) -> None:
    path = _small(tmp_path / "m.onnx")
    model = _load(path, tmp_path)
    model.run(_feeds(3))
    os.utime(path, (1, 1))
    model.save_programs()
    assert not _files(tmp_path)
