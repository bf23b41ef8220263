"""Reads and writes executables: files of plan templates, with the constants that they read.

An executable is a safetensors file beside the compiled programs of a device, in the user's cache.
Its metadata hold, as text,

| key | what |
|---|---|
| `format`, `version` | "clrt executable" and the version of this format |
| `key` | digest of all that the plans depend on: model, options, device, version of clrt |
| `record_digest` | XXH3-128 of the record and the texts, which is checked before a run |
| `digest` | XXH3-128 of the header without the digest, and of all bytes after the header |

Its tensor `record` holds JSON: the interface of the model, its constants, and its templates.
A template is a tensor with a JSON text, whose digest the record holds; it is read when sizes need
it. Tensors such as `text.tokenizer` hold other texts of the model. A constant is a tensor of the
file or a range of it, in the layout that kernels read, or a range of a file of the model.

An executable holds code of kernels, and addresses of which not all are checked, as program binaries
do; like these, it is read only from a folder that no other user can write to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.errors import ModelError
from clrt.formats.checksum import DigestCheck, digest_of, text_digest, write_with_digest
from clrt.formats.safetensors import SafetensorsHeader, read_header
from clrt.ir.dim_operations import parse_dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value, all_graphs
from clrt.ir.mmap_arrays import file_range
from clrt.ir.op import Array, PackedConstant, TensorType
from clrt.kernels.spec import PackedWeight
from clrt.plan.stored_template import (
    Constant,
    StoredTemplate,
    TemplateWriter,
    contract_row,
    read_contract,
)
from clrt.plan.template import PlanTemplate
from clrt.runtime.executables.branches import (
    BranchKey,
    BranchPath,
    StoredBranch,
    key_of,
    key_row,
)
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.util.files import stays_below

FORMAT = "clrt executable"
VERSION = "4"
_RECORD, _TEXT = "record", "text."
# Maximum bytes of a constant that lies in one tensor with others; a tensor takes 10 us to read.
_MAX_SHARED_BYTES = 16 << 10


class Origin(NamedTuple):
    """Origin of a constant of an executable.

    Attributes:
        number: Index among the constants of the model's graph and its subgraphs
            (`numbered_constants`); -1 if planning computed the constant, -2 if only the graph of a
            specialised branch has it.
        layout: Name of the packed layout; "" if the constant is not packed.
    """

    number: int
    layout: str


@dataclass
class Executable:
    """The content of an executable.

    Attributes:
        branch: Graph of the model, its plan templates, and the graphs that specialise it.
        origins: Where each constant comes from.
        shapes: Sets of input shapes that a compiled model was made for.
        check: Waits until checksums are verified; raises ModelError if a file is damaged.
        record: The record in the file.
        texts: Texts that are stored beside the plans, by name.
        bytes_of: Returns the bytes of a tensor of the file, by its name.
    """

    branch: StoredBranch
    origins: Mapping[Constant, Origin]
    shapes: Sequence[Mapping[str, tuple[int, ...]]]
    check: Callable[[], None]
    record: Mapping[str, Any]
    texts: Mapping[str, str]
    bytes_of: Callable[[str], Array]

    @property
    def graph(self) -> StoredGraph:
        """Graph of the model."""
        return self.branch.graph

    @property
    def templates(self) -> list[StoredTemplate]:
        """Plan templates of all graphs."""
        return [template for _, branch in self.branch.paths() for template in branch.templates]

    def serves(self, keys: tuple[BranchKey, ...], template: PlanTemplate) -> bool:
        """Returns whether a stored template holds at the sizes that another one was made with.

        Its plan must also have the same inputs and outputs on the device.

        Args:
            keys: Keys that lead to the graph of the other template.
            template: The other template, of the same model.
        """
        sizes, io = template.trace.sizes, template.plan.device_io
        branch = dict(self.branch.paths()).get(keys)
        mine = () if branch is None else (t for t in branch.templates if t.device_io == io)
        return any(t.holds(sizes) for t in mine)


def read_executable(path: Path, key: str, files: Sequence[Path]) -> Executable:
    """Reads an executable; its constants are views of mapped files.

    Args:
        key: Digest of what the plans depend on.
        files: Files of the model, to which ranges in the executable refer.

    Raises:
        ModelError, OSError: The file is missing, damaged, or one for another key.
        Exception: It is damaged; one of `clrt.plan.stored_checks.DAMAGED`. Templates are checked
            when they are read.
    """
    header = read_header(path)
    metadata = header.metadata
    found = metadata.get("format"), metadata.get("version"), metadata.get("key")
    if found != (FORMAT, VERSION, key):
        raise ModelError(f"'{path}' is not the executable {key}.")
    mapped = _MappedFiles(header)
    names = [name for name in header.tensors if name.startswith(_TEXT)]
    text, *more = (str(mapped.bytes_of(name).data, "utf-8") for name in (_RECORD, *names))
    # `check` may end after a run has begun; addresses must be right before.
    if text_digest([text, *names, *more]) != metadata["record_digest"]:
        raise ModelError(f"The record of '{path}' is damaged.")
    check = DigestCheck(header)
    record = json.loads(text)
    texts = {name.removeprefix(_TEXT): each for name, each in zip(names, more, strict=True)}
    folder = _folder_of(files)
    beside = [folder / name for name, _ in record["beside"] if stays_below(name)]
    if [digest_of([file]) for file in beside] != [digest for _, digest in record["beside"]]:
        raise ModelError(f"A file in '{folder}' was changed.")
    mapped.files = [*files, *beside]
    constants, origins = [], {}
    for row in record["constants"]:
        constant, origin = mapped.constant(*row)
        constants.append(constant)
        origins[constant] = origin
    branches: list[StoredBranch] = []
    for parent, key_text, choosing, by_shape, row in record["graphs"]:
        branches.append(StoredBranch(_graph(*row), choosing, bool(by_shape)))
        if parent >= 0:
            branches[parent].children[key_of(key_text)] = branches[-1]
            _check_child(branches[parent].graph, branches[-1].graph)
    for index, device_io, tensor, digest in record["templates"]:
        read = partial(mapped.template, tensor, digest)
        io, graph = read_contract(device_io), branches[index].graph
        template = StoredTemplate(io, read, constants, graph)
        branches[index].templates.append(template)
    shapes = [{n: tuple(dims) for n, dims in each.items()} for each in record["shapes"]]
    return Executable(branches[0], origins, shapes, check, record, texts, mapped.bytes_of)


def _graph(
    name: str,
    inputs: Iterable[Sequence[Any]],
    outputs: Iterable[Sequence[Any]],
    output_names: Sequence[str],
    properties: Mapping[str, str],
) -> StoredGraph:
    graph = StoredGraph(name, _values(inputs), _values(outputs), output_names, properties)
    names = [v.name for v in graph.inputs]
    for each in (names, output_names):
        if not all(type(n) is str for n in each) or len({*each}) < len(each):
            raise ValueError("a name twice, or none")
    if len(graph.outputs) != len(output_names):
        raise ValueError("an output without a name")
    return graph


def _check_child(graph: Graph, child: Graph) -> None:
    """Checks that a branch has the outputs of its parent graph, and only inputs of it.

    Args:
        graph: The parent graph.
        child: Graph of the branch.

    Raises:
        ValueError: The inputs or outputs differ.
    """
    known = {v.name: v.dtype for v in graph.inputs}
    outputs = [[v.dtype for v in each.outputs] for each in (graph, child)]
    if (
        graph.output_names != child.output_names
        or outputs[0] != outputs[1]
        or any(known.get(v.name) is not v.dtype for v in child.inputs)
    ):
        raise ValueError("a branch with other inputs or outputs")


def _folder_of(files: Sequence[Path]) -> Path:
    """Returns the folder of a model's files; the current one for a model without files."""
    return files[0].parent if files else Path()


