"""Builds the graph of a single op for given input types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from clrt.errors import InputError, ModelError
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array, TensorType
from clrt.models.onnx.context import Context
from clrt.models.onnx.importer import main_graph
from clrt.models.onnx.op_schemas import OWN_DOMAIN, Attribute, OpSchemaInfo
from clrt.models.onnx.tensors import TensorReader
from clrt.models.onnx.types import type_proto
from clrt.ops import REGISTRY
from clrt.util.host_limits import text_array

_KINDS = onnx.AttributeProto.AttributeType


def single_graph(
    form: OpSchemaInfo,
    inputs: Sequence[TensorType | None],
    attributes: Mapping[str, Any],
    outputs: int,
) -> Graph:
    """Builds a graph with a single call of an op (or its decomposition).

    The inputs of the graph are named x0, x1, …; inputs with known elements are constants.

    Args:
        form: The op.
        inputs: Types of the op's inputs; None for an omitted one. A type with elements is a
            constant.
        attributes: Attributes from `settled_attributes`.
        outputs: Number of outputs; ignored for a clrt-specific op, which has all of them.

    Raises:
        InputError, ShapeError: The call is not valid.
        UnsupportedError: clrt does not run the op, or only if more is known about the inputs.
    """
    try:
        if form.domain == OWN_DOMAIN:
            return _own_graph(form, inputs, attributes)
        return _imported(form, inputs, attributes, outputs)
    except ModelError as error:
        raise InputError(f"{error}") from error


def _own_graph(
    form: OpSchemaInfo, inputs: Sequence[TensorType | None], attributes: Mapping[str, Any]
) -> Graph:
    op = REGISTRY.get(form.domain, form.name)(**attributes)
    values = [None if t is None else Value(f"x{k}", t) for k, t in enumerate(inputs)]
    make = Builder()
    outputs = make.add_all(op, *values)
    return make.graph(form.name, (v for v in values if v and not v.is_constant), outputs)


def _imported(
    form: OpSchemaInfo,
    inputs: Sequence[TensorType | None],
    attributes: Mapping[str, Any],
    outputs: int,
) -> Graph:
    """Builds an ONNX model with a single node, and imports its graph.

    Args:
        form: The op.
        inputs: Types of the op's inputs; None for an omitted one. A type with elements is a
            constant.
        attributes: Attributes by name.
        outputs: Number of outputs.
    """
    types = {f"x{k}": t for k, t in enumerate(inputs) if t is not None}
    names = ["" if t is None else f"x{k}" for k, t in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = onnx.NodeProto(
        op_type=form.name, domain=form.domain, name=form.name, input=names, output=results
    )
    node.attribute.extend(
        _attribute(form.attributes[name], value) for name, value in attributes.items()
    )
    free = {n: t for n, t in types.items() if t.numbers is None}
    graph = onnx.GraphProto(
        name=form.name,
        node=[node],
        input=[onnx.ValueInfoProto(name=n, type=type_proto(t)) for n, t in free.items()],
        output=[onnx.ValueInfoProto(name=n) for n in results],
    )
    versions = {"": onnx.defs.onnx_opset_version(), form.domain: form.opset}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION, graph=graph, opset_import=opsets)
    context = Context(model, TensorReader(None))
    for name, type_ in types.items():
        if (array := type_.numbers) is not None:
            context.initializers[name] = array
    return main_graph(context)


def settled_attributes(form: OpSchemaInfo, given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts attributes given by a caller to the Python types that the op's schema declares.

    Args:
        form: The op.
        given: Attributes by name; None counts as omitted.

    Returns:
        Converted attributes by name, without omitted ones.

    Raises:
        InputError: An attribute is unknown, missing or of another kind.
    """
    present = {k: v for k, v in given.items() if v is not None}
    missing = [n for n, a in form.attributes.items() if a.required and n not in present]
    if missing:
        raise InputError(f"{form.title} lacks its attribute '{missing[0]}'; pass {missing[0]}=….")
    return {name: _coerce(form, name, value) for name, value in present.items()}


def _coerce(form: OpSchemaInfo, name: str, value: Any) -> Any:
    """Converts an attribute given by a caller to the kind that the op declares.

    Args:
        form: The op.
        name: Name of the attribute.
        value: The given value.

    Raises:
        InputError: The value is of another kind.
    """
    kind = form.attributes[name].kind
    coercion = _COERCIONS.get(kind)
    if coercion is None:
        return value
    many, one, expected = coercion
    try:
        if not many:
            return one(value)
        if isinstance(value, str) or not np.iterable(value):
            raise TypeError
        return tuple(map(one, value))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{form.title}: attribute '{name}' is {value!r:.60}; expected {expected}."
        ) from error


def _integer(value: Any) -> int:
    """Converts an attribute value to an integer; a dtype becomes its number in ONNX.

    Raises:
        TypeError: The value is text, or has a fraction.
    """
    if isinstance(value, (DType, np.dtype, type)):
        return (value if isinstance(value, DType) else DType.of(np.dtype(value))).onnx
    if isinstance(value, str) or int(value) != value:
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, str):
        raise TypeError
    return float(value)


def _text(value: Any) -> str | bytes:
    if not isinstance(value, (str, bytes)):
        raise TypeError
    return value


def _tensor(value: Any) -> Array:
    array = with_texts(np.asarray(value))
    DType.of(array.dtype)
    return array


def with_texts(array: Array) -> Array:
    """Converts an object array of strings to NumPy's string dtype; other arrays are unchanged."""
    if array.dtype == object and all(isinstance(x, str) for x in array.flat):
        return text_array(array.reshape(-1).tolist(), array.shape)
    return array


# Kind of attribute -> (whether it is a list, converter of one element, expected value in messages).
_COERCIONS: Mapping[str, tuple[bool, Any, str]] = {
    "int": (False, _integer, "an integer, or a dtype where it means one"),
    "ints": (True, _integer, "a list of integers"),
    "float": (False, _number, "a number"),
    "floats": (True, _number, "a list of numbers"),
    "string": (False, _text, "text"),
    "strings": (True, _text, "a list of texts"),
    "tensor": (False, _tensor, "an array"),
    "tensors": (True, _tensor, "a list of arrays"),
}


def _attribute(attribute: Attribute, value: Any) -> onnx.AttributeProto:
    kind = _KINDS.Value(attribute.kind.upper())
    if attribute.kind == "tensor":
        value = onnx.numpy_helper.from_array(value)
    elif attribute.kind == "tensors":
        value = list(map(onnx.numpy_helper.from_array, value))
    return onnx.helper.make_attribute(attribute.name, value, attr_type=kind)
