"""Which opset has all that the nodes of a graph need, and the attributes in its form."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import onnx

from clrt.errors import UnsupportedError, counted
from clrt.importer.onnx_types import type_proto
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node
from clrt.ir.op import ContainerType, IrOp, TensorType
from clrt.ops.base import Op

# ONNX Runtime's fusions and layouts know each op up to some version of it, and so more of them in
# older opsets: a ShuffleNet is 12 % slower with the AveragePool of 20 than with that of 17. It
# loads no opset beyond 26.
OLDEST, NEWEST = 17, 26
# Ops that mean something else in older opsets, though nothing in their schemas says so.
_SINCE = {"DFT": 20, "GridSample": 20, "Resize": 19}
_OTHER_DOMAINS = {"ai.onnx.ml": 3, "com.microsoft": 1}

# Fields that say no more than the node's inputs and outputs do.
_IMPLIED = {
    "Clip": {"has_min", "has_max"},
    "DictVectorizer": {"dtype"},
    "GroupNormalization": {"per_group"},
    "LayerNormalization": {"stats"},
    "MaxPool": {"indices"},
    "If": {"captures"},
    "Loop": {"captures"},
    "Scan": {"captures"},
    "Split": {"outputs"},
}
_NO_SEED = 1 << 63
_SCHEMA_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}


def _fill_value(op: Any) -> dict[str, Any]:
    return {"value": np.array([op.value], op.dtype.numpy)}


def _resize(op: Any) -> dict[str, Any]:
    modes = op.coordinate_transformation_mode, op.nearest_mode
    if modes == ("tf_half_pixel_for_nn", "floor"):
        modes = "half_pixel", "round_prefer_ceil"
    for mode in modes:
        if mode in ("tf_half_pixel_for_nn", "by_scale"):
            raise UnsupportedError(f"opset {_SINCE['Resize']} has no Resize of mode '{mode}'")
    return dict(zip(("coordinate_transformation_mode", "nearest_mode"), modes, strict=True))


def _seed(op: Any) -> dict[str, Any]:
    """The `seed` that a key was made of; without one it was made of the node's name."""
    if op.key >= _NO_SEED or not op.key:
        return {}
    return {"seed": struct.unpack("<f", struct.pack("<I", op.key & 0xFFFFFFFF))[0]}


# Fields whose attribute has another name or form: (fields, attributes).
_REWRITTEN: dict[str, tuple[set[str], Callable[[Any], dict[str, Any]]]] = {
    "ConstantOfShape": ({"value", "dtype"}, _fill_value),
    "Resize": ({"coordinate_transformation_mode", "nearest_mode"}, _resize),
    "MelWeightMatrix": ({"dtype"}, lambda op: {"output_datatype": op.dtype}),
    **dict.fromkeys(
        (
            "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
            "RandomUniformLike",
        ),
        ({"key"}, _seed),
    ),
}  # fmt: skip


def attributes(op: IrOp, opset: int) -> dict[str, Any]:
    """The attributes of a node that differ from the defaults of the opset.

    Returns:
        By name ints, floats, strings, lists of these, arrays, graphs or type protos.

    Raises:
        UnsupportedError: The opset lacks one of them.
    """
    schema = _schema(op, opset)
    rewritten, rewrite = _REWRITTEN.get(op.name, (set(), lambda _: {}))
    skipped = _IMPLIED.get(op.name, set()) | rewritten
    found = {f.name: (getattr(op, f.name), f.default) for f in fields(op) if f.name not in skipped}
    found |= {name: (value, MISSING) for name, value in rewrite(op).items()}
    result = {}
    for name, (value, default) in found.items():
        declared = schema.attributes.get(name) if schema else None
        if schema is not None and declared is None:
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
            given = onnx.helper.get_attribute_value(declared.default_value)
            if _equal(plain, given if declared.default_value.name else _plain(default)):
                continue
        result[name] = plain
    return result


def _schema(op: IrOp, opset: int) -> Any:
    """The schema of an op; None for a domain of which ONNX has none.

    Raises:
        UnsupportedError: The opset does not have the op.
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
    if isinstance(right, bytes):
        right = right.decode()
    if isinstance(left, float) and isinstance(right, (int, float)):
        return np.float32(left).tobytes() == np.float32(right).tobytes()
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return False
    return bool(left == right)


def choose_opset(graphs: Sequence[Graph]) -> int:
    """The oldest opset, from `OLDEST` on, that has every op, attribute and type of the graphs.

    Raises:
        UnsupportedError: None has all; it names every node that the best one cannot hold.
    """
    nodes = [n for g in graphs for n in g.nodes]
    best: list[str] | None = None
    for opset in range(OLDEST, NEWEST + 1):
        notes = [f"{n!r} ({why})" for n in nodes if (why := _misfit(n, opset)) is not None]
        if not notes:
            return opset
        best = notes if best is None or len(notes) < len(best) else best
    assert best is not None
    raise UnsupportedError(
        f"No opset up to {NEWEST}, the last that ONNX Runtime loads, can hold {', '.join(best)}; "
        "keep the original model for ONNX Runtime.",
        best,
    )


def opset_imports(graphs: Sequence[Graph], opset: int) -> list[onnx.OperatorSetIdProto]:
    """The opsets of every domain in the graphs."""
    domains = {n.op.domain for g in graphs for n in g.nodes} - {""}
    versions: Mapping[str, int] = {"": opset, **{d: _OTHER_DOMAINS[d] for d in sorted(domains)}}
    return [onnx.helper.make_opsetid(d, v) for d, v in versions.items()]


def _misfit(node: Node, opset: int) -> str | None:
    """Why an opset cannot hold a node; None if it can."""
    op = node.op
    assert isinstance(op, Op)
    try:
        schema = _schema(op, opset)
        attributes(op, opset)
    except UnsupportedError as error:
        return str(error)
    if schema is None:
        return None
    if opset < _SINCE.get(op.name, 0):
        return f"{op.name} means something else in opset {opset}"
    if opset < 22 and getattr(op, "ceil_mode", False):
        return f"opset {opset} has windows that start in the padding"
    inputs = node.inputs[: len(node.inputs) - getattr(op, "captures", 0)]
    if op.name == "Clip":
        inputs = clip_inputs(node)
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


def least_inputs(op: IrOp, opset: int) -> int:
    """How many inputs a node has at least, those left out among them."""
    schema = _schema(op, opset)
    return 0 if schema is None else int(schema.min_input)


def _is_variadic(formals: Sequence[Any]) -> bool:
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return bool(formals) and formals[-1].option == variadic


def clip_inputs(node: Node) -> list[Any]:
    """x, low and high, None for a bound left out: the IR has those that are there."""
    x, *bounds = node.inputs
    low = bounds[0] if getattr(node.op, "has_min", True) else None
    high = bounds[-1] if getattr(node.op, "has_max", True) else None
    return [x, low, high] if high is not None else [x, low] if low is not None else [x]


def _schema_name(type_: TensorType) -> str:
    """A type as the schemas of ONNX write it, such as `seq(tensor(float))`."""
    if isinstance(type_, ContainerType):
        if type_.key is not None:
            return f"map({type_.key},{_schema_name(type_.element)})"
        kind = "seq" if type_.kind == "sequence" else "optional"
        return f"{kind}({_schema_name(type_.element)})"
    return f"tensor({_SCHEMA_NAMES.get(type_.dtype, type_.dtype.value)})"
