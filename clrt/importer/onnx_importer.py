"""ONNX models to `Graph`: names kept, functions inlined, every value typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np
import onnx

from clrt.errors import ModelError, UnsupportedError, counted, without_title
from clrt.importer.expansions import expand, has_expansion, is_dated
from clrt.importer.expansions.microsoft.nchwc import NCHWC, block_of
from clrt.importer.onnx_attributes import check_attributes
from clrt.importer.onnx_functions import (
    Function,
    attribute_value,
    initializers_of,
    local_functions,
    resolve_attributes,
    schema_function,
    schema_of,
    sort_nodes,
)
from clrt.importer.onnx_read import normal_domain, opsets_of, read_model
from clrt.importer.onnx_refusals import check_kinds, note, unsupported_error
from clrt.importer.onnx_scope import BROKEN, Call, Scope
from clrt.importer.onnx_sizes import inlined_nodes
from clrt.importer.onnx_tensors import TensorReader
from clrt.importer.onnx_types import (
    DimNames,
    captured_type,
    formal_type,
    refine,
    tensor_type,
    varying_types,
)
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.limits import text_array
from clrt.ops import REGISTRY
from clrt.ops.base import Blaming, Expand, OnnxNode, Op

# How often a graph of a loop is imported again, over all levels; more is no model of anyone's.
_MAX_IMPORTS = 16
_FEW_NODES = 2048

_GRAPH = onnx.AttributeProto.GRAPH
# Of the ops that only passes and expansions make.
_OWN_DOMAIN = "clrt"


def import_model(
    source: str | Path | bytes | onnx.ModelProto, weights: Mapping[str, Array] | None = None
) -> Graph:
    """Reads an ONNX model.

    Args:
        source: A file, its bytes, or the model itself. External data are looked for beside a file.
        weights: More initializers by name; they win over those of the file and are not copied.

    Returns:
        The graph. Initializers and Constant nodes are constants, also those that the file lists
        as inputs too. Functions, and ops that clrt lacks but ONNX defines by others, are inlined.

    Raises:
        ModelError: The file is missing, damaged or not valid ONNX.
        UnsupportedError: clrt lacks ops, dtypes or the opset; all such nodes are named at once.
        ShapeError: Shapes inside the model do not fit together.
    """
    model, tensors = read_model(source)
    return _Importer(model, tensors, weights or {}).run()


class _Importer:
    def __init__(
        self, model: onnx.ModelProto, tensors: TensorReader, weights: Mapping[str, Array]
    ) -> None:
        self._proto = model.graph
        self._opsets = opsets_of(model.opset_import) or {"": 1}  # what files had before IR 3
        self._tensors = tensors
        self._functions = local_functions(model)
        self._initializers = {**initializers_of(model.graph), **weights}
        self._inputs = [i for i in self._proto.input if i.name not in self._initializers]
        self._dims = DimNames(self._inputs)
        self._value_names, self._node_names = Names(), Names()
        self._visited = 0
        self._unsupported: list[str] = []
        # Outputs that clrt lacks of nodes that it runs, and what is noted where one is read.
        self._lacking: dict[Value, str] = {}

    def run(self) -> Graph:
        proto = self._proto
        if self._functions:
            _ = self._most_visits  # refuses what grows without bound
        for name in self._initializers:
            self._value_names.reserve(name)
        for node in proto.node:
            for name in node.output:
                self._value_names.reserve(name)
        names = {name: name for node in proto.node for name in node.output}
        scope = Scope(
            [],
            "",
            self._opsets,
            {},
            names,
            initializers=self._initializers,
            declared={i.name: i for i in (*proto.value_info, *proto.output)},
        )
        inputs = [self._input(info, scope) for info in self._inputs]
        where = f"graph '{proto.name}'"
        self._walk(proto.node, scope, where)
        outputs = [self._output(info.name, scope, where) for info in proto.output]
        if self._unsupported:
            raise unsupported_error(self._unsupported)
        output_names = [info.name for info in proto.output]
        return Graph(proto.name or "main", inputs, outputs, scope.nodes, output_names)

    @cached_property
    def _most_visits(self) -> int:
        nodes = inlined_nodes(self._proto, self._functions)
        return _FEW_NODES + _MAX_IMPORTS * nodes

    def _subgraph(
        self, proto: onnx.GraphProto, cls: type[Op], call: Call, outer: Scope
    ) -> tuple[Graph, Scope]:
        """A graph that is an attribute; what it reads from outside is in the scope's captures.

        A shape that the file declares may be that of the first turn only: then the graph is
        imported again without it.
        """
        types = [None if v is None else v.type for v in call.inputs]
        formals = [*cls.formals(types), *(None for _ in proto.input)]
        given = [
            self._formal(info, formal, call)
            for info, formal in zip(proto.input, formals, strict=False)
        ]
        before = len(self._value_names), len(self._node_names)
        notes = list(self._unsupported)
        known, settled = given, False
        while True:
            graph, scope = self._body(proto, cls, given, call, outer)
            refused = len(self._unsupported) > len(notes)
            varying = {}
            if cls.carries is not None and not settled and not refused:
                varying = varying_types(graph, cls.carries, types)
            if refused and given is not known:
                # clrt needs to know what may vary: then it has to stay as it is.
                self._unsupported, given, settled = notes, known, True
            elif varying:
                known = given
                given = [varying.get(i, t) for i, t in enumerate(given)]
            else:
                return graph, scope
            self._value_names.shrink(before[0])
            self._node_names.shrink(before[1])

    def _body(
        self,
        proto: onnx.GraphProto,
        cls: type[Op],
        types: Sequence[TensorType | None],
        call: Call,
        outer: Scope,
    ) -> tuple[Graph, Scope]:
        """A graph that is an attribute, with these types of its inputs; None is a broken one."""
        scope = self._inner(proto, call, outer, {}, inline=False)
        if cls.carries is not None:
            # What is declared of these may hold in one turn only.
            varying = {info.name for info in proto.output[cls.carries[1] :]}
            scope.declared = {n: i for n, i in scope.declared.items() if n not in varying}
        where = f"graph '{proto.name}' of {call.title}"
        inputs = [
            BROKEN
            if type_ is None
            else Value(self._value_names.unique(scope.prefix + info.name), type_)
            for info, type_ in zip(proto.input, types, strict=True)
        ]
        scope.env.update((i.name, v) for i, v in zip(proto.input, inputs, strict=True))
        self._walk(proto.node, scope, where)
        outputs = [self._output(info.name, scope, where) for info in proto.output]
        return Graph(proto.name or "body", inputs, outputs, scope.nodes), scope

    def _inner(
        self,
        proto: onnx.GraphProto,
        call: Call,
        outer: Scope,
        results: dict[str, str],
        *,
        inline: bool,
    ) -> Scope:
        """The scope of a graph that is an attribute; inline its nodes go to the graph around it."""
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
            own=outer.own,
        )

    def _formal(
        self, info: onnx.ValueInfoProto, given: TensorType | None, call: Call
    ) -> TensorType | None:
        """The type of an input of a graph that is an attribute; None where there is none.

        Its dims are its own: from turn to turn they may change, whatever their names.
        """
        # Behind an unsupported node what is given has a type that is made up.
        if info.type.WhichOneof("value") is not None or not call.is_broken:
            try:
                return formal_type(info, given)
            except UnsupportedError as error:
                self._unsupported.append(f"{call.title}: {error}")
        return None

    def _input(self, info: onnx.ValueInfoProto, scope: Scope) -> Value:
        if not info.name or info.name in scope.env:
            raise ModelError(f"Two inputs of the model are named '{info.name}'; rename one.")
        self._value_names.reserve(info.name)
        try:
            value = Value(info.name, tensor_type(info, self._dims))
        except UnsupportedError as error:
            self._unsupported.append(str(error))
            value = BROKEN
        scope.env[info.name] = value
        return value

    def _output(self, name: str, scope: Scope, where: str) -> Value:
        if name not in scope.names():
            raise ModelError(f"No node makes the output '{name}' of {where}; it is not valid.")
        return self._look_up(name, scope) or BROKEN

    def _look_up(self, name: str, scope: Scope) -> Value | None:
        """A value that `sort_nodes` found to be there; an initializer is read at its first use."""
        if name in scope.env:
            known = scope.env[name]
            if known not in self._lacking:
                return known
            self._unsupported.append(self._lacking[known])
            return BROKEN
        if name in scope.initializers:
            found: Value | None = self._constant(name, scope)
        else:
            assert scope.outer is not None
            found = self._captured(self._look_up(name, scope.outer), scope)
        scope.env[name] = found
        return found

    def _captured(self, value: Value | None, scope: Scope) -> Value | None:
        """The value of an outer scope as the graph of an attribute sees it.

        Sizes that are known outside as expressions only are found out when the graph runs.
        """
        if value is None or value is BROKEN or (value.is_constant and value.has_numbers):
            return value
        if scope.outer is not None and scope.nodes is scope.outer.nodes:
            return value
        if value not in scope.captures:
            name = self._value_names.unique(scope.prefix + value.name)
            scope.captures[value] = Value(name, captured_type(value.type, scope.sizes))
        return scope.captures[value]

    def _constant(self, name: str, scope: Scope) -> Value:
        where = f"initializer '{name}'"
        found = scope.initializers[name]
        try:
            if isinstance(found, onnx.TensorProto):
                array = self._tensors.array(found, where)
            elif isinstance(found, onnx.SparseTensorProto):
                array = self._tensors.sparse(found, where)
            else:
                array = np.asarray(found)
            own = name if scope.outer is None else self._value_names.unique(scope.prefix + name)
            return _constant_value(own, array, where)
        except UnsupportedError as error:
            self._unsupported.append(str(error))
            return BROKEN

    def _walk(self, nodes: Sequence[onnx.NodeProto], scope: Scope, where: str) -> None:
        self._visited += len(nodes)
        if self._visited > _FEW_NODES and self._visited > self._most_visits:
            raise ModelError(
                f"{where} has loops nested so that their shapes cannot be told; export the model "
                "with fixed shapes."
            )
        outside = set() if scope.outer is None else scope.outer.names()
        order = sort_nodes(nodes, {*scope.env, *scope.initializers}, where, outside)
        # A name in the file goes before one that is made up for a node without a name.
        names = {i: self._node_names.unique(scope.prefix + n.name) for i, n in order if n.name}
        for index, proto in order:
            name = names.get(index) or self._node_names.unique(
                f"{scope.prefix}{proto.op_type}_{index}"
            )
            self._import(self._call(proto, name, scope), scope)

    def _call(self, proto: onnx.NodeProto, name: str, scope: Scope) -> Call:
        domain = normal_domain(proto.domain)
        if not domain and not scope.opsets.get(""):
            raise ModelError(
                f"{proto.op_type} '{name}' is an ai.onnx op, but the model imports no opset of "
                "ai.onnx; export it again."
            )
        inputs = [self._look_up(n, scope) if n else None for n in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        finals = []
        for output in proto.output:
            known = output in scope.results or not output
            finals.append(
                scope.results.get(output, "")
                if known
                else self._value_names.unique(scope.prefix + output)
            )
        resolved = onnx.NodeProto()
        resolved.CopyFrom(proto)
        if any(a.ref_attr_name for a in proto.attribute):
            attrs = resolve_attributes(proto, scope.attrs)
            del resolved.attribute[:]
            resolved.attribute.extend(attrs)
        return Call(resolved, name, domain, scope.opsets.get(domain, 1), inputs, finals)

    def _import(self, call: Call, scope: Scope) -> None:
        proto = call.proto
        function = self._functions.get((call.domain, proto.op_type, proto.overload))
        if function is not None:
            return self._inline(function, call, scope)
        if call.domain == _OWN_DOMAIN and not scope.own:
            raise ModelError(
                f"{call.title} is of the domain '{_OWN_DOMAIN}', whose ops clrt alone makes; "
                "write compiled models by clrt-convert."
            )
        try:
            with Blaming(call.title):
                check_attributes(proto, call.domain, call.opset)
        except UnsupportedError as error:
            return self._refuse(call, scope, without_title(str(error), call.title))
        if not call.domain and proto.op_type == "Constant":
            return self._constant_node(call, scope)
        if not call.domain and proto.op_type == "If" and _truth(call) is not None:
            return self._branch(call, scope)
        check_kinds(call)
        cls = REGISTRY.find(call.domain, proto.op_type)
        if cls is None or is_dated(call.domain, proto.op_type, call.opset):
            return self._expand(call, scope)
        try:
            self._apply(cls, call, scope)
        except Expand:
            self._expand(call, scope)
        except UnsupportedError as error:
            self._refuse(call, scope, without_title(str(error), call.title, cls.name))

    def _expand(self, call: Call, scope: Scope) -> None:
        """Imports the nodes that an op stands for, by clrt's expansion or ONNX's schema.

        An expansion that raises `Expand` leaves this form of the op to the schema. None is asked
        behind an unsupported node: it would go by types that are made up.
        """
        types = [None if v is None else v.type for v in call.inputs]
        key = call.domain, call.proto.op_type
        if has_expansion(*key) or is_dated(*key, call.opset):
            if call.is_broken:
                return _break(call, scope)
            try:
                return self._expand_own(call, types, scope)
            except Expand:
                pass
        function = schema_function(
            call.proto, call.opset, None if call.is_broken else types, scope.opsets.get("")
        )
        if function is not None:
            return self._inline(function, call, scope)
        self._refuse(call, scope)

    def _expand_own(self, call: Call, types: list[TensorType | None], scope: Scope) -> None:
        """Inlines the body that clrt has for an op."""
        proto = call.proto
        try:
            with Blaming(call.title):
                attrs = {
                    a.name: attribute_value(a, self._tensors, call.title) for a in proto.attribute
                }
                if call.domain == NCHWC:
                    attrs["block"] = self._block
                function = expand(
                    call.domain, proto.op_type, call.opset, attrs, types, len(call.outputs)
                )
        except UnsupportedError as error:
            return self._refuse(call, scope, without_title(str(error), call.title))
        self._inline(function, call, scope)

    @cached_property
    def _block(self) -> int:
        """How many channels lie together in the model's blocked layout."""
        return block_of(self._proto)

    def _refuse(self, call: Call, scope: Scope, reason: str = "") -> None:
        """Notes an unsupported node and goes on, so that the error can name all of them."""
        schema = schema_of(call.domain, call.proto.op_type, call.opset)
        expands = schema is not None and schema.has_context_dependent_function
        # What the body of such an op holds is only known once the types of its inputs are.
        if reason or not (call.is_broken and expands):
            self._unsupported.append(note(call, reason))
        _break(call, scope)

    def _branch(self, call: Call, scope: Scope) -> None:
        """Imports the branch that an If with a known condition takes, in its place.

        The other may not even type-check: exporters ask for the rank and then act on it.
        """
        name = "then_branch" if _truth(call) else "else_branch"
        branch = next((a.g for a in call.proto.attribute if a.name == name), None)
        if branch is None or len(branch.output) < len(call.outputs):
            raise ModelError(
                f"{call.title} lacks a '{name}' with {counted(len(call.outputs), 'output')}."
            )
        formals = [info.name for info in branch.output]
        results = {f: n for f, n in zip(formals, call.outputs, strict=False) if n}
        inner = self._inner(branch, call, scope, results, inline=True)
        where = f"graph '{branch.name}' of {call.title}"
        self._walk(branch.node, inner, where)
        for output, formal in zip(call.proto.output, formals, strict=False):
            if output:
                scope.env[output] = self._output(formal, inner, where)

    def _inline(self, function: Function, call: Call, scope: Scope) -> None:
        if function.key in scope.calls:
            raise ModelError(f"{call.title}: function '{function.key[1]}' calls itself.")
        wanted = (len(function.inputs), len(function.outputs))
        if len(call.inputs) > wanted[0] or len(call.outputs) > wanted[1]:
            raise ModelError(
                f"{call.title} has {counted(len(call.inputs), 'input')} and "
                f"{counted(len(call.outputs), 'output')}; "
                f"function '{function.key[1]}' has {wanted[0]} and {wanted[1]}."
            )
        results = {f: n for f, n in zip(function.outputs, call.outputs, strict=False) if n and f}
        inner = Scope(
            scope.nodes,
            prefix=f"{call.name}/",
            opsets=function.opsets,
            env=dict(zip_longest(function.inputs, call.inputs)),
            results=results,
            attrs={**function.defaults, **{a.name: a for a in call.proto.attribute}},
            calls=(*scope.calls, function.key),
            # The body may hold the graphs of the call, which see what the call sees.
            outer=scope if any(a.type == _GRAPH for a in call.proto.attribute) else None,
            own=function.own,
        )
        self._walk(function.nodes, inner, f"function '{function.key[1]}'")
        outputs = zip(call.proto.output, function.outputs, strict=False)
        for index, (name, formal) in enumerate(outputs):
            if not name:
                continue
            value = inner.env.get(formal) if formal else Value(name, BROKEN.type)
            if value is None:
                raise ModelError(f"{call.title}: function '{function.key[1]}' makes no '{formal}'.")
            if not formal:
                self._lacking[value] = note(call, f"its output {index}")
            scope.env[name] = value

    def _constant_node(self, call: Call, scope: Scope) -> None:
        if len(call.proto.attribute) != 1 or len(call.outputs) != 1 or not call.outputs[0]:
            raise ModelError(f"{call.title} must have one value and one output.")
        (attr,) = call.proto.attribute
        try:
            found = attribute_value(attr, self._tensors, call.title)
            if attr.name == "sparse_value" and isinstance(found, np.ndarray):
                array = found
            elif attr.name in ("value_float", "value_floats"):
                array = np.asarray(found, np.float32)
            elif attr.name in ("value_int", "value_ints"):
                array = np.asarray(found, np.int64)
            elif attr.name == "value" and isinstance(found, np.ndarray):
                array = found
            elif attr.name in ("value_string", "value_strings"):
                texts = found if isinstance(found, list) else [found]
                array = text_array(texts, np.shape(found))
            else:
                raise ModelError(f"{call.title} has no valid value (attribute '{attr.name}').")
        except UnsupportedError as error:
            return self._refuse(call, scope, str(error))
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(f"{call.title} has no valid value: {error}.") from error
        scope.env[call.proto.output[0]] = _constant_value(call.outputs[0], array, call.title)

    def _apply(self, cls: type[Op], call: Call, scope: Scope) -> None:
        local = dict(zip(call.outputs, call.proto.output, strict=True))
        values = {v.name: v for v in call.inputs if v is not None}
        with Blaming(call.title):
            node = self._onnx_node(cls, call, values, scope)
            op = cls.from_onnx(node)
            inputs = [values[n] if n else None for n in node.inputs]
            inner = (v for g in op.graphs for v in (*g.inputs, *g.outputs))
            if any(v is BROKEN for v in (*inputs, *inner)):
                return _break(call, scope)
            types = op.infer_with_data([None if v is None else v.type for v in inputs])
        self._add(op, call, inputs, _trim(node.outputs), types, local, scope)

    def _add(
        self,
        op: Op,
        call: Call,
        inputs: list[Value | None],
        names: Sequence[str],
        types: Sequence[TensorType],
        local: Mapping[str, str],
        scope: Scope,
    ) -> None:
        if len(names) > len(types):
            raise UnsupportedError(
                f"clrt computes {len(types)} of its {counted(len(names), 'output')}"
            )
        outputs = []
        for index, (name, inferred) in enumerate(zip(names, types, strict=False)):
            type_ = refine(inferred, scope.declared.get(local.get(name, "")), self._dims)
            final = name or self._value_names.unique(f"{call.name}/unused.{index}")
            outputs.append(Value(final, type_))
            if name:
                scope.env[local[name]] = outputs[-1]
        scope.nodes.append(Node(call.name, op, inputs, outputs))

    def _onnx_node(
        self, cls: type[Op], call: Call, values: dict[str, Value], scope: Scope
    ) -> OnnxNode:
        schema = schema_of(call.domain, call.proto.op_type, call.opset)
        if schema is not None and len(call.inputs) > schema.max_input:
            raise ModelError(
                f"{call.title} has {counted(len(call.inputs), 'input')}; opset {call.opset} allows "
                f"{schema.max_input}."
            )
        attrs = {
            a.name: attribute_value(a, self._tensors, call.title)
            for a in call.proto.attribute
            if a.type != _GRAPH
        }
        graphs, captured = self._graphs(cls, call, scope)
        values.update((v.name, v) for v in captured)
        inputs = [*call.inputs]
        least = 0 if schema is None else schema.min_input
        if graphs:  # in front of those that vary in number all may be left out
            inputs += [None] * (least - len(inputs))
        elif len(inputs) < least:
            raise ModelError(
                f"{call.title} has {counted(len(inputs), 'input')}; opset {call.opset} "
                f"needs {least}."
            )
        inputs += captured

        def add_constant(array: Array) -> str:
            name = self._value_names.unique(f"{call.name}/constant")
            values[name] = _constant_value(name, array, call.title)
            return name

        return OnnxNode(
            op_type=call.proto.op_type,
            domain=call.domain,
            name=call.name,
            opset=call.opset,
            attrs={**attrs, **graphs},
            inputs=["" if v is None else v.name for v in inputs],
            outputs=list(call.outputs),
            constants={n: v.numbers for n, v in values.items() if v.numbers is not None},
            add_constant=add_constant,
            types={n: v.type for n, v in values.items()},
            captures=len(captured),
        )

    def _graphs(
        self, cls: type[Op], call: Call, scope: Scope
    ) -> tuple[dict[str, Graph], list[Value]]:
        """The graphs among a node's attributes, and what they read from outside.

        Each of them takes all of that, in the same order, behind its own inputs.
        """
        protos = {a.name: a.g for a in call.proto.attribute if a.type == _GRAPH}
        found = {name: self._subgraph(proto, cls, call, scope) for name, proto in protos.items()}
        captured = list(dict.fromkeys(v for _, inner in found.values() for v in inner.captures))
        for graph, inner in found.values():
            graph.inputs += [self._captured(v, inner) or BROKEN for v in captured]
        return {name: graph for name, (graph, _) in found.items()}, captured


def _break(call: Call, scope: Scope) -> None:
    """Leaves the outputs to those that an unsupported node would make."""
    scope.env.update(dict.fromkeys(filter(None, call.proto.output), BROKEN))


def _truth(call: Call) -> bool | None:
    """The condition of an If where it is known."""
    condition = call.inputs[0] if call.inputs else None
    numbers = None if condition is None else condition.numbers
    return None if numbers is None else bool(np.all(numbers))


def _constant_value(name: str, array: Array, where: str) -> Value:
    try:
        dtype = DType.of(array.dtype)
    except ValueError as error:
        raise UnsupportedError(f"{where} has dtype {array.dtype}") from error
    return Value(name, TensorType(dtype, array.shape, array))


def _trim(names: Sequence[str]) -> list[str]:
    """Without the names left out at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept
