"""State shared by the parts of the importer while one model is imported."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import onnx

from clrt.errors import ModelError, UnsupportedError, without_title
from clrt.ir.dtypes import DType
from clrt.ir.graph import Names, Value
from clrt.ir.op import Array, TensorType
from clrt.models.onnx.diagnostics import note
from clrt.models.onnx.functions import initializers_of, local_functions, schema_of
from clrt.models.onnx.inline_budget import inlined_nodes
from clrt.models.onnx.nchwc import block_of
from clrt.models.onnx.read import opsets_of
from clrt.models.onnx.scope import UNSUPPORTED_VALUE, NodeCall, Scope
from clrt.models.onnx.tensors import TensorReader
from clrt.models.onnx.types import DimNames, captured_type

# Maximum number of imports per node, on average: loop bodies are imported again if the types of
# carried values change. Real models stay far below.
_MAX_IMPORTS = 16
_FEW_NODES = 2048


class ImportsNodes(Protocol):
    """Interface of `NodeImporter`, for the importers of subgraphs and decompositions."""

    def import_nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope, where: str) -> None:
        """Imports the nodes of a graph or of a function body into `scope`.

        Args:
            where: Name of the graph or function, for messages.
        """

    def import_node(self, call: NodeCall, scope: Scope) -> list[Value | None]:
        """Imports one node; returns its outputs, None for omitted ones."""


class Context:
    """The model under import, the names in use, and the unsupported nodes found so far.

    Args:
        model: The model.
        tensors: Reader of the model's tensors.
        given: Names of initializers to import as inputs of the graph.
        values: Elements that replace the elements of initializers, by name.

    Attributes:
        unsupported: Descriptions of unsupported nodes and values, for the error.
        missing_outputs: Description by placeholder, for outputs that clrt does not compute; it is
            added to `unsupported` if a node reads the output.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        tensors: TensorReader,
        given: Collection[str] = (),
        values: Mapping[str, Array] | None = None,
    ) -> None:
        self.graph = model.graph
        # Files before IR version 3 have no imports; they use opset 1.
        self.opsets = opsets_of(model.opset_import) or {"": 1}
        self.tensors = tensors
        self.functions = local_functions(model)
        initializers = {**initializers_of(model.graph), **(values or {})}
        self.initializers = {n: t for n, t in initializers.items() if n not in given}
        self.inputs = [i for i in self.graph.input if i.name not in self.initializers]
        self.dims = DimNames(self.inputs)
        self.value_names, self.node_names = Names(), Names()
        self.unsupported: list[str] = []
        self.missing_outputs: dict[Value, str] = {}
        self._visited = 0

    @cached_property
    def block(self) -> int:
        """Channels per block in the model's blocked layout (NCHWc).

        Raises:
            UnsupportedError: The number is unknown.
        """
        return block_of(self.graph)

    @cached_property
    def max_visits(self) -> int:
        """Maximum number of nodes to import, repeated imports of loops' subgraphs included.

        Raises:
            ModelError: The model exceeds CLRT_NODE_LIMIT with its functions inlined, or functions
                and subgraphs are nested too deep.
        """
        return _FEW_NODES + _MAX_IMPORTS * inlined_nodes(self.graph, self.functions)

    def visit(self, count: int, where: str) -> None:
        """Counts nodes about to be imported.

        Args:
            count: Number of nodes.
            where: Name of their graph or function, for messages.

        Raises:
            ModelError: `max_visits` nodes are exceeded.
        """
        self._visited += count
        if self._visited > _FEW_NODES and self._visited > self.max_visits:
            raise ModelError(
                f"{where} has nested loops whose shapes cannot be inferred; export the "
                "model with fixed shapes."
            )

    def refuse(self, call: NodeCall, reason: str | UnsupportedError = "") -> list[Value | None]:
        """Records an unsupported node, so that the import can continue and report all such nodes.

        Does not record a node that reads outputs of unsupported nodes, if its function body depends
        on the unknown types of these inputs: the node may be supported.

        Args:
            call: The node.
            reason: Why it is unsupported; "" if clrt lacks the op.

        Returns:
            Placeholders for the node's outputs; None for omitted ones.
        """
        if isinstance(reason, UnsupportedError):
            reason = without_title(str(reason), call.title, call.op_type)
        schema = schema_of(call.domain, call.op_type, call.opset)
        decomposes = schema is not None and schema.has_context_dependent_function
        # A context-dependent function body depends on input types, which a broken call lacks, so
        # its ops may be supported: do not report it.
        if reason or not (call.is_broken and decomposes):
            self.unsupported.append(note(call, reason))
        return broken(call)

    def look_up(self, name: str, scope: Scope) -> Value | None:
        """Returns the value of a name in a scope; None for a function input that the call omits.

        An initializer is read on first use. For a value of an enclosing graph, the subgraph's input
        that stands for it is returned (`captured`).

        Args:
            name: A name that is visible in the scope.
            scope: The scope.
        """
        if name in scope.env:
            known = scope.env[name]
            if known not in self.missing_outputs:
                return known
            self.unsupported.append(self.missing_outputs[known])
            return UNSUPPORTED_VALUE
        if name in scope.initializers:
            value: Value | None = self._initializer(name, scope)
        else:
            assert scope.outer is not None
            value = self.captured(self.look_up(name, scope.outer), scope)
        scope.env[name] = value
        return value

    def output(self, name: str, scope: Scope, where: str) -> Value:
        """Returns the value of a graph output; `UNSUPPORTED_VALUE` if its node is unsupported.

        Args:
            name: Name of the output.
            where: Name of the graph, for messages.

        Raises:
            ModelError: No value of the graph has this name.
        """
        if not scope.has(name):
            raise ModelError(
                f"No node computes the output '{name}' of {where}; export the model again."
            )
        return self.look_up(name, scope) or UNSUPPORTED_VALUE

    def captured(self, value: Value | None, scope: Scope) -> Value | None:
        """Returns the input of a subgraph that stands for a value of an enclosing graph.

        A dim of the value that is an expression becomes a symbol of the subgraph, bound when the
        subgraph runs.

        Args:
            value: Value of an enclosing graph; constants, placeholders and None are returned
                unchanged.
            scope: Scope of the subgraph; if the subgraph is inlined, `value` is returned unchanged.
        """
        if value is None or value is UNSUPPORTED_VALUE or (value.is_constant and value.has_numbers):
            return value
        if scope.outer is not None and scope.nodes is scope.outer.nodes:
            return value
        if value not in scope.captures:
            name = self.value_names.unique(scope.prefix + value.name)
            scope.captures[value] = Value(name, captured_type(value.type, scope.sizes))
        return scope.captures[value]

    def _initializer(self, name: str, scope: Scope) -> Value:
        """Reads an initializer as a constant; `UNSUPPORTED_VALUE` if its dtype is unsupported.

        Args:
            name: Name of the initializer.
            scope: Scope of the graph that has the initializer.
        """
        where = f"initializer '{name}'"
        stored = scope.initializers[name]
        try:
            if isinstance(stored, onnx.TensorProto):
                array = self.tensors.array(stored, where)
            elif isinstance(stored, onnx.SparseTensorProto):
                array = self.tensors.sparse(stored, where)
            else:
                array = np.asarray(stored)
            unique_name = (
                name if scope.outer is None else self.value_names.unique(scope.prefix + name)
            )
            return constant_value(unique_name, array, where)
        except UnsupportedError as error:
            self.unsupported.append(str(error))
            return UNSUPPORTED_VALUE


def broken(call: NodeCall) -> list[Value | None]:
    """Returns placeholders for the outputs of an unsupported node; None for omitted outputs."""
    return [UNSUPPORTED_VALUE if name else None for name in call.formals]


def constant_value(name: str, array: Array, where: str) -> Value:
    """Returns a constant with the elements of an array.

    Args:
        name: Name of the constant.
        where: Name of the tensor, for messages.

    Raises:
        UnsupportedError: clrt does not have the array's dtype.
    """
    try:
        dtype = DType.of(array.dtype)
    except ValueError as error:
        raise UnsupportedError(f"{where} has dtype {array.dtype}") from error
    return Value(name, TensorType(dtype, array.shape, array))
