"""Checks nodes' attributes against ONNX's schemas, or a table of ONNX Runtime's for its own ops.

Only names and kinds are checked here, before anything reads an attribute; the fields of op classes
check values (clrt.ir.attributes).
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
# ONNX lets these pass: attributes that a runtime keeps for itself.
_INTERNAL = "__"

# Of opsets before 7: said which inputs might be overwritten, and means nothing here.
_HINTS = {"consumed_inputs"}

# Per attribute its kind, and whether a node must have it.
Declared = Mapping[str, tuple[int, bool]]


def check_attributes(
    op_type: str,
    attributes: Sequence[onnx.AttributeProto],
    domain: str,
    opset: int,
    others: Collection[str] = (),
) -> None:
    """Checks names and kinds of a node's attributes; references must be resolved.

    Args:
        others: Names of the node's attributes that are IR already.

    Raises:
        ModelError: An attribute is repeated, missing, of another kind than declared, or unknown.
        UnsupportedError: It is unknown, of an op that ONNX does not define.
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
                f"its attribute '{name}' is of kind {kind_name(attribute.type)}; opset {opset} "
                f"wants {kind_name(kind)}; export the model again."
            )
    needed = (n for n, (_, required) in declared.items() if required and n not in _HINTS)
    missing = [n for n in needed if n not in seen]
    if missing:
        raise ModelError(f"it lacks its attribute '{missing[0]}'; the model is not valid.")


def kind_name(kind: int) -> str:
    """ONNX's name of a kind of attributes, in lower case."""
    return str(_KINDS.Name(kind)).lower() if kind in _KINDS.values() else str(kind)


def _refuse_unknown(name: str, domain: str, op_type: str, opset: int) -> None:
    if schema_of(domain, op_type, opset) is None:
        raise UnsupportedError(f"its attribute '{name}'")
    raise ModelError(f"it has an attribute '{name}', which opset {opset} does not have.")


@cache
def declared_attributes(domain: str, op_type: str, opset: int) -> Declared | None:
    """Returns the attributes of an op; None if nothing is known of it."""
    schema = schema_of(domain, op_type, opset)
    if schema is not None:
        return {n: (int(a.type), bool(a.required)) for n, a in schema.attributes.items()}
    found = _contrib().get(domain, {}).get(op_type)
    if found is None:
        return None
    return {n: (_KINDS.Value(k.rstrip("!")), k.endswith("!")) for n, k in found.items()}


def other_ops() -> set[tuple[str, str]]:
    """Domain and name of the ops without a schema whose attributes are known."""
    return {(domain, name) for domain, ops in _contrib().items() for name in ops}


@cache
def _contrib() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    text = files("clrt.models.onnx").joinpath("contrib_attributes.json").read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, Mapping[str, str]]] = json.loads(text)
    return table
