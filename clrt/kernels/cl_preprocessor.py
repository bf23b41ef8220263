"""A minimal C preprocessor that expands the parameter list of a kernel for given defines.

Kernel sources declare parameters by macros, which depend on other macros, such as an optional bias.
Only the directives that affect the parameter list are evaluated.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from typing import TypeAlias

from clrt.util.fast_dataclass import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Begins with a literal character, which the regex engine finds much faster than a line start.
_DIRECTIVE = re.compile(
    r"#[ \t]*(define|undef|if|ifdef|ifndef|elif|else|endif)\b[ \t]*((?:\\\n|[^\n])*)"
)
_MACRO = re.compile(r"(\w+)(\(([^)]*)\))?(.*)", re.DOTALL)
_KERNEL = r"__kernel\b[^{{;]*?\bvoid\s+{}\s*\(([^{{]*)\)\s*\{{"
# A macro call that stands alone at file scope, such as one that defines a function.
_CALL = re.compile(r"^(\w+)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\s*$", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d\w*|##|&&|\|\||[!=<>]=|[^\s\\]")
_NAME = re.compile(r"[A-Za-z_]\w*")
# Binary operators of #if by precedence, lowest first.
_PRECEDENCE: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)

Tokens: TypeAlias = "tuple[str, ...]"


@dataclass(frozen=True)
class Macro:
    """A macro definition.

    Attributes:
        params: Parameter names; None for an object-like macro.
        body: Replacement tokens.
    """

    params: Tokens | None
    body: Tokens


@dataclass(frozen=True)
class _Define:
    """A #define or #undef directive, tokenized on demand: most never affect a parameter list.

    Attributes:
        name: Name of the macro.
        text: The directive without its keyword.
        ends: Whether it is #undef.
    """

    name: str
    text: str
    ends: bool

    @cached_property
    def macro(self) -> Macro:
        parts = _MACRO.fullmatch(self.text)
        assert parts is not None, self.text
        _, parenthesized, params, body = parts.groups()
        names = None
        if parenthesized is not None:
            names = tuple(p.strip() for p in params.split(",") if p.strip())
        return Macro(names, tokens(body))


@dataclass
class _Conditional:
    """A conditional preprocessor directive, from #if to #endif.

    Attributes:
        branches: The condition and the directives of each branch; #else has the condition "1".
    """

    branches: list[tuple[str, list[_Define | _Conditional]]] = field(default_factory=list)


_Block: TypeAlias = "list[_Define | _Conditional]"


class Interface:
    """The parameter list of one kernel, with the preprocessor directives that affect it.

    Args:
        params: Text of the parameter list.
        directives: Keyword and text of each directive before the kernel.
    """

    def __init__(self, params: str, directives: Iterator[tuple[str, str]]) -> None:
        self._params = tokens(params)
        block = _parse(directives)
        names = set(self._params)
        while True:
            count = len(names)
            kept = _filter(block, names)
            if len(names) == count:
                break
        self._directives = kept

    def params(self, defines: Mapping[str, str]) -> Tokens:
        """Returns the parameter list of the kernel as tokens, with macros expanded.

        The macros IN, OUT and INOUT, which declare tensors, stay unexpanded.

        Args:
            defines: Macro values by name, as placed in front of the source.

        Raises:
            ValueError: A directive needs more than this preprocessor implements.
        """
        macros = {name: Macro(None, tokens(text)) for name, text in defines.items()}
        _run(self._directives, macros)
        for primitive in PRIMITIVES:
            macros.pop(primitive, None)
        return tuple(_expand(self._params, macros))


# Macros of common/base.clh that declare a tensor parameter.
PRIMITIVES = ("IN", "OUT", "INOUT")


def read_interface(source: str, entry: str) -> Interface:
    """Reads the parameter list of a kernel, and the directives before it, from OpenCL C source.

    Args:
        source: Source text with includes expanded.
        entry: Name of the kernel function.

    Raises:
        ValueError: The source has no such kernel.
    """
    text = _COMMENT.sub(" ", source)
    kernel = re.search(_KERNEL.format(entry), text)
    if kernel is None:
        raise ValueError(f"no kernel {entry}")
    before = ((d[1], d[2]) for d in _DIRECTIVE.finditer(text, 0, kernel.start()))
    return Interface(kernel[1], before)


def macro_bodies(text: str) -> Iterator[tuple[str, str]]:
    """Yields the name of each macro, and its definition from the parameter list on.

    Macros that are defined several times are yielded each time.

    Args:
        text: OpenCL C source without comments.
    """
    for kind, rest in (directive.groups() for directive in _DIRECTIVE.finditer(text)):
        name = _NAME.match(rest)
        if kind == "define" and name is not None:
            yield name[0], rest[name.end() :]


def expanded_calls(text: str) -> Iterator[str]:
    """Yields the expansion of each line at file scope that is only a macro call.

    Macros in the expansion are not expanded. If a macro is defined several times, the last
    definition is used.

    Args:
        text: OpenCL C source without comments.
    """
    macros = {name: _Define(name, name + body, False) for name, body in macro_bodies(text)}
    for name, given in _CALL.findall(text):
        macro = macros[name].macro if name in macros else None
        if macro is not None and macro.params is not None:
            args, _ = _arguments((*tokens(given), ")"), 0)
            named = dict(zip(macro.params, args, strict=False))
            yield " ".join(_pasted(_substitute(macro.body, named, {}, frozenset())))


@lru_cache(maxsize=4096)
def tokens(text: str) -> Tokens:
    """Splits C source, which must not contain string literals, into tokens."""
    return tuple(_TOKEN.findall(text))


def _parse(directives: Iterator[tuple[str, str]]) -> _Block:
    """Parses the directives before a kernel into a tree of defines and conditionals.

    Args:
        directives: Keyword and remaining text of each directive.
    """
    block: _Block = []
    open_blocks, conditionals = [block], list[_Conditional]()
    for kind, rest in directives:
        if kind in ("if", "ifdef", "ifndef"):
            conditionals.append(_Conditional())
            open_blocks[-1].append(conditionals[-1])
            open_blocks.append([])
            test = {"if": "", "ifdef": "defined ", "ifndef": "!defined "}[kind] + rest
            conditionals[-1].branches.append((test, open_blocks[-1]))
        elif kind in ("elif", "else"):
            open_blocks[-1] = []
            conditionals[-1].branches.append((rest if kind == "elif" else "1", open_blocks[-1]))
        elif kind == "endif":
            conditionals.pop()
            open_blocks.pop()
        else:
            name = _NAME.match(rest)
            assert name is not None, rest
            open_blocks[-1].append(_Define(name[0], rest, kind == "undef"))
    return block


def _filter(block: _Block, names: set[str]) -> _Block:
    """Returns the directives of a block that affect any of the macros `names`.

    Adds to `names` the identifiers in the macro bodies and conditions of the returned directives.
    """
    kept: _Block = []
    for item in block:
        if isinstance(item, _Define):
            if item.name in names:
                kept.append(item)
                names.update(filter(_NAME.fullmatch, item.macro.body))
            continue
        branches = [(test, _filter(inside, names)) for test, inside in item.branches]
        if any(inside for _, inside in branches):
            kept.append(_Conditional(branches))
            names.update(t for test, _ in branches for t in tokens(test) if _NAME.fullmatch(t))
    return kept


def _run(block: _Block, macros: dict[str, Macro]) -> None:
    """Executes the directives of a block: adds to and removes from `macros` in place.

    Args:
        block: Directives in order.
        macros: Defined macros by name.
    """
    for item in block:
        if isinstance(item, _Conditional):
            true_blocks = (inside for test, inside in item.branches if _holds(tokens(test), macros))
            _run(next(true_blocks, []), macros)
        elif item.ends:
            macros.pop(item.name, None)
        else:
            macros[item.name] = item.macro


def _holds(test: Tokens, macros: Mapping[str, Macro]) -> bool:
    """Returns whether the condition of an #if directive is true.

    Args:
        test: Tokens of the condition.
        macros: Defined macros by name.

    Raises:
        ValueError: The condition is not an expression that this preprocessor implements.
    """
    plain = []
    rest = iter(test)
    for token in rest:
        if token == "defined":
            name = next(rest)
            if name == "(":
                name = next(rest)
                next(rest)
            token = str(int(name in macros))
        plain.append(token)
    expanded = _expand(tuple(plain), macros)
    value, end = _evaluate(expanded, 0, 0)
    if end != len(expanded):
        raise ValueError(f"#if {' '.join(test)}")
    return value != 0


def _evaluate(expr: Sequence[str], at: int, level: int) -> tuple[int, int]:
    """Evaluates a constant expression; returns its value and the index of the token after it.

    Args:
        expr: Tokens, with macros expanded.
        at: Index of the expression's first token.
        level: Lowest precedence of operators to include, an index of `_PRECEDENCE`.
    """
    if level < len(_PRECEDENCE):
        value, at = _evaluate(expr, at, level + 1)
        while at < len(expr) and expr[at] in _PRECEDENCE[level]:
            compute = _PRECEDENCE[level][expr[at]]
            right, at = _evaluate(expr, at + 1, level + 1)
            value = int(compute(value, right))
        return value, at
    token = expr[at] if at < len(expr) else ""
    if token == "(":
        value, at = _evaluate(expr, at + 1, 0)
        return value, at + 1
    if token in ("!", "-"):
        value, at = _evaluate(expr, at + 1, level)
        return (int(not value) if token == "!" else -value), at
    if _NAME.fullmatch(token):
        return 0, at + 1
    return int(token.rstrip("uUlL"), 0), at + 1


def _expand(
    text: Sequence[str], macros: Mapping[str, Macro], hidden: frozenset[str] = frozenset()
) -> list[str]:
    """Returns tokens with macros expanded.

    Args:
        text: The tokens.
        macros: Defined macros by name.
        hidden: Names of macros that are being expanded, which their own replacement must not expand
            again.
    """
    out: list[str] = []
    at = 0
    while at < len(text):
        token = text[at]
        at += 1
        macro = None if token in hidden else macros.get(token)
        if macro is None or (macro.params is not None and text[at : at + 1] != ("(",)):
            out.append(token)
            continue
        body: Sequence[str] = macro.body
        if macro.params is not None:
            args, at = _arguments(text, at + 1)
            if len(args) != len(macro.params):
                raise ValueError(f"{token} takes {len(macro.params)} arguments, not {len(args)}")
            body = _substitute(body, dict(zip(macro.params, args, strict=True)), macros, hidden)
        out += _expand(_pasted(body), macros, hidden | {token})
    return out


def _arguments(text: Sequence[str], at: int) -> tuple[list[Tokens], int]:
    """Returns the arguments of a macro call, and the index of the token after the call.

    Args:
        text: Tokens that contain the call.
        at: Index of the token after the opening parenthesis.
    """
    args: list[list[str]] = [[]]
    depth = 1
    while True:
        token = text[at]
        at += 1
        depth += (token == "(") - (token == ")")
        if not depth:
            return [tuple(a) for a in args], at
        if token == "," and depth == 1:
            args.append([])
        else:
            args[-1].append(token)


def _substitute(
    body: Sequence[str],
    args: Mapping[str, Tokens],
    macros: Mapping[str, Macro],
    hidden: frozenset[str],
) -> list[str]:
    """Returns a macro body with its parameters replaced by arguments.

    Arguments beside ## are inserted verbatim, others with macros expanded.

    Args:
        body: Tokens of the macro body.
        args: Argument tokens by parameter name.
        macros: Defined macros by name.
        hidden: Names of macros that are being expanded, which arguments must not expand again.
    """
    out: list[str] = []
    for at, token in enumerate(body):
        if token not in args:
            out.append(token)
        elif "##" in (*body[max(at - 1, 0) : at], *body[at + 1 : at + 2]):
            out += args[token]
        else:
            out += _expand(args[token], macros, hidden)
    return out


def _pasted(body: Sequence[str]) -> tuple[str, ...]:
    """Returns the tokens of a macro body with each `a ## b` joined to one token."""
    out: list[str] = []
    rest = iter(body)
    for token in rest:
        if token == "##":
            out[-1] += next(rest)
        else:
            out.append(token)
    return tuple(out)
