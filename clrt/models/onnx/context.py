"""What the parts of the importer share while one model is read."""

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

# How often a loop's subgraph may be imported again, over all levels; real models stay far below.
_MAX_IMPORTS = 16
_FEW_NODES = 2048


class ImportsNodes(Protocol):
    """`NodeImporter`, for the parts of the importer that it calls and that call it."""

    def import_nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope, where: str) -> None:
        """Imports nodes of a graph or of a function's body."""

    def import_node(self, call: NodeCall, scope: Scope) -> list[Value | None]:
        """The outputs of one node; None for one that is left out."""


class Context:
    """The model, the names that are taken, and what was found to be unsupported.

    Args:
        given: Names of initializers that are inputs of the graph.
        values: Elements in place of those of initializers, by name.

    Attributes:
        unsupported: What the error will say of nodes and values that clrt does not run.
        lacking: Outputs that clrt does not compute of ops that it has, and the note for a reader.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        tensors: TensorReader,
        given: Collection[str] = (),
        values: Mapping[str, Array] | None = None,
    ) -> None:
        self.graph = model.graph
        self.opsets = opsets_of(model.opset_import) or {"": 1}  # what files had before IR 3
        self.tensors = tensors
        self.functions = local_functions(model)
        found = {**initializers_of(model.graph), **(values or {})}
        self.initializers = {n: t for n, t in found.items() if n not in given}
        self.inputs = [i for i in self.graph.input if i.name not in self.initializers]
        self.dims = DimNames(self.inputs)
        self.value_names, self.node_names = Names(), Names()
        self.unsupported: list[str] = []
        self.lacking: dict[Value, str] = {}
        self._visited = 0

    @cached_property
    def block(self) -> int:
        """How many channels lie together in the model's blocked layout."""
        return block_of(self.graph)

    @cached_property
    def most_visits(self) -> int:
        """How many nodes may be imported, those of loops' subgraphs several times.

        Raises:
            ModelError: The functions hold more nodes, or are nested deeper, than is allowed.
        """
        return _FEW_NODES + _MAX_IMPORTS * inlined_nodes(self.graph, self.functions)

    def visit(self, count: int, where: str) -> None:
        """Counts nodes about to be imported.

        Raises:
            ModelError: They are too many.
        """
        self._visited += count
        if self._visited > _FEW_NODES and self._visited > self.most_visits:
            raise ModelError(
                f"{where} has loops nested so that their shapes cannot be inferred; export the "
                "model with fixed shapes."
            )

    def refuse(self, call: NodeCall, reason: str | UnsupportedError = "") -> list[Value | None]:
        """Notes an unsupported node and goes on, so that the error can name all of them."""
        if isinstance(reason, UnsupportedError):
            reason = without_title(str(reason), call.title, call.op_type)
        schema = schema_of(call.domain, call.op_type, call.opset)
        decomposes = schema is not None and schema.has_context_dependent_function
        # What the body of such an op holds is only known once the types of its inputs are.
        if reason or not (call.is_broken and decomposes):
            self.unsupported.append(note(call, reason))
        return broken(call)

    def look_up(self, name: str, scope: Scope) -> Value | None:
        """Returns a value that `sort_nodes` found to be there; an initializer is read at its first
        use.
        """
        if name in scope.env:
            known = scope.env[name]
            if known not in self.lacking:
                return known
            self.unsupported.append(self.lacking[known])
            return UNSUPPORTED_VALUE
        if name in scope.initializers:
            found: Value | None = self._initializer(name, scope)
        else:
            assert scope.outer is not None
            found = self.captured(self.look_up(name, scope.outer), scope)
        scope.env[name] = found
        return found

    def output(self, name: str, scope: Scope, where: str) -> Value:
        """Returns a value that is an output of its graph.

        Raises:
            ModelError: Nothing makes it.
        """
        if not scope.has(name):
            raise ModelError(f"No node makes the output '{name}' of {where}; it is not valid.")
        return self.look_up(name, scope) or UNSUPPORTED_VALUE

    def captured(self, value: Value | None, scope: Scope) -> Value | None:
        """Returns a value of an outer scope as a subgraph sees it: an input of the subgraph.

        A dim that is an expression outside becomes a symbol, bound when the subgraph runs.
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
        where = f"initializer '{name}'"
        found = scope.initializers[name]
        try:
            if isinstance(found, onnx.TensorProto):
                array = self.tensors.array(found, where)
            elif isinstance(found, onnx.SparseTensorProto):
                array = self.tensors.sparse(found, where)
            else:
                array = np.asarray(found)
            own = name if scope.outer is None else self.value_names.unique(scope.prefix + name)
            return constant_value(own, array, where)
        except UnsupportedError as error:
            self.unsupported.append(str(error))
            return UNSUPPORTED_VALUE


def broken(call: NodeCall) -> list[Value | None]:
    """Returns the outputs of a node that cannot be imported."""
    return [UNSUPPORTED_VALUE if name else None for name in call.formals]


def constant_value(name: str, array: Array, where: str) -> Value:
    """Returns a constant with these elements.

    Raises:
        UnsupportedError: They are of a dtype that clrt does not have.
    """
    try:
        dtype = DType.of(array.dtype)
    except ValueError as error:
        raise UnsupportedError(f"{where} has dtype {array.dtype}") from error
    return Value(name, TensorType(dtype, array.shape, array))
