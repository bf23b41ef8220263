"""Fusion of transposes, views and elementwise ops into FusedMatMul, and elementwise fusion."""

from __future__ import annotations

from clrt.passes.canonicalize_matmul import CanonicalizeMatmul
from clrt.passes.canonicalize_views import CanonicalizeViews
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.fuse_epilogue import FuseEpilogue
from clrt.passes.remove_identity import RemoveIdentity
from clrt.passes.sink_reshape import SinkReshape
from tests.passes.helpers import apply, canonical, check, check_miss, graph_of

X = "%x: float32[B,S,8]"
W = "const %w: float32[8,4] = ...\nconst %wt: float32[4,8] = ...\nconst %b: float32[4] = ...\n"


def test_matmul_absorbs_transpose() -> None:
    check(
        CanonicalizeMatmul(),
        "%q: float32[B,3,S,8], %k: float32[B,3,T,8]",
        """%t: float32[B,3,8,T] = Transpose{perm=[0, 1, 3, 2]}(%k)
        %y: float32[B,3,S,T] = MatMul(%q, %t)""",
        "%y: float32[B,3,S,T] = clrt.FusedMatMul{trans_b=1}(%q, %k)",
    )


def test_gemm_attributes_become_fused_matmul_steps() -> None:
    check(
        CanonicalizeMatmul(),
        "%x: float32[8,S], %c: float32[4]",
        W + "%y: float32[S,4] = Gemm{alpha=0.5, beta=2.0, transA=1, transB=1}(%x, %wt, %c)",
        W
        + """%y: float32[S,4] = clrt.FusedMatMul{trans_a=1, trans_b=1,
          steps=[clrt.Literal{value=0.5}(), Mul(0, 2), clrt.Literal{value=2.0}(), Mul(1, 4),
          Add(3, 5)]}(%x, %wt, %c)""",
    )


def test_gemm_without_bias_becomes_fused_matmul() -> None:
    check(
        CanonicalizeMatmul(),
        "%x: float32[S,8]",
        W + "%y: float32[S,4] = Gemm(%x, %w)",
        W + "%y: float32[S,4] = clrt.FusedMatMul(%x, %w)",
    )


def test_matmul_of_vectors_or_integers_is_kept() -> None:
    check_miss(
        CanonicalizeMatmul(),
        "%x: float32[S,8], %v: float32[8]",
        "%y: float32[S] = MatMul(%x, %v)",
        "vector",
    )
    check_miss(
        CanonicalizeMatmul(),
        "%x: int32[S,8], %v: int32[8,4]",
        "%y: int32[S,4] = MatMul(%x, %v)",
        "int32",
    )


def test_reshapes_around_gemm_are_removed() -> None:
    check(
        [CanonicalizeMatmul(), SinkReshape(), CanonicalizeViews(), RemoveIdentity()],
        X,
        W
        + """const %rows: int64[2] = [-1, 8]
        const %back: int64[3] = [B, S, 4]
        %f: float32[B*S,8] = Reshape(%x, %rows)
        %g: float32[B*S,4] = Gemm(%f, %w, %b)
        %y: float32[B,S,4] = Reshape(%g, %back)""",
        W + "%y: float32[B,S,4] = clrt.FusedMatMul{steps=[Add(0, 1)]}(%x, %w, %b)",
    )


def test_reshape_that_changes_k_axis_is_kept() -> None:
    check_miss(
        SinkReshape(),
        "%x: float32[2,4,4]",
        W
        + """const %rows: int64[2] = [4, 8]
        %f: float32[4,8] = Reshape(%x, %rows)
        %y: float32[4,4] = clrt.FusedMatMul(%f, %w)""",
        "K axis",
    )


def test_reshape_sinks_below_elementwise() -> None:
    check(
        SinkReshape(),
        "%x: bool[B,S]",
        """const %shape: int64[4] = [B, 1, 1, S]
        %r: bool[B,1,1,S] = Reshape{allowzero=1}(%x, %shape)
        const %zero: float32[1] = [0.0]
        const %low: float32[] = -inf
        %y: float32[B,1,1,S] = Where(%r, %zero, %low)""",
        """const %shape: int64[4] = [B, 1, 1, S]
        const %zero: float32[1] = [0.0]
        const %low: float32[] = -inf
        %w: float32[B,S] = Where(%x, %zero, %low)
        %y: float32[B,1,1,S] = Reshape{allowzero=1}(%w, %shape)""",
    )


def test_matmul_epilogue_fuses_bias_gelu_and_residual() -> None:
    check(
        FuseEpilogue(),
        "%x: float32[B,S,8], %r: float32[B,S,4]",
        W
        + """%p: float32[B,S,4] = clrt.FusedMatMul(%x, %w)
        %a: float32[B,S,4] = Add(%b, %p)
        %g: float32[B,S,4] = Gelu(%a)
        const %half: float32[] = 0.5
        %h: float32[B,S,4] = Mul(%g, %half)
        %y: float32[B,S,4] = Add(%h, %r)""",
        W
        + """%y: float32[B,S,4] = clrt.FusedMatMul{steps=[Add(1, 0), Gelu(3),
          clrt.Literal{value=0.5}(), Mul(4, 5), Add(6, 2)]}(%x, %w, %b, %r)""",
    )


