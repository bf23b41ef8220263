"""Compiled models: the optimised graph and its weights in one file, ready to be mapped.

A compiled model is a safetensors file. Its metadata holds, as text,

| key | what |
|---|---|
| `format`, `version` | "clrt" and the version of this format |
| `producer` | the clrt that wrote it |
| `graph` | the optimised graph in the IR's text form; `@"key"` is the tensor of that name |
| `nodes` | JSON: per graph and node the ONNX nodes it stands for, and the pass that made it |
| `layouts` | JSON: tensors that lie as a kernel wants them, and how (`clrt.kernels.panels`) |
| `shapes` | JSON: the input shapes it was made for |
| `extras` | JSON: whatever else belongs to the model (a tokenizer, how it was converted) |
| `digest` | XXH3-128 over the header without it and all bytes behind the header |

There is no code in it, and no pickle. Weights are aligned, so that a CPU device reads them from
the mapped file. Another device than the one it was made for restores and packs them as it wants.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from clrt.container import safetensors
from clrt.container.safetensors import Header, Table, damaged, read_header
from clrt.errors import ModelError, PassError
from clrt.files import replacing
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array, StoredElements, TensorType
from clrt.ir.text import parse_graph, print_graph
from clrt.ir.verify import verify
from clrt.kernels.panels import restoring
from clrt.kernels.spec import Packed
from clrt.ops import REGISTRY
from clrt.ops.base import all_graphs

SUFFIX = ".clrt"
FORMAT = "clrt"
VERSION = 1
# Smaller constants stay in the text: each tensor costs a page and an entry.
_TEXT_ELEMS = 16
_TEXT_DTYPES = {DType.BOOL, DType.INT32, DType.INT64}


@dataclass(frozen=True)
class CompiledModel:
    """What a compiled file holds.

    Attributes:
        shapes: Sets of input shapes that it was made for.
        extras: JSON values by name.
    """

    graph: Graph
    shapes: Sequence[Mapping[str, tuple[int, ...]]] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)


def write_compiled(
    model: CompiledModel,
    path: Path,
    producer: str,
    packed: Iterable[Packed] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Writes a compiled model; `path` stays as it was where that fails.

    Args:
        producer: What wrote it.
        packed: Weights to keep in these forms only.
        progress: Called with the bytes written so far and in all.

    Raises:
        InputError: The file cannot be written.
    """
    graphs = list(all_graphs(model.graph))
    forms = {p.value: p for p in packed if restoring(p.layout, p.value.dims) is not None}
    kept: dict[Value, str] = {}

    def store(value: Value) -> str | None:
        if not value.has_numbers or _stays_in_text(value):
            return None
        return kept.setdefault(value, f"{len(kept)}/{value.name}")

    text = print_graph(model.graph, store)
    table = Table(
        {
            "format": FORMAT,
            "version": str(VERSION),
            "producer": producer,
            "graph": text,
            "nodes": _dump([{n.name: [n.origins, n.made_by] for n in g.nodes} for g in graphs]),
            "layouts": _dump({key: forms[v].layout for v, key in kept.items() if v in forms}),
            "shapes": _dump(model.shapes),
            "extras": _dump(model.extras),
        }
    )
    digest = xxhash.xxh3_128()
    for value, key in kept.items():
        for part in table.add(key, _stored(value, forms)):
            digest.update(part)
    digest.update(_canonical(table.metadata, table.entries))
    table.metadata["digest"] = digest.hexdigest()
    total = table.data_bytes
    again = Table({})
    with replacing(path) as stream:
        stream.write(table.encode())
        for value, key in kept.items():
            for part in again.add(key, _stored(value, forms)):
                stream.write(part)
            progress(again.data_bytes, total)


