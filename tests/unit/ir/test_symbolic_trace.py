"""Traced numbers: formulas hold for every size that satisfies the trace's guards."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clrt.ir.symbolic_trace import ShapeTrace, StoredTrace, clamp, pure, untraced
from clrt.kernels.size_formulas import log2

_Code = Callable[[int, int], int]


def _share(a: int, b: int) -> int:
    """Imitates planning code: rounding, minima, branches."""
    groups = -(-a // 64)
    if a * b > 1000:
        return min(groups, b) * 8 + a % 3
    return max(1, abs(a - b)) if b else -a


@pure
def _nearest(a: int, b: int) -> int:
    """Imitates search code: floats, and a range."""
    return min(range(1, abs(a) + 2), key=lambda n: abs(n * 1.5 - b))


def _searches(a: int, b: int) -> int:
    return _nearest(a, b) * 4 + _nearest(b, 7)


class _Division(NamedTuple):
    quotient: int
    rest: int


@pure
def _divided(a: int, b: int) -> _Division:
    """Imitates a search with two results."""
    quotient = next(n for n in range(abs(a), -1, -1) if n * abs(b) <= abs(a))
    return _Division(quotient, abs(a) - quotient * abs(b))


def _takes_records(a: int, b: int) -> int:
    division = _divided(a, b)
    return division.quotient * 4 + division.rest


def _loops(a: int, b: int) -> int:
    total = 0
    for divisor in (16, 8, 4, 2, 1):
        if a % divisor == 0 and (b >> 1) < 50:
            total += math.prod((a // divisor, b + 1))
    return total


@pytest.mark.parametrize(
    "code", [_share, _loops, _searches, _takes_records], ids=lambda c: c.__name__
)
@given(a=st.integers(-40, 300), b=st.integers(-40, 300), c=st.integers(-40, 300), d=st.integers(0))
def test_trace_formulas_hold_wherever_guards_hold(
    code: _Code, a: int, b: int, c: int, d: int
) -> None:
    trace = ShapeTrace({"a": a, "b": b})
    result = code(*trace.start().values())
    assert untraced(result) == code(a, b)
    # At the sizes of the trace itself every guard holds; and the same way near it.
    for symbols in ({"a": a, "b": b}, {"a": c, "b": d % 300}, {"a": a + 64, "b": b}):
        numbers = trace.evaluate(symbols)
        if symbols == {"a": a, "b": b}:
            assert numbers is not None
        if numbers is not None:
            assert numbers.numbers[trace.formula(result)] == code(**symbols)


@pytest.mark.parametrize(
    "use",
    [
        lambda n: range(10)[n],
        lambda n: {5: "five"}[n],
        lambda n: np.arange(3) + np.int32(n),
        lambda n: n / 2,
        lambda n: n * 0.5,
        lambda n: np.zeros(n),
    ],
    ids=["index", "key", "numpy", "quotient", "float", "shape"],
)
def test_concrete_use_of_traced_number_pins_trace(use: Callable[[int], object]) -> None:
    trace = ShapeTrace({"n": 5})
    use(trace.start()["n"])
    assert trace.evaluate({"n": 5}) is not None
    assert trace.evaluate({"n": 6}) is None
    assert trace.pinned_at and __file__ in trace.pinned_at[0]


def test_comparisons_become_trace_guards() -> None:
    trace = ShapeTrace({"n": 5})
    n = trace.start()["n"]
    assert n < 10 and n > 3 and n != 7 and isinstance(n, int)
    assert [trace.evaluate({"n": x}) is not None for x in (3, 4, 7, 9, 10)] == [
        False, True, False, True, False,
    ]  # fmt: skip
    assert not trace.pinned_at


def test_trace_that_failed_holds_again() -> None:
    trace = ShapeTrace({"n": 12, "m": 5})
    n, m = trace.start().values()
    assert clamp(n + m, 1, 100) < 20 and n // 2 > 3
    for sizes in ((20, 5), (12, 5), (6, 5), (20, 5), (6, 90), (8, 11), (6, 5), (12, 7)):
        holds = sum(sizes) < 20 and sizes[0] // 2 > 3
        evaluation = trace.evaluate(dict(zip("nm", sizes, strict=True)))
        assert (evaluation is not None) == holds
        if evaluation is not None:
            assert evaluation.numbers[trace.formula(n + m)] == sum(sizes)


def test_equal_formulas_are_deduplicated() -> None:
    trace = ShapeTrace({"a": 3, "b": 4})
    a, b = trace.start().values()
    assert trace.formula(a * b + 1) == trace.formula(1 + b * a)
    assert trace.formula(a * 1 + 0) == trace.formula(a)


def test_division_by_zero_at_other_sizes_fails_guard() -> None:
    trace = ShapeTrace({"a": 3, "b": 4})
    a, b = trace.start().values()
    _ = a // b
    assert trace.evaluate({"a": 3, "b": 0}) is None


def test_mixing_numbers_of_two_traces_is_refused() -> None:
    left, right = ShapeTrace({"a": 3}).start()["a"], ShapeTrace({"a": 3}).start()["a"]
    with pytest.raises(ValueError, match="another trace"):
        _ = left + right


def test_traced_pure_function_is_called_once_per_evaluation() -> None:
    calls: list[int] = []

    @pure
    def both(a: int) -> _Division:
        calls.append(a)
        return _Division(a // 2, a % 2)

    trace = ShapeTrace({"a": 9})
    division = both(trace.start()["a"])
    assert untraced(division.quotient) == 4 and untraced(division.rest) == 1
    evaluation = trace.evaluate({"a": 15})
    assert evaluation is not None
    assert [evaluation.numbers[trace.formula(n)] for n in division] == [7, 1]
    assert calls == [9, 15]


@pure
def _rounded_up(a: int, *, unit: int) -> int:
    return -(-a // unit) * unit


def test_traced_pure_function_keeps_keyword_constants() -> None:
    trace = ShapeTrace({"a": 9})
    a = trace.start()["a"]
    fours, tens, again = (_rounded_up(a, unit=unit) for unit in (4, 10, 4))
    assert trace.formula(fours) == trace.formula(again) != trace.formula(tens)
    evaluation = trace.evaluate({"a": 17})
    assert evaluation is not None
    assert [evaluation.numbers[trace.formula(n)] for n in (fours, tens)] == [20, 20]
    assert (untraced(fours), untraced(tens)) == (12, 10)


def test_stored_trace_computes_and_guards_as_before() -> None:
    trace = ShapeTrace({"n": 12, "m": 5})
    n, m = trace.start().values()
    rows = clamp((n + 3) * m // 2, 1, 1000)
    kept = [trace.formula(x) for x in (rows, log2(n + 4), -m)]
    assert m < 7
    again = ShapeTrace.from_stored(StoredTrace(**json.loads(json.dumps(asdict(trace.to_stored())))))
    for sizes in ({"n": 28, "m": 6}, {"n": 4, "m": 1}, {"n": 12, "m": 7}):
        expected, found = trace.evaluate(sizes), again.evaluate(sizes)
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            assert [found.numbers[i] for i in kept] == [expected.numbers[i] for i in kept]


def test_local_function_cannot_be_stored() -> None:
    trace = ShapeTrace({"n": 12})
    (n,) = trace.start().values()
    assert pure(lambda size: size + 1)(n) == 13
    with pytest.raises(ValueError, match="cannot be named"):
        trace.to_stored()


@pytest.mark.parametrize("text", ["os:system", "clrt.ops.base:f", "clrt.kernels.spec:launch", "x"])
def test_stored_trace_names_only_marked_functions(text: str) -> None:
    with pytest.raises(ValueError, match="no operation"):
        ShapeTrace.from_stored(StoredTrace(["n"], [1, 2], [[1, 0, 0]], [], [text]))


_CLAMP = "clrt.ir.symbolic_trace:clamp"
_HEIGHT = "clrt.kernels.size_formulas:balanced_height"
_ROWS = "clrt.kernels.size_formulas:balanced_share#0"
_TILE = 'clrt.kernels.gemm_gpu:best_tile{"least": 0}'
_SPLIT = """clrt.kernels.conv_gpu:best_split{"join_cycles": 0, "costs":
    {"class": "clrt.kernels.conv_gpu:ConvGpuCosts", "tile_side": 0}}#0"""


