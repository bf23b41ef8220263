"""Imports nodes of a file, or of a function body, as nodes of the IR."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import onnx

from clrt.errors import ModelError, UnsupportedError, counted
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import Array, TensorType
from clrt.models.onnx.attributes import check_attributes
from clrt.models.onnx.context import Context, broken, constant_value
from clrt.models.onnx.decompose import DecompositionImporter
from clrt.models.onnx.diagnostics import check_kinds
from clrt.models.onnx.functions import (
    attribute_value,
    is_gradient,
    resolve_attributes,
    schema_of,
    sort_nodes,
)
from clrt.models.onnx.graphs import GRAPH, SubgraphImporter
from clrt.models.onnx.read import normal_domain
from clrt.models.onnx.scope import UNSUPPORTED_VALUE, NodeCall, Scope
from clrt.models.onnx.types import refine
from clrt.ops import REGISTRY
from clrt.ops.base import Decompose, OnnxNode, Op
from clrt.ops.decompositions.registry import imported_as
from clrt.util.host_limits import text_array

# Domain of the ops that only passes and decompositions generate.
_OWN_DOMAIN = "clrt"
_Kind = onnx.AttributeProto
# Kinds of the attributes of ops that nodes share: small, and compared by their bytes.
_SHARED_KINDS = {_Kind.INT, _Kind.FLOAT, _Kind.STRING, _Kind.INTS}


class NodeImporter:
    """Imports nodes of a model as IR nodes.

    It calls the importers of subgraphs and decompositions, which call it recursively.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._graphs = SubgraphImporter(context, self)
        self._decompositions = DecompositionImporter(context, self)
        self._classes: dict[tuple[str, str, int], type[Op] | None] = {}
        # Ops that nodes share, by `_sharing_key`: most nodes of a large model have equal ops.
        self._shared: dict[Hashable, Op] = {}

    def import_nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope, where: str) -> None:
        """Imports the nodes of a graph or of a function body into `scope`.

        Args:
            nodes: Nodes in file order; they are sorted first.
            where: Name of the graph or function, for messages.

        Raises:
            ModelError: The nodes are not valid ONNX.
            ShapeError: Input shapes of a node do not match.
        """
        context = self._context
        context.visit(len(nodes), where)
        outside = set() if scope.outer is None else scope.outer.names()
        order = sort_nodes(nodes, {*scope.env, *scope.initializers}, where, outside)
        # Names in the file have priority over generated ones.
        names = {i: context.node_names.unique(scope.prefix + n.name) for i, n in order if n.name}
        for index, proto in order:
            name = names.get(index) or context.node_names.unique(
                f"{scope.prefix}{proto.op_type}_{index}"
            )
            outputs = self.import_node(self._call(proto, name, scope), scope)
            for formal, value in zip(proto.output, outputs, strict=False):
                if formal and value is not None:
                    scope.env[formal] = value

    def import_node(self, call: NodeCall, scope: Scope) -> list[Value | None]:
        """Imports one node and returns its outputs; None for omitted ones.

        An unsupported node is recorded, so that the import can continue; its outputs are
        placeholders (`UNSUPPORTED_VALUE`).

        Raises:
            ModelError: The node is not valid ONNX.
            ShapeError: Input shapes of the node do not match.
        """
        function = self._context.functions.get((call.domain, call.op_type, call.overload))
        if function is not None:
            return self._decompositions.inline(function, call, scope)
        if call.domain == _OWN_DOMAIN and not scope.allows_clrt_ops:
            raise ModelError(
                f"{call.title} is of the domain '{_OWN_DOMAIN}', whose ops are not allowed in "
                "ONNX files; create compiled models by clrt-convert."
            )
        key = _sharing_key(call)
        try:
            if key not in self._shared:
                with NodeErrorContext(call.title):
                    check_attributes(
                        call.op_type, call.attributes, call.domain, call.opset, call.graphs.keys()
                    )
        except UnsupportedError as error:
            return self._context.refuse(call, error)
        if not call.domain and call.op_type == "Constant":
            return self._constant(call)
        if is_gradient(call.domain, call.op_type):
            return self._gradient(call, scope)
        if not call.domain and call.op_type == "If" and call.truth is not None:
            return self._graphs.import_branch(call, scope)
        if not call.domain and call.op_type == "SequenceMap":
            call = self._graphs.with_types(call, scope)
        check_kinds(call)
        cls = self._class_of(call.domain, call.op_type, call.opset)
        if cls is None:
            return self._decompositions.decompose(call, scope)
        try:
            return self._op(cls, call, key, scope)
        except Decompose:
            return self._decompositions.decompose(call, scope)
        except UnsupportedError as error:
            return self._context.refuse(call, error)

    def _class_of(self, domain: str, op_type: str, opset: int) -> type[Op] | None:
        """Returns the class of an op; None if its decomposition is imported instead."""
        key = domain, op_type, opset
        if key not in self._classes:
            entry = imported_as(*key)
            decomposes = entry is not None and entry.before is not None
            self._classes[key] = None if decomposes else REGISTRY.find(domain, op_type)
        return self._classes[key]

    def _call(self, proto: onnx.NodeProto, name: str, scope: Scope) -> NodeCall:
        """Looks up the inputs of a node of the file, and names its outputs in the IR graph.

        Args:
            proto: The node.
            name: Name of the node in the IR graph.
            scope: Scope of the node.

        Raises:
            ModelError: The node needs an opset of ai.onnx, and the model imports none.
        """
        domain, context = normal_domain(proto.domain), self._context
        if not domain and not scope.opsets.get(""):
            raise ModelError(
                f"{proto.op_type} '{name}' is an ai.onnx op, but the model imports no opset of "
                "ai.onnx; export it again."
            )
        inputs = [context.look_up(n, scope) if n else None for n in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        results = scope.results
        outputs = [
            results[output]
            if output in results
            else output and context.value_names.unique(scope.prefix + output)
            for output in proto.output
        ]
        attributes: Sequence[onnx.AttributeProto] = proto.attribute
        if attributes and any(a.ref_attr_name for a in attributes):
            attributes = resolve_attributes(proto, scope.attrs)
        opset = scope.opsets.get(domain, 1)
        return NodeCall(
            proto.op_type, name, domain, opset, inputs, outputs, proto.output, attributes,
            proto.overload,
        )  # fmt: skip

    def _constant(self, call: NodeCall) -> list[Value | None]:
        """Returns the output of a Constant node as a constant, in a list of one.

        If clrt lacks the dtype, the node is recorded as unsupported, and the output is a
        placeholder.

        Raises:
            ModelError: The node does not have exactly one valid value and one output.
        """
        if len(call.attributes) != 1 or len(call.outputs) != 1 or not call.outputs[0]:
            raise ModelError(f"{call.title} must have one value and one output.")
        (attr,) = call.attributes
        try:
            stored = attribute_value(attr, self._context.tensors, call.title)
            if attr.name == "sparse_value" and isinstance(stored, np.ndarray):
                array = stored
            elif attr.name in ("value_float", "value_floats"):
                array = np.asarray(stored, np.float32)
            elif attr.name in ("value_int", "value_ints"):
                array = np.asarray(stored, np.int64)
            elif attr.name == "value" and isinstance(stored, np.ndarray):
                array = stored
            elif attr.name in ("value_string", "value_strings"):
                texts = stored if isinstance(stored, list) else [stored]
                array = text_array(texts, np.shape(stored))
            else:
                raise ModelError(f"{call.title} has no valid value (attribute '{attr.name}').")
        except UnsupportedError as error:
            return self._context.refuse(call, str(error))
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"{call.title} has no valid value: {error}.") from error
        return [constant_value(call.outputs[0], array, call.title)]

    def _gradient(self, call: NodeCall, scope: Scope) -> list[Value | None]:
        """Imports a Gradient node, which an op without a gradient makes unsupported."""
        from clrt.models.onnx.gradient import import_gradient  # imports more ops

        try:
            return import_gradient(call, scope, self._context)
        except UnsupportedError as error:
            return self._context.refuse(call, error)

    def _op(self, cls: type[Op], call: NodeCall, key: Hashable, scope: Scope) -> list[Value | None]:
        """Imports a node whose op the IR has; returns its outputs, None for omitted ones.

        Args:
            cls: Class of the op.
            call: The node.
            key: Key under which the node's op is shared with other nodes; None if it is not.
            scope: Scope of the node.

        Raises:
            Decompose: The op's decomposition must be imported instead.
            UnsupportedError: clrt does not support the node's attributes, inputs or outputs.
        """
        op, inputs, names = self._shared.get(key), call.inputs, call.outputs
        with NodeErrorContext(call.title):
            if op is None:
                values = {v.name: v for v in inputs if v is not None}
                node = self._onnx_node(cls, call, values, scope)
                op = cls.from_onnx(node)
                if key is not None and _needs_attributes_only(cls, node):
                    self._shared[key] = op
                inputs, names = [values[n] if n else None for n in node.inputs], node.outputs
            inner = [v for g in op.graphs for v in (*g.inputs, *g.outputs)]
            if UNSUPPORTED_VALUE in inputs or UNSUPPORTED_VALUE in inner:
                return broken(call)
            types = op.infer_with_data([None if v is None else v.type for v in inputs])
        added = self._add(op, call, inputs, _trim(names), types, scope)
        return [added.get(name) for name in call.outputs]

    def _add(
        self,
        op: Op,
        call: NodeCall,
        inputs: list[Value | None],
        names: Sequence[str],
        types: Sequence[TensorType],
        scope: Scope,
    ) -> Mapping[str, Value]:
        """Adds a node to the graph of a scope and returns its outputs by name.

        Args:
            op: Op of the node.
            call: The node as in the file.
            inputs: Inputs of the node, captured values included.
            names: Names of the outputs, "" for omitted ones.
            types: Inferred types of the outputs, refined here by types that the file declares.

        Raises:
            UnsupportedError: The op computes fewer outputs than the node has.
        """
        if len(names) > len(types):
            raise UnsupportedError(
                f"clrt computes {len(types)} of its {counted(len(names), 'output')}"
            )
        context = self._context
        if scope.declared:
            local = dict(zip(call.outputs, call.formals, strict=True))
            types = [
                refine(type_, scope.declared.get(local.get(name, "")), context.dims)
                for name, type_ in zip(names, types, strict=False)
            ]
        finals = [
            name or context.value_names.unique(f"{call.name}/unused.{index}")
            for index, name in enumerate(names)
        ]
        outputs = [Value(name, type_) for name, type_ in zip(finals, types, strict=False)]
        scope.nodes.append(Node(call.name, op, inputs, outputs))
        return {v.name: v for v in outputs}

    def _onnx_node(
        self, cls: type[Op], call: NodeCall, values: dict[str, Value], scope: Scope
    ) -> OnnxNode:
        schema = schema_of(call.domain, call.op_type, call.opset)
        if schema is not None and len(call.inputs) > schema.max_input:
            raise ModelError(
                f"{call.title} has {counted(len(call.inputs), 'input')}; opset {call.opset} allows "
                f"{schema.max_input}."
            )
        context = self._context
        title = call.title
        attrs = {
            a.name: attribute_value(a, context.tensors, title)
            for a in call.attributes
            if a.type != GRAPH
        }
        graphs: Mapping[str, Graph] = {}
        captured: list[Value] = []
        if call.graphs or len(attrs) < len(call.attributes):
            graphs, captured = self._graphs.import_graphs(cls, call, scope)
            values.update((v.name, v) for v in captured)
        inputs = [*call.inputs]
        least = 0 if schema is None else schema.min_input
        if graphs:  # inputs before the captured ones may be omitted
            inputs += [None] * (least - len(inputs))
        elif len(inputs) < least:
            raise ModelError(
                f"{call.title} has {counted(len(inputs), 'input')}; opset {call.opset} "
                f"needs {least}."
            )
        inputs += captured

        def add_constant(array: Array) -> str:
            name = context.value_names.unique(f"{call.name}/constant")
            values[name] = constant_value(name, array, call.title)
            return name

        return OnnxNode(
            op_type=call.op_type,
            domain=call.domain,
            name=call.name,
            opset=call.opset,
            attrs={**attrs, **graphs},
            inputs=["" if v is None else v.name for v in inputs],
            outputs=list(call.outputs),
            constants={n: x for n, v in values.items() if (x := v.numbers) is not None},
            add_constant=add_constant,
            types={n: v.type for n, v in values.items()},
            captures=len(captured),
        )


def _sharing_key(call: NodeCall) -> Hashable:
    """Returns a key of nodes with equal attributes; None if the node has tensors or subgraphs."""
    key = call.domain, call.op_type, call.opset, len(call.inputs)
    if not call.attributes and not call.graphs:
        return key
    if call.graphs or any(a.type not in _SHARED_KINDS for a in call.attributes):
        return None
    return *key, *(a.SerializeToString() for a in call.attributes)


def _needs_attributes_only(cls: type[Op], node: OnnxNode) -> bool:
    """Whether `cls.from_onnx` reads only the attributes of `node`, and keeps its inputs."""
    becoming_inputs = cls.onnx_traits.attribute_to_input
    default = cls.from_onnx.__func__ is Op.from_onnx.__func__  # type: ignore[attr-defined]
    return default and becoming_inputs.keys().isdisjoint(node.attrs)


def _trim(names: Sequence[str]) -> list[str]:
    """Returns names without the omitted ones at the end."""
    trimmed = list(names)
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return trimmed
