"""Exports a graph as a model of standard ONNX.

The optimised IR is written with its names and symbolic dims: clrt-specific ops as ONNX's
(`decompositions`), constants as initializers, shape arithmetic as nodes (`shape_expressions`).
Shapes of intermediate values are omitted: with them ONNX Runtime 1.31 fuses residuals into
SkipLayerNormalization, which is slower than its parts (MiniLM, 8 x 128 tokens, one thread: 143 ms
with them, 116 without).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clrt.errors import PassError
from clrt.ir.dims import is_symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value, all_graphs
from clrt.ir.op import Array, TensorType
from clrt.models.onnx.export.fold_dynamic_quantize import fold_dynamic_quantize
from clrt.models.onnx.export.opsets import (
    attributes,
    choose_opset,
    min_inputs,
    opset_imports,
)
from clrt.models.onnx.export.shape_expressions import SymbolicConstants, reshape_numbers
from clrt.models.onnx.types import type_proto
from clrt.ops.base import Op
from clrt.ops.decompositions.export_rules.general import check_decomposable, decompose_all
from clrt.ops.movement.views import Reshape
from clrt.util.files import atomic_write

# Maximum bytes of inline weights: a protobuf message is limited to 2 GiB, of which 0.5 GiB remain
# for nodes and names.
MAX_INLINE_BYTES = 3 << 29
# Minimum bytes of a tensor in the external file. Smaller ones, such as shapes and axes, stay in the
# model, because ONNX Runtime reads them while loading it.
_MIN_EXTERNAL_BYTES = 1 << 10
# Alignment of external tensors in bytes: a page, so that they can be mapped.
_ALIGNMENT = 1 << 12


def export_model(graph: Graph) -> onnx.ModelProto:
    """Exports a graph as an ONNX model in memory.

    Args:
        graph: An optimised graph with symbolic dims; unchanged.

    Raises:
        UnsupportedError: ONNX cannot express some nodes; all are listed.
    """
    return _export(graph, _InlineTensors())


def save_model(graph: Graph, path: Path) -> None:
    """Writes a graph as an ONNX file.

    If weights exceed 1.5 GiB in total, they are written to `<name>.data` beside the file. Each file
    is written atomically.

    Raises:
        UnsupportedError: ONNX cannot express some nodes; all are listed.
        InputError: A file cannot be written.
    """
    weights = {v for g in all_graphs(graph) for v in g.constants() if v.has_numbers}
    if sum(v.nbytes for v in weights) <= MAX_INLINE_BYTES:
        content = export_model(graph).SerializeToString()
    else:
        data = path.with_name(f"{path.name}.data")
        with atomic_write(data) as stream:
            model = _export(graph, _ExternalTensors(stream, data.name))
        content = model.SerializeToString()
    with atomic_write(path) as stream:
        stream.write(content)


class _InlineTensors:
    """Stores the elements of tensors inside the ONNX model."""

    def tensor(self, array: Array, name: str) -> onnx.TensorProto:
        """Returns an ONNX tensor that holds the elements of an array."""
        if array.dtype.kind == "U":
            array = array.astype(object)
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


class _ExternalTensors(_InlineTensors):
    """Stores tensors of 1 KiB or more in a file beside the model.

    Args:
        file: The opened file.
        location: Name of the file, as the model refers to it.
    """

    def __init__(self, file: BinaryIO, location: str) -> None:
        self._file = file
        self._location = location

    def tensor(self, array: Array, name: str) -> onnx.TensorProto:
        tensor = super().tensor(array, name)
        if array.dtype.kind == "U" or array.nbytes < _MIN_EXTERNAL_BYTES:
            return tensor
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        entries = {"location": self._location, "offset": str(self._file.tell())}
        entries["length"] = str(self._file.write(tensor.raw_data))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, text in entries.items():
            tensor.external_data.add(key=key, value=text)
        return tensor


def _export(graph: Graph, store: _InlineTensors) -> onnx.ModelProto:
    """Returns a graph as an ONNX model.

    Args:
        graph: An optimised graph; unchanged.
        store: Storage of tensors: inside the model or in a file.

    Raises:
        UnsupportedError: ONNX cannot express some nodes; all are listed.
    """
    check_decomposable(graph)
    plain = {g: decompose_all(g) for g in all_graphs(graph)}
    for inner in plain.values():
        fold_dynamic_quantize(inner)
    opset = choose_opset(list(plain.values()))
    imports = opset_imports(list(plain.values()), opset)
    context = _ExportContext(plain, store, opset)
    proto = _GraphExporter(context, graph, None).main()
    model = helper.make_model(proto, producer_name="clrt", opset_imports=imports)
    helper.set_model_props(model, dict(graph.properties))
    model.ir_version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    if not all(o.type.tensor_type.HasField("shape") for o in proto.output):
        _declare_outputs(model)
    return model


def _declare_outputs(model: onnx.ModelProto) -> None:
    """Declares the shapes of outputs of unknown rank as ONNX infers them; ONNX requires shapes."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for output, typed in zip(model.graph.output, inferred.graph.output, strict=True):
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.CopyFrom(typed.type)


