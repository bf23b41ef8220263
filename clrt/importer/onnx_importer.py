"""ONNX to the IR: one form for passes to see, whatever opset the file is of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from clrt.errors import ClrtError, ModelError, ShapeError, UnsupportedError
from clrt.importer.onnx_files import read_model, read_tensor
from clrt.importer.onnx_functions import Key, expand, function_key, schema_function
from clrt.ir.dims import Dim, Expr, is_symbol, parse_dim, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops import REGISTRY
from clrt.ops.base import OnnxNode

OLDEST_OPSET = 7


def import_model(
    source: str | Path | bytes | onnx.ModelProto, weights: Mapping[str, Array] | None = None
) -> Graph:
    """Imports an ONNX model.

    Args:
        source: A file, its bytes, or the parsed model.
        weights: More initializers by name, used without a copy.

    Raises:
        ModelError: The file is missing, damaged, or not valid ONNX.
        UnsupportedError: Nodes or dtypes clrt does not support; all are named at once.
    """
    model, folder = read_model(source)
    return _Importer(model, folder).run(weights or {})


@dataclass
class _Importer:
    model: onnx.ModelProto
    folder: Path | None
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    unsupported: dict[str, None] = field(default_factory=dict)
    functions: dict[Key, onnx.FunctionProto] = field(default_factory=dict)
    declared: dict[str, onnx.TypeProto] = field(default_factory=dict)
    node_names: Names = field(default_factory=lambda: Names(()))
    taken: set[str] = field(default_factory=set)

    def run(self, weights: Mapping[str, Array]) -> Graph:
        graph = self.model.graph
        opsets = self._opsets()
        for function in self.model.functions:
            key = function_key(function.domain, function.name, function.overload)
            self.functions[key] = function
        self.declared = {v.name: v.type for v in (*graph.value_info, *graph.output)}
        for tensor in graph.initializer:
            try:
                self._constant(tensor.name, read_tensor(tensor, self.folder))
            except UnsupportedError as error:
                self.unsupported[str(error)] = None
        if graph.sparse_initializer:
            self.unsupported["sparse initializers"] = None
        for name, array in weights.items():
            self._constant(name, array)
        inputs = [self._input(i) for i in graph.input if i.name not in self.values]
        for index, node in enumerate(graph.node):
            self._node(node, opsets, f"{node.op_type}_{index}")
        self._refuse()
        outputs = [self._output(o.name) for o in graph.output]
        present = [v for v in inputs if v is not None]
        result = Graph(
            graph.name or "main", present, outputs, self.nodes, [o.name for o in graph.output]
        )
        result.remove_dead()
        return result

    def _opsets(self) -> dict[str, int]:
        opsets = {function_key(o.domain, "")[0]: o.version for o in self.model.opset_import}
        version = opsets.setdefault("", 1 if not self.model.opset_import else 0)
        if 0 < version < OLDEST_OPSET:
            raise UnsupportedError(
                f"The model is of ai.onnx opset {version}; clrt reads {OLDEST_OPSET} and newer. "
                "Convert it with onnx.version_converter."
            )
        return opsets

    def _refuse(self) -> None:
        if not self.unsupported:
            return
        listing = "; ".join(self.unsupported)
        raise UnsupportedError(
            f"The model uses {len(self.unsupported)} thing(s) that clrt does not support: {listing}."
            " Export it with other options, or replace these nodes.",
            tuple(self.unsupported),
        )

    def _constant(self, name: str, array: Array) -> Value:
        type_ = TensorType(DType.of(array.dtype), tuple(array.shape), array)
        self.constants[name] = array
        value = self.values[name] = Value(name, type_)
        return value

    def _input(self, info: onnx.ValueInfoProto) -> Value | None:
        type_ = _tensor_type(info.type, info.name)
        if type_ is None:
            self.unsupported[f"input '{info.name}' of a type that is no numeric tensor"] = None
            return None
        value = self.values[info.name] = Value(info.name, type_)
        return value

    def _output(self, name: str) -> Value:
        if name not in self.values:
            raise ModelError(f"The graph's output '{name}' is computed by no node; the file is damaged.")
        return self.values[name]

    def _node(self, proto: onnx.NodeProto, opsets: Mapping[str, int], fallback: str) -> None:
        domain = function_key(proto.domain, "")[0]
        opset = opsets.get(domain, opsets.get("", 0))
        name = self._unique(proto.name or fallback)
        described = f"{proto.op_type} '{name}' ({domain or 'ai.onnx'} opset {opset})"
        function = self.functions.get(function_key(domain, proto.op_type, proto.overload))
        if function is not None:
            self._expand(proto, function, name, opsets)
            return
        missing = [n for n in proto.input if n and n not in self.values]
        if missing:
            if not self.unsupported:
                raise ModelError(
                    f"{proto.op_type} '{name}' reads '{missing[0]}', which nothing computes before "
                    "it; the file is damaged."
                )
            self._name_only(proto, domain, described)
            return
        if proto.op_type == "Constant" and domain == "":
            self._constant_node(proto, described)
            return
        cls = REGISTRY.find(domain, proto.op_type)
        if cls is None:
            types = [self.values[n].type if n else None for n in proto.input]
            body = schema_function(proto, opset, types)
            if body is None:
                self.unsupported[described] = None
            else:
                self._expand(proto, body, name, opsets)
            return
        self._make(proto, cls, name, domain, opset, described)

    def _name_only(self, proto: onnx.NodeProto, domain: str, described: str) -> None:
        """A node behind an unsupported one: it cannot be typed, but it can be named too."""
        known = REGISTRY.find(domain, proto.op_type) or (proto.op_type, domain) == ("Constant", "")
        if not known and not onnx.defs.has(proto.op_type, domain):
            self.unsupported[described] = None
        elif not known:
            schema = onnx.defs.get_schema(proto.op_type, domain)
            if not (schema.has_function or schema.has_context_dependent_function):
                self.unsupported[described] = None

    def _expand(
        self,
        proto: onnx.NodeProto,
        function: onnx.FunctionProto,
        name: str,
        opsets: Mapping[str, int],
    ) -> None:
        body = expand(proto, function, name)
        merged = {**opsets, **body.opsets}
        for index, inner in enumerate(body.nodes):
            self._node(inner, merged, f"{name}/{inner.op_type}_{index}")

    def _constant_node(self, proto: onnx.NodeProto, described: str) -> None:
        (attribute,) = proto.attribute or (onnx.AttributeProto(),)
        try:
            self._constant(proto.output[0], self._constant_array(attribute))
        except UnsupportedError as error:
            self.unsupported[f"{described}: {error}"] = None

    def _constant_array(self, attribute: onnx.AttributeProto) -> Array:
        found = self._attribute(attribute)
        match attribute.name:
            case "value":
                return np.asarray(found)
            case "value_float" | "value_floats":
                return np.asarray(found, np.float32)
            case "value_int" | "value_ints":
                return np.asarray(found, np.int64)
        raise UnsupportedError(f"a Constant by '{attribute.name}'")

    def _attribute(self, attribute: onnx.AttributeProto) -> Any:
        kind = onnx.AttributeProto
        match attribute.type:
            case kind.TENSOR:
                return read_tensor(attribute.t, self.folder)
            case kind.STRING:
                return attribute.s.decode("utf-8", "replace")
            case kind.STRINGS:
                return [s.decode("utf-8", "replace") for s in attribute.strings]
            case kind.FLOATS | kind.INTS | kind.FLOAT | kind.INT:
                found = onnx.helper.get_attribute_value(attribute)
                return list(found) if attribute.type in (kind.FLOATS, kind.INTS) else found
        name = kind.AttributeType.Name(attribute.type).lower()
        raise UnsupportedError(f"attribute '{attribute.name}' of type {name}")

    def _make(
        self,
        proto: onnx.NodeProto,
        cls: Any,
        name: str,
        domain: str,
        opset: int,
        described: str,
    ) -> None:
        def add_constant(array: Array) -> str:
            fresh = self._unique(f"{name}/attribute")
            self._constant(fresh, array)
            return fresh

        inputs = list(proto.input)
        try:
            attrs = {a.name: self._attribute(a) for a in proto.attribute}
            view = OnnxNode(
                proto.op_type, domain, name, opset, attrs, inputs, list(proto.output),
                self.constants, add_constant,
            )  # fmt: skip
            op = cls.from_onnx(view)
            values = [self.values[n] if n else None for n in view.inputs]
            types = op.infer_with_data([None if v is None else v.type for v in values])
        except UnsupportedError as error:
            self.unsupported[f"{described}: {error}"] = None
            return
        except KeyError as error:
            raise ModelError(f"{proto.op_type} '{name}' lacks the attribute {error}.") from error
        except (ShapeError, ModelError) as error:
            raise _with_node(error, proto.op_type, name) from error
        outputs = [
            Value(n or self._unique(f"{name}/unused"), self._refine(n, t))
            for n, t in zip(_pad(proto.output, len(types)), types, strict=False)
        ]
        for output in outputs:
            self.values[output.name] = output
        self.nodes.append(Node(name, op, values, outputs))

    def _refine(self, name: str, type_: TensorType) -> TensorType:
        """What infer left open, from the file's own declaration."""
        if type_.shape is not None or name not in self.declared:
            return type_
        declared = _tensor_type(self.declared[name], name)
        if declared is None or declared.dtype is not type_.dtype:
            return type_
        return TensorType(type_.dtype, declared.shape, type_.data)

    def _unique(self, name: str) -> str:
        fresh = name if name not in self.taken else self.node_names.fresh(name, "copy")
        self.taken.add(fresh)
        return fresh


