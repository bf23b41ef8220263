"""A graph as a model of standard ONNX.

The optimised IR goes out with its names and symbolic dims: ops of clrt's own as ONNX's
(`decompositions`), constants as initializers, shape arithmetic as nodes (`symbolic`). The shapes of
what lies between are left out: with them ONNX Runtime 1.31 fuses residuals into
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
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.models.onnx.export.fold_dynamic_quantize import recompose
from clrt.models.onnx.export.opsets import (
    attributes,
    choose_opset,
    least_inputs,
    opset_imports,
)
from clrt.models.onnx.export.shape_expressions import SymbolicConstants, reshape_numbers
from clrt.models.onnx.types import type_proto
from clrt.ops.base import Op, all_graphs
from clrt.ops.decompositions.export_rules.general import check_decomposable, decompose_all
from clrt.ops.movement.views import Reshape
from clrt.util.files import atomic_write

# protobuf messages end at 2 GiB; this leaves room for everything that is no weight.
MAX_INLINE_BYTES = 3 << 29
# A smaller tensor stays in the model: ONNX Runtime reads shapes and axes when it loads it.
_MIN_EXTERNAL_BYTES = 1 << 10
# Tensors start where a system may map them.
_ALIGNMENT = 1 << 12


def export_model(graph: Graph) -> onnx.ModelProto:
    """Returns the ONNX model that computes what a graph does.

    Args:
        graph: With symbolic dims, as the optimiser leaves it; it stays as it is.

    Raises:
        UnsupportedError: ONNX has no form for some nodes; all are named.
    """
    return _export(graph, _InlineTensors())


def save_model(graph: Graph, path: Path) -> None:
    """Writes the ONNX model that computes what a graph does.

    Weights of more than 1.5 GiB in all go into `<name>.data` beside the file. Each file appears
    whole or not at all.

    Raises:
        UnsupportedError: ONNX has no form for some nodes; all are named.
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
    """Tensors in the model itself."""

    def tensor(self, array: Array, name: str) -> onnx.TensorProto:
        """Returns a tensor with these elements."""
        if array.dtype.kind == "U":
            array = array.astype(object)
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


class _ExternalTensors(_InlineTensors):
    """Large tensors in a file beside the model."""

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
    check_decomposable(graph)
    plain = {g: decompose_all(g) for g in all_graphs(graph)}
    for inner in plain.values():
        recompose(inner)
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
    """Gives outputs of unknown rank the shape that ONNX's own inference finds: they need one."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for output, found in zip(model.graph.output, inferred.graph.output, strict=True):
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.CopyFrom(found.type)


class _ExportContext:
    """What the graphs of a model share.

    Attributes:
        plain: Each graph without ops of clrt's own.
    """

    def __init__(self, plain: dict[Graph, Graph], store: _InlineTensors, opset: int) -> None:
        self.plain = plain
        self.store = store
        self.opset = opset
        self.names = Names()

    def attribute(self, value: Any) -> Any:
        """Returns an attribute as `make_node` takes it."""
        return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


class _GraphExporter:
    """One graph on its way into ONNX; `outer` is the one around it."""

    def __init__(self, context: _ExportContext, graph: Graph, outer: _GraphExporter | None) -> None:
        self.names: dict[Value, str] = {}
        self._context = context
        self._graph = context.plain[graph]
        self._outer = outer
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._symbolic = SymbolicConstants(self, self.source)

    def main(self) -> onnx.GraphProto:
        """Returns the graph of the model."""
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
        """Returns the graph of a node; its last inputs are the values that it captures."""
        graph = self._graph
        own = len(graph.inputs) - len(captured)
        inputs = [self._formal(v, named=False) for v in graph.inputs[:own]]
        self.names.update(zip(graph.inputs[own:], captured, strict=True))
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
        nodes = _sorted(self._nodes)
        name = self._graph.name or "graph"
        return helper.make_graph(nodes, name, inputs, outputs, self._initializers)

    def _walk(self) -> None:
        for node in self._graph.nodes:
            for value in node.outputs:
                if value not in self.names:
                    self.names[value] = self._context.names.unique(value.name)
        for node in self._graph.nodes:
            self._node(node)

    def _node(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, Op)
        values = op.onnx_inputs(node.inputs)
        short = reshape_numbers(node) if op.name == "Reshape" else None
        if short is not None:
            op, target = Reshape(), node.arg(1)
            if target.numbers is None:
                values[1] = Value(target.name, TensorType(DType.INT64, short.shape, short))
        inputs = ["" if v is None else self._name(v) for v in values]
        own = len(inputs) - getattr(op, "captures", 0)
        given = {
            name: _GraphExporter(self._context, value, self).inner(inputs[own:])
            if isinstance(value, Graph)
            else self._context.attribute(value)
            for name, value in attributes(op, self._context.opset).items()
        }
        while own and not inputs[own - 1]:
            own -= 1
        lacking = least_inputs(op, self._context.opset) - own
        outputs = [self.names[v] for v in node.outputs]
        self._nodes.append(
            helper.make_node(
                op.name,
                [*inputs[:own], *[""] * lacking],
                outputs,
                node.name,
                domain=op.domain,
                **given,
            )
        )

    def _name(self, value: Value) -> str:
        found = self._known(value)
        if found is None:
            numbers = value.numbers
            if not value.is_constant:
                raise PassError(f"'{value.name}' is used but nothing computes it")
            if numbers is None:
                found = self._symbolic.constant(value)
            else:
                found = self.numbers(numbers, value.name)
            self.names[value] = found
        return found

    def _known(self, value: Value) -> str | None:
        if value in self.names:
            return self.names[value]
        return None if self._outer is None else self._outer._known(value)

    def add(self, op_type: str, inputs: Sequence[str], name: str, **attrs: int) -> str:
        """Returns the output of a new node."""
        output = self._context.names.unique(name)
        self._nodes.append(helper.make_node(op_type, inputs, [output], output, **attrs))
        return output

    def numbers(self, data: Array, name: str) -> str:
        """Returns a new initializer."""
        name = self._context.names.unique(name)
        self._initializers.append(self._context.store.tensor(data, name))
        return name

    def source(self, symbol: str) -> tuple[str, int] | None:
        """Returns a value, and its axis, whose size is a symbol: an input if it can."""
        outer = None if self._outer is None else self._outer.source
        return (
            self._size(self._graph.inputs, symbol)
            or (outer(symbol) if outer else None)
            or self._size((v for n in self._graph.nodes for v in n.outputs), symbol)
        )

    def _size(self, values: Iterator[Value] | list[Value], symbol: str) -> tuple[str, int] | None:
        for value in values:
            for axis, dim in enumerate(value.shape or ()):
                if is_symbol(dim) and str(dim) == symbol:
                    return self.names[value], axis
        return None


def _sorted(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Returns the nodes in topological order; they keep their order where it is one."""
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
    """Names that a node reads, including those that its subgraphs capture."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node if attribute.HasField("g") else ():
            yield from _reads(inner)
