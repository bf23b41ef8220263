"""Constant folding, identity removal, views, common subexpressions and algebraic simplification."""

from __future__ import annotations

import numpy as np
import pytest

import clrt
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.base import Op
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.canonicalize_views import CanonicalizeViews, SimplifyTransposes
from clrt.passes.driver import run_pass
from clrt.passes.elide_split_concat import ElideSplitConcat
from clrt.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fold_constants import FoldConstants, FoldShapeData
from clrt.passes.matching import never_negative
from clrt.passes.pipeline import optimize
from clrt.passes.remove_identity import RemoveIdentity
from clrt.passes.simplify_algebra import SimplifyAlgebra, is_lossless
from tests.passes.helpers import apply, canonical, check, check_miss, graph_of

X = "%x: float32[B,S,8]"


def test_constants_fold_through_chains() -> None:
    check(
        FoldConstants(),
        X,
        """const %a: float32[2] = [1.0, 2.0]
        const %b: float32[] = 3.0
        %c: float32[2] = Add(%a, %b)
        %d: float32[2] = Mul(%c, %c)
        const %axes: int64[1] = [1]
        %e: float32[2,1] = Unsqueeze(%d, %axes)
        const %shape: int64[2] = [1, 8]
        %f: float32[2,8] = Expand(%e, %shape)
        const %zero: int64[] = 0
        %row: float32[8] = Gather(%f, %zero)
        %y: float32[B,S,8] = Add(%x, %row)""",
        """const %row: float32[8] = [16.0, 16.0, 16.0, 16.0, 16.0, 16.0, 16.0, 16.0]
        %y: float32[B,S,8] = Add(%x, %row)""",
    )


def test_transposed_matmul_weight_is_not_folded() -> None:
    before = """const %w: float32[4,8] = ...
        %t: float32[8,4] = Transpose{perm=[1, 0]}(%w)
        %y: float32[B,S,4] = MatMul(%x, %t)"""
    check(FoldConstants(), X, before, before)


def test_constants_above_fold_limit_are_not_folded() -> None:
    check_miss(
        FoldConstants(),
        "%x: float32[1]",
        """const %one: float32[] = 1.0
        const %shape: int64[2] = [4096, 4096]
        %big: float32[4096,4096] = Expand(%one, %shape)
        %y: float32[4096,4096] = Add(%big, %x)""",
        "larger than 16 MiB",
    )


def test_shape_arithmetic_becomes_symbolic_constants() -> None:
    check(
        FoldShapeData(),
        X,
        """%shape: int64[3] = Shape(%x)
        const %zero: int64[1] = [0]
        const %two: int64[1] = [2]
        %batch: int64[1] = Gather(%shape, %zero)
        %more: int64[1] = Mul(%batch, %two)
        const %rest: int64[1] = [-1]
        %target: int64[2] = Concat{axis=0}(%more, %rest)
        %y: float32[2*B,floordiv(8*B*S, 2*B)] = Reshape(%x, %target)""",
        """const %target: int64[2] = [2*B, -1]
        %y: float32[2*B,floordiv(8*B*S, 2*B)] = Reshape(%x, %target)""",
    )


def test_dead_nodes_are_removed() -> None:
    check(
        EliminateDead(),
        X,
        """%a: float32[B,S,8] = Relu(%x)
        %b: float32[B,S,8] = Neg(%a)
        %y: float32[B,S,8] = Abs(%x)""",
        "%y: float32[B,S,8] = Abs(%x)",
    )


def test_equal_nodes_are_merged() -> None:
    check(
        EliminateCommonSubexpressions(),
        X,
        """const %c: float32[] = 2.0
        const %d: float32[] = 2.0
        %a: float32[B,S,8] = Mul(%x, %c)
        %b: float32[B,S,8] = Mul(%x, %d)
        %e: float32[B,S,8] = LeakyRelu{alpha=nan}(%a)
        %f: float32[B,S,8] = LeakyRelu{alpha=nan}(%b)
        %y: float32[B,S,8] = Add(%e, %f)""",
        """const %c: float32[] = 2.0
        %a: float32[B,S,8] = Mul(%x, %c)
        %e: float32[B,S,8] = LeakyRelu{alpha=nan}(%a)
        %y: float32[B,S,8] = Add(%e, %e)""",
    )


