"""Reads attributes, functions of the model, and function bodies of ONNX's op schemas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any

import onnx

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.op import TensorType
from clrt.models.onnx.read import normal_domain, opsets_of
from clrt.models.onnx.scope import FunctionKey, Initializer
from clrt.models.onnx.tensors import TensorReader
from clrt.models.onnx.types import type_proto, value_type
from clrt.util.fast_dataclass import dataclass

_Attr = onnx.AttributeProto
_TRAINING_DOMAIN = "ai.onnx.preview.training"


@dataclass(frozen=True)
class Function:
    """A function body, and the context to inline it.

    Attributes:
        key: (domain, name, overload); a key that repeats in a chain of calls is a recursion.
        inputs: Names of the inputs in the body.
        outputs: Names of the outputs in the body.
        nodes: Nodes of the body.
        opsets: Opset version by domain, for the nodes of the body.
        defaults: Default values of attributes that a call may omit, by name.
    """

    key: FunctionKey
    inputs: Sequence[str]
    outputs: Sequence[str]
    nodes: Sequence[onnx.NodeProto]
    opsets: Mapping[str, int]
    defaults: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)


def local_functions(model: onnx.ModelProto) -> dict[FunctionKey, Function]:
    """Returns the functions that a model defines, by (domain, name, overload)."""
    functions = {}
    for proto in model.functions:
        key = (normal_domain(proto.domain), proto.name, proto.overload)
        # In older files functions have no imports.
        opsets = opsets_of(proto.opset_import) or opsets_of(model.opset_import)
        functions[key] = _function(key, proto, opsets, {a.name: a for a in proto.attribute_proto})
    return functions


def schema_function(
    node: onnx.NodeProto,
    opset: int,
    inputs: Sequence[TensorType | None] | None,
    main_opset: int | None = None,
) -> Function | None:
    """Returns the function body that ONNX's schema of an op defines; None if it has none.

    Args:
        node: Node of the op. In a function body, references to the function's attributes must be
            replaced by their values (`resolve_attributes`).
        opset: Opset version of the node's domain.
        inputs: Types of the node's inputs, which some bodies depend on; None if unknown.
        main_opset: The ai.onnx opset of the node's graph; None for the newest. It applies to
            a body of another domain that does not import ai.onnx; such a body may contain the
            node's subgraphs.
    """
    domain = normal_domain(node.domain)
    schema = schema_of(domain, node.op_type, opset)
    if schema is None:
        return None
    body = None
    if schema.has_function:
        version = _nearest(schema.function_opset_versions, opset)
        stored = schema.get_function_with_opset_version(version)
        body = onnx.FunctionProto.FromString(stored) if isinstance(stored, bytes) else stored
    elif schema.has_context_dependent_function and inputs is not None:
        version = _nearest(schema.context_dependent_function_opset_versions, opset)
        types = [type_proto(t).SerializeToString() for t in inputs]
        try:
            stored = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), types
            )
            body = onnx.FunctionProto.FromString(stored)
        # ONNX's builders reject unsuitable nodes by C++ exceptions.
        except (RuntimeError, ValueError, onnx.defs.SchemaError):
            return None
    if body is None or not body.node:
        return None
    defaults = {
        name: attr.default_value
        for name, attr in schema.attributes.items()
        if attr.default_value.type != _Attr.UNDEFINED
    }
    main_opset = main_opset or onnx.defs.onnx_opset_version()
    opsets = {"": main_opset, domain: version, **opsets_of(body.opset_import)}
    return _function((domain, node.op_type, f"opset {version}"), body, opsets, defaults)


@lru_cache(maxsize=4096)
def schema_of(domain: str, op_type: str, opset: int) -> Any | None:
    """Returns ONNX's schema of an op at an opset; None if ONNX has no such op."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def resolve_attributes(
    node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]
) -> list[onnx.AttributeProto]:
    """Returns the attributes of a node in a function body, for one call of the function.

    Attributes that refer to attributes of the function get the values that the call gives.

    Args:
        node: Node of a function body.
        given: Attributes of the call and defaults of the function, by name. An attribute of the
            node is left out if it refers to a name that `given` lacks.
    """
    resolved = []
    for attr in node.attribute:
        if not attr.ref_attr_name:
            resolved.append(attr)
        elif attr.ref_attr_name in given:
            copy = _Attr()
            copy.CopyFrom(given[attr.ref_attr_name])
            copy.name = attr.name
            resolved.append(copy)
    return resolved


def initializers_of(graph: onnx.GraphProto) -> dict[str, Initializer]:
    """Returns the initializers of a graph by name, both dense and sparse ones."""
    return {
        **{t.name: t for t in graph.initializer},
        **{t.values.name: t for t in graph.sparse_initializer},
    }


