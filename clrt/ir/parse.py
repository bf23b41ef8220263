"""Parser of the IR's text form, as printed by `clrt.ir.text`."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from clrt.errors import ModelError
from clrt.ir.dim_operations import parse_dim
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import (
    Array,
    ContainerType,
    ElementwiseInstruction,
    IrOp,
    PackedConstant,
    TensorType,
)
from clrt.util.host_limits import text_array

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | %(?P<quoted>"(?:[^"\\]|\\.)*")
      | %(?P<value>[\w./:\-]+)
      | (?P<number>-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)(?![\w.]))
      | (?P<name>[A-Za-z_][\w.]*)
      | (?P<ellipsis>\.\.\.)
      | (?P<mark>[()\[\]{}:,=@*+?\-])
    )""",
    re.VERBOSE,
)

# A bracketed list without nested brackets or strings.
_PLAIN = re.compile(r"\[[\w\s,.*+?\-]*\]")

# Maximum nesting of graphs, attributes and types; far below the limit of Python's stack.
_MAX_DEPTH = 64
# Maximum rank of a NumPy array.
_MAX_RANK = 64
# Maximum length of a name in a message, in characters.
_MAX_SHOWN = 100


class OpRegistry(Protocol):
    """Registry that returns op classes by their names in the IR's text form."""

    def named(self, name: str) -> type[IrOp]:
        """Returns the class of an op.

        Args:
            name: Name in the IR's text form: "domain.Name", or "Name" in the domain ai.onnx.

        Raises:
            KeyError: There is no such op.
        """


# Returns the elements stored under a key, for a constant of a type.
Fetch: TypeAlias = "Callable[[str, TensorType], Array | PackedConstant]"


def parse_graph(text: str, registry: OpRegistry, fetch: Fetch | None = None) -> Graph:
    """Parses the text form of a graph, as printed by `clrt.ir.text.print_graph`.

    Args:
        text: The text form.
        registry: Returns op classes by name.
        fetch: Returns the elements of a constant that is stored outside the text under a key;
            elided constants (`...`) are then an error. If None, elided constants get pseudo-random
            elements, seeded by their names.

    Raises:
        ModelError: The text is not a valid graph.
    """
    parser = _Parser(text, registry, fetch)
    try:
        graph = parser.graph()
        parser.take("end")
    except _INVALID as error:
        # Raised by constructors of numbers, dims, dtypes and ops for invalid text.
        raise parser.error(parser.position, f"{_short(str(error))}, before") from error
    return graph


# Exceptions that constructors raise if they are passed invalid parts of a text.
_INVALID = (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)


def parse_op(text: str, registry: OpRegistry) -> IrOp:
    """Parses the text of an op with its attributes, as `clrt.ir.text.print_op` writes it.

    Args:
        registry: Returns the class of an op by name.

    Raises:
        ModelError: The text is not an op.
    """
    return _Parser(text, registry, None).op()


