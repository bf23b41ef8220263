"""Fusion of softmax attention, in the forms that exporters write."""

from __future__ import annotations

import pytest

from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.passes.canonicalize_matmul import CanonicalizeMatmul
from clrt.passes.canonicalize_views import CanonicalizeViews
from clrt.passes.driver import Pass
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fuse_attention import FuseAttention
from clrt.passes.merge_qkv import MergeQkv
from clrt.passes.remove_identity import RemoveIdentity
from tests.passes.helpers import apply, canonical, check, check_miss, graph_of

QKV = "%q: float32[B,S,8], %k: float32[B,T,8], %v: float32[B,T,8]"
PASSES: list[Pass] = [FuseAttention(), CanonicalizeViews(), RemoveIdentity(), EliminateDead()]
SPLIT = """const %qs: int64[4] = [B, S, 2, 4]
const %ks: int64[4] = [B, T, 2, 4]
const %ys: int64[3] = [B, S, 8]
const %c: float32[] = 0.5
%q3: float32[B,S,2,4] = Reshape(%q, %qs)
%k3: float32[B,T,2,4] = Reshape(%k, %ks)
%v3: float32[B,T,2,4] = Reshape(%v, %ks)
%q4: float32[B,2,S,4] = Transpose{perm=[0, 2, 1, 3]}(%q3)
%k4: float32[B,2,4,T] = Transpose{perm=[0, 2, 3, 1]}(%k3)
%v4: float32[B,2,T,4] = Transpose{perm=[0, 2, 1, 3]}(%v3)
"""
SCORES = "%s: float32[B,2,S,T] = MatMul(%q4, %k4)\n"
SCALED = SCORES + "%s2: float32[B,2,S,T] = Mul(%s, %c)\n"
REST = """
%p: float32[B,2,S,T] = Softmax(%m)
%o: float32[B,2,S,4] = MatMul(%p, %v4)
"""
MERGE = """%t: float32[B,S,2,4] = Transpose{perm=[0, 2, 1, 3]}(%o)
%y: float32[B,S,8] = Reshape(%t, %ys)"""
HEADS = "num_heads=2, kv_num_heads=2, head_size=4, v_head_size=4"


def fused(extra: str = "", inputs: str = "%q, %k, %v", scale: float = 0.5) -> str:
    return f"%y: float32[B,S,8] = clrt.FusedAttention{{{HEADS}, scale={scale}{extra}}}({inputs})"


SCALES = {
    "on the scores": SCORES + "%m: float32[B,2,S,T] = Mul(%s, %c)",
    "divided": "const %d: float32[] = 2.0\n" + SCORES + "%m: float32[B,2,S,T] = Div(%s, %d)",
    "on q": """%q5: float32[B,2,S,4] = Mul(%c, %q4)
        %m: float32[B,2,S,T] = MatMul(%q5, %k4)""",
    "on q and k": """const %r: float32[] = 0.25
        const %two: float32[] = 2.0
        %q5: float32[B,2,S,4] = Mul(%q4, %r)
        %k5: float32[B,2,4,T] = Mul(%k4, %two)
        %m: float32[B,2,S,T] = MatMul(%q5, %k5)""",
}


@pytest.mark.parametrize("scores", SCALES.values(), ids=SCALES)
def test_attention_scale_is_fused_wherever_applied(scores: str) -> None:
    check(PASSES, QKV, SPLIT + scores + REST + MERGE, fused())


def test_attention_scale_before_head_split_is_fused() -> None:
    before = SPLIT.replace(
        "%q3: float32[B,S,2,4] = Reshape(%q, %qs)",
        "%qc: float32[B,S,8] = Mul(%q, %c) %q3: float32[B,S,2,4] = Reshape(%qc, %qs)",
    )
    scores = "%m: float32[B,2,S,T] = MatMul(%q4, %k4)"
    check(PASSES, QKV, before + scores + REST + MERGE, fused())


def test_attention_mask_becomes_input() -> None:
    check(
        PASSES,
        QKV + ", %mask: float32[B,1,1,T]",
        SPLIT + SCALED + """%m: float32[B,2,S,T] = Add(%mask, %s2)""" + REST + MERGE,
        fused(inputs="%q, %k, %v, %mask"),
    )


