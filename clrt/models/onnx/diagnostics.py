"""Messages about unsupported and invalid nodes of an imported model."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.errors import ModelError, UnsupportedError, counted
from clrt.ir.op import ContainerType, TensorType
from clrt.models.onnx.functions import schema_of
from clrt.models.onnx.scope import NodeCall


def note(call: NodeCall, reason: str = "") -> str:
    """Returns the description of an unsupported node, for the list in an error.

    Args:
        reason: Why it is unsupported; "" if clrt lacks the op.
    """
    opset = f"{call.domain or 'ai.onnx'} opset {call.opset}"
    return f"{call.title} ({opset})" + (f": {reason.rstrip('.')}" if reason else "")


def check_kinds(call: NodeCall) -> None:
    """Checks that a node's inputs are sequences, optionals or maps only if the op accepts them.

    Raises:
        ModelError: An input is of a kind that the op's schema does not allow.
    """
    for index, value in enumerate(call.inputs):
        if value is None or not isinstance(value.type, ContainerType):
            continue
        schema = schema_of(call.domain, call.op_type, call.opset)
        formals = schema.inputs if schema else ()
        formal = formals[min(index, len(formals) - 1)] if formals else None
        head = _schema_head(value.type)
        if formal is not None and not any(t.startswith(head) for t in formal.types):
            raise ModelError(
                f"{call.title}: its input {index} ('{value.name}') is {value.type}, which opset "
                f"{call.opset} does not allow there."
            )


def _schema_head(type_: TensorType) -> str:
    """Returns the start of a type's name in ONNX's schemas, up to the dtype: "seq(tensor("."""
    if not isinstance(type_, ContainerType):
        return "tensor("
    inside = "" if type_.key else _schema_head(type_.element)
    return {"sequence": "seq(", "optional": "optional(", "map": "map("}[type_.kind] + inside


def unsupported_error(notes: Sequence[str]) -> UnsupportedError:
    """Returns the error that lists everything that clrt lacks for a model.

    Args:
        notes: Descriptions of unsupported nodes and values; repeated ones are listed once.
    """
    unique = list(dict.fromkeys(notes))
    things = counted(len(unique), "thing")
    return UnsupportedError(
        f"The model needs {things} that clrt does not support: {'; '.join(unique)}. "
        "Export the model without them, or at another opset; an op can be added in clrt/ops.",
        unique,
    )