class _ExportContext:
    """State that the exporters of a model's graphs share.

    Attributes:
        plain: For each graph of the model, the same graph without clrt-specific ops.
        store: Storage of tensors.
        opset: Opset version of ai.onnx.
    """

    def __init__(self, plain: dict[Graph, Graph], store: _InlineTensors, opset: int) -> None:
        self.plain = plain
        self.store = store
        self.opset = opset
        self.names = Names()

    def attribute(self, value: Any) -> Any:
        """Returns an attribute's value as `onnx.helper.make_node` expects it: arrays as tensors."""
        return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


class _GraphExporter:
    """Exports one graph of a model: the main graph or a subgraph.

    Args:
        context: State that the exporters of the model's graphs share.
        graph: The graph.
        outer: Exporter of the enclosing graph; None for the main graph.
    """

    def __init__(self, context: _ExportContext, graph: Graph, outer: _GraphExporter | None) -> None:
        self.names: dict[Value, str] = {}
        self._context = context
        self._graph = context.plain[graph]
        self._outer = outer
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._symbolic = SymbolicConstants(self, self.source)

    def main(self) -> onnx.GraphProto:
        """Exports the graph as the main graph of a model."""
        graph = self._graph
        inputs = [self._formal(v, named=True) for v in graph.inputs]
        pairs = list(zip(graph.output_names, graph.outputs, strict=True))
        for name, value in pairs:
            self._context.names.unique(name)
            if value.producer is not None:
                self.names.setdefault(value, name)
        self._walk()
        for name, value in pairs:
            if self.names.get(value) != name:
                self._identity(value, name)
        outputs = [helper.make_value_info(n, type_proto(v.type)) for n, v in pairs]
        return self._proto(inputs, outputs)

    def inner(self, captured: Sequence[str]) -> onnx.GraphProto:
        """Exports the graph as a subgraph of a node.

        Args:
            captured: Names of the values of enclosing graphs that the subgraph reads. In the IR
                they are the last inputs of the subgraph; in ONNX they are not inputs.
        """
        graph = self._graph
        own_count = len(graph.inputs) - len(captured)
        inputs = [self._formal(v, named=False) for v in graph.inputs[:own_count]]
        self.names.update(zip(graph.inputs[own_count:], captured, strict=True))
        self._walk()
        outputs = []
        seen: set[str] = set()
        for value in graph.outputs:
            name = self._name(value)
            if value.producer is None or name in seen:
                name = self._identity(value, self._context.names.unique(f"{value.name}/out"))
            seen.add(name)
            outputs.append(helper.make_value_info(name, type_proto(value.type, named=False)))
        return self._proto(inputs, outputs)

    def _formal(self, value: Value, named: bool) -> onnx.ValueInfoProto:
        self.names[value] = name = self._context.names.unique(value.name)
        return helper.make_value_info(name, type_proto(value.type, named))

    def _identity(self, value: Value, name: str) -> str:
        self._nodes.append(helper.make_node("Identity", [self._name(value)], [name], name))
        return name

    def _proto(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """Returns the exported graph, with its nodes in topological order.

        Args:
            inputs: Declared inputs.
            outputs: Declared outputs.
        """
        nodes = _sorted(self._nodes)
        name = self._graph.name or "graph"
        return helper.make_graph(nodes, name, inputs, outputs, self._initializers)

    def _walk(self) -> None:
        """Names the outputs of all nodes, then exports the nodes."""
        for node in self._graph.nodes:
            for value in node.outputs:
                if value not in self.names:
                    self.names[value] = self._context.names.unique(value.name)
        for node in self._graph.nodes:
            self._node(node)

    def _node(self, node: Node) -> None:
        """Adds an IR node to the exported graph, with the attributes of the chosen opset.

        Values of enclosing graphs that a subgraph reads are inputs of the IR node, but not of the
        ONNX node.
        """
        op = node.op_as(Op)
        values = op.onnx_inputs(node.inputs)
        short = reshape_numbers(node) if op.name == "Reshape" else None
        if short is not None:
            op, target = Reshape(), node.arg(1)
            if target.numbers is None:
                values[1] = Value(target.name, TensorType(DType.INT64, short.shape, short))
        inputs = ["" if v is None else self._name(v) for v in values]
        own_count = len(inputs) - getattr(op, "captures", 0)
        node_attributes = {
            name: _GraphExporter(self._context, value, self).inner(inputs[own_count:])
            if isinstance(value, Graph)
            else self._context.attribute(value)
            for name, value in attributes(op, self._context.opset).items()
        }
        while own_count and not inputs[own_count - 1]:
            own_count -= 1
        lacking = min_inputs(op, self._context.opset) - own_count
        outputs = [self.names[v] for v in node.outputs]
        self._nodes.append(
            helper.make_node(
                op.name,
                [*inputs[:own_count], *[""] * lacking],
                outputs,
                node.name,
                domain=op.domain,
                **node_attributes,
            )
        )

    def _name(self, value: Value) -> str:
        """Returns the name of a value in the exported model; adds a constant on first use.

        Raises:
            PassError: No node computes the value.
        """
        name = self._known(value)
        if name is None:
            numbers = value.numbers
            if not value.is_constant:
                raise PassError(f"'{value.name}' is used but nothing computes it")
            if numbers is None:
                name = self._symbolic.constant(value)
            else:
                name = self.numbers(numbers, value.name)
            self.names[value] = name
        return name

    def _known(self, value: Value) -> str | None:
        """Returns the name of a value in this or an enclosing graph; None if it has none yet."""
        if value in self.names:
            return self.names[value]
        return None if self._outer is None else self._outer._known(value)

    def add(self, op_type: str, inputs: Sequence[str], name: str, **attrs: int) -> str:
        """Adds a node with one output and returns the output's name: `name`, made unique."""
        output = self._context.names.unique(name)
        self._nodes.append(helper.make_node(op_type, inputs, [output], output, **attrs))
        return output

    def numbers(self, data: Array, name: str) -> str:
        """Adds an initializer and returns its name: `name`, made unique."""
        name = self._context.names.unique(name)
        self._initializers.append(self._context.store.tensor(data, name))
        return name

    def source(self, symbol: str) -> tuple[str, int] | None:
        """Finds a value with an axis whose size is the given symbol.

        Inputs of this graph are preferred, then values of enclosing graphs.

        Returns:
            (name of the value, axis); None if there is none.
        """
        outer = None if self._outer is None else self._outer.source
        return (
            self._size(self._graph.inputs, symbol)
            or (outer(symbol) if outer else None)
            or self._size((v for n in self._graph.nodes for v in n.outputs), symbol)
        )

    def _size(self, values: Iterator[Value] | list[Value], symbol: str) -> tuple[str, int] | None:
        """Finds a value with an axis whose size is the given symbol.

        Args:
            values: Values to search.
            symbol: Name of the symbol.

        Returns:
            (name of the value, axis) of the first match; None if there is none.
        """
        for value in values:
            for axis, dim in enumerate(value.shape or ()):
                if is_symbol(dim) and str(dim) == symbol:
                    return self.names[value], axis
        return None


def _sorted(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Returns nodes in topological order; unchanged if they are sorted already.

    Raises:
        PassError: The nodes form a cycle.
    """
    producers = {name: i for i, node in enumerate(nodes) for name in node.output}
    state = [0] * len(nodes)
    order: list[onnx.NodeProto] = []
    for root in range(len(nodes)):
        stack = [root]
        while stack:
            at = stack[-1]
            reads = {producers[n] for n in _reads(nodes[at]) if n in producers} - {at}
            pending = sorted(i for i in reads if state[i] < 2)
            if state[at] == 2 or not pending:
                stack.pop()
                if state[at] < 2:
                    state[at] = 2
                    order.append(nodes[at])
                continue
            if any(state[i] == 1 for i in pending):
                raise PassError(f"the exported graph has a cycle at '{nodes[at].name}'")
            state[at] = 1
            stack += pending
    return order


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the names of values that a node and the nodes of its subgraphs read."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from _reads(inner)