class _Parser:
    """A recursive-descent parser of the IR's text form, with one token of lookahead.

    Attributes:
        kind: Kind of the next token, a group of `_TOKEN` or "end".
        token: Text of the next token.
        position: Index of the next token in the text.
        values: Declared values of the current graph, by name.
    """

    def __init__(self, text: str, registry: OpRegistry, fetch: Fetch | None) -> None:
        self.text, self.registry, self.fetch = text, registry, fetch
        self.kind, self.token, self.position = "", "", 0
        self.values: dict[str, Value] = {}
        # Offsets in the text: end of the next token, and of the last consumed token.
        self._end = self._consumed_end = 0
        self._depth = 0
        self._types: dict[tuple[str, str], TensorType] = {}
        self._advance()

    def _advance(self) -> None:
        """Reads the next token of the text and sets `kind`, `token` and `position` to it."""
        self._consumed_end = self._end
        match = _TOKEN.match(self.text, self._end)
        if match is None:
            if self.text[self._end :].strip():
                raise self.error(self._end, "unexpected character")
            self.kind, self.token, self.position = "end", "", self._end
            return
        self.kind = str(match.lastgroup)
        self.token, self.position, self._end = match[self.kind], *match.span(self.kind)
        # The colon before a type directly follows the value's name.
        if self.kind == "value" and self.token.endswith(":"):
            self.token, self._end = self.token[:-1], self._end - 1

    def error(self, position: int, what: str) -> ModelError:
        """Returns the error for invalid text at a position.

        Args:
            position: Index of the first invalid character.
            what: What is wrong there, for the message.
        """
        line = self.text.count("\n", 0, position) + 1
        near = self.text[position : position + 20]
        return ModelError(f"IR text, line {line}: {what} at {near!r}.")

    def take(self, *kinds: str) -> str:
        """Consumes the next token and returns it.

        Args:
            kinds: Allowed kinds of the token; none for any kind but "end".

        Raises:
            ModelError: The token is of another kind.
        """
        kind, token = self.kind, self.token
        if kind not in kinds if kinds else kind == "end":
            expected = " or ".join(kinds) or "more"
            raise self.error(self.position, f"expected {expected}, found {kind}")
        if kind != "end":
            self._advance()
        return token

    def expect(self, token: str) -> None:
        """Consumes a name or punctuation mark; raises ModelError if the next token differs."""
        if not self.accept(token):
            raise self.error(self.position, f"expected {token!r}")

    def accept(self, token: str) -> bool:
        """Consumes a name or punctuation mark if it is the next token; returns whether it was."""
        if self.token == token and self.kind in ("name", "mark"):
            self._advance()
            return True
        return False

    def string(self) -> str:
        return _unquoted(self.take("string"))

    def graph(self) -> Graph:
        """Parses a graph, or a subgraph in an attribute; names of values are local to it."""
        outer_values, self.values = self.values, {}
        self.expect("graph")
        name = self.string()
        self.expect("(")
        inputs = []
        while not self.accept(")"):
            inputs.append(self.declare())
            self.accept(",")
        self.expect("{")
        nodes: list[Node] = []
        while not self.accept("return"):
            if self.accept("const"):
                self.constant()
            else:
                nodes.append(self.node())
        outputs, names = [], []
        while not self.accept("}"):
            outputs.append(self.reference())
            names.append(self.string() if self.accept("as") else outputs[-1].name)
            self.accept(",")
        self.values = outer_values
        return Graph(name, inputs, outputs, nodes, names)

    def value_name(self) -> str:
        quoted = self.kind == "quoted"
        token = self.take("value", "quoted")
        return _unquoted(token) if quoted else token

    def declare(self) -> Value:
        """Parses `%name: type`; returns a new value, which later tokens can refer to by name."""
        name = self.value_name()
        self.expect(":")
        value = Value(name, self.type())
        if name in self.values:
            raise self.error(self.position, f"'{_short(name)}' is declared twice")
        self.values[name] = value
        return value

    def reference(self) -> Value:
        """Parses the name of a declared value; returns the value."""
        position = self.position
        name = self.value_name()
        if name not in self.values:
            raise self.error(position, f"'{_short(name)}' is not declared")
        return self.values[name]

    def type(self) -> TensorType:
        """Parses a tensor type, such as `float32[batch,8]`, or a container type."""
        with self._deeper():
            name = self.take("name")
            if name in ("sequence", "optional", "map"):
                self.expect("(")
                key = DType(self.take("name")) if name == "map" else None
                if key is not None:
                    self.expect(",")
                element = self.type()
                self.expect(")")
                return ContainerType(element.dtype, None, None, name, element, key)
        text = self.bracketed()
        # Types repeat often within a graph.
        type_key = name, text
        if type_key not in self._types:
            self._types[type_key] = self._tensor_type(DType(name), text[1:-1].strip())
        return self._types[type_key]

    def _tensor_type(self, dtype: DType, text: str) -> TensorType:
        if text == "?":
            return TensorType(dtype, None)
        dims = tuple(_dim(d) for d in _split(text))
        if len(dims) > _MAX_RANK:
            raise self.error(self.position, f"a type of {len(dims)} axes")
        if any(isinstance(d, int) and not 0 <= d < 1 << 63 for d in dims):
            raise self.error(self.position, "a size out of range")
        return TensorType(dtype, dims)

    def bracketed(self) -> str:
        """Consumes a list in brackets; returns its text, including the brackets."""
        start, depth = self.position, 1
        if self.kind == "mark" and (plain := _PLAIN.match(self.text, start)):
            self._end = plain.end()
            self._advance()
            return plain[0]
        self.expect("[")
        while depth:
            if self.kind == "mark":
                depth += {"[": 1, "]": -1}.get(self.token, 0)
            self.take()
        return self.text[start : self._consumed_end]

    def constant(self) -> None:
        """Parses a constant after the word `const`: name, type, and elements, a key or `...`."""
        value = self.declare()
        if not value.type.is_static:
            raise self.error(self.position, "the dims of a constant must be numbers")
        self.expect("=")
        if self.kind == "ellipsis" and self.fetch is None:
            self.take()
            known: Array | PackedConstant = _pseudo_random(value)
        elif self.fetch is not None and self.accept("@"):
            known = self.fetch(self.string(), value.type)
        else:
            known = self.data(value.type)
        value.type = TensorType(value.dtype, value.shape, known)

    def data(self, type_: TensorType) -> Array:
        """Parses the elements of a constant: a nested list, or a single element.

        Args:
            type_: Type of the constant, with a static shape.
        """
        if self.token == "[" and self.kind == "mark":
            text = self.bracketed()
        else:
            start = self.position
            self.take()
            while not self._starts_a_line():
                self.take()
            text = self.text[start : self._consumed_end]
        shape = tuple(int(d) for d in type_.shape or ())
        if type_.dtype is DType.STRING:
            return _texts(text, shape)
        items = _split(_BRACKETS.sub(" ", text))
        if len(items) != prod(shape):
            raise self.error(self.position, f"{len(items)} elements of {type_}")
        if type_.dtype.is_float:
            return np.array([float(t) for t in items], type_.dtype.numpy).reshape(shape)
        dims = [_dim(t) for t in items]
        if all(isinstance(d, int) for d in dims):
            return np.array(dims, type_.dtype.numpy).reshape(shape)
        if type_.dtype not in (DType.INT32, DType.INT64):
            raise self.error(self.position, f"{type_} of symbols")
        symbolic = np.empty(len(dims), object)
        symbolic[:] = dims
        return symbolic.reshape(shape)

    def _starts_a_line(self) -> bool:
        """Returns whether the next token starts a statement or ends the graph."""
        if self.kind in ("value", "quoted", "end"):
            return True
        return self.kind in ("name", "mark") and self.token in ("const", "return", "}")

    def node(self) -> Node:
        """Parses a node, which is written `outputs = Op{attributes}(inputs) @"name"`."""
        outputs = [self.declare()]
        while self.accept(","):
            outputs.append(self.declare())
        self.expect("=")
        op = self.op()
        self.expect("(")
        inputs: list[Value | None] = []
        while not self.accept(")"):
            inputs.append(None if self.accept("_") else self.reference())
            self.accept(",")
        name = outputs[0].name
        if self.accept("@"):
            name = self.string()
        return Node(name, op, inputs, outputs)

    def op(self) -> IrOp:
        """Parses the name of an op and its attributes in braces."""
        position = self.position
        name = self.take("name")
        try:
            cls = self.registry.named(name)
        except KeyError as error:
            raise self.error(position, f"there is no op {_short(name)}") from error
        attributes: dict[str, Any] = {}
        if self.accept("{"):
            while not self.accept("}"):
                position, key = self.position, self.take("name")
                if key in attributes:
                    raise self.error(position, f"attribute {_short(key)} is there twice")
                self.expect("=")
                attributes[key] = self.attribute()
                self.accept(",")
        return cls(**attributes)

    def attribute(self) -> Any:
        """Parses an attribute: string, number, list, dtype, graph, op or elementwise step."""
        with self._deeper():
            if self.kind == "string":
                return self.string()
            if self.kind == "number":
                text = self.take()
                return int(text) if _INTEGER.fullmatch(text) else float(text)
            if self.accept("["):
                items = []
                while not self.accept("]"):
                    items.append(self.attribute())
                    self.accept(",")
                return tuple(items)
            if self.kind != "name":
                raise self.error(self.position, f"expected a value, found {self.kind}")
            if self.token in _WORDS:
                return _WORDS[self.take()]
            if self.token == "graph":
                return self.graph()
            op = self.op()
            return ElementwiseInstruction(op, self.operands()) if self.accept("(") else op

    def operands(self) -> tuple[int, ...]:
        """Parses the operand indices of an elementwise step, up to the closing parenthesis."""
        args = []
        while not self.accept(")"):
            position, text = self.position, self.take("number")
            if not _INTEGER.fullmatch(text) or text.startswith("-"):
                raise self.error(position, "an operand is a number from 0 on")
            args.append(int(text))
            self.accept(",")
        return tuple(args)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """Context manager around nested text, which limits the nesting to `_MAX_DEPTH` levels.

        Raises:
            ModelError: The nesting is too deep.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(self.position, f"nesting deeper than {_MAX_DEPTH} levels")
        yield
        self._depth -= 1


_BRACKETS = re.compile(r"[\[\]]")
_INTEGER = re.compile(r"-?[0-9]+")
_WORDS: Mapping[str, Any] = {
    "True": True,
    "False": False,
    "None": None,
    "inf": math.inf,
    "nan": math.nan,
    **{d.value: d for d in DType},
}


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _unquoted(token: str) -> str:
    """Returns the contents of a string token in JSON quotes.

    Raises:
        ValueError: The string contains lone surrogates.
    """
    text: str = json.loads(token)
    text.encode()
    return text


def _dim(text: str) -> Dim:
    return int(text) if _INTEGER.fullmatch(text) else parse_dim(text)


def _texts(text: str, shape: tuple[int, ...]) -> Array:
    """Parses the elements of a string constant, a nested JSON list.

    Raises:
        ValueError: The text is not an array of strings of this shape.
        OutOfMemoryError: The array exceeds CLRT_HOST_LIMIT.
    """
    items = np.array(json.loads(text), object)
    if items.shape != shape or not all(isinstance(item, str) for item in items.flat):
        raise ValueError("not the strings of the shape")
    return text_array(items.reshape(-1).tolist(), shape)


def _split(text: str) -> list[str]:
    """Splits text at commas outside of parentheses; drops empty pieces."""
    if "(" not in text:
        return [p for p in map(str.strip, text.split(",")) if p]
    parts, depth, start = list[str](), 0, 0
    for at, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [p for p in map(str.strip, (*parts, text[start:])) if p]


def _pseudo_random(value: Value) -> Array:
    rng = np.random.default_rng(zlib.crc32(value.name.encode()))
    shape = tuple(int(d) for d in value.shape or ())
    if value.dtype.is_float:
        return rng.standard_normal(shape).astype(value.dtype.numpy)
    return rng.integers(0, 2, shape).astype(value.dtype.numpy)