def test_nodes_of_different_attributes_or_constants_are_not_merged() -> None:
    before = """const %c: float32[] = 2.0
        const %d: float32[] = 3.0
        %a: float32[B,S,8] = Mul(%x, %c)
        %b: float32[B,S,8] = Mul(%x, %d)
        %e: float32[B,S,8] = LeakyRelu{alpha=0.5}(%a)
        %f: float32[B,S,8] = LeakyRelu{alpha=0.25}(%a)
        %g: float32[B,S,8] = Add(%e, %f)
        %h: float32[B,S,8] = Add(%g, %b)
        const %shape: int64[3] = [1, 1, 8]
        %p: float32[1,1,8] = ConstantOfShape(%shape)
        %n: float32[1,1,8] = ConstantOfShape{value=-0.0}(%shape)
        %i: float32[B,S,8] = Div(%h, %p)
        %j: float32[B,S,8] = Div(%h, %n)
        %y: float32[B,S,8] = Max(%i, %j)"""
    check(EliminateCommonSubexpressions(), X, before, before)


@pytest.mark.parametrize(
    "line",
    [
        "%y: float32[B,S,8] = Identity(%a)",
        "%y: float32[B,S,8] = Cast{to=float32}(%a)",
        "%y: float32[B,S,8] = Transpose{perm=[0, 1, 2]}(%a)",
        "%y: float32[B,S,8] = Concat{axis=1}(%a)",
        "%y: float32[B,S,8] = Max(%a)",
        "const %z: float32[] = 0.0 %y: float32[B,S,8] = Add(%a, %z)",
        "const %z: float32[8] = [0, 0, 0, 0, 0, 0, 0, 0] %y: float32[B,S,8] = Add(%z, %a)",
        "const %z: float32[] = 0.0 %y: float32[B,S,8] = Sub(%a, %z)",
        "const %z: float32[1] = [1.0] %y: float32[B,S,8] = Mul(%z, %a)",
        "const %z: float32[] = 1.0 %y: float32[B,S,8] = Div(%a, %z)",
        "const %t: bool[] = 1 %y: float32[B,S,8] = Where(%t, %a, %x)",
        "const %t: bool[1] = [0] %y: float32[B,S,8] = Where(%t, %x, %a)",
        "%s: int64[3] = Shape(%x) %y: float32[B,S,8] = Reshape(%a, %s)",
        "const %s: int64[3] = [0, -1, 8] %y: float32[B,S,8] = Reshape(%a, %s)",
        "%s: int64[3] = Shape(%x) %y: float32[B,S,8] = Expand(%a, %s)",
        """const %b: int64[1] = [0] const %e: int64[1] = [8] const %ax: int64[1] = [2]
        %y: float32[B,S,8] = Slice(%a, %b, %e, %ax)""",
    ],
)
def test_identity_ops_are_removed(line: str) -> None:
    relu = "%a: float32[B,S,8] = Relu(%x)\n"
    graph = graph_of(relu + line, X)
    apply([RemoveIdentity(), EliminateDead()], graph)
    assert canonical(graph) == canonical(graph_of("%y: float32[B,S,8] = Relu(%x)", X))


@pytest.mark.parametrize(
    "line",
    [
        "const %z: float32[] = 0.0 %y: float32[B,S,8] = Sub(%z, %x)",
        "const %z: float32[] = 1.0 %y: float32[B,S,8] = Div(%z, %x)",
        "const %z: float32[] = 2.0 %y: float32[B,S,8] = Add(%z, %x)",
        "%y: float32[8,S,B] = Transpose{perm=[2, 1, 0]}(%x)",
        """const %b: int64[1] = [-1] const %e: int64[1] = [-9] const %ax: int64[1] = [2]
        %y: float32[B,S,8] = Slice(%x, %b, %e, %ax, %b)""",
    ],
)
def test_non_identity_ops_are_kept(line: str) -> None:
    check(RemoveIdentity(), X, line, line)


