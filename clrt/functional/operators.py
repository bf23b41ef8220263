"""Creates functions for the ops of all ONNX domains, from the schemas of the ops."""

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
    op_schemas,
)
from clrt.models.onnx.single_op import settled_attributes, single_graph
from clrt.ops import REGISTRY

# ONNX domains by the names of their attributes in `clrt.functional`.
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
    "outputs": "Number of outputs to return, as a tuple if there are several; None for those that "
    "the op always has.",
    "device": "Device to run on if no input is on a device, as in `clrt.load`.",
}
# Width of the text of generated docstrings.
_COLUMNS = 96


def function_of(domain: str, name: str) -> Callable[..., Any]:
    """Returns the Python function that runs an op on arrays and device tensors.

    Args:
        domain: ONNX domain of the op; "" for ai.onnx.
        name: Name of the op.

    Raises:
        AttributeError: There is no such op, or it is control flow.
    """
    form = op_schemas().get((domain, name))
    if form is None:
        raise AttributeError(_unknown(domain, name))
    if form.has_graphs:
        raise AttributeError(f"{name} is control flow over graphs; write it in Python.")
    return _function(form)


def names_in(domain: str) -> list[str]:
    """Returns the names of a domain's ops that have a function: all but control flow.

    Args:
        domain: ONNX domain; "" for ai.onnx.
    """
    return [n for (d, n), form in op_schemas().items() if d == domain and not form.has_graphs]


class OpDomain:
    """Namespace with a function for each op of one ONNX domain, such as `F.microsoft.BiasGelu`."""

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
    """Returns the newest schema of an op of the domain ai.onnx; the op must exist."""
    return op_schemas()["", name]


def call(name: str, *inputs: Any, device: str | int | None = None, **attributes: Any) -> Any:
    """Runs an op of the domain ai.onnx on arrays and device tensors.

    Args:
        name: Name of the op.
        inputs: Inputs in order; None for an input that is left out.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
        attributes: Attributes of the op by name.

    Returns:
        The output, or a tuple of outputs if there are several.
    """
    return function_of("", name)(*inputs, device=device, **attributes)


@cache
def _function(form: OpSchemaInfo) -> Callable[..., Any]:
    """Returns the public function of an op, with signature and docstring from its schema."""

    def function(
        *inputs: Any, outputs: int | None = None, device: str | int | None = None, **named: Any
    ) -> Any:
        arguments, attributes = _split_arguments(form, inputs, named)
        values = coerce_inputs(form, arguments)
        coerced = settled_attributes(form, attributes)
        count = _output_count(form, values, coerced, outputs)
        results = results_of(_operation(form, coerced, count), values, device)
        return results[0] if len(results) == 1 else tuple(results)

    function.__name__ = function.__qualname__ = form.name
    function.__module__ = "clrt.functional"
    function.__doc__ = _doc(form)
    function.__signature__ = _signature(form)  # type: ignore[attr-defined]
    return function


def _operation(form: OpSchemaInfo, attributes: Mapping[str, Any], outputs: int) -> Operation:
    """Returns the `Operation` (graph and cache key) of an op with attributes and output count."""
    graph = partial(single_graph, form, attributes=attributes, outputs=outputs)
    cls = REGISTRY.find(form.domain, form.name)
    known = frozenset(() if cls is None else cls.input_traits.plan_time)
    parts = tuple((n, _hashable(v)) for n, v in sorted(attributes.items()))
    key = form.domain, form.name, parts, outputs
    # An op without a class is decomposed, and decompositions may depend on sizes.
    return Operation(key, graph, known, sized=cls is None)


def _hashable(value: Any) -> Hashable:
    """Returns a hashable value that is equal for equal attribute values."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return value.hex()  # distinguishes 0 and -0, and makes NaN equal to itself
    if isinstance(value, tuple):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else repr(value)


def _split_arguments(
    form: OpSchemaInfo, inputs: Sequence[Any], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Splits the arguments of a functional call into inputs, in order, and attributes by name.

    Args:
        form: Schema of the op.
        inputs: Positional arguments.
        named: Keyword arguments: inputs and attributes.

    Raises:
        InputError: A keyword is unknown, or an input is missing or passed twice.
    """
    indices = {f.name: k for k, f in enumerate(form.inputs or ()) if f.option != "variadic"}
    ordered, attributes = list(inputs), {}
    for name, value in named.items():
        if name in form.attributes:
            attributes[name] = value
        elif name in indices:
            index = indices[name]
            ordered += [None] * (index + 1 - len(ordered))
            if ordered[index] is not None:
                raise InputError(f"{form.title} is given its input '{name}' twice.")
            ordered[index] = value
        else:
            known = [*form.attributes, *indices, *_EXTRA]
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            takes = ", ".join(form.attributes) or "none"
            raise InputError(f"{form.title} has no attribute '{name}'.{hint} It has: {takes}.")
    for index, formal in enumerate(form.inputs or ()):
        if formal.option == "single" and (index >= len(ordered) or ordered[index] is None):
            raise InputError(f"{form.title} lacks its input '{formal.name}'.")
    return ordered, attributes


def _output_count(
    form: OpSchemaInfo, inputs: Sequence[Any], attributes: Mapping[str, Any], wanted: int | None
) -> int:
    """Returns the number of outputs of a functional call.

    Args:
        form: Schema of the op.
        inputs: Converted inputs in order.
        attributes: Attributes by name.
        wanted: Number of outputs that the caller requests. None for the outputs that the op always
            has (all if every output is optional); Split has one per size in its second input, or
            `num_outputs`.

    Raises:
        InputError: The op does not have `wanted` outputs, or their number cannot be determined.
    """
    formals = form.outputs
    is_open = formals is None or any(f.option == "variadic" for f in formals)
    if wanted is not None:
        limit = None if formals is None or is_open else len(formals)
        if not isinstance(wanted, int) or wanted < 1 or (limit is not None and wanted > limit):
            raise InputError(f"{form.title}: outputs is {wanted!r}; it has {limit or 'some'}.")
        return wanted
    if formals is None:
        return 1
    if is_open:
        # Of Split, an attribute or the second input determines the number.
        sizes = inputs[1] if len(inputs) > 1 else None
        count = attributes.get("num_outputs") or (None if sizes is None else sizes.shape[0])
        if count is None:
            raise InputError(f"{form.title} has a variable number of outputs; pass outputs=….")
        return int(count)
    return sum(f.option == "single" for f in formals) or len(formals)


def _unknown(domain: str, name: str) -> str:
    """Returns the error message for an unknown op, with a similarly named op if there is one."""
    shown = {d: f"{n}." for n, d in DOMAINS.items()} | {"": ""}
    known = {f"{shown[d]}{n}" for d, n in op_schemas() if d in shown}
    same = sorted(k for k in known if k.rpartition(".")[2].lower() == name.lower())
    near = same or difflib.get_close_matches(f"{shown.get(domain, '')}{name}", known, 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"clrt has no op '{name}' in the domain '{domain or 'ai.onnx'}'.{hint}"


def _signature(form: OpSchemaInfo) -> inspect.Signature:
    """Returns the signature of an op's function: inputs, attributes, then common keywords."""
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
    """Gives a default of None to each positional parameter that follows an optional one.

    Python requires such parameters of a signature to have a default.
    """
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
    """Returns the docstring of an op's function."""
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
