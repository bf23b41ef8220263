"""Facts about an ONNX file, whether or not clrt can run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import onnx

from clrt.ir.dtypes import DType
from clrt.models.onnx.read import normal_domain, opsets_of, read_model
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class Parameters:
    """Size of all initializers of one dtype in an ONNX file.

    Attributes:
        dtype: Name of the dtype.
        elements: Number of elements in all these initializers.
        nbytes: Size of the elements in bytes; 0 for a dtype that clrt does not have.
    """

    dtype: str
    elements: int
    nbytes: int


@dataclass(frozen=True)
class FileInfo:
    """Facts about an ONNX file.

    Attributes:
        producer: Name and version of the producer.
        ir_version: ONNX IR version.
        opsets: Opset version by domain; the default domain is "ai.onnx".
        functions: Number of functions that the file defines.
        inputs: Text with name, dtype and dims of each input; initializers are not inputs.
        outputs: Text with name, dtype and dims of each output.
        ops: Number of nodes by op, most frequent first, including nodes in subgraphs.
        parameters: Size of the initializers of each dtype.
    """

    producer: str
    ir_version: int
    opsets: dict[str, int]
    functions: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: dict[str, int]
    parameters: tuple[Parameters, ...]


def read_info(source: str | Path | bytes | onnx.ModelProto) -> FileInfo:
    """Reads the facts about an ONNX model.

    Args:
        source: A file, its bytes, or the model itself.

    Raises:
        ModelError: The file is missing, damaged or not valid ONNX.
        UnsupportedError: The opset is newer than the `onnx` package knows.
    """
    model, _ = read_model(source)
    graph = model.graph
    given = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    opsets = {domain or "ai.onnx": v for domain, v in opsets_of(model.opset_import).items()}
    return FileInfo(
        f"{model.producer_name} {model.producer_version}".strip(),
        model.ir_version,
        opsets,
        len(model.functions),
        tuple(_text(i) for i in graph.input if i.name not in given),
        tuple(_text(o) for o in graph.output),
        dict(Counter(op_name(n.domain, n.op_type) for n in _nodes(graph)).most_common()),
        tuple(_parameters(graph)),
    )


def op_name(domain: str, op_type: str) -> str:
    """Returns the name of an op, prefixed by its domain and a dot unless that is ai.onnx."""
    normal = normal_domain(domain)
    return f"{normal}.{op_type}" if normal else op_type


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attr in node.attribute:
            for inner in (*([attr.g] if attr.HasField("g") else []), *attr.graphs):
                yield from _nodes(inner)


def _parameters(graph: onnx.GraphProto) -> Iterable[Parameters]:
    """Returns the size of the initializers of each dtype, the dtype with most elements first."""
    elements: Counter[str] = Counter()
    bits: Counter[str] = Counter()
    tensors = [(t.data_type, prod(t.dims)) for t in graph.initializer]
    tensors += [(s.values.data_type, prod(s.values.dims)) for s in graph.sparse_initializer]
    for code, count in tensors:
        dtype = DType.from_onnx(code)
        name = _dtype(code)
        elements[name] += count
        bits[name] += 0 if dtype is None else count * dtype.file_bits
    return [Parameters(n, c, -(-bits[n] // 8)) for n, c in elements.most_common()]


def _text(info: onnx.ValueInfoProto) -> str:
    """Returns an input or output as text: "x: float32[batch, 3]"; "?" stands for unknown dims."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return f"{info.name}: {(kind or 'unknown').removesuffix('_type').replace('_', ' ')}"
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return f"{info.name}: {_dtype(tensor.elem_type)}[?]"
    dims = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
    return f"{info.name}: {_dtype(tensor.elem_type)}[{', '.join(d or '?' for d in dims)}]"


def _dtype(code: int) -> str:
    dtype = DType.from_onnx(code)
    return str(dtype) if dtype is not None else onnx.TensorProto.DataType.Name(code).lower()
