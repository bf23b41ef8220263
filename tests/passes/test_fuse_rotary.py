"""Fusion of rotary position embedding, in the forms that exporters write."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from clrt.models.onnx.importer import import_model
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.canonicalize_views import CanonicalizeViews
from clrt.passes.driver import Pass
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fuse_rotary import FuseRotary
from clrt.passes.pipeline import optimize
from clrt.passes.remove_identity import RemoveIdentity
from tests.passes.helpers import check, check_miss

PASSES: list[Pass] = [FuseRotary(), CanonicalizeViews(), RemoveIdentity(), EliminateDead()]
TABLES = "%cos: float32[1,1,S,8], %sin: float32[1,1,S,8]"
SPLIT = """const %apart: int64[4] = [B, S, 3, 8]
%x4: float32[B,S,3,8] = Reshape(%p, %apart)
%x: float32[B,3,S,8] = Transpose{perm=[0, 2, 1, 3]}(%x4)
"""
SLICES = """const %zero: int64[1] = [0]
const %half: int64[1] = [4]
const %end: int64[1] = [9223372036854775807]
const %last: int64[1] = [3]
const %one: int64[1] = [1]
%a: float32[B,3,S,4] = Slice(%x, %zero, %half, %last, %one)
%b: float32[B,3,S,4] = Slice(%x, %half, %end, %last, %one)
"""
PARTS = """const %widths: int64[2] = [4, 4]
%a: float32[B,3,S,4], %b: float32[B,3,S,4] = Split{axis=-1}(%x, %widths)
"""
TURN = """%n: float32[B,3,S,4] = Neg(%b)
%t: float32[B,3,S,8] = Concat{axis=-1}(%n, %a)
"""
SUMS = [
    """%u: float32[B,3,S,8] = Mul(%x, %cos)
    %v: float32[B,3,S,8] = Mul(%t, %sin)
    %y: float32[B,3,S,8] = Add(%u, %v)""",
    """%u: float32[B,3,S,8] = Mul(%cos, %x)
    %v: float32[B,3,S,8] = Mul(%sin, %t)
    %y: float32[B,3,S,8] = Add(%v, %u)""",
]
AFTER = """
const %four: int64[4] = [B, S, 3, 8]
%r4: float32[B,S,3,8] = Reshape{allowzero=1}(%r, %four)
%y: float32[B,3,S,8] = Transpose{perm=[0, 2, 1, 3]}(%r4)"""


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize("halves", [SLICES, PARTS], ids=["slices", "split"])
def test_rotary_of_projection_is_fused(halves: str, total: str) -> None:
    check(
        PASSES,
        "%p: float32[B,S,24], " + TABLES,
        SPLIT + halves + TURN + total,
        "%r: float32[B,S,24] = clrt.FusedRotary{num_heads=3, head_size=8}(%p, %cos, %sin)" + AFTER,
    )


def test_rotary_with_rank_2_tables_is_fused() -> None:
    tables = "%cos: float32[S,8], %sin: float32[S,8]"
    rotary = "%r: float32[B,S,24] = clrt.FusedRotary{num_heads=3, head_size=8}(%x, %cos, %sin)"
    check(PASSES, "%x: float32[B,3,S,8], " + tables, SLICES + TURN + SUMS[0], rotary + AFTER)


def test_rotary_of_split_heads_is_fused() -> None:
    check(
        PASSES,
        "%x: float32[B,3,S,8], " + TABLES,
        SLICES + TURN + SUMS[0],
        "%r: float32[B,S,24] = clrt.FusedRotary{num_heads=3, head_size=8}(%x, %cos, %sin)" + AFTER,
    )


MISSES = {
    "does not fit x": (
        "%x: float32[B,3,S,8], %cos: float32[1,3,S,8], %sin: float32[1,3,S,8]",
        SLICES + TURN + SUMS[0],
    ),
    "differ in shape": (
        "%x: float32[B,3,S,8], %cos: float32[1,1,S,8], %sin: float32[1,1,1,8]",
        SLICES + TURN + SUMS[0],
    ),
}


@pytest.mark.parametrize("reason", MISSES)
def test_unfusable_rotary_reports_reason(reason: str) -> None:
    inputs, body = MISSES[reason]
    check_miss(FuseRotary(), inputs, body, reason)


def test_rotary_with_swapped_halves_is_kept() -> None:
    body = SLICES + TURN.replace("(%n, %a)", "(%a, %n)") + SUMS[0]
    check(PASSES, "%x: float32[B,3,S,8], " + TABLES, body, body)


@pytest.mark.parametrize("attrs", [{}, {"interleaved": 1}, {"rotary_embedding_dim": 4}], ids=str)
@pytest.mark.parametrize("by_head", [True, False])
def test_onnx_rotary_embedding_matches_reference_evaluator(
    by_head: bool, attrs: dict[str, int]
) -> None:
    """RotaryEmbedding becomes FusedRotary if no attribute prevents it; results are equal."""
    shape = (2, 3, 5, 8) if by_head else (2, 5, 24)
    pairs = attrs.get("rotary_embedding_dim", 8) // 2
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal(shape).astype(np.float32),
        "cos": rng.standard_normal((9, pairs)).astype(np.float32),
        "sin": rng.standard_normal((9, pairs)).astype(np.float32),
        "at": rng.integers(0, 9, (2, 5)),
    }
    node = helper.make_node("RotaryEmbedding", list(feeds), ["y"], num_heads=3, **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    proto = helper.make_model(
        helper.make_graph([node], "g", infos, [result]), opset_imports=[helper.make_opsetid("", 23)]
    )
    graph = import_model(proto)
    optimize(graph)
    assert ("FusedRotary" in {n.op.name for n in graph.nodes}) == (not attrs)
    (expected,) = ReferenceEvaluator(proto).run(None, feeds)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=0, atol=1e-6)
