"""Replaces nodes by others: clrt's decompositions, and function bodies of files and of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import onnx

from clrt.errors import ModelError, UnsupportedError, counted
from clrt.ir.graph import Graph, Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import TensorType
from clrt.models.onnx.context import Context, ImportsNodes, broken
from clrt.models.onnx.diagnostics import note
from clrt.models.onnx.functions import Function, attribute_value, schema_function
from clrt.models.onnx.graphs import GRAPH
from clrt.models.onnx.scope import UNSUPPORTED_VALUE, NodeCall, Scope
from clrt.ops.decompositions.import_rules.import_builder import BodyNode, ImportBuilder, Step
from clrt.ops.decompositions.import_rules.microsoft.nchwc import NCHWC
from clrt.ops.decompositions.registry import Decomposition, imported_as

# Domain -> opset of the nodes in clrt's decompositions. Domain "clrt" has ops that only clrt
# generates.
_OPSETS = {"": 25, "ai.onnx.ml": 5, "com.microsoft": 1, "clrt": 1}


class DecompositionImporter:
    """Imports the decomposition or function body that replaces a node of the file."""

    def __init__(self, context: Context, nodes: ImportsNodes) -> None:
        self._context = context
        self._nodes = nodes

    def decompose(self, call: NodeCall, scope: Scope) -> list[Value | None]:
        """Imports a node by its decomposition and returns its outputs.

        clrt's decomposition is tried first. If there is none, or it declines, the function body in
        the ONNX schema is used. A node without either is recorded as unsupported. If a node with a
        decomposition reads outputs of an unsupported node, it cannot be decomposed, because types
        of its inputs are unknown. Its outputs are then placeholders (`UNSUPPORTED_VALUE`).

        Returns:
            Outputs of the node; None for omitted ones.
        """
        entry = imported_as(call.domain, call.op_type, call.opset)
        if entry is not None:
            if call.is_broken:
                return broken(call)
            try:
                results = self._builtin(entry, call, scope)
            except UnsupportedError as error:
                return self._context.refuse(call, error)
            if results is not None:
                return results
        types = None if call.is_broken else [None if v is None else v.type for v in call.inputs]
        function = schema_function(call.proto(), call.opset, types, scope.opsets.get(""))
        if function is None:
            return self._context.refuse(call)
        return self.inline(function, call, scope)

    def _builtin(
        self, entry: Decomposition, call: NodeCall, scope: Scope
    ) -> list[Value | None] | None:
        """Imports a node by clrt's decomposition `entry`.

        Returns:
            Outputs of the node, None for omitted ones; None if the decomposition declines.

        Raises:
            UnsupportedError: The decomposition does not support the node's attributes or inputs.
        """
        context = self._context
        with NodeErrorContext(call.title):
            attrs = {
                a.name: attribute_value(a, context.tensors, call.title) for a in call.attributes
            }
            if call.domain == NCHWC:
                attrs["block"] = context.block
        inner = Scope(
            scope.nodes,
            f"{call.name}/",
            _OPSETS,
            {},
            {},
            calls=scope.calls,
            outer=scope,
            allows_clrt_ops=True,
        )
        nodes = _BodyImporter(context, self._nodes, call.name, inner)
        body = ImportBuilder(
            call.name, call.op_type, call.opset, attrs, call.inputs, len(call.outputs), nodes
        )
        before = len(scope.nodes)
        results = entry.apply(call.title, body)
        if results is None:
            return None
        new_values = {v for n in scope.nodes[before:] for v in n.outputs}
        outputs: list[Value | None] = []
        for index, name in enumerate(call.outputs):
            value = results[index] if index < len(results) else None
            if not name:
                outputs.append(None)
                continue
            if value is None:
                value = Value(name, UNSUPPORTED_VALUE.type)
                context.missing_outputs[value] = note(call, f"its output {index}")
            elif value in new_values:
                new_values.remove(value)
                value.name = name
            outputs.append(value)
        return outputs

    def inline(self, function: Function, call: NodeCall, scope: Scope) -> list[Value | None]:
        """Imports the body of a function in place of the node that calls it.

        Returns:
            Outputs of the node; None for omitted ones.

        Raises:
            ModelError: The function calls itself, the call has more inputs or outputs than the
                function, or the body does not compute an output.
        """
        if function.key in scope.calls:
            raise ModelError(f"{call.title}: function '{function.key[1]}' calls itself.")
        wanted = (len(function.inputs), len(function.outputs))
        if len(call.inputs) > wanted[0] or len(call.outputs) > wanted[1]:
            raise ModelError(
                f"{call.title} has {counted(len(call.inputs), 'input')} and "
                f"{counted(len(call.outputs), 'output')}; "
                f"function '{function.key[1]}' has {wanted[0]} and {wanted[1]}."
            )
        results = {f: n for f, n in zip(function.outputs, call.outputs, strict=False) if n}
        inner = Scope(
            scope.nodes,
            prefix=f"{call.name}/",
            opsets=function.opsets,
            env=dict(zip_longest(function.inputs, call.inputs)),
            results=results,
            attrs={**function.defaults, **{a.name: a for a in call.attributes}},
            calls=(*scope.calls, function.key),
            # Subgraphs that the call passes to the body read values of the call's scope.
            outer=scope if any(a.type == GRAPH for a in call.attributes) else None,
        )
        self._nodes.import_nodes(function.nodes, inner, f"function '{function.key[1]}'")
        outputs: list[Value | None] = []
        for name, formal in zip(call.formals, function.outputs, strict=False):
            value = inner.env.get(formal)
            if name and value is None:
                raise ModelError(
                    f"{call.title}: function '{function.key[1]}' does not compute its output "
                    f"'{formal}'."
                )
            outputs.append(value if name else None)
        return outputs


class _BodyImporter:
    """Imports the nodes of a decomposition that takes the place of an ONNX node.

    Implements `ImportsBodies`, the importer's interface for decompositions.

    Args:
        context: Import state of the whole model.
        nodes: Converts single nodes to IR.
        title: Name of the replaced ONNX node.
        scope: Scope to which nodes are added.
    """

    def __init__(self, context: Context, nodes: ImportsNodes, title: str, scope: Scope) -> None:
        self.names = context.value_names
        self._context = context
        self._nodes = nodes
        self._title = title
        self._scope = scope
        self._count = 0
        # Values defined in the subgraph of a Scan, which captures all others; None outside a Scan.
        self._local: set[Value] | None = None

    def add(self, node: BodyNode) -> list[Value]:
        """Imports a node of a decomposition and returns its outputs."""
        return self._run(self._call(node))

    def add_scan(
        self, node: BodyNode, types: Sequence[TensorType | None], step: Step
    ) -> list[Value]:
        """Imports a Scan of a decomposition and returns its outputs.

        Args:
            node: The Scan, without its subgraph.
            types: Types of the subgraph's inputs; None for unknown ones.
            step: Builds the subgraph: returns its outputs from (importer of its nodes, its inputs).
        """
        call = self._call(node)
        scope = Scope(
            [], f"{call.name}/", _OPSETS, {}, {}, calls=self._scope.calls, outer=self._scope,
            allows_clrt_ops=True,
        )  # fmt: skip
        formals = [
            UNSUPPORTED_VALUE if t is None else Value(self.names.unique(f"{scope.prefix}x{k}"), t)
            for k, t in enumerate(types)
        ]
        inner = _BodyImporter(self._context, self._nodes, call.name, scope)
        inner._local = set(formals)
        results = [inner._seen(v) or UNSUPPORTED_VALUE for v in step(inner, formals)]
        call.graphs["body"] = Graph("body", formals, results, scope.nodes), scope
        return self._run(call)

    def _call(self, node: BodyNode) -> NodeCall:
        """Converts a node of a decomposition to the form that `NodeImporter` imports."""
        prefix = self._scope.prefix
        name = self._context.node_names.unique(f"{prefix}{node.op_type}_{self._count}")
        self._count += 1
        inputs = [self._seen(v) for v in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        names = [self.names.unique(f"{name}:{k}" if k else name) for k in range(node.outputs)]
        attributes = [onnx.helper.make_attribute(k, v) for k, v in _protos(node.attrs).items()]
        return NodeCall(
            node.op_type,
            name,
            node.domain,
            _OPSETS[node.domain],
            inputs,
            names,
            names,
            attributes,
        )

    def _run(self, call: NodeCall) -> list[Value]:
        """Imports a node of the decomposition; returns its outputs (omitted: placeholders)."""
        outputs = [v or UNSUPPORTED_VALUE for v in self._nodes.import_node(call, self._scope)]
        if self._local is not None:
            self._local.update(outputs)
        return outputs

    def _seen(self, value: Value | None) -> Value | None:
        """Returns a value for use in the graph of this importer.

        For a value of an enclosing graph, returns the subgraph's input that stands for it. For an
        output that clrt does not compute, returns a placeholder (`UNSUPPORTED_VALUE`) and records
        the output as unsupported. Other values, and None, are returned unchanged.
        """
        if value is not None and value in self._context.missing_outputs:
            self._context.unsupported.append(self._context.missing_outputs[value])
            return UNSUPPORTED_VALUE
        if self._local is None or value in self._local:
            return value
        return self._context.captured(value, self._scope)


def _protos(attrs: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {k: v for k, v in attrs.items() if hasattr(v, "dtype") and hasattr(v, "shape")}
    return {**attrs, **{k: onnx.numpy_helper.from_array(v) for k, v in arrays.items()}}
