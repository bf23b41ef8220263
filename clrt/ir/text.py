"""The IR as text: printed for people and tests, and parsed back.

graph "main" (%x: float32[batch,384]) {
  const %w: float32[384,12] = ...
  const %axes: int64[1] = [1]
  const %table: float32[9,384] = @"0/table"
  %y: float32[batch,12] = MatMul(%x, %w) @"layer 0"
  return %y as "logits"
}
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from clrt.errors import ModelError
from clrt.ir.dims import Dim, parse_dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ContainerType, IrOp, Step, StoredElements, TensorType
from clrt.limits import text_array

_PLAIN = re.compile(r"[\w./:\-]+")
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


class OpRegistry(Protocol):
    """Finds op classes by the name the text has."""

    def named(self, name: str) -> type[IrOp]:
        """The class of `domain.Name`; no domain is ai.onnx."""


# Keeps a constant apart from the text and gives the key to find it by; None leaves it in the text.
Store: TypeAlias = "Callable[[Value], str | None]"
# The elements that were kept under a key, for a constant of this type.
Fetch: TypeAlias = "Callable[[str, TensorType], Array | StoredElements]"


def elided(limit: int = 16) -> Store:
    """The `Store` that keeps nothing of constants with more than `limit` elements."""
    return lambda value: "" if value.has_numbers and prod(value.dims) > limit else None


_SHORT = elided()


def print_graph(graph: Graph, store: Store = _SHORT) -> str:
    """The text of a graph.

    Args:
        store: Takes constants out of the text.
    """
    inputs = ", ".join(_typed(v) for v in graph.inputs)
    lines = [f"graph {json.dumps(graph.name)} ({inputs}) {{"]
    for value in graph.constants():
        if value not in graph.inputs:
            lines.append(f"  const {_typed(value)} = {_data(value, store)}")
    for node in graph.nodes:
        outputs = ", ".join(_typed(v) for v in node.outputs)
        args = ", ".join("_" if v is None else _name(v.name) for v in node.inputs)
        lines.append(f"  {outputs} = {_op(node.op, store)}({args}) @{json.dumps(node.name)}")
    pairs = zip(graph.outputs, graph.output_names, strict=True)
    results = ", ".join(f"{_name(v.name)} as {json.dumps(n)}" for v, n in pairs)
    return "\n".join([*lines, f"  return {results}", "}"]) + "\n"


def _name(name: str) -> str:
    # A colon at the end would read as the one in front of the type.
    plain = _PLAIN.fullmatch(name) and not name.endswith(":")
    return f"%{name}" if plain else f"%{json.dumps(name)}"


def _typed(value: Value) -> str:
    return f"{_name(value.name)}: {value.type}"


def _data(value: Value, store: Store) -> str:
    key = store(value)
    if key is not None:
        return f"@{json.dumps(key)}" if key else "..."
    data = value.type.data
    assert data is not None
    return _nested(data.tolist())


def _nested(item: Any) -> str:
    if isinstance(item, str):
        return json.dumps(item)
    if isinstance(item, list):
        return f"[{', '.join(map(_nested, item))}]"
    return str(item) if not isinstance(item, bool) else str(int(item))


def _op(op: IrOp, store: Store) -> str:
    name = f"{op.domain}.{op.name}" if op.domain else op.name
    attributes = ", ".join(f"{k}={_attribute(v, store)}" for k, v in op.attributes.items())
    return f"{name}{{{attributes}}}" if attributes else name


def _attribute(value: Any, store: Store) -> str:
    match value:
        case DType():
            return value.value
        case Graph():
            return print_graph(value, store).strip().replace("\n", "\n    ")
        case IrOp():
            return _op(value, store)
        case Step():
            return f"{_op(value.op, store)}({', '.join(map(str, value.args))})"
        case tuple():
            return f"[{', '.join(_attribute(v, store) for v in value)}]"
        case str():
            return json.dumps(value)
        case bool() | None:
            return str(value)
        case float():
            return repr(value)
    return str(value)


def parse_graph(text: str, registry: OpRegistry, fetch: Fetch | None = None) -> Graph:
    """The graph of a text. Elided constants become pseudo-random data seeded by their name.

    Args:
        fetch: Finds the constants that a `Store` took out of the text.

    Raises:
        ModelError: The text is not the IR's form.
    """
    parser = _Parser(text, registry, fetch)
    try:
        return parser.graph()
    except (ValueError, SyntaxError, TypeError) as error:
        # What numbers, dims, dtypes and op classes say of parts that they do not take.
        raise parser.error(parser.tokens[parser.at][2], f"{error}, before") from error


class _Parser:
    def __init__(self, text: str, registry: OpRegistry, fetch: Fetch | None) -> None:
        self.text, self.registry, self.fetch = text, registry, fetch
        self.tokens = list(self._tokenise())
        self.at = 0
        self.values: dict[str, Value] = {}

    def _tokenise(self) -> Iterator[tuple[str, str, int]]:
        position = 0
        text = self.text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error(position, "unexpected character")
            kind = str(match.lastgroup)
            yield kind, match[kind], match.start(kind)
            position = match.end()
        yield "end", "", position

    def error(self, position: int, what: str) -> ModelError:
        line = self.text.count("\n", 0, position) + 1
        near = self.text[position : position + 20]
        return ModelError(f"IR text, line {line}: {what} at {near!r}.")

    def peek(self) -> str:
        return self.tokens[self.at][1]

    def take(self, *kinds: str) -> str:
        kind, text, position = self.tokens[self.at]
        if kinds and kind not in kinds:
            raise self.error(position, f"expected {' or '.join(kinds)}, found {kind}")
        self.at += 1
        return text

    def expect(self, text: str) -> None:
        if self.peek() != text:
            raise self.error(self.tokens[self.at][2], f"expected {text!r}")
        self.at += 1

    def accept(self, text: str) -> bool:
        if self.peek() == text and self.tokens[self.at][0] != "string":
            self.at += 1
            return True
        return False

    def graph(self) -> Graph:
        around, self.values = self.values, {}
        self.expect("graph")
        name = json.loads(self.take("string"))
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
            names.append(json.loads(self.take("string")) if self.accept("as") else outputs[-1].name)
            self.accept(",")
        self.values = around
        return Graph(name, inputs, outputs, nodes, names)

    def value_name(self) -> str:
        kind = self.tokens[self.at][0]
        text = self.take("value", "quoted")
        name: str = json.loads(text) if kind == "quoted" else text
        # The type's colon follows the name at once.
        if kind == "value" and name.endswith(":"):
            self.at -= 1
            _, _, position = self.tokens[self.at]
            self.tokens[self.at] = ("mark", ":", position + len(name) - 1)
            name = name[:-1]
        return name

    def declare(self) -> Value:
        name = self.value_name()
        self.expect(":")
        value = Value(name, self.type())
        if name in self.values:
            raise self.error(self.tokens[self.at][2], f"'{name}' is declared twice")
        self.values[name] = value
        return value

    def reference(self) -> Value:
        position = self.tokens[self.at][2]
        name = self.value_name()
        if name not in self.values:
            raise self.error(position, f"'{name}' is not declared")
        return self.values[name]

    def type(self) -> TensorType:
        name = self.take("name")
        if name in ("sequence", "optional", "map"):
            self.expect("(")
            key = DType(self.take("name")) if name == "map" else None
            if key is not None:
                self.expect(",")
            element = self.type()
            self.expect(")")
            return ContainerType(element.dtype, None, None, name, element, key)
        dtype = DType(name)
        self.expect("[")
        start = self.tokens[self.at][2]
        depth = 1
        while depth:
            depth += {"[": 1, "]": -1}.get(self.take(), 0)
        text = self.text[start : self.tokens[self.at - 1][2]].strip()
        if text == "?":
            return TensorType(dtype, None)
        return TensorType(dtype, tuple(parse_dim(d) for d in _split(text)))

    def constant(self) -> None:
        value = self.declare()
        if not value.type.is_static:
            raise self.error(self.tokens[self.at][2], "the dims of a constant must be numbers")
        self.expect("=")
        if self.tokens[self.at][0] == "ellipsis":
            self.at += 1
            known: Array | StoredElements = _pseudo_random(value)
        elif self.fetch is not None and self.accept("@"):
            known = self.fetch(json.loads(self.take("string")), value.type)
        else:
            known = self.data(value.type)
        value.type = TensorType(value.dtype, value.shape, known)

    def data(self, type_: TensorType) -> Array:
        start = self.tokens[self.at][2]
        if self.peek() == "[":
            depth = 0
            while True:
                depth += {"[": 1, "]": -1}.get(self.take(), 0)
                if depth == 0:
                    break
        else:
            self.take()
            ends = ("const", "return", "}", "")
            while self.peek() not in ends and self.tokens[self.at][0] not in ("value", "quoted"):
                self.take()
        # The next token's position is behind its %.
        text = self.text[start : self.tokens[self.at][2]].rstrip("% \n")
        if type_.dtype is DType.STRING:
            texts = np.array(json.loads(text), object)
            return text_array(texts.reshape(-1).tolist(), texts.shape).reshape(type_.shape)
        items = _split(re.sub(r"[\[\]]", " ", text))
        shape = tuple(int(d) for d in type_.shape or ())
        if type_.dtype.is_float:
            return np.array([float(t) for t in items], type_.dtype.numpy).reshape(shape)
        dims: list[Dim] = [parse_dim(t) for t in items]
        if all(isinstance(d, int) for d in dims):
            return np.array(dims, type_.dtype.numpy).reshape(shape)
        symbolic = np.empty(len(dims), object)
        symbolic[:] = dims
        return symbolic.reshape(shape)

    def node(self) -> Node:
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
            name = json.loads(self.take("string"))
        return Node(name, op, inputs, outputs)

    def op(self) -> IrOp:
        position = self.tokens[self.at][2]
        name = self.take("name")
        try:
            cls = self.registry.named(name)
        except KeyError as error:
            raise self.error(position, f"there is no op {name}") from error
        attributes: dict[str, Any] = {}
        if self.accept("{"):
            while not self.accept("}"):
                key = self.take("name")
                self.expect("=")
                attributes[key] = self.attribute()
                self.accept(",")
        return cls(**attributes)

    def attribute(self) -> Any:
        kind, text, _ = self.tokens[self.at]
        if kind == "string":
            return json.loads(self.take())
        if kind == "number":
            self.at += 1
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if self.accept("["):
            items = []
            while not self.accept("]"):
                items.append(self.attribute())
                self.accept(",")
            return tuple(items)
        if text in ("True", "False", "None"):
            self.at += 1
            return {"True": True, "False": False, "None": None}[text]
        if text in DType._value2member_map_:
            self.at += 1
            return DType(text)
        if text in ("inf", "nan"):
            self.at += 1
            return float(text)
        if text == "graph":
            return self.graph()
        op = self.op()
        if not self.accept("("):
            return op
        args = []
        while not self.accept(")"):
            args.append(int(self.take("number")))
            self.accept(",")
        return Step(op, tuple(args))


def _split(text: str) -> list[str]:
    """Splits at the commas outside of parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [p.strip() for p in parts if p.strip()]


def _pseudo_random(value: Value) -> Array:
    rng = np.random.default_rng(zlib.crc32(value.name.encode()))
    shape = tuple(int(d) for d in value.shape or ())
    if value.dtype.is_float:
        return rng.standard_normal(shape).astype(value.dtype.numpy)
    return rng.integers(0, 2, shape).astype(value.dtype.numpy)
