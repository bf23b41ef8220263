"""Chooses the opset of an exported model, and converts attributes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import onnx

from clrt.errors import UnsupportedError, counted
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node
from clrt.ir.op import ContainerType, IrOp, TensorType
from clrt.models.onnx.attributes import declared_attributes
from clrt.models.onnx.types import type_proto
from clrt.ops.base import Op

# Range of opsets. ONNX Runtime's fusions and layouts support each op up to some version, and so
# more ops in older opsets: a ShuffleNet is 12 % slower with the AveragePool of opset 20 than with
# that of 17. It loads no opset beyond 26.
OLDEST, NEWEST = 17, 26
_OTHER_DOMAINS = {"ai.onnx.ml": 3, "com.microsoft": 1}

_SCHEMA_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}


def attributes(op: Op, opset: int) -> dict[str, Any]:
    """Returns the attributes of an op to write to a file.

    These are required attributes, and attributes with another value than ONNX's default.

    Args:
        op: The op.
        opset: The ai.onnx opset of the file.

    Returns:
        Values by name: ints, floats, strings, lists of these, arrays, graphs or type protos.

    Raises:
        UnsupportedError: The opset lacks an attribute.
    """
    schema = _schema(op, opset)
    defaults = {f.name: f.default for f in fields(op)}
    result = {}
    for name, value in op.to_onnx().items():
        default = defaults.get(name, MISSING)
        declared = schema.attributes.get(name) if schema else None
        known = declared_attributes(op.domain, op.name, opset) if schema is None else None
        if (schema is not None and declared is None) or (known is not None and name not in known):
            if value != default:
                raise UnsupportedError(f"opset {opset} has no attribute '{name}' of {op.name}")
            continue
        required = declared is not None and declared.required
        if not required and (value is None or (isinstance(value, tuple) and not value)):
            continue
        plain = _plain(value)
        if declared is not None and declared.type == onnx.defs.OpSchema.AttrType.INT:
            plain = int(plain)
        if declared is not None and not required:
            declared_default = onnx.helper.get_attribute_value(declared.default_value)
            if _equal(plain, declared_default if declared.default_value.name else _plain(default)):
                continue
        result[name] = plain
    return result


def _schema(op: IrOp, opset: int) -> Any:
    """Returns ONNX's schema of an op; None for com.microsoft, which has no schemas in ONNX.

    Args:
        op: The op.
        opset: The ai.onnx opset; other domains have fixed versions.

    Raises:
        UnsupportedError: The opset does not have the op, or has deprecated it.
    """
    if op.domain == "com.microsoft":
        return None
    opset = _OTHER_DOMAINS.get(op.domain, opset)
    try:
        schema = onnx.defs.get_schema(op.name, opset, op.domain)
    except onnx.defs.SchemaError as error:
        raise UnsupportedError(f"opset {opset} has no {op.name}") from error
    if schema.deprecated:
        raise UnsupportedError(f"opset {opset} has no {op.name} any more")
    return schema


def _plain(value: Any) -> Any:
    """Converts an attribute value to what ONNX's helper functions expect.

    Dtypes become their numbers in ONNX, types become protos, bools become ints, tuples become
    lists; other values are returned unchanged.
    """
    if isinstance(value, DType):
        return value.onnx
    if isinstance(value, TensorType):
        return type_proto(value)
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


def _equal(left: Any, right: Any) -> bool:
    """Returns whether an attribute equals its default; floats are compared as float32 bits.

    Args:
        left: Value of the attribute; never equal if it is an array.
        right: Default value.
    """
    if isinstance(right, bytes):
        right = right.decode()
    if isinstance(left, float) and isinstance(right, (int, float)):
        return np.float32(left).tobytes() == np.float32(right).tobytes()
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return False
    return bool(left == right)


def choose_opset(graphs: Sequence[Graph]) -> int:
    """Returns the oldest opset >= `OLDEST` with all ops, attributes and types of the graphs.

    Raises:
        UnsupportedError: No opset has all of them; the error lists the nodes that the best opset
            cannot express.
    """
    nodes = [n for g in graphs for n in g.nodes]
    best: list[str] | None = None
    for opset in range(OLDEST, NEWEST + 1):
        notes = [f"{n!r} ({why})" for n in nodes if (why := _reject_reason(n, opset)) is not None]
        if not notes:
            return opset
        best = notes if best is None or len(notes) < len(best) else best
    assert best is not None
    raise UnsupportedError(
        f"No opset up to {NEWEST}, the last one supported by ONNX Runtime, can represent "
        f"{', '.join(best)}; keep the original model for ONNX Runtime.",
        best,
    )


def opset_imports(graphs: Sequence[Graph], opset: int) -> list[onnx.OperatorSetIdProto]:
    """Returns the opset imports of a model: the version of each domain of its nodes.

    Args:
        graphs: All graphs of the model.
        opset: The ai.onnx opset.
    """
    domains = {n.op.domain for g in graphs for n in g.nodes} - {""}
    versions: Mapping[str, int] = {"": opset, **{d: _OTHER_DOMAINS[d] for d in sorted(domains)}}
    return [onnx.helper.make_opsetid(d, v) for d, v in versions.items()]


def _reject_reason(node: Node, opset: int) -> str | None:
    """Returns why version `opset` of ai.onnx cannot express a node; None if it can."""
    op = node.op_as(Op)
    try:
        schema = _schema(op, opset)
        attributes(op, opset)
    except UnsupportedError as error:
        return str(error)
    if schema is None:
        return None
    if opset < op.onnx_traits.since_version:
        return f"{op.name} means something else in opset {opset}"
    if opset < 22 and getattr(op, "ceil_mode", False):
        return f"opset {opset} has windows that start in the padding"
    inputs = op.onnx_inputs(node.inputs)
    inputs = inputs[: len(inputs) - getattr(op, "captures", 0)]
    for values, formals in ((inputs, schema.inputs), (node.outputs, schema.outputs)):
        if len(values) > len(formals) and not _is_variadic(formals):
            return f"opset {opset} takes {counted(len(formals), 'value')} there"
        for index, value in enumerate(values):
            formal = formals[min(index, len(formals) - 1)]
            if value is not None and _schema_name(value.type) not in formal.types:
                return f"opset {opset} takes no {value.dtype} there"
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    needed = schema.inputs[: schema.min_input]
    for index, formal in enumerate(needed):
        if formal.option != optional and (index >= len(inputs) or inputs[index] is None):
            return f"opset {opset} wants {counted(schema.min_input, 'input')}"
    return None


def min_inputs(op: IrOp, opset: int) -> int:
    """Returns the minimum number of inputs that a node of an op must list in a file.

    Omitted optional inputs are listed as "". Returns 0 for ops of com.microsoft.
    """
    schema = _schema(op, opset)
    return 0 if schema is None else int(schema.min_input)


def _is_variadic(formals: Sequence[Any]) -> bool:
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return bool(formals) and formals[-1].option == variadic


def _schema_name(type_: TensorType) -> str:
    """Returns a type in the notation of ONNX's schemas, such as `seq(tensor(float))`."""
    if isinstance(type_, ContainerType):
        if type_.key is not None:
            return f"map({type_.key},{_schema_name(type_.element)})"
        kind = "seq" if type_.kind == "sequence" else "optional"
        return f"{kind}({_schema_name(type_.element)})"
    return f"tensor({_SCHEMA_NAMES.get(type_.dtype, type_.dtype.value)})"
