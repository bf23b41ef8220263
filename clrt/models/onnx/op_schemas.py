"""The ops that files may have, as functions: what each takes and gives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

import onnx

import clrt.ops.decompositions.import_rules  # noqa: F401  (enters them)
from clrt.models.onnx.attributes import declared_attributes, kind_name, other_ops
from clrt.models.onnx.read import normal_domain
from clrt.ops import REGISTRY
from clrt.ops.decompositions.registry import imported_as

# Of the ops that only passes and decompositions make.
OWN_DOMAIN = "clrt"
# Stands for no default, where None is one.
NO_DEFAULT = inspect.Parameter.empty
_OPTION = onnx.defs.OpSchema.FormalParameterOption
_OPTIONS = {_OPTION.Single: "single", _OPTION.Optional: "optional", _OPTION.Variadic: "variadic"}
_GRAPHS = ("graph", "graphs")


@dataclass(frozen=True)
class FormalParameter:
    """An input or output of an op.

    Attributes:
        option: "single", "optional" or "variadic".
        type_name: The same for those that have one type.
        types: The types that it may have, as ONNX names them.
    """

    name: str
    option: str
    type_name: str
    types: frozenset[str]
    description: str

    @property
    def takes_lists(self) -> bool:
        """Whether it is, or may be, a sequence."""
        return any("seq(" in t for t in self.types)


@dataclass(frozen=True)
class Attribute:
    """An attribute of an op.

    Attributes:
        kind: ONNX's kind in lower case ("ints"); "object" for a value of clrt's own.
        default: `NO_DEFAULT` where leaving it out is something else than any value.
    """

    name: str
    kind: str
    required: bool
    default: Any
    description: str


@dataclass(frozen=True, eq=False)
class OpSchemaInfo:
    """An op as a function, at the newest opset.

    Attributes:
        inputs: None if only the op's implementation knows.
        outputs: None if only the op's implementation knows.
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
        """Its name, behind that of its domain."""
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def has_graphs(self) -> bool:
        """Whether it is control flow, with graphs as attributes."""
        return any(a.kind in _GRAPHS for a in self.attributes.values())


@cache
def op_forms() -> Mapping[tuple[str, str], OpSchemaInfo]:
    """Returns every op that clrt runs, by domain and name."""
    forms: dict[tuple[str, str], OpSchemaInfo] = {}
    for domain, name in {*_schemas(), *other_ops(), *REGISTRY.classes}:
        schema, opset = _schemas().get((domain, name), (None, 1))
        cls = REGISTRY.find(domain, name)
        if cls is None and imported_as(domain, name, opset) is None:
            whole = schema is not None and _has_body(schema)
            if not whole:
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
    """ONNX's newest schema of each op, and the newest opset that has it."""
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
    return FormalParameter(
        formal.name,
        _OPTIONS[formal.option],
        formal.type_str,
        frozenset(formal.types),
        _first_paragraph(formal.description),
    )


def _attributes(domain: str, name: str, opset: int) -> dict[str, Attribute]:
    schema, _ = _schemas().get((domain, name), (None, 1))
    told = {} if schema is None else schema.attributes
    found = {}
    for key, (kind, required) in (declared_attributes(domain, name, opset) or {}).items():
        default: Any = NO_DEFAULT
        if key in told and told[key].default_value.type != onnx.AttributeProto.UNDEFINED:
            default = _python(onnx.helper.get_attribute_value(told[key].default_value))
        text = _first_paragraph(told[key].description) if key in told else ""
        found[key] = Attribute(key, kind_name(kind), required, default, text)
    return found


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
    """Returns the start of a text, on one line."""
    return " ".join(text.strip().partition("\n\n")[0].split())
