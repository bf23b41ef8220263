"""Functions for the ops of ONNX, and of its other domains, under their names."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from clrt.errors import InputError
from clrt.functional.calls import Operation, results_of
from clrt.functional.operands import coerce_inputs
from clrt.models.onnx.op_schemas import (
    OWN_DOMAIN,
    Attribute,
    FormalParameter,
    OpSchemaInfo,
    op_forms,
)
from clrt.models.onnx.single_op import settled_attributes, single_graph
from clrt.ops import REGISTRY

# Domains of ONNX by the names that they have here.
DOMAINS = {
    "ml": "ai.onnx.ml",
    "microsoft": "com.microsoft",
    "training": "ai.onnx.preview.training",
    "fused": OWN_DOMAIN,
}
_KEYWORD, _POSITIONAL = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_VARIADIC = inspect.Parameter.VAR_POSITIONAL
_NOTHING = inspect.Parameter.empty
_EXTRA = {
    "outputs": "How many outputs come back, as a tuple where there are several; None for those "
    "that the op always has.",
    "device": "Where it runs if no input lies on a device, as in `clrt.load`.",
}
_COLUMNS = 96


def function_of(domain: str, name: str) -> Callable[..., Any]:
    """The function of an op.

    Raises:
        AttributeError: There is none.
    """
    form = op_forms().get((domain, name))
    if form is None:
        raise AttributeError(_unknown(domain, name))
    if form.has_graphs:
        raise AttributeError(f"{name} is control flow over graphs; write it in Python.")
    return _function(form)


def names_in(domain: str) -> list[str]:
    """The names of a domain's functions."""
    return [n for (d, n), form in op_forms().items() if d == domain and not form.has_graphs]


class OpDomain:
    """The functions of one domain of ops, as attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return function_of(DOMAINS[self._name], name)

    def __dir__(self) -> list[str]:
        return names_in(DOMAINS[self._name])

    def __repr__(self) -> str:
        return f"<clrt.functional.{self._name}: ops of {DOMAINS[self._name]}>"


def form_of(name: str) -> OpSchemaInfo:
    """The form of an op of ONNX."""
    return op_forms()["", name]


def call(name: str, *inputs: Any, device: str | int | None = None, **attributes: Any) -> Any:
    """The first output of an op of ONNX."""
    return function_of("", name)(*inputs, device=device, **attributes)


@cache
def _function(form: OpSchemaInfo) -> Callable[..., Any]:
    def function(
        *inputs: Any, outputs: int | None = None, device: str | int | None = None, **named: Any
    ) -> Any:
        given, attributes = _sorted(form, inputs, named)
        values = coerce_inputs(form, given)
        settled = settled_attributes(form, attributes)
        count = _output_count(form, values, settled, outputs)
        found = results_of(_operation(form, settled, count), values, device)
        return found[0] if len(found) == 1 else tuple(found)

    function.__name__ = function.__qualname__ = form.name
    function.__module__ = "clrt.functional"
    function.__doc__ = _doc(form)
    function.__signature__ = _signature(form)  # type: ignore[attr-defined]
    return function


def _operation(form: OpSchemaInfo, attributes: Mapping[str, Any], outputs: int) -> Operation:
    graph = partial(single_graph, form, attributes=attributes, outputs=outputs)
    cls = REGISTRY.find(form.domain, form.name)
    known = frozenset(() if cls is None else cls.plan_time_inputs)
    parts = tuple((n, _hashable(v)) for n, v in sorted(attributes.items()))
    # Decompositions may choose by sizes.
    key = form.domain, form.name, parts, outputs
    return Operation(key, graph, known, sized=cls is None)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return value.hex()  # 0 and -0 are two, and NaN is one
    if isinstance(value, tuple):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else repr(value)


def _sorted(
    form: OpSchemaInfo, inputs: Sequence[Any], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Inputs in their order, and attributes.

    Raises:
        InputError: A keyword is neither, an input is given twice or missing.
    """
    places = {f.name: k for k, f in enumerate(form.inputs or ()) if f.option != "variadic"}
    given, attributes = list(inputs), {}
    for name, value in named.items():
        if name in form.attributes:
            attributes[name] = value
        elif name in places:
            given += [None] * (places[name] + 1 - len(given))
            if given[places[name]] is not None:
                raise InputError(f"{form.title} is given its input '{name}' twice.")
            given[places[name]] = value
        else:
            known = [*form.attributes, *places, *_EXTRA]
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            takes = ", ".join(form.attributes) or "none"
            raise InputError(f"{form.title} has no attribute '{name}'.{hint} It has: {takes}.")
    for index, formal in enumerate(form.inputs or ()):
        if formal.option == "single" and (index >= len(given) or given[index] is None):
            raise InputError(f"{form.title} lacks its input '{formal.name}'.")
    return given, attributes


