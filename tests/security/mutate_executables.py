"""Mutants of executables: files of stored plans, with right digests or, for some, wrong ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.formats.checksum import text_digest, write_with_digest
from clrt.formats.safetensors import PADDING, read_header
from clrt.ir.op import Array
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.execution import template_learner
from clrt.runtime.model import model as model_module
from clrt.runtime.model.executable_store import ExecutableKey, ModelContent, key_for
from tests.models.onnx_text import parsed
from tests.security import seeds
from tests.security.made_up_inputs import made_up
from tests.security.mutation_values import TEXTS, any_int, flipped

# One of each way in which a plan depends on sizes: masks, looked-up rows with checked indices,
# resized images, and Ifs that inputs decide.
_TEXTS = {
    "sum": """g (float[n, 4] x, float[4] b) => (float[n, 4] y)
              { s = Add(x, b)  e = Softmax(s)  t = ReduceSum <keepdims=1> (e)  y = Mul(e, t) }""",
    "rows": """g (int64[n] i, float[n, 4] x) => (float[n, 4] y)
               { rows = Gather(w4, i)  z = Mul(rows, x)  y = MatMul(z, w4) }""",
    "resized": """g (float[1, 2, h, w] x) => (float[1, 2, v, u] y) {
                    shape = Shape (x)
                    more = Constant <value_ints = [1, 1, 2, 3]> ()
                    sizes = Mul (shape, more)
                    y = Resize <mode = "cubic", antialias = 1> (x, , , sizes) }""",
    "positions": """g (float[n, 4] x) => (float[n, 4] y, float[n, n] s) {
                    shape = Shape <end = 1> (x)
                    first = Constant <value_ints = [0]> ()
                    p = Slice (w4, first, shape, first)
                    y = Add (x, p)  t = Transpose <perm = [1, 0]> (y)  s = MatMul (y, t) }""",
    "branches": """g (float[b, 4] x, int64 rate) => (float[b, 4] y) {
                     low = Constant <value_int = 8000> ()
                     is_low = Less (rate, low)
                     y = If (is_low) <
                       then_branch = a () => (float[b, 4] u) { u = MatMul (x, w4) },
                       else_branch = e () => (float[b, 4] v) { v = Tanh (x) }
                     > }""",
}
_CODE = ("trace", "kernels", "launches", "buffers", "derived")
MODELS = (*_TEXTS, "transformer", "convolution", "shapes", "external", "compiled")
_W4 = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
_NUMBERS = (*range(-2, 10), 16, 17, 64, 255, 4096, 10**6, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
            1 << 32, 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**30)  # fmt: skip


@dataclass(frozen=True)
class StoredModel:
    """A model with its executable, and what a run returns.

    Attributes:
        path: File of the model.
        executable: File of the executable.
        content: Content of the executable.
        feeds: Inputs of the run.
        expected: Outputs of the run.
    """

    path: Path
    executable: Path
    content: bytes
    feeds: Mapping[str, Any]
    expected: Mapping[str, Array]

    @classmethod
    @cache
    def make(cls, name: str, folder: Path) -> StoredModel:
        """Runs a model and stores its plans below a folder."""
        files = _files(name)
        (folder / name).mkdir()
        for file, data in files.items():
            (folder / name / file).write_bytes(data)
        path = folder / name / next(iter(files))
        before = {*(folder / "cache/executables").glob("*")}
        with _load(path) as model, pytest.MonkeyPatch.context() as patch:
            patch.setattr(template_learner, "_MAX_GUESSING_S", 0.0)  # the same mutants each time
            planner = model._runner.planner
            _ = planner._maker
            planner.caps = replace(planner.caps, simulator=False)  # simulators store no plans
            feeds = made_up(model)
            assert feeds is not None
            expected = model.run(feeds)
            model.save_programs()
        (executable,) = {*(folder / "cache/executables").glob("*")} - before
        return cls(path, executable, executable.read_bytes(), feeds, expected)

    def run(self, content: bytes) -> str:
        """Loads and runs the model beside another executable.

        Args:
            content: Content of the executable.

        Returns:
            "ran" if the stored plans were used, "planned" if not; "differs" for other outputs than
            expected.

        Raises:
            ClrtError: The executable was refused.
        """
        self.executable.write_bytes(content)
        with _load(self.path) as model:
            found = model.run(self.feeds)
            graph = model._graph
            is_played = isinstance(graph, StoredGraph) and not graph.is_open
        if found.keys() == self.expected.keys() and all(
            np.array_equal(found[n], array, equal_nan=array.dtype.kind == "f")
            for n, array in self.expected.items()
        ):
            return "ran" if is_played else "planned"
        return "differs"


@contextmanager
def _load(path: Path) -> Iterator[clrt.Model]:
    cache_dir = path.parent.parent / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLRT_EXECUTABLES", "1")
        patch.setenv("CLRT_VERIFY", "0")
        patch.setattr(model_module, "key_for", _key_for)
        with clrt.load(path, cache_dir=cache_dir, memory_limit="2GiB", tiers=False) as model:
            yield model


def _key_for(content: ModelContent, caps: DeviceCaps, *rest: Any) -> ExecutableKey | None:
    """Returns the key of an executable, for simulators as well, which have none in clrt."""
    return key_for(content, replace(caps, simulator=False), *rest)


def _files(name: str) -> dict[str, bytes]:
    """Returns the files of a model by name, the model first."""
    if name in _TEXTS:
        model = onnx.load_from_string(parsed(_TEXTS[name]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(_W4, "w4"))
        return {"m.onnx": model.SerializeToString()}
    if name == "compiled":
        return {"m.clrt": seeds.compiled_seed("transformer")}
    files = {"m.onnx": seeds.onnx_seeds()[name].SerializeToString()}
    return files | ({seeds.EXTERNAL: seeds.external_bytes()} if name == "external" else {})


class Parts:
    """An executable taken apart.

    Attributes:
        metadata: Metadata without digests.
        record: The record.
        templates: Templates by name of the tensor.
        tensors: Other tensors by name.
    """

    def __init__(self, path: Path) -> None:
        header, content = read_header(path), path.read_bytes()
        self.metadata = {n: v for n, v in header.metadata.items() if "digest" not in n}
        entries = header.tensors.items()
        data = {n: content[e.start : e.stop] for n, e in entries if not n.startswith(PADDING)}
        self.record: Any = json.loads(data.pop("record"))
        names = [row[2] for row in self.record["templates"]]
        self.templates: dict[str, Any] = {n: json.loads(data.pop(n)) for n in names}
        self.tensors: dict[str, bytes] = data

    def code(self) -> list[Any]:
        """Returns the tables that say which memory kernels access."""
        tables = [[t.get(n) for n in _CODE] for t in self.templates.values()]
        record = self.record if isinstance(self.record, dict) else {}
        return [*tables, record.get("constants"), record.get("templates"), self.tensors]

    def write(self, path: Path) -> None:
        """Writes the executable with the digests of what it now holds."""
        texts = {n: json.dumps(t) for n, t in self.templates.items()}
        for row in self.record["templates"]:
            if row[2] in texts:
                row[3] = text_digest([texts[row[2]]])
        text = json.dumps(self.record)
        others = {n: t.decode() for n, t in self.tensors.items() if n.startswith("text.")}
        self.metadata["record_digest"] = text_digest([text, *others, *others.values()])
        data = {"record": text.encode(), **{n: t.encode() for n, t in texts.items()}}
        arrays = {n: np.frombuffer(p, np.uint8) for n, p in {**data, **self.tensors}.items()}
        tensors = {n: partial(np.asarray, a) for n, a in arrays.items()}
        write_with_digest(path, self.metadata, tensors)


class StoredMutant(NamedTuple):
    """A mutated executable.

    Attributes:
        stored: The model, with the executable that is not mutated.
        content: Content of the mutated executable.
        is_sealed: Whether the digests are right.
        is_code: Whether the mutant may have other kernels, launches, formulas or buffers, whose
            accesses clrt does not check.
    """

    stored: StoredModel
    content: bytes
    is_sealed: bool
    is_code: bool


def stored_mutant(seed: int, folder: Path) -> StoredMutant:
    """Returns a mutant of an executable.

    Args:
        folder: Folder for models, executables and compiled programs.
    """
    rng = Random(f"executables {seed}")
    stored = StoredModel.make(MODELS[seed % len(MODELS)], folder)
    if rng.random() < 0.1:
        return StoredMutant(stored, flipped(rng, stored.content), False, False)
    path = folder / "mutant"
    path.write_bytes(stored.content)
    old, parts = Parts(path), Parts(path)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        with suppress(IndexError, KeyError, ValueError, TypeError, AttributeError):
            rng.choice(_CHANGES)(rng, parts)
    is_code = old.code() != parts.code()  # before digests are computed, which differ
    with suppress(IndexError, KeyError, ValueError, TypeError):  # no digest of a damaged table
        parts.write(path)
    return StoredMutant(stored, path.read_bytes(), True, is_code)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Returns (list or dict, index or key) of each number and text in a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value))
    found = []
    for key in keys:
        inner = value[key]
        found += _places(inner) if isinstance(inner, (dict, list)) else [(value, key)]
    return found


def _change_value(rng: Random, table: Any) -> None:
    """Changes a number or text in a JSON value."""
    places = _places(table)
    holder, key = rng.choice(places)
    old = holder[key]
    alike = [h[k] for h, k in places if type(h[k]) is type(old) and h[k] != old]
    if alike and rng.random() < 0.4:
        new = rng.choice(alike)
    elif isinstance(old, str):
        new = rng.choice((*TEXTS, old + "x", old[:-1], old.swapcase()))
    elif isinstance(old, (int, float)) and rng.random() < 0.9:
        new = rng.choice((*_NUMBERS, old + 1, old - 1, 2 * old, -old, [old], bool(old)))
    else:
        new = rng.choice((None, [], {}, "", 1.5, float("nan"), True, [[]], [0]))
    holder[key] = new


def _change_list(rng: Random, table: Any) -> None:
    """Removes, repeats or exchanges items of a list in a JSON value."""
    found = [v for v in _containers(table) if len(v) > 0]
    chosen = rng.choice(found)
    if isinstance(chosen, dict):
        del chosen[rng.choice(list(chosen))]
        return
    one, other = rng.randrange(len(chosen)), rng.randrange(len(chosen))
    match rng.randrange(4):
        case 0:
            del chosen[one]
        case 1:
            chosen.insert(one, copy.deepcopy(chosen[other]))
        case 2:
            chosen[one], chosen[other] = chosen[other], chosen[one]
        case 3:
            chosen[one] = copy.deepcopy(chosen[other])


def _containers(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list)):
        return []
    items = value.values() if isinstance(value, dict) else value
    return [value, *(c for item in items for c in _containers(item))]


def _template(rng: Random, parts: Parts) -> None:
    """Changes a table of all templates: the run reads one of them."""
    keys = list(next(iter(parts.templates.values())))
    key, seed = rng.choice(keys), rng.random()
    change = rng.choice((_change_value, _change_value, _change_list))
    for template in parts.templates.values():
        change(Random(seed), {key: template[key]} if key == "waste" else template[key])


def _record(rng: Random, parts: Parts) -> None:
    rng.choice((_change_value, _change_list))(rng, parts.record)


def _metadata(rng: Random, parts: Parts) -> None:
    parts.metadata[rng.choice(list(parts.metadata))] = rng.choice(TEXTS[:20])


def _tensor(rng: Random, parts: Parts) -> None:
    """Changes elements or the size of a tensor."""
    name = rng.choice(list(parts.tensors))
    data = bytearray(parts.tensors[name])
    match rng.randrange(4):
        case 0:
            del data[rng.randrange(len(data)) :]
        case 1:
            data += bytes(rng.randrange(1, 300))
        case _:
            size, at = rng.choice((1, 4, 8)), rng.randrange(len(data))
            data[at : at + size] = (any_int(rng) % 2 ** (8 * size)).to_bytes(size, "little")
    parts.tensors[name] = bytes(data)


_CHANGES: Sequence[Callable[[Random, Parts], None]] = (
    *(_template,) * 8,
    *(_record,) * 2,
    _metadata,
    _tensor,
)