def test_stored_trace_of_clamped_squares_is_refused() -> None:
    steps = [[i + 1, i % 2, *[i] * (2 + i % 2)] for i in range(80)]
    with pytest.raises(ValueError, match="too many factors"):
        ShapeTrace.from_stored(StoredTrace(["n"], [1] * 81, steps, [], ["mul", _CLAMP]))


@pytest.mark.parametrize(
    "steps",
    [
        [[0, 0, 1, 1]],
        [[2, 0, 0, 1], [2, 0, 1, 1]],
        [[3, 0, 0, 2], [2, 0, 0, 1]],
        [[2, 0, 2, 2]],
    ],
    ids=["symbol", "computed", "read", "own operand"],
)
def test_stored_trace_that_replaces_formula_is_refused(steps: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="two values"):
        ShapeTrace.from_stored(StoredTrace(["n"], [1] * 4, steps, [], ["mul"]))


@pytest.mark.parametrize(
    ("text", "operands"),
    [(_HEIGHT, [1, 0, 1, 0, 0, 0]), (_ROWS, [0] * 7), (_TILE, [0] * 6), (_SPLIT, [0] * 9)],
    ids=["heights", "rows", "tiles", "splits"],
)
def test_stored_function_of_any_numbers_ends(text: str, operands: list[int]) -> None:
    stored = StoredTrace(["n"], [4, 1 << 62, -1], [[2, 0, *operands]], [], [text])
    with pytest.raises(ValueError, match="another value"):
        ShapeTrace.from_stored(stored)
