"""Nodes that stand for others: clrt's decompositions, and function bodies of files and of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import onnx

from clrt.decompositions.body import Body, Nodes
from clrt.decompositions.microsoft.nchwc import NCHWC
from clrt.errors import ModelError, UnsupportedError, counted
from clrt.importer.onnx_context import Context, NodeRoom, broken
from clrt.importer.onnx_functions import Function, attribute_value, schema_function
from clrt.importer.onnx_graphs import GRAPH
from clrt.importer.onnx_refusals import note
from clrt.importer.onnx_scope import BROKEN, Call, Scope
from clrt.ir.graph import Graph, Value
from clrt.ir.op import TensorType
from clrt.ops.blaming import Blaming
from clrt.ops.decompositions import Decomposition, imported_as

# What decompositions are written in; "clrt" has ops of its own for them.
_OPSETS = {"": 24, "ai.onnx.ml": 5, "com.microsoft": 1, "clrt": 1}


class DecompositionRoom:
    """Puts the nodes in place of one that they stand for."""

    def __init__(self, context: Context, nodes: NodeRoom) -> None:
        self._context = context
        self._nodes = nodes

    def of_call(self, call: Call, scope: Scope) -> list[Value | None]:
        """The outputs of a node that stands for others.

        clrt's decomposition goes before ONNX's schema; one that declines leaves this form of the
        op to the schema. None is asked behind an unsupported node: it would go by types that are
        made up.
        """
        entry = imported_as(call.domain, call.op_type, call.opset)
        if entry is not None:
            if call.is_broken:
                return broken(call)
            try:
                found = self._own(entry, call, scope)
            except UnsupportedError as error:
                return self._context.refuse(call, error)
            if found is not None:
                return found
        types = None if call.is_broken else [None if v is None else v.type for v in call.inputs]
        function = schema_function(call.proto(), call.opset, types, scope.opsets.get(""))
        if function is None:
            return self._context.refuse(call)
        return self.inline(function, call, scope)

    def _own(self, entry: Decomposition, call: Call, scope: Scope) -> list[Value | None] | None:
        """The outputs of clrt's decomposition; None where it declines."""
        context = self._context
        with Blaming(call.title):
            attrs = {
                a.name: attribute_value(a, context.tensors, call.title) for a in call.attributes
            }
            if call.domain == NCHWC:
                attrs["block"] = context.block
        inner = Scope(
            scope.nodes, f"{call.name}/", _OPSETS, {}, {}, calls=scope.calls, outer=scope, own=True
        )
        nodes = _Nodes(context, self._nodes, call.name, inner)
        body = Body(
            call.name, call.op_type, call.opset, attrs, call.inputs, len(call.outputs), nodes
        )
        before = len(scope.nodes)
        results = entry.apply(call.title, body)
        if results is None:
            return None
        made = {v for n in scope.nodes[before:] for v in n.outputs}
        outputs: list[Value | None] = []
        for index, name in enumerate(call.outputs):
            value = results[index] if index < len(results) else None
            if not name:
                outputs.append(None)
                continue
            if value is None:
                value = Value(name, BROKEN.type)
                context.lacking[value] = note(call, f"its output {index}")
            elif value in made:
                made.remove(value)
                value.name = name
            outputs.append(value)
        return outputs

    def inline(self, function: Function, call: Call, scope: Scope) -> list[Value | None]:
        """The outputs of a function's body.

        Raises:
            ModelError: The call does not fit the function.
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
            # The body may hold the graphs of the call, which see what the call sees.
            outer=scope if any(a.type == GRAPH for a in call.attributes) else None,
        )
        self._nodes.walk(function.nodes, inner, f"function '{function.key[1]}'")
        outputs: list[Value | None] = []
        for name, formal in zip(call.formals, function.outputs, strict=False):
            value = inner.env.get(formal)
            if name and value is None:
                raise ModelError(f"{call.title}: function '{function.key[1]}' makes no '{formal}'.")
            outputs.append(value if name else None)
        return outputs


class _Nodes:
    """Imports the nodes that a decomposition adds, by their names in ONNX."""

    def __init__(self, context: Context, nodes: NodeRoom, title: str, scope: Scope) -> None:
        self.names = context.value_names
        self._context = context
        self._nodes = nodes
        self._title = title
        self._scope = scope
        self._count = 0
        # In the graph of a Scan, the values that are its own.
        self._local: set[Value] | None = None

    def add(
        self,
        op_type: str,
        domain: str,
        inputs: Sequence[Value | None],
        outputs: int,
        attrs: Mapping[str, Any],
    ) -> list[Value]:
        """The outputs of a node of the opsets that bodies are written in."""
        return self._run(self._call(op_type, domain, inputs, outputs, attrs))

    def scan(
        self,
        inputs: Sequence[Value],
        types: Sequence[TensorType | None],
        step: Callable[[Nodes, list[Value]], list[Value]],
        outputs: int,
        attrs: Mapping[str, Any],
    ) -> list[Value]:
        """The outputs of a Scan; `step` gives the outputs of its graph from the inputs."""
        call = self._call("Scan", "", inputs, outputs, attrs)
        scope = Scope(
            [], f"{call.name}/", _OPSETS, {}, {}, calls=self._scope.calls, outer=self._scope,
            own=True,
        )  # fmt: skip
        formals = [
            BROKEN if t is None else Value(self.names.unique(f"{scope.prefix}x{k}"), t)
            for k, t in enumerate(types)
        ]
        inner = _Nodes(self._context, self._nodes, call.name, scope)
        inner._local = set(formals)
        results = [inner._seen(v) or BROKEN for v in step(inner, formals)]
        call.graphs["body"] = Graph("body", formals, results, scope.nodes), scope
        return self._run(call)

    def _call(
        self,
        op_type: str,
        domain: str,
        inputs: Sequence[Value | None],
        outputs: int,
        attrs: Mapping[str, Any],
    ) -> Call:
        name = self._context.node_names.unique(f"{self._scope.prefix}{op_type}_{self._count}")
        self._count += 1
        given = [self._seen(v) for v in inputs]
        while given and given[-1] is None:
            given.pop()
        names = [self.names.unique(f"{name}:{k}" if k else name) for k in range(outputs)]
        attributes = [onnx.helper.make_attribute(k, v) for k, v in _protos(attrs).items()]
        return Call(op_type, name, domain, _OPSETS[domain], given, names, names, attributes)

    def _run(self, call: Call) -> list[Value]:
        outputs = [v or BROKEN for v in self._nodes.run(call, self._scope)]
        if self._local is not None:
            self._local.update(outputs)
        return outputs

    def _seen(self, value: Value | None) -> Value | None:
        """A value as the graph that the nodes are in sees it."""
        if value is not None and value in self._context.lacking:
            self._context.unsupported.append(self._context.lacking[value])
            return BROKEN
        if self._local is None or value in self._local:
            return value
        return self._context.captured(value, self._scope)


def _protos(attrs: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {k: v for k, v in attrs.items() if hasattr(v, "dtype") and hasattr(v, "shape")}
    return {**attrs, **{k: onnx.numpy_helper.from_array(v) for k, v in arrays.items()}}