def attribute_value(attr: onnx.AttributeProto, tensors: TensorReader, where: str) -> Any:
    """Returns an attribute as a Python value.

    Args:
        attr: The attribute; not a graph.
        tensors: Reader of the model's tensors.
        where: Name of the node, for messages.

    Returns:
        int, float, str (bytes if not UTF-8), TensorType, a list of these; arrays for tensors.

    Raises:
        ModelError: The attribute has no type, or its tensor is damaged.
        UnsupportedError: The attribute is a tensor of an unsupported dtype, or of a kind that clrt
            does not support.
    """
    where = f"attribute '{attr.name}' of {where}"
    match attr.type:
        case _Attr.TENSOR:
            return tensors.array(attr.t, where)
        case _Attr.TENSORS:
            return [tensors.array(t, where) for t in attr.tensors]
        case _Attr.SPARSE_TENSOR:
            return tensors.sparse(attr.sparse_tensor, where)
        case _Attr.FLOAT | _Attr.INT:
            return onnx.helper.get_attribute_value(attr)
        case _Attr.FLOATS | _Attr.INTS:
            return list(onnx.helper.get_attribute_value(attr))
        case _Attr.STRING:
            return _text(attr.s)
        case _Attr.STRINGS:
            return [_text(s) for s in attr.strings]
        case _Attr.TYPE_PROTO:
            return value_type(attr.tp, where)
        case _Attr.UNDEFINED:
            raise ModelError(f"{where} has no type; the model is damaged, export it again.")
    names = _Attr.AttributeType
    kind = names.Name(attr.type) if attr.type in names.values() else str(attr.type)
    raise UnsupportedError(f"{where} is of kind {kind.lower()}")


def is_gradient(domain: str, op_type: str) -> bool:
    """Returns whether a node is a Gradient, whose attributes name values of its graph."""
    return op_type == "Gradient" and domain == _TRAINING_DOMAIN


def _reads(node: onnx.NodeProto) -> Sequence[str]:
    """Returns the names of the values that a node reads."""
    inputs: Sequence[str] = node.input
    if not is_gradient(node.domain, node.op_type):
        return inputs
    texts = (s for a in node.attribute for s in (a.s, *a.strings))
    return [*inputs, *(s.decode("utf-8", "replace") for s in texts)]


def sort_nodes(
    nodes: Sequence[onnx.NodeProto],
    available: Iterable[str],
    where: str,
    outside: Collection[str] = (),
) -> list[tuple[int, onnx.NodeProto]]:
    """Sorts nodes topologically; independent ones stay in file order.

    Args:
        nodes: Nodes in file order.
        available: Names of the graph's inputs and initializers.
        where: Name of the graph, for messages.
        outside: Names of values in enclosing graphs, which names of this graph may hide.

    Returns:
        (index in the file, node) pairs.

    Raises:
        ModelError: A value is computed twice or not at all, or the nodes form a cycle.
    """
    ready = set(available)
    if _is_sorted(nodes, ready, outside):
        return list(enumerate(nodes))
    made_by: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in made_by or name in ready:
                raise ModelError(
                    f"{_title(node)} of {where} computes '{name}', which already exists in the "
                    "model; names of values must be unique."
                )
            made_by[name] = index

    def is_lost(name: str) -> bool:
        return bool(name) and not any(name in names for names in (made_by, ready, outside))

    waits: list[int] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        needed = {made_by[n] for n in _reads(node) if n in made_by}
        lost = next((n for n in _reads(node) if is_lost(n)), None)
        if lost is not None:
            raise ModelError(
                f"{_title(node)} of {where} reads '{lost}', which is not an input, initializer or "
                "output of a node; the model is not valid ONNX."
            )
        waits.append(len(needed))
        for other in needed:
            readers.setdefault(other, []).append(index)
    heap = [i for i, count in enumerate(waits) if not count]
    heapify(heap)
    order: list[tuple[int, onnx.NodeProto]] = []
    while heap:
        index = heappop(heap)
        order.append((index, nodes[index]))
        for reader in readers.get(index, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heappush(heap, reader)
    if len(order) < len(nodes):
        stuck = next(n for i, n in enumerate(nodes) if waits[i])
        raise ModelError(f"{_title(stuck)} of {where} is part of a cycle; the model is not valid.")
    return order


def _is_sorted(
    nodes: Sequence[onnx.NodeProto], available: Collection[str], outside: Collection[str]
) -> bool:
    """Returns whether nodes are valid, in the sense of `sort_nodes`, and already in order.

    Args:
        nodes: Nodes in file order.
        available: Names of the graph's inputs and initializers.
        outside: Names of values in enclosing graphs.
    """
    outputs = [name for node in nodes for name in node.output if name]
    made = set(outputs)
    if len(made) < len(outputs) or not made.isdisjoint(available):
        return False
    ready = {"", *available}
    for node in nodes:
        for name in _reads(node):
            if name not in ready and (name in made or name not in outside):
                return False
        ready.update(node.output)
    return True


def _title(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name}'" if node.name else node.op_type


def _function(
    key: FunctionKey,
    proto: onnx.FunctionProto,
    opsets: Mapping[str, int],
    defaults: Mapping[str, onnx.AttributeProto],
) -> Function:
    return Function(key, list(proto.input), list(proto.output), list(proto.node), opsets, defaults)


def _nearest(versions: Sequence[int], opset: int) -> int:
    """Returns the newest of `versions` that is <= opset; if there is none, the oldest."""
    older = [v for v in versions if v <= opset]
    return max(older) if older else min(versions)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
