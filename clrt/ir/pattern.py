"""Patterns of subgraphs, matched backwards from a value along the edges to its producers.

Passes and launch fusion rules describe by patterns which nodes they look for:

    X = any_value("x")
    SQUARE = op(Mul, X, X) | op(Pow, X, constant("exponent"))
    found = SQUARE.find(value, edges)  # found["x"], found.nodes

A name that occurs twice stands for the same value twice. Alternatives and operand orders are tried
in all combinations, as written, until all parts match. An optional node is written as an
alternative: `op(Cast, X) | X`. If a test returns a reason instead of False, the search ends and the
subgraph is a near miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, Protocol, TypeAlias

from clrt.ir.graph import Node, Value
from clrt.ir.op import IrOp

# Result of a test: whether it passes, or why it does not, which makes the subgraph a near miss.
Verdict: TypeAlias = bool | str
# Binary ops whose operands match in both orders.
_COMMUTATIVE = frozenset(("Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean"))


class Edges(Protocol):
    """Interface to the edges of a graph, from values to the nodes that compute or read them."""

    def producer(self, value: Value) -> Node | None:
        """Returns the node that computes a value; None for inputs and constants."""

    def only_user(self, value: Value) -> Node | None:
        """Returns the only user of a value; None if it has another use or is a graph output."""


class Captures:
    """Values and nodes that a pattern matched.

    Attributes:
        edges: Edges of the graph.
        values: Matched values by their names in the pattern.
        path: Matched nodes, each before the nodes that compute its inputs; may repeat nodes.
    """

    __slots__ = ("edges", "path", "producer", "values")

    def __init__(self, edges: Edges) -> None:
        self.edges, self.producer = edges, edges.producer
        self.values: dict[str, Value] = {}
        self.path: list[Node] = []

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def node(self, name: str) -> Node:
        """Returns the node that computes a named value."""
        node = self.producer(self[name])
        assert node is not None
        return node

    @property
    def nodes(self) -> list[Node]:
        """The matched nodes, each once, in topological order."""
        return list(dict.fromkeys(reversed(self.path)))


# Yields once per way to match a value. `Captures` holds the captures of that way until the iterator
# advances.
_Ways: TypeAlias = Callable[[Value, Captures], Iterator[None]]
# Result of _Ways if a value does not match. Most do not, and this saves the cost of a generator.
_NO_WAYS: Iterator[None] = iter(())


class _NearMiss(Exception):
    """The subgraph resembles the pattern; the message says why it does not match."""


def _passes(verdict: Verdict) -> bool:
    """Returns the result of a test; raises _NearMiss if the result is a reason (str)."""
    if isinstance(verdict, str):
        raise _NearMiss(verdict)
    return verdict


class Pattern:
    """Conditions on a value and on the nodes that compute it.

    Patterns are made by the functions of this module, such as `op` and `any_value`.

    Attributes:
        roots: Op classes of the node that computes the value; () if any value may match.
    """

    def __init__(self, ways: _Ways, roots: tuple[type[IrOp], ...] = ()) -> None:
        self.ways, self.roots = ways, roots

    def find(self, value: Value, edges: Edges) -> Captures | str | None:
        """Matches a value.

        Args:
            value: The value.
            edges: Edges of the graph that the value is in.

        Returns:
            The values and nodes of the first match; the reason of a near miss; None if the value
            does not match.
        """
        found = Captures(edges)
        try:
            ways = self.ways(value, found)
            if ways is not _NO_WAYS:
                for _ in ways:
                    return found
        except _NearMiss as miss:
            return str(miss)
        return None

    def __or__(self, other: Pattern) -> Pattern:
        def ways(value: Value, found: Captures) -> Iterator[None]:
            first = self.ways(value, found)
            return other.ways(value, found) if first is _NO_WAYS else both(first, value, found)

        def both(first: Iterator[None], value: Value, found: Captures) -> Iterator[None]:
            yield from first
            yield from other.ways(value, found)

        roots = (*self.roots, *other.roots) if self.roots and other.roots else ()
        return Pattern(ways, roots)

    def used_once(self) -> Pattern:
        """Returns this pattern for values that one node reads and that are not graph outputs."""

        def ways(value: Value, found: Captures) -> Iterator[None]:
            return _NO_WAYS if found.edges.only_user(value) is None else self.ways(value, found)

        return Pattern(ways, self.roots)

    def where(self, test: Callable[[Captures], Verdict]) -> Pattern:
        """Returns this pattern with a test of the matched values, such as for equal shapes.

        Args:
            test: Returns True if the match counts, False if not, or the reason of a near miss.
        """

        def ways(value: Value, found: Captures) -> Iterator[None]:
            inner = self.ways(value, found)
            if inner is _NO_WAYS:
                return inner
            return (None for _ in inner if _passes(test(found)))

        return Pattern(ways, self.roots)


def any_value(name: str = "", test: Callable[[Value], Verdict] | None = None) -> Pattern:
    """Matches any value that passes a test, such as of its shape.

    Args:
        name: Name under which the value is captured; "" for none.
        test: Returns True, False, or the reason of a near miss; None to match every value.
    """

    def ways(value: Value, found: Captures) -> Iterator[None]:
        return _named(name, value, found) if test is None or _passes(test(value)) else _NO_WAYS

    return Pattern(ways)


def constant(name: str = "", test: Callable[[Value], Verdict] | None = None) -> Pattern:
    """Matches a constant that passes a test.

    Args:
        name: Name under which the constant is captured; "" for none.
        test: Returns True, False, or the reason of a near miss; None to match every constant.
    """
    return any_value(name, lambda v: v.is_constant and (test is None or test(v)))


def op(
    ops: type[IrOp] | tuple[type[IrOp], ...],
    *inputs: Pattern | EllipsisType,
    name: str = "",
    when: Callable[[Node], Verdict] | None = None,
    **attributes: Any,
) -> Pattern:
    """Matches the output of a node by its op, attributes and inputs.

    Operands of commutative binary ops match in both orders.

    Args:
        ops: Op class, or several.
        inputs: Patterns of all inputs, matched in this order; `...` at the end stands for any
            number of further inputs.
        name: Name under which the output is captured; "" for none.
        when: Test of the node, before its inputs are matched; None for no test.
        attributes: Required values of attributes of the op.
    """
    roots = ops if isinstance(ops, tuple) else (ops,)
    patterns = [p for p in inputs if isinstance(p, Pattern)]
    count, is_open = len(patterns), len(patterns) < len(inputs)

    # Op classes that inputs must be computed by, checked before a search.
    heads = [(i, p.roots) for i, p in enumerate(patterns) if p.roots]

    def ways(value: Value, found: Captures) -> Iterator[None]:
        node = found.producer(value)
        if node is None or not isinstance(node.op, roots):
            return _NO_WAYS
        args = node.inputs
        if len(args) < count or (len(args) > count and not is_open):
            return _NO_WAYS
        if attributes and any(getattr(node.op, k) != x for k, x in attributes.items()):
            return _NO_WAYS
        if when is not None and not _passes(when(node)):
            return _NO_WAYS
        orders = [args] if may_match(args, found) else []
        if count == len(args) == 2 and node.op.name in _COMMUTATIVE:
            swapped = args[::-1]
            if may_match(swapped, found):
                orders.append(swapped)
        return in_orders(orders, node, value, found) if orders else _NO_WAYS

    def may_match(args: list[Value | None], found: Captures) -> bool:
        for index, classes in heads:
            value = args[index]
            node = None if value is None else found.producer(value)
            if node is None or not isinstance(node.op, classes):
                return False
        return True

    def in_orders(
        orders: list[list[Value | None]], node: Node, value: Value, found: Captures
    ) -> Iterator[None]:
        found.path.append(node)
        for args in orders:
            for _ in _all_ways(patterns, args, found):
                yield from _named(name, value, found)
        found.path.pop()

    return Pattern(ways, roots)


def through(step: Callable[[Node], Value | None], source: Pattern, name: str = "") -> Pattern:
    """Matches the output of a node by a source value that the node computes it from.

    Args:
        step: Returns the source value of a node; None if the node does not match.
        source: Pattern of the source value.
        name: Name under which the output is captured; "" for none.
    """

    def ways(value: Value, found: Captures) -> Iterator[None]:
        node = found.producer(value)
        inner = None if node is None else step(node)
        if node is not None and inner is not None:
            found.path.append(node)
            for _ in source.ways(inner, found):
                yield from _named(name, value, found)
            found.path.pop()

    return Pattern(ways)


def _named(name: str, value: Value, found: Captures) -> Iterator[None]:
    """Captures a value in `found` and yields once; yields nothing if the name has another value.

    The capture ends when the iterator is resumed. With the name "" nothing is captured.
    """
    if not name or found.values.get(name) is value:
        yield
    elif name not in found.values:
        found.values[name] = value
        yield
        del found.values[name]


def _all_ways(
    patterns: Sequence[Pattern], values: Sequence[Value | None], found: Captures
) -> Iterator[None]:
    """Yields once per way to match each pattern to the value at its index."""
    if not patterns:
        yield
    elif values[0] is not None:
        for _ in patterns[0].ways(values[0], found):
            yield from _all_ways(patterns[1:], values[1:], found)
