"""Patterns of subgraphs: ops, operands in any order, uses, constants, shapes, near misses."""

from __future__ import annotations

import pytest

from clrt.ir.dims import same_shape
from clrt.ir.graph import Graph, Node
from clrt.ir.pattern import Captures, Pattern, any_value, constant, op, through
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Abs, Add, Mul, Neg, Pow, Relu, Sub
from clrt.passes.driver import GraphView
from clrt.passes.matching import equals
from tests.passes.helpers import graph_of

X, Y = any_value("x"), any_value("y")


def find(pattern: Pattern, body: str, outputs: str = "%y") -> Captures | str | None:
    """Matches `%y` in a graph of inputs a [B,4] and b [4]."""
    graph = graph_of(body, "%a: float32[B,4], %b: float32[4]", outputs)
    return pattern.find(producer(graph, "y").output, GraphView(graph))


def producer(graph: Graph, name: str) -> Node:
    return next(n for n in graph.nodes if n.output.name == name)


def matched(found: Captures | str | None) -> list[str]:
    """Names of the outputs of the matched nodes."""
    assert isinstance(found, Captures), found
    return [n.output.name for n in found.nodes]


NEG_ADD = "%n: float32[B,4] = Neg(%a) %y: float32[B,4] = Add(%b, %n)"


def test_commutative_operands_match_in_both_orders() -> None:
    for inputs in ((X, op(Neg, Y)), (op(Neg, Y), X)):
        found = find(op(Add, *inputs), NEG_ADD)
        assert matched(found) == ["n", "y"]
        assert isinstance(found, Captures) and (found["x"].name, found["y"].name) == ("b", "a")


def test_noncommutative_operands_match_in_order_only() -> None:
    body = NEG_ADD.replace("Add", "Sub")
    assert find(op(Sub, op(Neg, Y), X), body) is None
    assert matched(find(op(Sub, X, op(Neg, Y)), body)) == ["n", "y"]


def test_repeated_capture_name_matches_same_value_only() -> None:
    assert find(op(Mul, X, X), "%y: float32[B,4] = Mul(%a, %b)") is None
    assert matched(find(op(Mul, X, X), "%y: float32[B,4] = Mul(%a, %a)")) == ["y"]


def test_pattern_search_backtracks_operand_order() -> None:
    body = """%p: float32[B,4] = Mul(%a, %b)
    %n: float32[B,4] = Neg(%b)
    %y: float32[B,4] = Sub(%p, %n)"""
    # The first order of the product takes a for x, which does not fit the Neg of b.
    found = find(op(Sub, op(Mul, X, Y), op(Neg, X) | op(Abs, X)), body)
    assert isinstance(found, Captures) and (found["x"].name, found["y"].name) == ("b", "a")
    assert matched(found) == ["n", "p", "y"] and set(found.values) == {"x", "y"}


def test_attributes_and_node_tests_select_nodes() -> None:
    body = "%y: float32[4,B] = Transpose{perm=[1,0]}(%a)"
    assert matched(find(op(Transpose, X, perm=(1, 0)), body)) == ["y"]
    assert find(op(Transpose, X, perm=(0, 1)), body) is None
    assert find(op(Transpose, X, when=lambda n: n.arg(0).type.rank == 3 or "rank"), body) == "rank"


def test_pattern_input_count_is_exact_unless_ellipsis() -> None:
    body = "%y: float32[B,12] = Concat{axis=1}(%a, %a, %a)"
    assert find(op(Concat, X), body) is None
    assert matched(find(op(Concat, X, ...), body)) == ["y"]
    assert find(op(Concat, X, X, X, X, ...), body) is None


def test_value_used_once_has_no_other_reader_and_is_no_output() -> None:
    pattern = op(Relu, op(Neg, X).used_once())
    body = "%n: float32[B,4] = Neg(%a) %y: float32[B,4] = Relu(%n)"
    assert matched(find(pattern, body)) == ["n", "y"]
    assert find(pattern, body, "%y, %n") is None
    assert find(pattern, body + " %z: float32[B,4] = Abs(%n)", "%y, %z") is None


@pytest.mark.parametrize(("exponent", "matches"), [("2.0", True), ("3.0", False)])
def test_constants_match_by_element(exponent: str, matches: bool) -> None:
    body = f"const %e: float32[] = {exponent}\n%y: float32[B,4] = Pow(%a, %e)"
    assert isinstance(find(op(Pow, X, equals(2)), body), Captures) is matches
    assert isinstance(find(op(Pow, X, constant("e")), body), Captures)
    assert find(op(Pow, constant(), any_value()), body) is None


def test_pattern_conditions_check_value_and_capture_shapes() -> None:
    vector = any_value("v", lambda v: v.type.rank == 1)
    found = find(op(Add, vector, X), NEG_ADD)
    assert isinstance(found, Captures) and found["v"].name == "b"
    same = op(Add, X, Y).where(lambda f: same_shape(f["x"].shape, f["y"].shape) or "it broadcasts")
    assert find(same, NEG_ADD) == "it broadcasts"


def test_pattern_alternative_matches_with_and_without_cast() -> None:
    negative = op(Neg, X)
    pattern = op(Relu, op(Cast, negative) | negative)
    direct = "%n: float32[B,4] = Neg(%a) %y: float32[B,4] = Relu(%n)"
    assert matched(find(pattern, direct)) == ["n", "y"]
    body = """%n: float32[B,4] = Neg(%a)
    %h: float16[B,4] = Cast{to=float16}(%n)
    %y: float16[B,4] = Relu(%h)"""
    assert matched(find(pattern, body)) == ["n", "h", "y"]


def test_through_pattern_skips_and_captures_intermediate_node() -> None:
    pattern = op(Relu, through(lambda n: n.arg(1) if isinstance(n.op, Sub) else None, Y, "step"))
    body = "%s: float32[B,4] = Sub(%a, %b) %y: float32[B,4] = Relu(%s)"
    found = find(pattern, body)
    assert isinstance(found, Captures) and (found["y"].name, found["step"].name) == ("b", "s")
    assert matched(found) == ["s", "y"]
    assert find(pattern, body.replace("Sub", "Add")) is None


def test_alternatives_match_listed_ops_only() -> None:
    body = "%n: float32[B,4] = Neg(%a) %y: float32[B,4] = Relu(%n)"
    assert find(op(Relu, op(Abs, X) | op(Add, X, Y)), body) is None


def test_pattern_roots_list_op_classes_of_all_alternatives() -> None:
    assert (op(Mul, X, X) | op((Abs, Neg), X)).roots == (Mul, Abs, Neg)
    assert (op(Mul, X, X) | X).roots == ()