def _values(rows: Iterable[Sequence[Any]]) -> list[Value]:
    return [
        Value(name, TensorType(DType(dtype), None if dims is None else tuple(map(_dim, dims))))
        for name, dtype, dims in rows
    ]


def _dim(dim: Any) -> Any:
    return parse_dim(dim) if isinstance(dim, str) else int(dim)


class _MappedFiles:
    """Maps the executable and the files of its model, each when it is first read.

    Attributes:
        files: Files of the model, to be set before one of their ranges is read.

    Args:
        header: Header of the executable.
    """

    def __init__(self, header: SafetensorsHeader) -> None:
        self._header = header
        self.files: Sequence[Path] = ()
        self._data: dict[int, Array] = {}

    def constant(
        self,
        index: int,
        layout: str,
        name: str,
        dtype: str,
        dims: Sequence[int],
        array: tuple[str, Sequence[int]],
        where: Any,
    ) -> tuple[Constant, Origin]:
        """Returns a constant of the record, and where it comes from.

        Args:
            index: `Origin.number` of the constant.
            layout: Name of the packed layout; "" if the constant is not packed.
            name: Name of the value.
            dtype: Dtype of the value.
            dims: Shape of the value.
            array: NumPy dtype and shape of the stored elements.
            where: Name of a tensor of the executable; or (name of a tensor, or index of a file of
                the model; first byte, end).
        """
        elements = self.bytes_of(where).view(_numpy_dtype(array[0])).reshape(tuple(array[1]))
        if not layout and (elements.shape, elements.dtype) != (tuple(dims), DType(dtype).numpy):
            raise ValueError("a constant of another type")
        known = PackedConstant(elements, layout, _not_restored) if layout else elements
        value = Value(name, TensorType(DType(dtype), tuple(map(int, dims)), known))
        origin = Origin(index, layout)
        if not layout:
            return value, origin
        return PackedWeight(value, layout, _not_restored, elements.nbytes), origin

    def template(self, name: str, digest: str) -> Mapping[str, Any]:
        """Returns the record of a template.

        Args:
            name: Name of its tensor.
            digest: Digest of its text.

        Raises:
            ValueError: The record is damaged.
        """
        text = str(self.bytes_of(name).data, "utf-8")
        if text_digest([text]) != digest:
            raise ValueError("a damaged template")
        return cast("Mapping[str, Any]", json.loads(text))

    def bytes_of(self, where: Any) -> Array:
        """Returns the bytes of a constant; `where` is that of `constant`."""
        parts: Sequence[Any] = [where] if isinstance(where, str) else where
        source, *ends = parts
        number = -1 if isinstance(source, str) else source
        if number not in self._data:
            path = self._header.file if number < 0 else self.files[number]
            # Slices of a plain array take a fifth of the time of slices of a np.memmap.
            self._data[number] = np.asarray(SafetensorsHeader(path, {}, {}, 0).map())
        data, low = self._data[number], 0
        high = len(data)
        if isinstance(source, str):
            entry = self._header.tensors[source]
            low, high = entry.start, min(entry.stop, high)
        first, end = (low + at for at in ends) if ends else (low, high)
        if not low <= first <= end <= high:
            raise ValueError("a constant outside its file or tensor")
        return data[first:end]


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name[1:]) if name[0] == "<" else DType(name).numpy


