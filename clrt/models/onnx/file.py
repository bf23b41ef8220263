"""An ONNX file that is read once: its metadata, and graphs for several sets of sizes and values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.onnx.functions import initializers_of
from clrt.models.onnx.importer import OVERRIDABLE_SINCE, import_read
from clrt.models.onnx.read import read_model
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class FileValue:
    """An input or output of an ONNX model as the file declares it.

    Attributes:
        name: Name of the value.
        type: Type in the notation of ONNX's schemas: "tensor(float)",
            "seq(map(int64,tensor(float)))".
        shape: For each axis its size, the text of a symbolic dim, or None for an unknown size; None
            for an unknown rank, and for sequences, maps and sparse tensors.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class FileMetadata:
    """The metadata of an ONNX file.

    Attributes:
        producer: Name of the program that wrote the file; "" if absent.
        domain: Domain of the model; "" if absent.
        version: The producer's version number of the model; 0 if absent.
        description: Description of the model; "" if absent.
        graph_name: Name of the main graph; "" if absent.
        graph_description: Description of the main graph; "" if absent.
        properties: The file's metadata_props: strings by name.
    """

    producer: str
    domain: str
    version: int
    description: str
    graph_name: str
    graph_description: str
    properties: Mapping[str, str]


class OnnxFile:
    """An opened ONNX model.

    Args:
        source: A file or its bytes.
        sizes: Sizes to set for symbolic dims of inputs, by symbol; None for none.
        denoted: Sizes to set for dims of inputs by denotation, such as "DATA_BATCH"; None for none.
        files: Bytes of external data by location, which replace files on disk; None for none.

    Attributes:
        inputs: Inputs that a run requires.
        overridable: Initializers that a run may override.
        outputs: Outputs of a run.

    Raises:
        ModelError: The file is missing, damaged, not ONNX, or has no graph.
        UnsupportedError: The opset is newer than the `onnx` package knows.
    """

    def __init__(
        self,
        source: str | Path | bytes,
        sizes: Mapping[str, int] | None = None,
        denoted: Mapping[str, int] | None = None,
        files: Mapping[str, Array] | None = None,
    ) -> None:
        self._model, self._tensors = read_model(source)
        self._tensors.hold(files or {})
        graph = self._model.graph
        self._initializers: Mapping[str, Any] = initializers_of(graph)
        for dim in _dims(graph.input):
            size = (sizes or {}).get(dim.dim_param, (denoted or {}).get(dim.denotation))
            if size is not None and not dim.dim_value:
                dim.dim_value = size
        self.inputs = tuple(_value(i) for i in graph.input if i.name not in self._initializers)
        self.outputs = tuple(map(_value, graph.output))
        overrides = self._model.ir_version >= OVERRIDABLE_SINCE
        listed = [i for i in graph.input if i.name in self._initializers]
        self.overridable = tuple(map(_value, listed)) if overrides else ()

    @property
    def metadata(self) -> FileMetadata:
        """The file's metadata."""
        model = self._model
        return FileMetadata(
            model.producer_name,
            model.domain,
            model.model_version,
            model.doc_string,
            model.graph.name,
            model.graph.doc_string,
            {p.key: p.value for p in model.metadata_props},
        )

    def separate_dims(self) -> None:
        """Makes the symbolic dims of inputs independent of each other, whatever their names."""
        for dim in _dims(self._model.graph.input):
            if dim.WhichOneof("value") == "dim_param":
                dim.ClearField("dim_param")

    def graph(
        self, given: Collection[str] = (), values: Mapping[str, Array] | None = None
    ) -> Graph:
        """Imports the graph, before any pass.

        Args:
            given: Names of overridable initializers to import as inputs.
            values: Elements that replace the elements of initializers, by name; None for none.

        Raises:
            ModelError: The file is not valid ONNX.
            UnsupportedError: clrt lacks the opset, ops or dtypes; all unsupported nodes are listed.
            ShapeError: Shapes inside the model do not match.
        """
        return import_read(self._model, self._tensors, given, values)

    def constant(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Returns the type, such as "tensor(float)", and the shape of an initializer.

        Returns None if the file has no initializer of this name.
        """
        initializer = self._initializers.get(name)
        if initializer is None:
            return None
        type_ = (
            initializer.values if isinstance(initializer, onnx.SparseTensorProto) else initializer
        )
        return _tensor_text(type_.data_type), tuple(initializer.dims)


def _dims(
    infos: Iterable[onnx.ValueInfoProto],
) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for info in infos:
        yield from info.type.tensor_type.shape.dim


def _value(info: onnx.ValueInfoProto) -> FileValue:
    """Returns the name, type and shape of an input or output, as the file declares them.

    The shape of an optional is that of its tensor.
    """
    type_ = info.type
    text = _type_text(type_)
    if type_.WhichOneof("value") == "optional_type":
        type_ = type_.optional_type.elem_type
    tensor = type_.tensor_type
    if not tensor.HasField("shape"):
        return FileValue(info.name, text, None)
    return FileValue(info.name, text, tuple(map(_size, tensor.shape.dim)))


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.WhichOneof("value") == "dim_value":
        # Some exporters write -1 for "any".
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return dim.dim_param or None


def _type_text(proto: onnx.TypeProto) -> str:
    match proto.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_type_text(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_type_text(proto.optional_type.elem_type)})"
        case "map_type":
            key = _element_text(proto.map_type.key_type)
            return f"map({key},{_type_text(proto.map_type.value_type)})"
        case "sparse_tensor_type":
            return f"sparse_{_tensor_text(proto.sparse_tensor_type.elem_type)}"
    return _tensor_text(proto.tensor_type.elem_type)


def _tensor_text(elem_type: int) -> str:
    return f"tensor({_element_text(elem_type)})"


def _element_text(elem_type: int) -> str:
    names = onnx.TensorProto.DataType
    return names.Name(elem_type).lower() if elem_type in names.values() else "undefined"