def test_larger_neutral_operand_becomes_expand() -> None:
    check(
        RemoveIdentity(),
        "%x: bool[B,1,1,S], %s: float32[S,1]",
        """const %one: bool[] = 1
        %shape: int64[2] = Shape(%s)
        %true: bool[S,1] = Expand(%one, %shape)
        %y: bool[B,1,S,S] = And(%true, %x)""",
        """const %shape: int64[4] = [B, 1, S, S]
        %y: bool[B,1,S,S] = Expand(%x, %shape)""",
    )


HALVES = "%a: float32[B,S,4], %b: float32[B,S,4] = Split{axis=2, num_outputs=2}(%x)\n"


def test_concat_of_all_split_parts_in_order_is_removed() -> None:
    check(
        ElideSplitConcat(),
        X,
        f"{HALVES}%c: float32[B,S,4] = Relu(%b)\n"
        "%y: float32[B,S,20] = Concat{axis=-1}(%c, %a, %b, %x)",
        f"{HALVES}%c: float32[B,S,4] = Relu(%b)\n"
        "%y: float32[B,S,20] = Concat{axis=-1}(%c, %x, %x)",
    )


@pytest.mark.parametrize(
    "line",
    [
        "%y: float32[B,S,8] = Concat{axis=2}(%b, %a)",
        "%y: float32[B,S,8] = Concat{axis=2}(%a, %a)",
        "%y: float32[B,2*S,4] = Concat{axis=1}(%a, %b)",
    ],
)
def test_reordered_concat_of_split_parts_is_kept(line: str) -> None:
    assert not run_pass(graph_of(HALVES + line, X), ElideSplitConcat()).hits


def test_view_chain_becomes_one_reshape() -> None:
    check(
        CanonicalizeViews(),
        X,
        """const %axes: int64[1] = [1]
        %a: float32[B,1,S,8] = Unsqueeze(%x, %axes)
        %b: float32[B,8*S] = Flatten(%a)
        const %target: int64[3] = [0, -1, 4]
        %c: float32[B,2*S,4] = Reshape(%b, %target)
        %y: float32[B,2*S,4] = Neg(%c)""",
        """const %target: int64[3] = [B, 2*S, 4]
        %c: float32[B,2*S,4] = Reshape{allowzero=1}(%x, %target)
        %y: float32[B,2*S,4] = Neg(%c)""",
    )


def test_reduction_over_axis_of_size_one_is_a_view() -> None:
    """A voice detector that processes one window per run ends in such a reduction."""
    check(
        [CanonicalizeViews(), RemoveIdentity()],
        X,
        """const %axes: int64[1] = [1]
        %a: float32[B,1,S,8] = Unsqueeze(%x, %axes)
        %b: float32[B,S,8] = ReduceMean{keepdims=0}(%a, %axes)
        %c: float32[B,1,8] = ReduceMax(%b, %axes)
        %y: float32[B,1,8] = ReduceSum(%c, %axes)""",
        """const %axes: int64[1] = [1]
        %y: float32[B,1,8] = ReduceMax(%x, %axes)""",
    )


def test_reshape_by_computed_shape_is_kept() -> None:
    graph = graph_of("%y: float32[?] = Reshape(%x, %t)", "%x: float32[4,2], %t: int64[2]")
    record = run_pass(graph, CanonicalizeViews())
    assert not record.hits and "computed data" in record.misses[0][1]


