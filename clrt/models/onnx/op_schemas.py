"""The signatures of the ops that clrt runs: inputs, outputs and attributes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

import onnx

from clrt.models.onnx.attributes import declared_attributes, kind_name, other_ops
from clrt.models.onnx.read import normal_domain
from clrt.ops import REGISTRY
from clrt.ops.decompositions.registry import imported_as
from clrt.util.fast_dataclass import dataclass

# Domain of the ops that only passes and decompositions generate.
OWN_DOMAIN = "clrt"
# Marks an attribute without default, because None may be a default.
NO_DEFAULT = inspect.Parameter.empty
_OPTION = onnx.defs.OpSchema.FormalParameterOption
_OPTIONS = {_OPTION.Single: "single", _OPTION.Optional: "optional", _OPTION.Variadic: "variadic"}
_GRAPHS = ("graph", "graphs")


@dataclass(frozen=True)
class FormalParameter:
    """An input or output of an op.

    Attributes:
        name: Name in the schema.
        option: "single", "optional" or "variadic".
        type_name: Type variable; parameters with the same variable have the same type.
        types: Allowed types, in ONNX's notation.
        description: First paragraph of the parameter's description in the schema.
    """

    name: str
    option: str
    type_name: str
    types: frozenset[str]
    description: str

    @property
    def takes_lists(self) -> bool:
        """Whether a sequence is among the allowed types."""
        return any("seq(" in t for t in self.types)


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op.

    Attributes:
        name: Name in the schema.
        kind: ONNX's kind in lower case ("ints"); "object" for a field of a clrt-specific op.
        required: Whether it must be present.
        default: Default value; `NO_DEFAULT` if there is none.
        description: First paragraph of the attribute's description in the schema; "" if none.
    """

    name: str
    kind: str
    required: bool
    default: Any
    description: str


@dataclass(frozen=True, eq=False)
class OpSchemaInfo:
    """The signature of an op at the newest opset.

    Attributes:
        domain: Domain; "" for ai.onnx.
        name: Name of the op.
        opset: The newest opset that has it.
        inputs: Inputs; None for an op without ONNX schema.
        outputs: Outputs; None for an op without ONNX schema.
        attributes: Attributes by name.
        summary: First paragraph of the op's documentation.
    """

    domain: str
    name: str
    opset: int
    inputs: tuple[FormalParameter, ...] | None
    outputs: tuple[FormalParameter, ...] | None
    attributes: Mapping[str, Attribute]
    summary: str

    @property
    def title(self) -> str:
        """Name of the op, prefixed by its domain and a dot unless that is ai.onnx."""
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def has_graphs(self) -> bool:
        """Whether the op has graphs as attributes (control flow)."""
        return any(a.kind in _GRAPHS for a in self.attributes.values())


@cache
def op_schemas() -> Mapping[tuple[str, str], OpSchemaInfo]:
    """Returns the signature of every op that clrt runs, by (domain, name)."""
    forms: dict[tuple[str, str], OpSchemaInfo] = {}
    for domain, name in {*_schemas(), *other_ops(), *REGISTRY.all_classes()}:
        schema, opset = _schemas().get((domain, name), (None, 1))
        cls = REGISTRY.find(domain, name)
        if cls is None and imported_as(domain, name, opset) is None:
            has_function = schema is not None and _has_body(schema)
            if not has_function:
                continue
        doc = schema.doc if cls is None and schema is not None else inspect.getdoc(cls) or ""
        form = OpSchemaInfo(
            domain,
            name,
            opset,
            None if schema is None else tuple(map(_formal, schema.inputs)),
            None if schema is None else tuple(map(_formal, schema.outputs)),
            _own_attributes(cls) if domain == OWN_DOMAIN else _attributes(domain, name, opset),
            _first_paragraph(doc),
        )
        forms[domain, name] = form
    return dict(sorted(forms.items()))


@cache
def _schemas() -> Mapping[tuple[str, str], tuple[Any, int]]:
    """Returns ONNX's newest schema of each op, and the newest opset that has it."""
    newest: dict[tuple[str, str], Any] = {}
    ended: dict[tuple[str, str], int] = {}
    opsets: dict[str, int] = {"": onnx.defs.onnx_opset_version()}
    for schema in sorted(
        onnx.defs.get_all_schemas_with_history(), key=lambda schema: schema.since_version
    ):
        key = normal_domain(schema.domain), schema.name
        if schema.deprecated:
            ended[key] = schema.since_version - 1
        else:
            newest[key] = schema
            ended.pop(key, None)
        opsets[key[0]] = max(opsets.get(key[0], 1), schema.since_version)
    return {k: (s, ended.get(k, opsets[k[0]])) for k, s in newest.items()}


def _has_body(schema: Any) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def _formal(formal: Any) -> FormalParameter:
    """Converts an input or output in an ONNX schema to a `FormalParameter`."""
    return FormalParameter(
        formal.name,
        _OPTIONS[formal.option],
        formal.type_str,
        frozenset(formal.types),
        _first_paragraph(formal.description),
    )


def _attributes(domain: str, name: str, opset: int) -> dict[str, Attribute]:
    """Returns the attributes of an op by name, with defaults and descriptions of ONNX's schema.

    Args:
        domain: Domain of the op; "" for ai.onnx.
        name: Name of the op.
        opset: Opset version of the domain.
    """
    schema, _ = _schemas().get((domain, name), (None, 1))
    schema_attrs = {} if schema is None else schema.attributes
    result = {}
    for key, (kind, required) in (declared_attributes(domain, name, opset) or {}).items():
        default: Any = NO_DEFAULT
        if (
            key in schema_attrs
            and schema_attrs[key].default_value.type != onnx.AttributeProto.UNDEFINED
        ):
            default = _python(onnx.helper.get_attribute_value(schema_attrs[key].default_value))
        text = _first_paragraph(schema_attrs[key].description) if key in schema_attrs else ""
        result[key] = Attribute(key, kind_name(kind), required, default, text)
    return result


def _own_attributes(cls: Any) -> dict[str, Attribute]:
    return {
        f.name: Attribute(
            f.name,
            "object",
            f.default is MISSING,
            NO_DEFAULT if f.default is MISSING else f.default,
            "",
        )
        for f in fields(cls)
    }


def _python(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_python, value))
    return float(f"{value:.7g}") if isinstance(value, float) else value  # protobuf has float32


def _first_paragraph(text: str) -> str:
    """Returns the first paragraph of a text on one line, with single spaces."""
    return " ".join(text.strip().partition("\n\n")[0].split())