def test_matmul_epilogue_fuses_elementwise_dag() -> None:
    check(
        [FuseElementwise(), FuseEpilogue()],
        X,
        W
        + """%p: float32[B,S,4] = clrt.FusedMatMul(%x, %w)
        %s: float32[B,S,4] = Sigmoid(%p)
        %y: float32[B,S,4] = Mul(%p, %s)""",
        W + "%y: float32[B,S,4] = clrt.FusedMatMul{steps=[Sigmoid(0), Mul(0, 1)]}(%x, %w)",
    )


def test_gated_pair_of_matmuls_fuses_into_one_epilogue() -> None:
    graph = graph_of(
        W
        + """%p: float32[B,S,4] = clrt.FusedMatMul(%x, %w)
        %q: float32[B,S,4] = clrt.FusedMatMul{trans_b=1}(%x, %wt)
        %s: float32[B,S,4] = Sigmoid(%p)
        %y: float32[B,S,4] = Mul(%q, %s)""",
        X,
    )
    apply(FuseEpilogue(), graph)
    assert [n.op.name for n in graph.nodes] == ["FusedMatMul", "FusedMatMul"]
    expected = (
        W
        + """%q: float32[B,S,4] = clrt.FusedMatMul{trans_b=1}(%x, %wt)
        %y: float32[B,S,4] = clrt.FusedMatMul{steps=[Sigmoid(0), Mul(1, 2)]}(%x, %w, %q)"""
    )
    other = (
        W
        + """%s: float32[B,S,4] = clrt.FusedMatMul{steps=[Sigmoid(0)]}(%x, %w)
        %y: float32[B,S,4] = clrt.FusedMatMul{trans_b=1, steps=[Mul(0, 1)]}(%x, %wt, %s)"""
    )
    assert canonical(graph) in [canonical(graph_of(e, X)) for e in (expected, other)]


def test_matmul_with_other_readers_gets_no_epilogue() -> None:
    check_miss(
        FuseEpilogue(),
        X,
        W
        + """%p: float32[B,S,4] = clrt.FusedMatMul(%x, %w)
        %a: float32[B,S,4] = Add(%p, %b)
        %m: float32[B,S,4] = Softmax(%p)
        %y: float32[B,S,4] = Mul(%a, %m)""",
        "used elsewhere",
    )


def test_broadcast_matmul_gets_no_epilogue() -> None:
    check_miss(
        FuseEpilogue(),
        "%x: float32[S,8], %r: float32[B,S,4]",
        W
        + """%p: float32[S,4] = clrt.FusedMatMul(%x, %w)
        %y: float32[B,S,4] = Add(%p, %r)""",
        "broadcast",
    )


def test_elementwise_dag_is_fused() -> None:
    check(
        FuseElementwise(),
        "%x: float32[B,S], %z: float32[S]",
        """%a: float32[B,S] = Add(%x, %z)
        %s: float32[B,S] = Sigmoid(%a)
        %m: float32[B,S] = Mul(%a, %s)
        const %two: float32[1] = [2.0]
        %y: float32[B,S] = Mul(%m, %two)""",
        """%y: float32[B,S] = clrt.Fused{steps=[Add(0, 1), Sigmoid(2), Mul(2, 3),
          clrt.Literal{value=2.0}(), Mul(4, 5)]}(%x, %z)""",
    )


def test_elementwise_producer_of_smaller_shape_is_not_fused() -> None:
    check_miss(
        FuseElementwise(),
        "%x: float32[B,S], %z: float32[S]",
        """%e: float32[S] = Exp(%z)
        %y: float32[B,S] = Add(%x, %e)""",
        "smaller than the result",
    )


def test_elementwise_value_with_other_readers_is_not_fused() -> None:
    before = """%a: float32[B,S] = Exp(%x)
        %s: float32[B,S] = Softmax(%a)
        %y: float32[B,S] = Mul(%a, %s)"""
    check(FuseElementwise(), "%x: float32[B,S]", before, before)


def test_string_ops_are_not_fused() -> None:
    before = """const %one: string[1] = ["1"]
        %e: bool[B,S] = Equal(%x, %one)
        %y: bool[B,S] = Not(%e)"""
    check(FuseElementwise(), "%x: string[B,S]", before, before)


def test_fused_elementwise_step_count_is_limited() -> None:
    lines = ["%v0: float32[B] = Neg(%x)"]
    lines += [f"%v{k}: float32[B] = Sin(%v{k - 1})" for k in range(1, 50)]
    graph = graph_of("\n".join([*lines, "%y: float32[B] = Abs(%v49)"]), "%x: float32[B]")
    apply(FuseElementwise(), graph)
    assert [len(n.op.steps) for n in graph.nodes] == [19, 32]  # type: ignore[attr-defined]