def test_transpose_chain_is_composed_and_removed() -> None:
    check(
        [SimplifyTransposes(), RemoveIdentity()],
        X,
        """%a: float32[S,8,B] = Transpose{perm=[1, 2, 0]}(%x)
        %b: float32[8,S,B] = Transpose{perm=[1, 0, 2]}(%a)
        %c: float32[B,S,8] = Transpose{perm=[2, 1, 0]}(%b)
        %y: float32[B,S,8] = Neg(%c)""",
        "%y: float32[B,S,8] = Neg(%x)",
    )


def test_reshaped_swap_of_last_axes_becomes_one_transpose() -> None:
    check(
        [FoldShapeData(), CanonicalizeViews(), SimplifyTransposes()],
        "%x: float32[B,3,S,8]",
        """const %flat: int64[3] = [-1, 0, 8]
        const %target: int64[3] = [3*B, S, 8]
        %a: float32[3*B,S,8] = Reshape(%x, %target)
        %b: float32[3*B,8,S] = Transpose{perm=[0, 2, 1]}(%a)
        const %back: int64[4] = [B, 3, 8, S]
        %y: float32[B,3,8,S] = Reshape(%b, %back)""",
        "%y: float32[B,3,8,S] = Transpose{perm=[0, 1, 3, 2]}(%x)",
    )


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (
            "const %c: float32[] = 4.0 %y: float32[B,S,8] = Div(%x, %c)",
            "const %c: float32[] = 0.25 %y: float32[B,S,8] = Mul(%x, %c)",
        ),
        (
            "const %c: float32[] = 2.0 %y: float32[B,S,8] = Pow(%x, %c)",
            "%y: float32[B,S,8] = Mul(%x, %x)",
        ),
        (
            "%a: float32[B,S,8] = Abs(%x) const %c: float32[] = 0.5 "
            "%y: float32[B,S,8] = Pow(%a, %c)",
            "%a: float32[B,S,8] = Abs(%x) %y: float32[B,S,8] = Sqrt(%a)",
        ),
        (
            "const %c: float32[] = 2.0 const %d: float32[] = 0.125 "
            "%a: float32[B,S,8] = Mul(%c, %x) %y: float32[B,S,8] = Mul(%a, %d)",
            "const %c: float32[] = 0.25 %y: float32[B,S,8] = Mul(%x, %c)",
        ),
        (
            "%a: float32[B,S,8] = Neg(%x) %b: float32[B,S,8] = Neg(%a) "
            "%y: float32[B,S,8] = Exp(%b)",
            "%y: float32[B,S,8] = Exp(%x)",
        ),
    ],
)
def test_algebra_rewrites_to_cheaper_form(before: str, expected: str) -> None:
    check([SimplifyAlgebra(), EliminateDead()], X, before, expected)


@pytest.mark.parametrize("numbers", [[-np.inf, -4, -0.0, 0, 4, np.inf, np.nan]])
def test_pow_half_as_sqrt_matches_pow_for_negative_input(numbers: list[float]) -> None:
    """x ** 0.5 is infinity for -infinity, and 0 for -0."""
    graph = graph_of("const %c: float32[] = 0.5 %y: float32[7] = Pow(%x, %c)", "%x: float32[7]")
    feeds = {"x": np.array(numbers, np.float32)}
    expected = evaluate(graph, feeds)["y"]
    apply([SimplifyAlgebra(), EliminateDead()], graph)
    assert [n.op.name for n in graph.nodes if n.op.name in ("Pow", "Sqrt")] == ["Sqrt"]
    actual = evaluate(graph, feeds)["y"]
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual[2:4]), False)


