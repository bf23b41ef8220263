"""Symbolic dims: canonical form, exact arithmetic, UndecidableDim for undecidable comparisons."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from clrt.ir.dim_operations import broadcast, floordiv, maximum, minimum, mod, parse_dim
from clrt.ir.dims import (
    Dim,
    UndecidableDim,
    product,
    provably_different,
    provably_equal,
    substitute,
    symbol,
)

B, S = symbol("batch"), symbol("sequence")


def test_equal_polynomials_share_canonical_form() -> None:
    assert provably_equal((B + 1) * (B - 1), B * B - 1)
    assert provably_equal(B * S * 384, 384 * S * B)
    assert provably_equal(B - B, 0)
    assert hash(B * 2 + S) == hash(S + B + B)


def test_floordiv_simplifies_exact_quotients() -> None:
    assert provably_equal(floordiv(B * S * 384, B * 12), S * 32)
    assert provably_equal(floordiv(B * S, B * S), 1)
    assert str(floordiv(S, 2)) == "floordiv(sequence, 2)"
    assert provably_equal(mod(B * 4, 2), 0)


def test_comparisons_assume_nonnegative_dims() -> None:
    assert B != -1
    assert B + 1 > 0
    assert B >= 0
    with pytest.raises(UndecidableDim):
        bool(B == 1)
    with pytest.raises(UndecidableDim):
        bool(B > S)


def test_maximum_stays_symbolic_until_bound() -> None:
    largest = maximum(B, S)
    assert str(largest) == "max(batch, sequence)"
    assert substitute(largest, {"batch": 3, "sequence": 5}) == 5
    assert provably_equal(maximum(B + 2, B), B + 2)
    assert provably_equal(minimum(B + 2, B), B)


trees = st.recursive(
    st.one_of(st.integers(-4, 9), st.sampled_from(["batch", "sequence"])),
    lambda inner: st.tuples(
        st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), inner, inner
    ),
    max_leaves=8,
)
sizes = st.integers(0, 7)
_SHARED = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_OF_DIMS = {**_SHARED, "//": floordiv, "%": mod, "min": minimum, "max": maximum}
_OF_NUMBERS = {**_SHARED, "//": operator.floordiv, "%": operator.mod, "min": min, "max": max}


def _evaluate(tree: Any, operations: Mapping[str, Any], leaves: Mapping[str, Any]) -> Any:
    if not isinstance(tree, tuple):
        return leaves.get(tree, tree)
    sign, left, right = tree
    a, b = _evaluate(left, operations, leaves), _evaluate(right, operations, leaves)
    return operations[sign](a, b)


def _both(tree: object, bindings: Mapping[str, int]) -> tuple[Dim, int]:
    """Returns the dim and its number; raises ZeroDivisionError if the number is undefined."""
    number = _evaluate(tree, _OF_NUMBERS, bindings)
    return _evaluate(tree, _OF_DIMS, {"batch": B, "sequence": S}), number


@given(trees, sizes, sizes)
def test_substitution_and_text_match_integer_arithmetic(tree: object, b: int, s: int) -> None:
    bindings = {"batch": b, "sequence": s}
    try:
        dim, number = _both(tree, bindings)
    except ZeroDivisionError:
        reject()
    assert substitute(dim, bindings) == number
    assert provably_equal(parse_dim(str(dim)), dim)


@given(trees, st.integers(-4, 9))
def test_decided_comparisons_hold_for_every_binding(tree: object, other: int) -> None:
    for b, s in itertools.product((0, 1, 2, 5, 9), repeat=2):
        try:
            dim, number = _both(tree, {"batch": b, "sequence": s})
        except ZeroDivisionError:
            continue
        for compare in (operator.lt, operator.le, operator.eq, operator.ge, operator.gt):
            with suppress(UndecidableDim):
                assert compare(dim, other) == compare(number, other), (b, s)
        assert number != other or not provably_different(dim, other)


def test_operation_bounds_follow_operand_signs() -> None:
    least = minimum(S - 5, 3)
    assert substitute(maximum(least, 0), {"sequence": 2}) == 0
    assert least <= 3
    assert maximum(S - 5, 3) >= 3
    assert floordiv(S - 4, 2) >= -2
    assert 0 > mod(S, -3) - 1 >= -3
    for dim in (least, floordiv(S - 4, 2), floordiv(S, 2) - 1, mod(S, -3)):
        with pytest.raises(UndecidableDim):
            bool(dim < 0)


@given(sizes, sizes)
def test_broadcast_of_dims_matches_numpy(b: int, s: int) -> None:
    both = broadcast(B, S)
    assert str(both) == "broadcast(batch, sequence)" and provably_equal(parse_dim(str(both)), both)
    assert provably_equal(broadcast(B, both), both) and provably_equal(broadcast(both, S), both)
    assert provably_equal(broadcast(B, 3), 3) and provably_equal(broadcast(1, B), B)
    assert provably_equal(broadcast(S, B + 2), B + 2)
    if b == s or 1 in (b, s):
        bound = substitute(both, {"batch": b, "sequence": s})
        assert (bound,) == np.broadcast_shapes((b,), (s,))


def test_empty_product_is_one() -> None:
    assert product(()) == 1


def test_floordivs_of_different_symbols_stay_distinct() -> None:
    a, b = symbol("a"), symbol("b")
    total = floordiv(a, 2) * floordiv(b, 2) + floordiv(floordiv(a, 5), 2)
    assert substitute(total, {"a": 20, "b": 8}) == 10 * 4 + 2
    assert provably_equal(floordiv(a, 2) - floordiv(a, 2), 0)


def test_nested_floordivs_merge() -> None:
    strides = 1 + floordiv(-1 + floordiv(-2 + floordiv(-10 + S, 5), 2), 2)
    assert provably_equal(strides, 1 + floordiv(-3 + floordiv(S, 10), 2))
    assert provably_equal(floordiv(32 * strides, 8 * strides), 4)
    assert not provably_equal(floordiv(32 * strides + 4, 8 * strides), 4)
    for s in range(50):
        expected = 1 + (-1 + (-2 + (-10 + s) // 5) // 2) // 2
        assert substitute(strides, {"sequence": s}) == expected
    clamped = maximum(1 + floordiv(-3 + maximum(1 + floordiv(-10 + S, 5), 0), 2), 0)
    assert provably_equal(clamped, maximum(1 + floordiv(-20 + S, 10), 0))