def _not_restored(array: Array) -> Array:
    raise TypeError("a stored constant is only for kernels")


@dataclass
class ExecutableWriter:
    """Collects the templates of a model and writes them as an executable.

    Attributes:
        graph: Graph of the model.
        files: Files of the model.
        shapes: Sets of input shapes that a compiled model was made for.
        texts: Texts to store beside the plans, by name.
        base: Executable whose constants, graphs and templates are written again; None for none.
    """

    graph: Graph
    files: Sequence[Path]
    shapes: Sequence[Mapping[str, Sequence[int]]]
    texts: Mapping[str, str]
    base: Executable | None = None
    _indices: dict[Value, int] = field(default_factory=dict)
    _rows: list[Any] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _tensors: dict[str, Array] = field(default_factory=dict)
    _templates: list[Any] = field(default_factory=list)
    _graphs: list[Any] = field(default_factory=list)
    # Bytes of small constants, and name of the tensor for them; "" if there are none.
    _shared: bytearray = field(default_factory=bytearray)
    _shared_name: str = ""

    def __post_init__(self) -> None:
        # Reads the nodes of a stored graph. There are new templates only if planning has read them.
        self._indices = {v: i for i, v in enumerate(numbered_constants(self.graph))}
        if self.base is not None:
            self._rows += self.base.record["constants"]
            self._templates += self.base.record["templates"]
            self._graphs += self.base.record["graphs"]
            wheres = [row[-1] for row in self._rows] + [row[2] for row in self._templates]
            names = {where if isinstance(where, str) else where[0] for where in wheres}
            self._tensors |= {n: self.base.bytes_of(n) for n in names if isinstance(n, str)}
            for index, (number, layout, *_) in enumerate(self._rows):
                if number >= 0:
                    self._numbers[Origin(number, layout)] = index

    @property
    def nbytes(self) -> int:
        """Size of the constants and template texts to write, in bytes."""
        return sum(array.nbytes for array in self._tensors.values()) + len(self._shared)

    @property
    def _beside(self) -> list[Path]:
        """Absolute paths of the files that the model's file refers to, such as external data."""
        return [path.absolute() for path in self.graph.data_files]

    def add_branch(self, path: BranchPath) -> int:
        """Returns the index of a branch; adds it at the first call. Its parent must be there."""
        parent = -1
        for depth in range(len(path.keys) + 1):
            key = key_row(path.keys[depth - 1]) if depth else None
            row = json.loads(_dump([parent, key]))  # lists in place of tuples
            rows = [each[:2] for each in self._graphs]
            if row not in rows:
                assert depth == len(path.keys)
                graph, branch = path.branch.graph, path.branch
                io = [[_value_row(v) for v in values] for values in (graph.inputs, graph.outputs)]
                interface = [graph.name, *io, graph.output_names, dict(graph.properties)]
                self._graphs.append([*row, list(branch.choosing), branch.by_shape, interface])
                for value in graph.constants():
                    self._indices.setdefault(value, -2)
                return len(rows)
            parent = rows.index(row)
        return parent

    def add(self, branch: int, template: PlanTemplate) -> None:
        """Adds a template.

        Args:
            branch: Index of the branch whose graph is planned.

        Raises:
            Unstorable: The template has parts that a file cannot hold.
        """
        text = _dump(TemplateWriter(template, self._constant).record())
        name = f"t{len(self._templates)}"
        self._tensors[name] = np.frombuffer(text.encode(), np.uint8)
        row = [branch, contract_row(template.device_io), name, text_digest([text])]
        self._templates.append(row)

    def _constant(self, constant: Constant) -> int:
        """Returns the index of a constant in the record; adds it at the first call."""
        value = constant.value if isinstance(constant, PackedWeight) else constant
        layout = constant.layout if isinstance(constant, PackedWeight) else ""
        origin = Origin(self._indices.get(value, -1), layout)
        key = origin if origin.number >= 0 else (value, layout)
        if key not in self._numbers:
            elements = _packed(constant) if isinstance(constant, PackedWeight) else value.numbers
            assert elements is not None
            elements = np.asarray(elements, order="C")
            self._numbers[key] = number = len(self._rows)
            array = [_dtype_text(elements.dtype), elements.shape]
            where: Any = self._range(elements)
            if where is None:
                where = self._store(number, elements)
            dims = value.dims
            self._rows.append([*origin, value.name, str(value.dtype), dims, array, where])
        return self._numbers[key]

    def _store(self, number: int, elements: Array) -> str | tuple[str, int, int]:
        """Adds the elements of a constant to the file; returns where they are in it.

        Args:
            number: Index of the constant.
            elements: The elements, in C order.

        Returns:
            Name of a tensor; for small constants (name of a tensor of several, first byte, end).
        """
        if elements.nbytes > _MAX_SHARED_BYTES:
            self._tensors[f"c{number}"] = elements
            return f"c{number}"
        self._shared_name = self._shared_name or f"c{number}"
        self._shared += bytes(-len(self._shared) % ALIGNMENT_BYTES)
        first = len(self._shared)
        self._shared += elements.tobytes()
        return self._shared_name, first, len(self._shared)

    def _range(self, elements: Array) -> tuple[int, int, int] | None:
        """Returns where a constant lies in a file of the model: (number of the file, first, end).

        None if it lies in none.
        """
        found = file_range(elements)
        names = [str(file) for file in (*self.files, *self._beside)]
        return (
            None if found is None or found[0] not in names else (names.index(found[0]), *found[1:])
        )

    def write(self, path: Path, key: str) -> None:
        """Writes the executable.

        Args:
            key: Digest of what the plans depend on.

        Raises:
            InputError, OSError: The file cannot be written.
        """
        folder = _folder_of(self.files)
        record = {
            "shapes": self.shapes,
            "beside": [[f.relative_to(folder).as_posix(), digest_of([f])] for f in self._beside],
            "graphs": self._graphs,
            "constants": self._rows,
            "templates": self._templates,
        }
        text = _dump(record)
        texts = {f"{_TEXT}{name}": each for name, each in self.texts.items()}
        metadata = {"format": FORMAT, "version": VERSION, "key": key}
        metadata["record_digest"] = text_digest([text, *texts, *texts.values()])
        stored = {_RECORD: text, **texts}
        tensors: dict[str, Callable[[], Array]] = {
            name: partial(np.frombuffer, each.encode(), np.uint8) for name, each in stored.items()
        }
        tensors |= {name: partial(np.asarray, array) for name, array in self._tensors.items()}
        if self._shared_name:
            tensors[self._shared_name] = partial(np.frombuffer, self._shared, np.uint8)
        write_with_digest(path, metadata, tensors, sync=False)  # a torn file fails its digest


def numbered_constants(graph: Graph) -> list[Value]:
    """Returns the constants of a graph and its subgraphs in the order of their numbers."""
    return list(dict.fromkeys(v for each in all_graphs(graph) for v in each.constants()))


def _value_row(value: Value) -> list[Any]:
    shape = value.shape
    dims = None if shape is None else [d if isinstance(d, int) else str(d) for d in shape]
    return [value.name, str(value.dtype), dims]


def _packed(weight: PackedWeight) -> Array:
    """Returns the elements of a weight in its packed layout."""
    known = weight.value.type.known_elements
    if isinstance(known, PackedConstant) and known.layout == weight.layout:
        return known.array
    array = weight.value.numbers
    assert array is not None
    return weight.pack(array)


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return str(DType.of(dtype)) if dtype.isbuiltin != 1 else dtype.str.replace("|", "<")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
