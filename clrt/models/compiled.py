"""Compiled models: the optimised graph and its weights in one file, ready to be mapped.

A compiled model is a safetensors file. Its metadata holds, as text,

| key | what |
|---|---|
| `format`, `version` | "clrt" and the version of this format |
| `producer` | the clrt version that wrote it |
| `graph` | the optimised graph in the IR's text form; `@"key"` names a stored tensor |
| `nodes` | JSON: by graph and node, its origins (ONNX nodes) and the pass that made it |
| `layouts` | JSON: layout of each packed tensor (`clrt.kernels.packed_layouts`) |
| `shapes` | JSON: the sets of input shapes it was compiled for |
| `extras` | JSON: other data of the model (tokenizer, conversion settings) |
| `properties` | JSON: metadata strings of the ONNX file by name; may be absent |
| `digest` | XXH3-128 of the header without the digest, and of all bytes after the header |

It contains no code and no pickle. All of its content is checked before use. Weights are aligned, so
that a CPU device reads them from the mapped file. For a device that needs another layout, the
weights are unpacked and packed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import ClrtError, ModelError, OutOfMemoryError
from clrt.formats import safetensors
from clrt.formats.checksum import DigestCheck, write_with_digest
from clrt.formats.safetensors import (
    PADDING,
    SafetensorsHeader,
    damaged,
)
from clrt.ir.dims import Dim, Expr, is_symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value, all_graphs
from clrt.ir.op import Array, PackedConstant, TensorType
from clrt.ir.parse import parse_graph
from clrt.ir.text import print_graph
from clrt.ir.verify import verify
from clrt.kernels.packed_layouts import packed_shape, restoring
from clrt.kernels.spec import PackedWeight
from clrt.models.compiled_file import (
    FORMAT,
    VERSION,
    extras_of,
    is_object,
    json_of,
    load_json,
    open_compiled,
    text_of,
)
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.util.fast_dataclass import dataclass

# Maximum number of elements of a constant printed in the graph's text; a stored tensor would take a
# page and a header entry.
_TEXT_ELEMS = 16
_TEXT_DTYPES = {DType.BOOL, DType.INT32, DType.INT64}


@dataclass(frozen=True)
class CompiledModel:
    """The content of a compiled model.

    Attributes:
        graph: The optimised graph.
        shapes: Sets of input shapes (by input name) that the model was compiled for.
        extras: Further data of the model as JSON values by name (tokenizer, conversion settings).
        check: Waits until the file's checksum is verified (in a thread if the file is large);
            raises ModelError if the file is damaged.
    """

    graph: Graph
    shapes: Sequence[Mapping[str, tuple[int, ...]]] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None


def write_compiled(
    model: CompiledModel,
    path: Path,
    producer: str,
    packed: Iterable[PackedWeight] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Writes a compiled model. If that fails, `path` is unchanged.

    Args:
        producer: The clrt version to record.
        packed: Packed weights to store instead of the graph's weights, if clrt can unpack their
            layout again.
        progress: Called with (bytes written, total bytes).

    Raises:
        InputError: The file cannot be written.
    """
    graphs = list(all_graphs(model.graph))
    forms = {p.value: p for p in packed if restoring(p.layout, p.value.dims) is not None}
    keys: dict[Value, str] = {}

    def store(value: Value) -> str | None:
        if not value.has_numbers or _stays_in_text(value):
            return None
        return keys.setdefault(value, f"{len(keys)}/{value.name}")

    text = print_graph(model.graph, store)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "producer": producer,
        "graph": text,
        "nodes": _dump([{n.name: [n.origins, n.made_by] for n in g.nodes} for g in graphs]),
        "layouts": _dump({key: forms[v].layout for v, key in keys.items() if v in forms}),
        "shapes": _dump(model.shapes),
        "extras": _dump(model.extras),
    }
    if model.graph.properties:
        metadata["properties"] = _dump(model.graph.properties)
    tensors = {key: partial(_stored, value, forms) for value, key in keys.items()}
    write_with_digest(path, metadata, tensors, progress)