@pytest.mark.parametrize(
    ("line", "proven"),
    [
        ("%y: float32[B] = Mul(%x, %x)", True),
        ("%y: float32[B] = Mul(%x, %z)", False),
        ("const %two: float32[] = 2.0 %y: float32[B] = Pow(%x, %two)", True),
        ("%y: float32[B] = Exp(%x)", True),
        ("%a: float32[B] = Abs(%x) const %c: float32[] = 1e-5 %y: float32[B] = Add(%a, %c)", True),
        (
            "%a: float32[B] = Abs(%x) const %c: float32[] = -1e-5 %y: float32[B] = Add(%a, %c)",
            False,
        ),
        ("%a: float32[B] = Abs(%x) %y: float32[B] = Sum(%a, %x)", False),
        ("%y: float32[B] = Relu(%x)", False),
        ("%s: float32[B] = Mul(%x, %x) %y: float32[1] = ReduceMean(%s)", True),
    ],
)
def test_never_negative_is_inferred_from_producer(line: str, proven: bool) -> None:
    graph = graph_of(line, "%x: float32[B], %z: float32[B]")
    assert never_negative(graph.outputs[0]) is proven


def test_lossless_casts_merge() -> None:
    check(
        SimplifyAlgebra(),
        "%x: int32[B]",
        """%a: int64[B] = Cast{to=int64}(%x)
        %y: bool[B] = Cast{to=bool}(%a)""",
        "%y: bool[B] = Cast{to=bool}(%x)",
    )


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        ("%x: int64[B]", "const %c: int64[] = 4 %y: int64[B] = Div(%x, %c)"),
        ("%x: float32[B]", "const %c: float32[] = 0.0 %y: float32[B] = Div(%x, %c)"),
        ("%x: float32[1]", "const %c: float32[] = 255.0 %y: float32[1] = Div(%x, %c)"),
        ("%x: float32[B]", "const %c: float32[] = 3e38 %y: float32[B] = Div(%x, %c)"),
        ("%x: float32[B]", "const %c: float32[] = 3.5 %y: float32[B] = Pow(%x, %c)"),
        (
            "%x: float32[B]",
            "%a: int32[B] = Cast{to=int32}(%x) %y: float32[B] = Cast{to=float32}(%a)",
        ),
    ],
)
def test_inexact_algebra_is_not_rewritten(inputs: str, line: str) -> None:
    check(SimplifyAlgebra(), inputs, line, line)


def test_is_lossless_compares_dtype_ranges_and_precision() -> None:
    assert is_lossless(DType.BOOL, DType.FLOAT32) and is_lossless(DType.INT32, DType.INT64)
    assert not is_lossless(DType.INT64, DType.FLOAT64)
    assert not is_lossless(DType.INT32, DType.FLOAT32)
    assert is_lossless(DType.FLOAT8E4M3FN, DType.FLOAT16) and is_lossless(DType.INT4, DType.INT8)
    for source, target in (
        (DType.INT8, DType.FLOAT8E4M3FN),
        (DType.FLOAT8E5M2FNUZ, DType.FLOAT8E4M3FNUZ),
        (DType.FLOAT8E4M3FN, DType.INT4),
        (DType.FLOAT4E2M1, DType.UINT2),
    ):
        assert not is_lossless(source, target), f"{source} to {target}"


def test_view_canonicalization_keeps_empty_batch() -> None:
    from clrt.ops.reference_interpreter import evaluate

    graph = graph_of(
        """const %axes: int64[1] = [1]
        %a: float32[B,1,S,8] = Unsqueeze(%x, %axes)
        const %target: int64[2] = [0, 8]
        %y: float32[B,1,S,8] = Neg(%a)""",
        X,
    )
    apply(CanonicalizeViews(), graph)
    result = evaluate(graph, {"x": np.zeros((0, 5, 8), np.float32)})
    assert result["y"].shape == (0, 1, 5, 8)


@pytest.mark.parametrize("error", [TypeError, AttributeError, KeyError, clrt.InputError])
def test_node_is_not_folded_if_its_reference_raises(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised when the node runs."""

    def refuse(self: Op, *inputs: Array | None) -> tuple[Array, ...]:
        raise error("no")

    graph = graph_of("const %c: float32[2] = ...\n%y: float32[2] = Relu(%c)", "%x: float32[2]")
    monkeypatch.setattr(type(graph.nodes[0].op), "reference", refuse)
    optimize(graph)
    assert [n.op.name for n in graph.nodes] == ["Relu"]
