"""Function bodies: model-local functions, and ops that ONNX's schema defines by others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import defs

from clrt.ir.op import TensorType

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Body:
    """What a call expands to: nodes in terms of the caller's names, and their opsets."""

    nodes: list[onnx.NodeProto]
    opsets: Mapping[str, int]


def function_key(domain: str, name: str, overload: str = "") -> Key:
    """What identifies a function; ai.onnx is ""."""
    return ("" if domain == "ai.onnx" else domain, name, overload)


def expand(node: onnx.NodeProto, function: onnx.FunctionProto, prefix: str) -> Body:
    """The nodes of a function for one call, with names made unique by `prefix`."""
    renamed = {name: "" for name in function.input}
    renamed.update(zip(function.input, node.input, strict=False))
    renamed.update(zip(function.output, node.output, strict=False))
    given = {a.name: a for a in node.attribute}
    defaults = {a.name: a for a in function.attribute_proto}
    nodes = []
    for index, inner in enumerate(function.node):
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        copy.name = f"{prefix}/{inner.name or f'{inner.op_type}_{index}'}"
        copy.input[:] = [_rename(n, renamed, prefix) for n in inner.input]
        copy.output[:] = [_rename(n, renamed, prefix) for n in inner.output]
        del copy.attribute[:]
        copy.attribute.extend(_attributes(inner, given, defaults))
        nodes.append(copy)
    opsets = {function_key(o.domain, "")[0]: o.version for o in function.opset_import}
    return Body(nodes, opsets)


def _rename(name: str, renamed: dict[str, str], prefix: str) -> str:
    return renamed.setdefault(name, f"{prefix}/{name}") if name else ""


def _attributes(
    node: onnx.NodeProto,
    given: Mapping[str, onnx.AttributeProto],
    defaults: Mapping[str, onnx.AttributeProto],
) -> Iterator[onnx.AttributeProto]:
    """Attributes with references to the call's attributes resolved; unset ones are left out."""
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            yield attribute
            continue
        source = given.get(attribute.ref_attr_name) or defaults.get(attribute.ref_attr_name)
        if source is not None:
            bound = onnx.AttributeProto()
            bound.CopyFrom(source)
            bound.name = attribute.name
            yield bound


def schema_function(
    node: onnx.NodeProto, opset: int, types: Sequence[TensorType | None]
) -> onnx.FunctionProto | None:
    """The body that ONNX's schema gives an op at an opset; None where it has none."""
    try:
        schema = defs.get_schema(node.op_type, opset, node.domain)
    except defs.SchemaError:
        return None
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        protos = [_type_proto(t).SerializeToString() for t in types]
        versions = schema.context_dependent_function_opset_versions
        for version in sorted((v for v in versions if v <= opset), reverse=True):
            with contextlib.suppress(RuntimeError, ValueError):
                function.ParseFromString(
                    schema.get_context_dependent_function_with_opset_version(
                        version, node.SerializeToString(), protos
                    )
                )
                return _complete(function, schema, version)
    if schema.has_function:
        versions = schema.function_opset_versions
        version = max((v for v in versions if v <= opset), default=None)
        if version is not None:
            function.ParseFromString(schema.get_function_with_opset_version(version))
            return _complete(function, schema, version)
    return None


def _complete(
    function: onnx.FunctionProto, schema: defs.OpSchema, opset: int
) -> onnx.FunctionProto:
    """A schema body with the schema's attribute defaults and an opset of its own."""
    known = {a.name for a in function.attribute_proto}
    for name, attribute in schema.attributes.items():
        if name not in known and attribute.default_value.name:
            function.attribute_proto.append(attribute.default_value)
    if not function.opset_import:
        function.opset_import.append(onnx.helper.make_opsetid("", opset))
    return function


def _type_proto(type_: TensorType | None) -> onnx.TypeProto:
    if type_ is None:
        return onnx.TypeProto()
    code = onnx.helper.np_dtype_to_tensor_dtype(type_.dtype.numpy)
    shape = None if type_.shape is None else [d if isinstance(d, int) else str(d) for d in type_.shape]
    return onnx.helper.make_tensor_type_proto(code, shape)
