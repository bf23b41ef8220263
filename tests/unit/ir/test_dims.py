"""Symbolic dims: canonical, exact, and honest about what they cannot decide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clrt.ir.dims import (
    Dim,
    Undecidable,
    floordiv,
    maximum,
    minimum,
    mod,
    parse_dim,
    product,
    same,
    substitute,
    symbol,
)

B, S = symbol("batch"), symbol("sequence")


def test_equal_polynomials_are_one_form() -> None:
    assert same((B + 1) * (B - 1), B * B - 1)
    assert same(B * S * 384, 384 * S * B)
    assert same(B - B, 0)
    assert hash(B * 2 + S) == hash(S + B + B)


def test_division_is_exact_where_it_can_be() -> None:
    assert same(floordiv(B * S * 384, B * 12), S * 32)
    assert same(floordiv(B * S, B * S), 1)
    assert str(floordiv(S, 2)) == "floordiv(sequence, 2)"
    assert same(mod(B * 4, 2), 0)


def test_comparisons_know_that_dims_are_not_negative() -> None:
    assert B != -1
    assert B + 1 > 0
    assert B >= 0
    with pytest.raises(Undecidable):
        bool(B == 1)
    with pytest.raises(Undecidable):
        bool(B > S)


def test_maximum_stays_symbolic_until_bound() -> None:
    largest = maximum(B, S)
    assert str(largest) == "max(batch, sequence)"
    assert substitute(largest, {"batch": 3, "sequence": 5}) == 5
    assert same(maximum(B + 2, B), B + 2)
    assert same(minimum(B + 2, B), B)


exprs = st.recursive(
    st.one_of(st.integers(-4, 9), st.sampled_from([B, S])),
    lambda inner: st.one_of(
        st.tuples(st.just("+"), inner, inner),
        st.tuples(st.just("*"), inner, inner),
        st.tuples(st.just("-"), inner, inner),
    ),
    max_leaves=8,
)


def _build(tree: object) -> Dim:
    if not isinstance(tree, tuple):
        return tree  # type: ignore[return-value]
    sign, left, right = tree
    a, b = _build(left), _build(right)
    return {"+": a + b, "*": a * b, "-": a - b}[sign]


def _number(tree: object, batch: int, sequence: int) -> int:
    return int(str(substitute(_build(tree), {"batch": batch, "sequence": sequence})))


@given(exprs, st.integers(0, 7), st.integers(0, 7))
def test_binding_commutes_with_arithmetic_and_text(tree: object, b: int, s: int) -> None:
    def direct(node: object) -> int:
        if not isinstance(node, tuple):
            return {str(B): b, str(S): s}.get(str(node), node)  # type: ignore[return-value]
        x, y = direct(node[1]), direct(node[2])
        return {"+": x + y, "*": x * y, "-": x - y}[node[0]]

    dim = _build(tree)
    assert substitute(dim, {"batch": b, "sequence": s}) == direct(tree)
    assert same(parse_dim(str(dim)), dim)


def test_product_of_nothing_is_one() -> None:
    assert product(()) == 1


def test_operations_on_dims_that_may_be_equal_are_kept_apart() -> None:
    a, b = symbol("a"), symbol("b")
    total = floordiv(a, 2) * floordiv(b, 2) + floordiv(floordiv(a, 5), 2)
    assert substitute(total, {"a": 20, "b": 8}) == 10 * 4 + 2
    assert same(floordiv(a, 2) - floordiv(a, 2), 0)


def test_quotients_of_quotients_are_one() -> None:
    strides = 1 + floordiv(-1 + floordiv(-2 + floordiv(-10 + S, 5), 2), 2)
    assert same(strides, 1 + floordiv(-3 + floordiv(S, 10), 2))
    assert same(floordiv(32 * strides, 8 * strides), 4)
    assert not same(floordiv(32 * strides + 4, 8 * strides), 4)
    for s in range(50):
        expected = 1 + (-1 + (-2 + (-10 + s) // 5) // 2) // 2
        assert substitute(strides, {"sequence": s}) == expected