def _pad(names: Sequence[str], count: int) -> list[str]:
    return list(names) + [""] * (count - len(names))


def _with_node(error: ClrtError, op_type: str, name: str) -> ClrtError:
    text = str(error)
    start = f"{op_type}: "
    rest = text[len(start) :] if text.startswith(start) else text
    return type(error)(f"{op_type} '{name}': {rest}")


def _tensor_type(proto: onnx.TypeProto, name: str) -> TensorType | None:
    """The type of a graph input; None where it is no tensor of a dtype clrt has."""
    if not proto.HasField("tensor_type"):
        return None
    tensor = proto.tensor_type
    try:
        dtype = DType.of(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, ValueError):
        return None
    if not tensor.HasField("shape"):
        return TensorType(dtype, None)
    dims = [_dim(d, f"{name}_{i}") for i, d in enumerate(tensor.shape.dim)]
    return TensorType(dtype, tuple(dims))


def _dim(proto: onnx.TensorShapeProto.Dimension, fallback: str) -> Dim:
    if proto.HasField("dim_value"):
        return max(int(proto.dim_value), 0)
    text = proto.dim_param
    if text:
        try:
            parsed = parse_dim(text)
            if isinstance(parsed, Expr) and is_symbol(parsed):
                return parsed
        except (ValueError, SyntaxError):
            pass
    return symbol(re.sub(r"\W+", "_", text or fallback).strip("_") or "dim")