def read_compiled(path: Path) -> CompiledModel:
    """Maps a compiled model; its weights are views of the file.

    Raises:
        ModelError: It is damaged, no compiled model, or of a newer version.
    """
    header = read_header(path)
    _check(header)
    data = header.map()
    metadata = header.metadata
    _check_digest(header, data)
    layouts = _load(header, "layouts")

    def fetch(key: str, type_: TensorType) -> Array | StoredElements:
        array = _view(header, data, key, type_)
        if key not in layouts:
            return array
        restore = restoring(layouts[key], tuple(int(d) for d in type_.shape or ()))
        if restore is None:
            raise damaged(path, f"layout '{layouts[key]}' of '{key}' is unknown")
        return StoredElements(array, layouts[key], restore)

    try:
        graph = parse_graph(metadata["graph"], REGISTRY, fetch)
        for inner, nodes in zip(all_graphs(graph), _load(header, "nodes"), strict=True):
            for node in inner.nodes:
                origins, node.made_by = nodes[node.name]
                node.origins = tuple(origins)
            verify(inner)
        shapes = [{n: tuple(s) for n, s in each.items()} for each in _load(header, "shapes")]
    except (KeyError, ValueError, TypeError, RecursionError, PassError) as error:
        raise damaged(path, f"its graph cannot be read, {error!r}") from error
    return CompiledModel(graph, shapes, _load(header, "extras"))


def read_extras(path: Path) -> Mapping[str, Any]:
    """What belongs to a compiled model beside the graph; its weights are not looked at.

    Raises:
        ModelError: It is no compiled model, or of a newer version.
    """
    header = read_header(path)
    _check(header)
    extras: Mapping[str, Any] = _load(header, "extras")
    return extras


def _check(header: Header) -> None:
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise ModelError(
            f"{header.file} is no compiled model of clrt; make one by "
            f"clrt-convert SOURCE -o {header.file.stem}{SUFFIX}."
        )
    version = metadata.get("version", "")
    if not version.isdigit() or int(version) > VERSION:
        raise ModelError(
            f"{header.file} has version {version} of clrt's format and this clrt reads up to "
            f"{VERSION}: it was written by {metadata.get('producer')}; upgrade clrt, or convert "
            "the model again."
        )


def _check_digest(header: Header, data: NDArray[np.uint8]) -> None:
    metadata = dict(header.metadata)
    digest = metadata.pop("digest", "")
    start = header.data_start
    entries = {
        name: {
            "dtype": e.dtype,
            "shape": e.shape,
            "data_offsets": (e.start - start, e.stop - start),
        }
        for name, e in header.tensors.items()
    }
    found = xxhash.xxh3_128(data[start:].data)
    found.update(_canonical(metadata, entries))
    if found.hexdigest() != digest:
        raise damaged(header.file, "its checksum is wrong")


def _canonical(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    return json.dumps([metadata, entries], sort_keys=True).encode()


def _stored(value: Value, forms: Mapping[Value, Packed]) -> Array:
    elements = value.numbers
    assert elements is not None
    return forms[value].pack(elements) if value in forms else elements


def _stays_in_text(value: Value) -> bool:
    return value.dtype is DType.STRING or (
        value.dtype in _TEXT_DTYPES and prod(value.dims) <= _TEXT_ELEMS
    )


def _view(header: Header, data: NDArray[np.uint8], key: str, type_: TensorType) -> Array:
    entry = header.tensors[key]
    array = np.asarray(data[entry.start : entry.stop]).view(type_.dtype.numpy)
    shape = entry.shape if entry.dtype in _native(type_.dtype) else entry.shape[:-1]
    return array.reshape(shape)


def _native(dtype: DType) -> tuple[str, ...]:
    return tuple(code for code, known in safetensors.DTYPES.items() if known == dtype.numpy)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _load(header: Header, name: str) -> Any:
    try:
        return json.loads(header.metadata[name])
    except (KeyError, ValueError, RecursionError) as error:
        raise damaged(header.file, f"its {name} cannot be read, {error!r}") from error
