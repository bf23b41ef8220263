"""Imports ONNX models as `Graph`: names kept, functions inlined, every value typed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.graph import Defaults, Graph, Value
from clrt.ir.op import Array
from clrt.models.onnx.context import Context
from clrt.models.onnx.diagnostics import unsupported_error
from clrt.models.onnx.nodes import NodeImporter
from clrt.models.onnx.read import read_model
from clrt.models.onnx.scope import UNSUPPORTED_VALUE, Scope
from clrt.models.onnx.tensors import TensorReader
from clrt.models.onnx.types import tensor_type
from clrt.util.gc_control import gc_young_only

# Before this IR version all initializers are listed as inputs, and none may be overridden.
OVERRIDABLE_SINCE = 4


@gc_young_only
def import_model(source: str | Path | bytes | onnx.ModelProto) -> Graph:
    """Imports an ONNX model.

    Args:
        source: A file, its bytes, or the model itself. External data are read from the folder of
            the file.

    Returns:
        The graph. Initializers and Constant nodes are constants, even if the file lists them as
        inputs too (`Graph.defaults`). Functions, and ops that clrt lacks but ONNX defines by other
        ops, are inlined.

    Raises:
        ModelError: The file is missing, damaged or not valid ONNX.
        UnsupportedError: clrt lacks the opset, ops or dtypes; all unsupported nodes are listed.
        ShapeError: Shapes inside the model do not match.
    """
    return import_read(*read_model(source))


@gc_young_only
def import_read(
    model: onnx.ModelProto,
    tensors: TensorReader,
    given: Collection[str] = (),
    values: Mapping[str, Array] | None = None,
) -> Graph:
    """Imports a model that was read by `read_model`.

    Args:
        model: The model.
        tensors: Reader of the model's tensors.
        given: Names of initializers to import as inputs of the graph.
        values: Elements that replace the elements of initializers, by name; None for none.

    Raises:
        ModelError: The model is not valid ONNX.
        UnsupportedError: clrt lacks the opset, ops or dtypes; all unsupported nodes are listed.
        ShapeError: Shapes inside the model do not match.
    """
    context = Context(model, tensors, given, values)
    if context.functions:
        _ = context.max_visits  # raises if inlined functions exceed the limit
    graph = main_graph(context)
    texts = {p.key: p.value for p in model.metadata_props}
    # protobuf returns strings that are not UTF-8 as bytes.
    both = {k: v for k, v in texts.items() if isinstance(k, str) and isinstance(v, str)}
    graph.properties, graph.data_files = both, tensors.files
    constants = context.initializers if model.ir_version >= OVERRIDABLE_SINCE else {}
    names = tuple(i.name for i in model.graph.input if i.name in constants)
    if names and not given:
        graph.defaults = Defaults(names, lambda some: import_read(model, tensors, some, values))
    return graph


def main_graph(context: Context) -> Graph:
    """Imports the main graph of a model.

    Raises:
        ModelError: The model is not valid ONNX.
        UnsupportedError: clrt lacks ops or dtypes; all unsupported nodes are listed.
        ShapeError: Shapes inside the model do not match.
    """
    proto = context.graph
    for name in context.initializers:
        context.value_names.reserve(name)
    results = {name: name for node in proto.node for name in node.output}
    for name in results:
        context.value_names.reserve(name)
    scope = Scope(
        [],
        "",
        context.opsets,
        {},
        results,
        initializers=context.initializers,
        declared={i.name: i for i in (*proto.value_info, *proto.output)},
    )
    inputs = [_input(info, scope, context) for info in context.inputs]
    where = f"graph '{proto.name}'"
    NodeImporter(context).import_nodes(proto.node, scope, where)
    outputs = [context.output(info.name, scope, where) for info in proto.output]
    if context.unsupported:
        raise unsupported_error(context.unsupported)
    output_names = [info.name for info in proto.output]
    return Graph(proto.name or "main", inputs, outputs, scope.nodes, output_names)


def _input(info: onnx.ValueInfoProto, scope: Scope, context: Context) -> Value:
    """Adds an input of the main graph to its scope and returns it.

    Args:
        info: The input as the file declares it.
        scope: Scope of the main graph.
        context: Import state of the model.

    Returns:
        The input; `UNSUPPORTED_VALUE` if its type is unsupported.

    Raises:
        ModelError: The input has no name, or two inputs have the same name.
    """
    if not info.name or info.name in scope.env:
        raise ModelError(f"Two inputs of the model are named '{info.name}'; rename one.")
    context.value_names.reserve(info.name)
    try:
        value = Value(info.name, tensor_type(info, context.dims))
    except UnsupportedError as error:
        context.unsupported.append(str(error))
        value = UNSUPPORTED_VALUE
    scope.env[info.name] = value
    return value
