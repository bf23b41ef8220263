"""Imports subgraphs: the graph attributes of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from clrt.errors import ModelError, UnsupportedError, counted
from clrt.ir.graph import Graph, Value
from clrt.ir.op import ContainerType, TensorType
from clrt.models.onnx.context import Context, ImportsNodes
from clrt.models.onnx.functions import initializers_of
from clrt.models.onnx.scope import UNSUPPORTED_VALUE, NodeCall, Scope
from clrt.models.onnx.types import formal_type, is_typed, type_proto, varying_types
from clrt.ops.base import Op

GRAPH = onnx.AttributeProto.GRAPH


class SubgraphImporter:
    """Imports subgraphs: the graph attributes of If, Loop, Scan and SequenceMap."""

    def __init__(self, context: Context, nodes: ImportsNodes) -> None:
        self._context = context
        self._nodes = nodes

    def import_graphs(
        self, cls: type[Op], call: NodeCall, scope: Scope
    ) -> tuple[dict[str, Graph], list[Value]]:
        """Imports the subgraphs of a node.

        Args:
            cls: Class of the node's op.
            call: The node.
            scope: Scope of the node.

        Returns:
            The subgraphs by attribute name; and the captured values, which are all values of the
            node's graph that subgraphs read. After its own inputs, each subgraph has an input for
            every captured value, in this order.
        """
        graphs = dict(call.graphs)
        for a in call.attributes:
            if a.type == GRAPH:
                graphs[a.name] = self._graph(a.g, cls, call, scope)
        captured = list(dict.fromkeys(v for _, inner in graphs.values() for v in inner.captures))
        for graph, inner in graphs.values():
            graph.inputs += [
                self._context.captured(v, inner) or UNSUPPORTED_VALUE for v in captured
            ]
        return {name: graph for name, (graph, _) in graphs.items()}, captured

    def import_branch(self, call: NodeCall, scope: Scope) -> list[Value | None]:
        """Imports the branch that an If with a known condition takes, in place of the If.

        The other branch is not imported, because it may be invalid: exporters branch on ranks.

        Returns:
            Outputs of the If; None for omitted ones.

        Raises:
            ModelError: The If has no such branch, or the branch has too few outputs.
        """
        name = "then_branch" if call.truth else "else_branch"
        branch = next((a.g for a in call.attributes if a.name == name), None)
        if branch is None or len(branch.output) < len(call.outputs):
            raise ModelError(
                f"{call.title} lacks a '{name}' with {counted(len(call.outputs), 'output')}."
            )
        formals = [info.name for info in branch.output]
        results = {f: n for f, n in zip(formals, call.outputs, strict=False) if n}
        inner = self._inner(branch, call, scope, results, inline=True)
        where = f"graph '{branch.name}' of {call.title}"
        self._nodes.import_nodes(branch.node, inner, where)
        return [
            self._context.output(formal, inner, where) if name else None
            for name, formal in zip(call.formals, formals, strict=False)
        ]

    def with_types(self, call: NodeCall, scope: Scope) -> NodeCall:
        """Returns a SequenceMap node with types declared for all inputs and outputs of its body.

        Missing types are inferred by importing the body. ONNX's function body, which replaces the
        node, copies the declared types.

        Raises:
            ModelError: The body does not have as many inputs as the node.
        """
        place = next((k for k, a in enumerate(call.attributes) if a.name == "body"), None)
        if place is None:
            return call
        body = call.attributes[place].g
        if all(is_typed(i.type) for i in (*body.input, *body.output)):
            return call
        context = self._context
        types = [None if v is None else _element_type(v.type) for v in call.inputs]
        if len(types) != len(body.input):
            raise ModelError(
                f"{call.title} has {counted(len(types), 'input')}, and its body takes "
                f"{len(body.input)}."
            )
        before = len(context.value_names), len(context.node_names)
        notes = list(context.unsupported)
        formals = [self._formal(i, t, call) for i, t in zip(body.input, types, strict=True)]
        graph, _ = self._body(body, Op, formals, call, scope)
        context.value_names.shrink(before[0])
        context.node_names.shrink(before[1])
        # Restore the notes: the final import records unsupported nodes again.
        context.unsupported = notes
        typed = onnx.GraphProto()
        typed.CopyFrom(body)
        declared = [*zip(typed.input, formals, strict=True)]
        declared += zip(typed.output, (v.type for v in graph.outputs), strict=True)
        for info, type_ in declared:
            if not is_typed(info.type) and type_ is not None:
                info.type.CopyFrom(type_proto(_of_any_shape(type_)))
        attribute = onnx.AttributeProto()
        attribute.CopyFrom(call.attributes[place])
        attribute.g.CopyFrom(typed)
        attributes = [attribute if k == place else a for k, a in enumerate(call.attributes)]
        return replace(call, attributes=attributes)

    def _graph(
        self, proto: onnx.GraphProto, cls: type[Op], call: NodeCall, outer: Scope
    ) -> tuple[Graph, Scope]:
        """Imports a subgraph of a node.

        If an input shape holds in the first iteration only, the subgraph is imported again without
        the sizes that vary.

        Args:
            proto: The subgraph.
            cls: Class of the node's op.
            call: The node.
            outer: Scope of the node.

        Returns:
            The subgraph, and its scope, which has the captured values.
        """
        context = self._context
        types = [None if v is None else v.type for v in call.inputs]
        formals = [*cls.subgraph_input_types(types), *(None for _ in proto.input)]
        input_types = [
            self._formal(info, formal, call)
            for info, formal in zip(proto.input, formals, strict=False)
        ]
        before = len(context.value_names), len(context.node_names)
        notes = list(context.unsupported)
        previous, settled = input_types, False
        while True:
            graph, scope = self._body(proto, cls, input_types, call, outer)
            refused = len(context.unsupported) > len(notes)
            varying = {}
            if cls.host_traits.loop_carried_offsets is not None and not settled and not refused:
                varying = varying_types(graph, cls.host_traits.loop_carried_offsets, types)
            if refused and input_types is not previous:
                # An op needs the shape that may vary: keep the declared one.
                context.unsupported, input_types, settled = notes, previous, True
            elif varying:
                previous = input_types
                input_types = [varying.get(i, t) for i, t in enumerate(input_types)]
            else:
                return graph, scope
            context.value_names.shrink(before[0])
            context.node_names.shrink(before[1])

    def _body(
        self,
        proto: onnx.GraphProto,
        cls: type[Op],
        types: Sequence[TensorType | None],
        call: NodeCall,
        outer: Scope,
    ) -> tuple[Graph, Scope]:
        """Imports a subgraph of a node with given input types.

        Args:
            proto: The subgraph.
            cls: Class of the node's op.
            types: Types of the subgraph's inputs; None for unsupported ones.
            call: The node.
            outer: Scope of the node.

        Returns:
            The subgraph, and its scope, which has the captured values.
        """
        scope = self._inner(proto, call, outer, {}, inline=False)
        offsets = cls.host_traits.loop_carried_offsets
        if offsets is not None:
            # Declared types of loop-carried values may hold in one iteration only.
            varying = {info.name for info in proto.output[offsets[1] :]}
            scope.declared = {n: i for n, i in scope.declared.items() if n not in varying}
        where = f"graph '{proto.name}' of {call.title}"
        names = self._context.value_names
        inputs = [
            UNSUPPORTED_VALUE
            if type_ is None
            else Value(names.unique(scope.prefix + info.name), type_)
            for info, type_ in zip(proto.input, types, strict=True)
        ]
        scope.env.update((i.name, v) for i, v in zip(proto.input, inputs, strict=True))
        self._nodes.import_nodes(proto.node, scope, where)
        outputs = [self._context.output(info.name, scope, where) for info in proto.output]
        return Graph(proto.name or "body", inputs, outputs, scope.nodes), scope

    def _inner(
        self,
        proto: onnx.GraphProto,
        call: NodeCall,
        outer: Scope,
        results: dict[str, str],
        *,
        inline: bool,
    ) -> Scope:
        """Returns a new scope for the nodes of a subgraph.

        Args:
            proto: The subgraph.
            call: The node that has the subgraph.
            outer: Scope of that node.
            results: Name in the enclosing graph by name of a subgraph output, if `inline`; else {}.
            inline: Whether nodes are added to the enclosing graph instead of a new graph.
        """
        return Scope(
            outer.nodes if inline else [],
            f"{call.name}/",
            outer.opsets,
            {},
            results,
            attrs=outer.attrs,
            calls=outer.calls,
            initializers=initializers_of(proto),
            declared={i.name: i for i in (*proto.value_info, *proto.output)},
            outer=outer,
            allows_clrt_ops=outer.allows_clrt_ops,
        )

    def _formal(
        self, info: onnx.ValueInfoProto, given: TensorType | None, call: NodeCall
    ) -> TensorType | None:
        """Returns the type of a subgraph's input; None if the type is unsupported or unknown.

        An unsupported type is recorded. Symbolic dims become unknown, because sizes may change
        between iterations.

        Args:
            info: The input as the file declares it.
            given: Type to use if the file declares none; None if unknown.
            call: The node that has the subgraph.
        """
        # Outputs of an unsupported node have a placeholder type.
        if info.type.WhichOneof("value") is not None or not call.is_broken:
            try:
                return formal_type(info, given)
            except UnsupportedError as error:
                self._context.unsupported.append(f"{call.title}: {error}")
        return None


def _element_type(type_: TensorType) -> TensorType:
    """Returns the type of a SequenceMap's input inside its body, with unknown shape.

    For a sequence this is the type of its elements; a tensor keeps its dtype.
    """
    if isinstance(type_, ContainerType) and type_.kind == "sequence":
        return _of_any_shape(type_.element)
    return _of_any_shape(type_)


def _of_any_shape(type_: TensorType) -> TensorType:
    return type_ if isinstance(type_, ContainerType) else TensorType(type_.dtype, None)
