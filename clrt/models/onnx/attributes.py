"""Checks nodes' attributes against ONNX's schemas, or a table for ONNX Runtime's contrib ops.

Only names and kinds are checked here, before any attribute is read; values are checked as fields of
op classes (clrt.ir.attributes).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files

import onnx

from clrt.errors import ModelError, UnsupportedError
from clrt.models.onnx.functions import schema_of

_KINDS = onnx.AttributeProto.AttributeType
# Prefix of attributes that a runtime keeps for itself, which ONNX does not check.
_INTERNAL = "__"

# Ignored attributes: "consumed_inputs" in opsets before 7 lists inputs that may be overwritten.
_HINTS = {"consumed_inputs"}

# (kind, whether it is required) of each attribute, by name.
Declared = Mapping[str, tuple[int, bool]]


def check_attributes(
    op_type: str,
    attributes: Sequence[onnx.AttributeProto],
    domain: str,
    opset: int,
    others: Collection[str] = (),
) -> None:
    """Checks names and kinds of a node's attributes; does nothing for an unknown op.

    Args:
        op_type: Name of the node's op.
        attributes: Attributes of the node. In a function body, references to the function's
            attributes must be replaced by their values.
        domain: Domain of the op; "" for ai.onnx.
        opset: Opset version of the domain.
        others: Names of the node's attributes that are not in `attributes`: subgraphs that are
            imported already.

    Raises:
        ModelError: An attribute is repeated, missing, of another kind than declared, or unknown.
        UnsupportedError: An attribute is unknown, and ONNX does not define the op.
    """
    declared = declared_attributes(domain, op_type, opset)
    if declared is None:
        return
    seen = set(others)
    for attribute in attributes:
        name = attribute.name
        if name.startswith(_INTERNAL):
            continue
        if name in seen:
            raise ModelError(f"it has the attribute '{name}' twice; the model is not valid.")
        seen.add(name)
        if name not in declared:
            _refuse_unknown(name, domain, op_type, opset)
        kind, _ = declared[name]
        if attribute.type != kind:
            raise ModelError(
                f"its attribute '{name}' is of kind {kind_name(attribute.type)}, but opset "
                f"{opset} expects {kind_name(kind)}; export the model again."
            )
    needed = (n for n, (_, required) in declared.items() if required and n not in _HINTS)
    missing = [n for n in needed if n not in seen]
    if missing:
        raise ModelError(f"it lacks its attribute '{missing[0]}'; the model is not valid.")


def kind_name(kind: int) -> str:
    """Returns ONNX's name of an attribute kind (AttributeType) in lower case, such as "ints"."""
    return str(_KINDS.Name(kind)).lower() if kind in _KINDS.values() else str(kind)


def _refuse_unknown(name: str, domain: str, op_type: str, opset: int) -> None:
    if schema_of(domain, op_type, opset) is None:
        raise UnsupportedError(f"its attribute '{name}'")
    raise ModelError(f"it has an attribute '{name}', which opset {opset} does not have.")


@cache
def declared_attributes(domain: str, op_type: str, opset: int) -> Declared | None:
    """Returns (kind, whether it is required) of each attribute of an op, by name.

    Returns None if neither ONNX nor clrt's table of contrib ops has the op.
    """
    schema = schema_of(domain, op_type, opset)
    if schema is not None:
        return {n: (int(a.type), bool(a.required)) for n, a in schema.attributes.items()}
    contrib = _contrib().get(domain, {}).get(op_type)
    if contrib is None:
        return None
    return {n: (_KINDS.Value(k.rstrip("!")), k.endswith("!")) for n, k in contrib.items()}


def other_ops() -> set[tuple[str, str]]:
    """Returns (domain, name) of ONNX Runtime's contrib ops whose attributes clrt knows."""
    return {(domain, name) for domain, ops in _contrib().items() for name in ops}


@cache
def _contrib() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    text = files("clrt.models.onnx").joinpath("contrib_attributes.json").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, Mapping[str, str]]] = json.loads(text)
    return table