def read_compiled(source: Path | SafetensorsHeader) -> CompiledModel:
    """Reads a compiled model; its weights are views of the mapped file.

    The file is not trusted: its checksum detects accidents only, because anyone can compute it.
    Types and shapes are inferred again.

    Args:
        source: The file, or its header from `open_compiled`.

    Raises:
        ModelError: The file is damaged, invalid, not a compiled model, or of a newer version.
        OutOfMemoryError: The graph needs more host memory than CLRT_HOST_LIMIT.
    """
    header = open_compiled(source) if isinstance(source, Path) else source
    path, data = header.file, header.map()
    check = DigestCheck(header)
    layouts = json_of(header, "layouts", lambda v: is_object(v, str))
    unread = dict.fromkeys(key for key in header.tensors if not key.startswith(PADDING))

    def fetch(key: str, type_: TensorType) -> Array | PackedConstant:
        unread.pop(key, None)
        return _stored_elements(header, data, key, type_, layouts.get(key))

    try:
        graph = parse_graph(text_of(header, "graph"), REGISTRY, fetch)
        graphs = list(all_graphs(graph))
        _set_origins(graphs, load_json(header, "nodes"))
        values = [v for g in graphs for v in (*g.inputs, *(v for n in g.nodes for v in n.outputs))]
        known_symbols = _symbols(dim for v in values for dim in v.shape or () if is_symbol(dim))
        for value in values:
            _check_symbols(value, value.shape or (), known_symbols)
        for inner in graphs:
            _check_graph(inner, known_symbols)
        shapes = _input_shapes(graph, load_json(header, "shapes"))
        if "properties" in header.metadata:
            graph.properties = json_of(header, "properties", lambda v: is_object(v, str))
    except OutOfMemoryError:
        raise
    except ClrtError as error:
        raise damaged(path, str(error).rstrip(".")) from error
    except Exception as error:
        # Parsing and inference fail only if the file is damaged; the traceback keeps the cause.
        raise damaged(path, f"its graph cannot be read, {error!r}") from error
    if unread:
        raise damaged(path, f"no constant of its graph is tensor '{next(iter(unread))}'")
    return CompiledModel(graph, shapes, extras_of(header), check)


def _stored(value: Value, forms: Mapping[Value, PackedWeight]) -> Array:
    """Returns the elements of a constant as the file stores them, packed or plain.

    Args:
        value: The constant.
        forms: Packed weight by constant, for constants that are stored packed.
    """
    elements = value.numbers
    assert elements is not None
    return forms[value].pack(elements) if value in forms else elements


def _stays_in_text(value: Value) -> bool:
    return value.dtype is DType.STRING or (
        value.dtype in _TEXT_DTYPES and prod(value.dims) <= _TEXT_ELEMS
    )


def _stored_elements(
    header: SafetensorsHeader,
    data: NDArray[np.uint8],
    key: str,
    type_: TensorType,
    layout: str | None,
) -> Array | PackedConstant:
    """Returns the elements of a constant of the graph: an array, or the packed form in the file.

    Args:
        data: All bytes of the mapped file.
        key: Name of the tensor in the file.
        type_: Type of the constant.
        layout: Layout of the packed form; None if the tensor is not packed.

    Raises:
        ModelError: The tensor is missing, its layout is unknown, it has another dtype or shape than
            `type_`, or values that its dtype cannot hold.
    """
    entry, dims = header.tensors.get(key), type_.static_shape
    if entry is None or dims is None:
        raise ModelError(f"there is no tensor '{key}'")
    stored = dims if layout is None else packed_shape(layout, dims)
    if stored is None:
        raise ModelError(f"layout '{layout}' of '{key}' is unknown or not one for {type_}")
    dtype = type_.dtype.numpy
    native = next((code for code, known in safetensors.DTYPES.items() if known == dtype), None)
    # A dtype that safetensors lacks is stored as bytes, with the item size as last axis.
    code, shape = ("U8", (*stored, dtype.itemsize)) if native is None else (native, stored)
    if type_.dtype is DType.STRING or (entry.dtype, entry.shape) != (code, shape):
        raise ModelError(
            f"tensor '{key}' is {entry.dtype}{list(entry.shape)}, which does not match {type_}"
        )
    bits = data[entry.start : entry.stop]
    if type_.dtype.element_bits < 8 and np.any(bits >> type_.dtype.element_bits):
        raise ModelError(f"tensor '{key}' has elements that are not {type_.dtype}")
    array = np.asarray(bits).view(dtype).reshape(stored)
    if layout is None:
        return array
    restore = restoring(layout, dims)
    assert restore is not None
    return PackedConstant(array, layout, restore)