def test_two_attention_masks_are_added_before_fusion() -> None:
    check(
        PASSES,
        QKV + ", %mask: float32[B,1,1,T], %bias: float32[2,S,T]",
        SPLIT
        + SCALED
        + """%s3: float32[B,2,S,T] = Add(%s2, %bias)
        %m: float32[B,2,S,T] = Add(%s3, %mask)"""
        + REST
        + MERGE,
        "%both: float32[B,2,S,T] = Add(%bias, %mask)\n" + fused(inputs="%q, %k, %v, %both"),
    )


def test_expanded_attention_mask_is_read_unexpanded() -> None:
    check(
        PASSES,
        QKV + ", %mask: float32[B,1,1,T]",
        SPLIT
        + SCORES
        + """const %wide: int64[4] = [B, 2, S, T]
        %e: float32[B,2,S,T] = Expand(%mask, %wide)
        %s2: float32[B,2,S,T] = Mul(%s, %c)
        %m: float32[B,2,S,T] = Add(%s2, %e)"""
        + REST
        + MERGE,
        fused(inputs="%q, %k, %v, %mask"),
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_where_mask_becomes_additive_attention_mask(swapped: bool) -> None:
    arguments = "%keep, %low, %s2" if swapped else "%keep, %s2, %low"
    chosen = "%keep, %low, %zero" if swapped else "%keep, %zero, %low"
    constants = "const %low: float32[] = -3.4e38\n"
    check(
        PASSES,
        QKV + ", %keep: bool[S,T]",
        constants
        + SPLIT
        + SCALED
        + f"""%m: float32[B,2,S,T] = Where({arguments})"""
        + REST
        + MERGE,
        constants
        + f"""const %zero: float32[] = 0.0
        %mask: float32[S,T] = Where({chosen})\n"""
        + fused(inputs="%q, %k, %v, %mask"),
    )


def test_nan_guard_becomes_nan_to_zero() -> None:
    check(
        PASSES,
        QKV + ", %mask: float32[B,1,1,T]",
        SPLIT
        + SCALED
        + """const %zero: float32[] = 0.0
        %m: float32[B,2,S,T] = Add(%s2, %mask)
        %p: float32[B,2,S,T] = Softmax(%m)
        %nan: bool[B,2,S,T] = IsNaN(%p)
        %g: float32[B,2,S,T] = Where(%nan, %zero, %p)
        %o: float32[B,2,S,4] = MatMul(%g, %v4)
        """
        + MERGE,
        fused(", nan_to_zero=True", "%q, %k, %v, %mask"),
    )


def test_tanh_of_scores_becomes_softcap() -> None:
    check(
        PASSES,
        QKV + ", %mask: float32[B,1,1,T]",
        SPLIT
        + SCALED
        + """const %cap: float32[] = 4.0
        %s3: float32[B,2,S,T] = Div(%s2, %cap)
        %s4: float32[B,2,S,T] = Tanh(%s3)
        %s5: float32[B,2,S,T] = Mul(%s4, %cap)
        %m: float32[B,2,S,T] = Add(%s5, %mask)
        """
        + REST
        + MERGE,
        fused(", softcap=4.0", "%q, %k, %v, %mask"),
    )


@pytest.mark.parametrize("own", [True, False])
def test_fully_masked_rows_become_nan_to_zero(own: bool) -> None:
    """The function body of ONNX's Attention zeroes fully masked rows."""
    before = """const %zero: float32[] = 0.0
        const %last: int64[1] = [-1]
        const %low: float32[] = -inf
        %top: float32[B,1,1,1] = ReduceMax(%other, %last)
        %hidden: bool[B,1,1,1] = Equal(%top, %low)
        %m: float32[B,2,S,T] = Add(%s2, %mask)
        %p: float32[B,2,S,T] = Softmax(%m)
        %g: float32[B,2,S,T] = Where(%hidden, %zero, %p)
        %o: float32[B,2,S,4] = MatMul(%g, %v4)
        """
    inputs = QKV + ", %mask: float32[B,1,1,T]"
    if own:
        before = SPLIT + SCALED + before.replace("%other", "%mask") + MERGE
        check(PASSES, inputs, before, fused(", nan_to_zero=True", "%q, %k, %v, %mask"))
    else:
        inputs += ", %other: float32[B,1,1,T]"
        check_miss(FuseAttention(), inputs, SPLIT + SCALED + before + MERGE, "by a mask other than")


def test_attention_with_keys_transposed_by_matmul_is_fused() -> None:
    before = SPLIT.replace("%k4: float32[B,2,4,T] = Transpose{perm=[0, 2, 3, 1]}(%k3)", "")
    check(
        PASSES,
        QKV,
        before
        + """%k4: float32[B,2,T,4] = Transpose{perm=[0, 2, 1, 3]}(%k3)
        %s: float32[B,2,S,T] = clrt.FusedMatMul{trans_b=1}(%q4, %k4)
        %m: float32[B,2,S,T] = Mul(%s, %c)"""
        + REST
        + MERGE,
        fused(),
    )


def test_attention_with_flattened_result_is_fused() -> None:
    rows = MERGE.replace("%y: float32[B,S,8] = Reshape(%t, %ys)", "")
    check(
        PASSES,
        QKV,
        SPLIT
        + SCALES["on the scores"]
        + REST
        + rows
        + "const %flat: int64[2] = [-1, 8] %y: float32[B*S,8] = Reshape(%t, %flat)",
        fused().replace("%y:", "%a:")
        + """
        const %flat: int64[2] = [B*S, 8]
        %y: float32[B*S,8] = Reshape{allowzero=1}(%a, %flat)""",
    )


def test_attention_reads_packed_qkv_at_offsets() -> None:
    parts = SPLIT.replace("[B,T,", "[B,S,").replace("[B, T,", "[B, S,").replace(",T]", ",S]")
    body = (parts + SCALES["on the scores"] + REST + MERGE).replace(",T]", ",S]")
    check(
        PASSES,
        "%x: float32[B,S,24]",
        """const %widths: int64[3] = [8, 8, 8]
        %q: float32[B,S,8], %k: float32[B,S,8], %v: float32[B,S,8] = Split{axis=2}(%x, %widths)
        """
        + body,
        fused(", k_offset=8, v_offset=16", "%x, %x, %x"),
    )


def test_attention_without_head_axis_is_fused() -> None:
    check(
        PASSES,
        QKV,
        """%kt: float32[B,8,T] = Transpose{perm=[0, 2, 1]}(%k)
        %m: float32[B,S,T] = MatMul(%q, %kt)
        %p: float32[B,S,T] = Softmax(%m)
        %y: float32[B,S,8] = MatMul(%p, %v)""",
        """%y: float32[B,S,8] = clrt.FusedAttention{num_heads=1, kv_num_heads=1, head_size=8,
          v_head_size=8, scale=1.0}(%q, %k, %v)""",
    )


BY_HEAD = "%q4: float32[B,4,S,8], %k: float32[B,2,T,8], %v: float32[B,2,T,8]"
# As both exporters repeat the heads of k and v, and k as one of them transposes it.
SHARED = """const %c: float32[] = 0.5
const %apart: int64[5] = [B, 2, 1, T, 8]
const %wide: int64[5] = [B, 2, 2, T, 8]
const %heads: int64[4] = [B, 4, T, 8]
const %ys: int64[3] = [B, S, 32]
%k5: float32[B,2,1,T,8] = Reshape(%k, %apart)
%k6: float32[B,2,2,T,8] = Expand(%k5, %wide)
%v5: float32[B,2,1,T,8] = Reshape(%v, %apart)
%v6: float32[B,2,2,T,8] = Expand(%v5, %wide)
%v4: float32[B,4,T,8] = Reshape(%v6, %heads)
"""
TURNED = {
    "by head": """%k7: float32[B,4,T,8] = Reshape(%k6, %heads)
        %k8: float32[B,4,8,T] = Transpose{perm=[0, 1, 3, 2]}(%k7)
        %k4: float32[B,4,8,T] = Mul(%k8, %c)""",
    "flat": """const %flat: int64[3] = [4*B, T, 8]
        const %unflat: int64[4] = [B, 4, 8, T]
        %k7: float32[4*B,T,8] = Reshape(%k6, %flat)
        %k8: float32[4*B,8,T] = Transpose{perm=[0, 2, 1]}(%k7)
        %k9: float32[4*B,8,T] = Mul(%k8, %c)
        %k4: float32[B,4,8,T] = Reshape(%k9, %unflat)""",
}


@pytest.mark.parametrize("turned", TURNED)
def test_grouped_query_attention_by_head_is_fused(turned: str) -> None:
    check(
        PASSES,
        BY_HEAD,
        SHARED
        + TURNED[turned]
        + """%m: float32[B,4,S,T] = MatMul(%q4, %k4)
        %p: float32[B,4,S,T] = Softmax(%m)
        %o: float32[B,4,S,8] = MatMul(%p, %v4)
        %t: float32[B,S,4,8] = Transpose{perm=[0, 2, 1, 3]}(%o)
        %y: float32[B,S,32] = Reshape(%t, %ys)""",
        """%y: float32[B,S,32] = clrt.FusedAttention{num_heads=4, kv_num_heads=2, head_size=8,
          v_head_size=8, scale=0.5}(%q4, %k, %v)""",
    )


PLAIN = SPLIT + SCALES["on the scores"]
MISSES = {
    "not transposed back": PLAIN + REST + "%y: float32[B,2,S,4] = Neg(%o)",
    "not over the last axis": (PLAIN + REST + MERGE).replace("Softmax", "Softmax{axis=2}"),
    "used elsewhere": PLAIN + REST + MERGE.replace("%y:", "%z:") + "%y: float32[B,2,S,T] = Neg(%m)",
    "scaled after a mask": SPLIT
    + SCORES
    + """const %one: float32[] = 1.0
    %s2: float32[B,2,S,T] = Add(%s, %one)
    %m: float32[B,2,S,T] = Mul(%s2, %c)"""
    + REST
    + MERGE,
    "differs from adding": SPLIT
    + SCORES
    + """const %low: float32[] = -10000.0
    const %no: bool[] = 0
    %one: bool[B,2,S,T] = IsNaN(%s)
    %m: float32[B,2,S,T] = Where(%one, %low, %s)"""
    + REST
    + MERGE,
    "not side by side": PLAIN.replace(
        "%v4: float32[B,2,T,4] = Transpose{perm=[0, 2, 1, 3]}(%v3)",
        """%v5: float32[T,B,2,4] = Transpose{perm=[1, 0, 2, 3]}(%v3)
        %v6: float32[T,B,2,4] = Softmax(%v5)
        %v4: float32[B,2,T,4] = Transpose{perm=[1, 2, 0, 3]}(%v6)""",
    )
    + REST
    + MERGE,
}


@pytest.mark.parametrize("reason", MISSES)
def test_unfusable_attention_reports_reason(reason: str) -> None:
    graph_text = MISSES[reason]
    outputs = "%y, %z" if "%z:" in graph_text else "%y"
    if outputs == "%y":
        check_miss(FuseAttention(), QKV, graph_text, reason)
        return
    graph = graph_of(graph_text, QKV, outputs)
    record = apply(FuseAttention(), graph)
    assert [r for _, r in record.misses if reason in r], record.misses


def test_softmax_outside_attention_is_no_miss() -> None:
    graph = graph_of("%y: float32[B,S,8] = Softmax(%q)", QKV)
    assert not apply(FuseAttention(), graph).misses


PROJECTIONS = """const %wq: float32[8,8] = ...
const %wk: float32[8,8] = ...
const %wv: float32[8,8] = ...
const %bq: float32[8] = ...
const %bk: float32[8] = ...
const %bv: float32[8] = ...
%q: float32[B,S,8] = clrt.FusedMatMul{steps=[Add(0, 1)]}(%x, %wq, %bq)
%k: float32[B,S,8] = clrt.FusedMatMul{steps=[Add(0, 1)]}(%x, %wk, %bk)
%v: float32[B,S,8] = clrt.FusedMatMul{steps=[Add(0, 1)]}(%x, %wv, %bv)
"""


def test_qkv_projections_are_merged() -> None:
    graph = graph_of(PROJECTIONS + fused(), "%x: float32[B,S,8]")
    weights = [n.arg(1).numbers for n in graph.nodes[:3]]
    apply(MergeQkv(), graph)
    product, attention = graph.nodes
    assert product.arg(1).shape == (8, 24) and product.arg(2).shape == (24,)
    merged = product.arg(1).numbers
    assert merged is not None and weights[1] is not None
    assert (merged[:, 8:16] == weights[1]).all()
    expected = graph_of(
        """const %w: float32[8,24] = ...
        const %b: float32[24] = ...
        %p: float32[B,S,24] = clrt.FusedMatMul{steps=[Add(0, 1)]}(%x, %w, %b)
        """
        + fused(", k_offset=8, v_offset=16", "%p, %p, %p"),
        "%x: float32[B,S,8]",
    )
    assert attention.op == expected.nodes[1].op and product.op == expected.nodes[0].op


def test_qkv_projections_are_merged_below_rotary() -> None:
    turn = "clrt.FusedRotary{num_heads=2, head_size=4}"
    text = f"""{PROJECTIONS}
    %qr: float32[B,S,8] = {turn}(%q, %cos, %sin)
    %kr: float32[B,S,8] = {turn}(%k, %cos, %sin)
    """ + fused(inputs="%qr, %kr, %v")
    tables = ", %cos: float32[1,1,S,4], %sin: float32[1,1,S,4]"
    graph = graph_of(text, "%x: float32[B,S,8]" + tables)
    apply([MergeQkv(), EliminateDead()], graph)
    product, *rotaries, attention = graph.nodes
    assert product.output.shape is not None and product.output.shape[-1] == 24
    assert [r.op for r in rotaries] == [FusedRotary(2, 4, offset) for offset in (0, 8)]
    assert all(r.arg(0) is product.output for r in rotaries)
    assert attention.arg(2) is product.output
    assert isinstance(attention.op, FusedAttention) and attention.op.v_offset == 16


def test_cross_attention_merges_key_and_value_projections() -> None:
    text = PROJECTIONS.replace("(%x, %wq", "(%z, %wq") + fused()
    graph = graph_of(text, "%x: float32[B,S,8], %z: float32[B,S,8]")
    apply(MergeQkv(), graph)
    assert [n.op.name for n in graph.nodes].count("FusedMatMul") == 2
    assert (graph.nodes[-1].op.k_offset, graph.nodes[-1].op.v_offset) == (0, 8)  # type: ignore[attr-defined]


def test_projections_of_rank_4_are_not_merged() -> None:
    check_miss(
        MergeQkv(),
        "%x: float32[B,2,S,8]",
        """const %wk: float32[8,8] = ...
        const %wv: float32[8,8] = ...
        %k: float32[B,2,S,8] = clrt.FusedMatMul(%x, %wk)
        %v: float32[B,2,S,8] = clrt.FusedMatMul(%x, %wv)
        %y: float32[B,S,16] = clrt.FusedAttention{num_heads=2, kv_num_heads=2, head_size=8,
          v_head_size=8}(%x, %k, %v)""",
        "not of rank 3",
    )


def test_projections_with_different_epilogues_are_not_merged() -> None:
    check_miss(
        MergeQkv(),
        "%x: float32[B,S,8]",
        PROJECTIONS.replace(
            "%k: float32[B,S,8] = clrt.FusedMatMul{steps=[Add(0, 1)]}",
            "%k: float32[B,S,8] = clrt.FusedMatMul{steps=[Add(0, 1), Relu(2)]}",
        )
        + fused(),
        "differ",
    )


def test_layers_with_shared_weights_share_merged_qkv_weight() -> None:
    text = PROJECTIONS + fused().replace("%y", "%h")
    second = PROJECTIONS[PROJECTIONS.index("%q:") :].replace("(%x,", "(%h,")
    for name in "qkv":
        second = second.replace(f"%{name}:", f"%{name}2:")
    text += "\n" + second + fused(inputs="%q2, %k2, %v2")
    graph = graph_of(text, "%x: float32[B,S,8]")
    apply([CanonicalizeMatmul(), MergeQkv()], graph)
    weights = [n.arg(1) for n in graph.nodes if n.op.name == "FusedMatMul"]
    assert len(weights) == 2 and weights[0] is weights[1]


def test_fused_attention_prints_attributes() -> None:
    text = canonical(graph_of(fused(), QKV))
    assert "clrt.FusedAttention{num_heads=2" in text