def _output_count(
    form: OpSchemaInfo, inputs: Sequence[Any], attributes: Mapping[str, Any], wanted: int | None
) -> int:
    """How many outputs a call has.

    Raises:
        InputError: So many there are not, or the call does not tell.
    """
    formals = form.outputs
    is_open = formals is None or any(f.option == "variadic" for f in formals)
    if wanted is not None:
        most = None if formals is None or is_open else len(formals)
        if not isinstance(wanted, int) or wanted < 1 or (most is not None and wanted > most):
            raise InputError(f"{form.title}: outputs is {wanted!r}; it has {most or 'some'}.")
        return wanted
    if formals is None:
        return 1
    if is_open:
        # Only Split has as many as it is told to.
        sizes = inputs[1] if len(inputs) > 1 else None
        told = attributes.get("num_outputs") or (None if sizes is None else sizes.shape[0])
        if told is None:
            raise InputError(f"{form.title} does not know how many outputs it has; pass outputs=….")
        return int(told)
    return sum(f.option == "single" for f in formals) or len(formals)


def _unknown(domain: str, name: str) -> str:
    """What to say of a name that no op has: the op that it may be."""
    shown = {d: f"{n}." for n, d in DOMAINS.items()} | {"": ""}
    known = {f"{shown[d]}{n}" for d, n in op_forms() if d in shown}
    same = sorted(k for k in known if k.rpartition(".")[2].lower() == name.lower())
    near = same or difflib.get_close_matches(f"{shown.get(domain, '')}{name}", known, 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"clrt has no op '{name}' in the domain '{domain or 'ai.onnx'}'.{hint}"


def _signature(form: OpSchemaInfo) -> inspect.Signature:
    parameters = []
    for formal in form.inputs or (FormalParameter("inputs", "variadic", "", frozenset(), ""),):
        kind = _VARIADIC if formal.option == "variadic" else _POSITIONAL
        default = None if formal.option == "optional" else _NOTHING
        parameters.append(inspect.Parameter(formal.name, kind, default=default))
    required = sorted(form.attributes.values(), key=lambda a: not a.required)
    for attribute in required:
        parameters.append(inspect.Parameter(attribute.name, _KEYWORD, default=_default(attribute)))
    parameters += [inspect.Parameter(n, _KEYWORD, default=None) for n in _EXTRA]
    return inspect.Signature(_in_order(parameters))


def _in_order(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """With defaults for all inputs behind the first that has one, as Python wants them."""
    fixed, optional = [], False
    for each in parameters:
        optional = optional or (each.kind == _POSITIONAL and each.default is None)
        if optional and each.kind == _POSITIONAL:
            each = each.replace(default=None)
        fixed.append(each)
    return fixed


def _default(attribute: Attribute) -> Any:
    if attribute.required:
        return _NOTHING
    return None if attribute.default is _NOTHING else attribute.default


def _doc(form: OpSchemaInfo) -> str:
    args = [_entry(f.name, f"{f.description} {_types(f)}") for f in form.inputs or ()]
    args += [_entry(a.name, a.description or a.kind) for a in form.attributes.values()]
    args += [_entry(n, text) for n, text in _EXTRA.items()]
    results = [_entry(f.name, f"{f.description} {_types(f)}") for f in form.outputs or ()]
    lines = [textwrap.fill(form.summary, _COLUMNS), "", "Args:", *args]
    if results:
        lines += ["", "Returns:", *results]
    lines += ["", f"Source: {form.domain or 'ONNX'} {form.name}, opset {form.opset}."]
    return "\n".join(lines)


def _entry(name: str, text: str) -> str:
    whole = f"{name}: {text.strip()}"
    return textwrap.fill(
        whole, _COLUMNS, initial_indent="    ", subsequent_indent="        ", break_long_words=False
    )


def _types(formal: FormalParameter) -> str:
    option = "" if formal.option == "single" else f"{formal.option}, "
    return f"({option}{formal.type_name})" if formal.type_name else ""
