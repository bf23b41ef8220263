"""Renders chat templates in Jinja as transformers does, with bounds on time and memory.

A template comes with a model and is not trusted. Jinja's sandbox denies it access to the system. A
`Budget` bounds its time and memory: every loop iteration, call, filter, allocating operator and
output is charged for the data that it reads and creates. If the result may be much larger than the
operands, the charge comes before the operation.

Not covered: a single operation on a string within the budget, such as a search, is not interrupted.
Between two clock checks, a template can have at most `MAX_SOURCE_CHARS` characters of such
operations. Compiling a template of that length takes some seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from clrt.generation.template_budget import (
    MAX_BITS,
    MAX_DEPTH,
    STEP,
    Budget,
    TooMuchError,
    length,
    lengths,
)

__all__ = [
    "SecurityError",
    "TemplateError",
    "TemplateSyntaxError",
    "TooMuchError",
    "compile_template",
    "render_template",
]

MAX_SOURCE_CHARS = 64 << 10
"""Maximum number of characters of a template: several times those of published models."""

# Maximum nesting of statements in a template.
_MAX_BLOCK_DEPTH = 24
# Filters and attributes with large results or long run times that chat templates do not need.
_REFUSED_FILTERS = {"pprint", "striptags", "sum", "urlize", "wordwrap", "xmlattr"}
_REFUSED_ATTRIBUTES = {"encode", "expandtabs", "from_bytes", "maketrans", "to_bytes", "translate"}
# Filters that read one element or a length (charged 1), and those that pass elements on (charged
# per element). All others are charged for the written-out size of their input.
_CHARGED_ONCE = {"attr", "count", "d", "default", "first", "last", "length", "random"}
_CHARGED_PER_ELEMENT = {
    *("batch", "items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"),
    "slice",
}
# Filters that turn each character of a string into an element, and methods that split a string.
_CHARGED_PER_CHARACTER = _CHARGED_PER_ELEMENT | {
    "groupby",
    "max",
    "min",
    "sort",
    "unique",
    "title",
    "wordcount",
}
_SPLITTERS = {"split", "rsplit", "splitlines", "indent"}
# Methods and filters whose result size is given by an integer argument.
_SIZED = {"batch", "center", "indent", "ljust", "rjust", "slice", "zfill"}
# Formats with a width or precision above 9,999, or one taken from an argument: for % and format.
_WIDE_PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*[\d*]*\.?(?:\*|\d{5})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(?:\d{5}|\{)")
# Names of internal filters. They contain a space, so that templates cannot use them.
_MADE, _READ, _JOINED = "clrt made", "clrt read", "clrt joined"
_COUNTED, _STATIC = "clrt counted", "clrt static"

_budget: ContextVar[Budget] = ContextVar("budget")


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which operators and calls are charged to the rendering's `Budget`."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        plain = isinstance(obj, str | int | float)
        if plain and attr in _REFUSED_ATTRIBUTES:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        work = lengths((left, right))
        if operator == "*" and isinstance(left, int) and not isinstance(right, int):
            left, right = right, left
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1)
            if operator in ("*", "**") and bits + right.bit_length() > MAX_BITS:
                raise TooMuchError
        elif operator == "*" and isinstance(right, int):
            work = length(left) * max(right, 1)
        elif operator == "%" and isinstance(left, str):
            _check_format("%", left)
            work += budget.size((right,)) * (1 + left.count("%"))
        budget.spend(work)
        return budget.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        values = (*args, *kwargs.values())
        budget.made(values)  # a macro receives its arguments as a list
        budget.spend(4 * STEP + (0 if isinstance(__obj, Macro) else budget.size(values)))
        method = getattr(__obj, "__wrapped__", __obj)  # unwraps the sandbox's str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            args = tuple(_as_list(x) for x in args)
            _spend_on_text(budget, method.__name__, owner, (*args, *kwargs.values()))
        elif isinstance(owner, list | tuple):
            budget.read(owner)  # its elements are compared
        elif isinstance(__obj, LoopContext):
            args = (_counted(args[0]), *args[1:]) if args else args
        return budget.made(super().call(__context, __obj, *args, **kwargs))


def _as_list(value: Any) -> Any:
    """Returns an iterator's elements as a list, each charged to the budget; else `value` itself."""
    return list(_counted(value)) if isinstance(value, Iterator) else value


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """Yields `values`; charges each to the budget as a loop iteration."""
    budget = _budget.get()
    for value in values:
        budget.spend(STEP)
        yield value