def _check_graph(graph: Graph, known_symbols: Set[str]) -> None:
    """Checks invariants that passes establish, for a graph that was read from an untrusted file.

    Args:
        known_symbols: Symbols that a run binds to numbers: each is by itself the size of an axis of
            some value.

    Raises:
        ClrtError: An invariant does not hold.
    """
    verify(graph)
    if len(set(graph.output_names)) < len(graph.output_names):
        raise ModelError(f"two outputs of graph '{graph.name}' have one name")
    for value in graph.constants():
        if not value.has_numbers and value.type.data is not None:
            _check_symbols(value, value.type.data.flat, known_symbols)
    for node in graph.nodes:
        node.op_as(Op).check_tables(node.input_types)


def _check_symbols(value: Value, dims: Iterable[Dim], known_symbols: Set[str]) -> None:
    if unknown := _symbols(dims) - known_symbols:
        raise ModelError(f"symbol '{min(unknown)}' of '{value.name}' is not a dim of any value")


def _symbols(dims: Iterable[Dim]) -> set[str]:
    return set().union(*(d.symbols for d in dims if isinstance(d, Expr)))


def _set_origins(graphs: Sequence[Graph], record: Any) -> None:
    """Sets the origins (ONNX nodes) of each node, and the pass that made it.

    Args:
        graphs: The graph of the model and its subgraphs.
        record: Parsed JSON of the file's `nodes` entry.

    Raises:
        ModelError: `record` does not match the graphs.
    """
    if not isinstance(record, list) or len(record) != len(graphs):
        raise ModelError(f"its node records are not for {len(graphs)} graphs")
    for graph, nodes in zip(graphs, record, strict=True):
        if not isinstance(nodes, dict) or nodes.keys() != {n.name for n in graph.nodes}:
            raise ModelError(f"its node records do not match graph '{graph.name}'")
        for node in graph.nodes:
            origins, node.made_by = _origins_of(node, nodes[node.name])
            node.origins = tuple(origins)


def _origins_of(node: Node, record: Any) -> tuple[list[str], str]:
    if isinstance(record, list) and len(record) == 2:
        origins, made_by = record
        texts = isinstance(origins, list) and all(isinstance(o, str) for o in origins)
        if texts and isinstance(made_by, str):
            return origins, made_by
    raise ModelError(f"the origins of {node} are not valid")


def _input_shapes(graph: Graph, record: Any) -> list[dict[str, tuple[int, ...]]]:
    """Returns the sets of input shapes that a model was compiled for, each by input name.

    Args:
        record: Parsed JSON of the file's `shapes` entry.

    Raises:
        ModelError: `record` names unknown inputs, or has no valid sizes.
    """
    names = {v.name for v in graph.inputs}
    if not isinstance(record, list) or not all(is_object(each, list) for each in record):
        raise ModelError("its input shapes are not lists")
    for each in record:
        if not each.keys() <= names:
            raise ModelError("its input shapes name unknown inputs")
        if not all(type(n) is int and 0 <= n < 1 << 31 for shape in each.values() for n in shape):
            raise ModelError("its input shapes have invalid sizes")
    return [{n: tuple(s) for n, s in each.items()} for each in record]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