def _check_format(name: str, form: str) -> None:
    """Checks that a format string has no field with a width above 9,999 or taken from an argument.

    Args:
        name: "%" if the string is for the operator; any other name if it is for `str.format`.
        form: The format string.

    Raises:
        TooMuchError: The string has a field of such a width, or the budget is exceeded.
    """
    _budget.get().spend(len(form) ** 2 >> 8)  # worst-case time of the regular expressions
    if name == "%":
        wide = _WIDE_PERCENT.search(form.replace("%%", ""))
    else:
        wide = _WIDE_BRACES.search(form.replace("{{", "").replace("}}", ""))
    if wide:
        raise TooMuchError


def _spend_on_text(budget: Budget, name: str, text: str, args: Sequence[object]) -> None:
    """Charges a string method or filter to the budget, before it runs.

    Args:
        budget: The budget.
        name: Name of the method or filter; "%" for the operator.
        text: String that the method or filter is applied to.
        args: Arguments of the method or filter.
    """
    texts = [x for x in args if isinstance(x, str)]
    work = len(text) * (1 + lengths(texts) // 256)
    if name in _SPLITTERS:
        at = "\n" if name in ("indent", "splitlines") else texts[0] if texts else ""
        work += STEP * text.count(at)
    elif name in _CHARGED_PER_CHARACTER:
        work += STEP * len(text)
    if name in _SIZED:
        lines = 1 + text.count("\n") if name == "indent" else 1
        work += lines * sum(abs(x) if isinstance(x, int) else budget.size([x]) for x in args)
    elif name == "replace" and len(texts) > 1:
        work += text.count(texts[0]) * len(texts[1])
    elif name == "join":
        work += lengths(args) * len(text) + budget.size(args)
    elif name in ("%", "format", "format_map"):
        _check_format(name, text)
        work += budget.size(args) * (1 + text.count("{") + text.count("%"))
    budget.spend(work)


def _charged_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the Jinja filter `name` so that its arguments and result are charged to the budget."""
    first = int(hasattr(function, "jinja_pass_arg"))  # skips environment or context

    @wraps(function)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        inputs = [_as_list(x) for x in args[first:]]
        options = [*inputs[1:], *kwargs.values()]
        budget.spend(STEP + lengths(options))
        if name not in _CHARGED_ONCE:
            budget.spend(
                lengths(inputs[:1]) if name in _CHARGED_PER_ELEMENT else budget.size(inputs[:1])
            )
        if name == "join":
            between = next((x for x in options if isinstance(x, str)), "")
            _spend_on_text(budget, name, between, inputs[:1])
        elif name == "round" and any(isinstance(x, int) and abs(x) > MAX_DEPTH for x in options):
            raise TooMuchError
        else:
            text = inputs[0] if inputs and isinstance(inputs[0], str) else ""
            _spend_on_text(budget, "%" if name == "format" else name, text, options)
        return budget.made(function(*args[:first], *inputs, **kwargs))

    return filtered


def _charged_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a Jinja test so that the values that it may compare are charged to the budget."""
    first = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def tested(*args: Any) -> Any:
        budget = _budget.get()
        budget.spend(budget.size(args[first:]) if len(args) > first + 1 else 1)
        return function(*args)

    return tested


def _to_json(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Any:
    """Filter `tojson`: returns the result of `json.dumps`, unlike Jinja's, which escapes HTML."""
    budget = _budget.get()
    size, depth = budget.measure(x)
    step = abs(indent) if isinstance(indent, int) else len(indent or "")
    budget.spend(size * (1 + step * depth + sum(map(len, separators or ()))))
    text = json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return budget.made(text)


def _joined(parts: Iterable[object]) -> str:
    budget = _budget.get()
    values = list(parts)
    budget.spend(budget.size(values))
    return "".join(map(str, values))


def _charge_text(characters: int) -> str:
    _budget.get().spend(characters)
    return ""


@jinja2.pass_context  # keeps Jinja from evaluating it at compile time
def _charge_output(context: Context, value: Any) -> Any:
    return _budget.get().read(value)


def _charge_read(value: Any) -> Any:
    return _budget.get().read(value)


class _Instrument(NodeTransformer):
    """Rewrites a template's syntax tree: adds budget charges where Jinja has no hook for them.

    These are loops, literals, slices, comparisons, concatenations and the template's own text.
    """

    def __init__(self) -> None:
        self._level = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Rewrites a node; raises TooMuchError if statements nest more than 24 levels deep."""
        is_block = isinstance(node, nodes.Stmt)
        self._level += is_block
        if self._level > _MAX_BLOCK_DEPTH:
            raise TooMuchError
        result = super().visit(node, *args, **kwargs)
        self._level -= is_block
        return result

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(node.iter, _COUNTED)  # type: ignore[arg-type]
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        plain = sum(len(x.data) for x in node.nodes if isinstance(x, nodes.TemplateData))
        self.generic_visit(node)
        if plain:
            node.nodes.insert(0, _filter(nodes.Const(plain), _STATIC))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.Tuple(node.nodes, "load"), _JOINED)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return node if node.ctx == "store" else self._literal(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._literal(node, [pair.value for pair in node.items])

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filter(node, _MADE)
        node.arg = _reading(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _reading(node.expr)
        for operand in node.ops:
            operand.expr = _reading(operand.expr)
        return node

    def _literal(self, node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(x, nodes.Const) for x in items)
        self.generic_visit(node)
        return node if constant else _filter(node, _MADE)


def _reading(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filter(node, _READ)


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


class _Generation(Extension):
    """Jinja block `generation`, which marks text of the assistant; rendered as its content."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render_body(self, caller: Macro) -> str:
        return caller()


class _TemplateNamespace(Namespace):
    """Jinja's namespace without names that begin with an underscore; its repr has no values."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a keyword may be named `self`
        self_, *positional = args
        values = dict(*positional, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self_, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no name {name!r}")


class _TemplateDict:
    """Replaces `dict` in templates: has no attributes of the class but `fromkeys`."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _refuse(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _time_now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> _BoundedEnvironment:
    """Returns the Jinja environment whose filters are charged to the budget."""
    environment = _BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        optimized=False,  # no constant folding: nothing is computed before there is a budget
        finalize=_charge_output,
    )
    filters = {name: f for name, f in environment.filters.items() if name not in _REFUSED_FILTERS}
    environment.filters = {
        name: _charged_filter(name, function) for name, function in filters.items()
    }
    environment.filters |= {
        "tojson": _to_json,
        _JOINED: _joined,
        _COUNTED: _counted,
        _STATIC: _charge_text,
    }
    environment.filters |= {_READ: _charge_read, _MADE: lambda value: _budget.get().made(value)}
    tests: dict[str, Any] = environment.tests
    environment.tests = {name: _charged_test(function) for name, function in tests.items()}
    del environment.globals["lipsum"]
    environment.globals |= {
        "dict": _TemplateDict(),
        "namespace": _TemplateNamespace,
        "raise_exception": _refuse,
        "strftime_now": _time_now,
    }
    return environment


def compile_template(source: str) -> jinja2.Template:
    """Compiles a chat template so that `render_template` can bound its time and memory.

    Raises:
        TooMuchError: The source is too long or nested too deep.
        TemplateSyntaxError: The source is not a valid template.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise TooMuchError
    environment = _environment()
    try:
        tree = _Instrument().visit(environment.parse(source))
        tree.set_environment(environment)
        code = environment.compile(tree, filename="<template>")
    except (TemplateSyntaxError, TooMuchError):
        raise
    except (RecursionError, MemoryError, SyntaxError) as error:
        raise TooMuchError from error
    except Exception as error:  # any type: Jinja evaluates literals, such as numbers of any size
        raise TemplateSyntaxError(str(error) or type(error).__name__, 1) from error
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


def render_template(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Renders a template of `compile_template` with variables, which are JSON-like objects.

    Raises:
        TooMuchError: The template exceeds its budget.
        Exception: The template fails, with any type of error.
    """
    token = _budget.set(Budget(variables))
    try:
        return "".join(template.generate(variables))
    except (RecursionError, MemoryError) as error:
        raise TooMuchError from error
    finally:
        _budget.reset(token)
