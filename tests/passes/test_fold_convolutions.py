"""Folding of Pad, BatchNormalization, factors and following elementwise ops into Conv."""

from __future__ import annotations

import re

import pytest

from clrt.ir.graph import Graph
from clrt.passes.driver import Pass
from clrt.passes.fold_affine import ExpandBatchNormalization, FoldAffine
from clrt.passes.fold_pad import FoldPad
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.fuse_epilogue import FuseEpilogue
from clrt.passes.pipeline import FOLD_CONVOLUTIONS, optimize
from clrt.passes.remove_identity import RemoveIdentity
from tests.passes.helpers import apply, check, check_miss, graph_of

X = "%x: float32[B,4,S,T]"
W = """const %w: float32[6,4,3,3] = ...
const %g: float32[6,2,3,3] = ...
const %t: float32[4,3,2,2] = ...
const %b: float32[6] = ...
const %v: float32[6] = [1.0, 2.0, 0.5, 3.0, 1.5, 0.25]
const %m: float32[6] = [0.5, -1.0, 0.25, 0.0, 2.0, 1.0]
const %c: float32[6,1,1] = ...
"""
NORM = "BatchNormalization(%p, %v, %m, %m, %v)"


def untyped(lines: str) -> str:
    """Lines with the types of results left to inference."""
    return re.sub(r"^( *%\w+) = ", r"\1: float32[?] = ", lines, flags=re.MULTILINE)


def graph_from(lines: str, inputs: str) -> Graph:
    return graph_of(untyped(lines), inputs)


def check_becomes(pass_: Pass, inputs: str, before: str, expected: str) -> None:
    check(pass_, inputs, untyped(before), untyped(expected))


def check_misses(pass_: Pass, inputs: str, before: str, reason: str) -> None:
    check_miss(pass_, inputs, untyped(before), reason)


def ops_of(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


@pytest.mark.parametrize("conv", ["Conv{pads=[1,1,1,1]}(%x, %w", "Conv{group=2}(%x, %g"])
@pytest.mark.parametrize("bias", ["", ", %b"])
def test_batch_norm_is_folded_into_conv_weights(conv: str, bias: str) -> None:
    lines = f"%p = {conv}{bias})\n%y = {NORM}"
    graph = graph_from(W + lines, X)
    for _ in range(3):
        apply(FOLD_CONVOLUTIONS, graph)
    assert ops_of(graph) == ["Conv"] and len(graph.nodes[0].inputs) == 3


@pytest.mark.parametrize("group", [1, 2])
def test_batch_norm_is_folded_into_conv_transpose_weights(group: int) -> None:
    channels = 3 * group
    stats = "".join(f"const %{k}: float32[{channels}] = ...\n" for k in "abde")
    lines = f"""const %f: float32[{channels}] = ...
    %p = ConvTranspose{{group={group}}}(%x, %t)
    %m1 = Abs(%d)
    %y = BatchNormalization(%p, %a, %b1, %e, %m1)"""
    text = W + stats.replace("%b:", "%b1:") + lines
    graph = graph_from(text, X)
    for _ in range(4):
        apply(FOLD_CONVOLUTIONS, graph)
    assert ops_of(graph) == ["ConvTranspose"]


def test_batch_norm_without_conv_becomes_elementwise() -> None:
    graph = graph_from(W + "%y = " + NORM.replace("%p", "%x"), "%x: float32[B,6,S]")
    apply([ExpandBatchNormalization(), FuseElementwise()], graph)
    assert ops_of(graph) == ["Fused"]


def test_batch_norm_with_computed_statistics_is_kept() -> None:
    check_misses(
        ExpandBatchNormalization(),
        "%x: float32[B,6,S], %s: float32[6]",
        W + "%y = BatchNormalization(%x, %v, %s, %m, %v)",
        "not constants",
    )


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            "%p = Conv(%x, %w)\n%q = Mul(%p, %c)\n%y = Add(%q, %p)",
            "used elsewhere",
        ),
        (
            "%h = Abs(%b)\n%p = Conv(%x, %w, %h)\n%y = Mul(%p, %c)",
            "bias is computed",
        ),
        (
            "%h = Abs(%w)\n%p = Conv(%x, %h)\n%y = Mul(%p, %c)",
            "weights are computed",
        ),
        (
            "%o = Conv(%x, %w)\n%p = Conv(%x, %w)\n%q = Mul(%p, %c)\n%y = Sub(%q, %o)",
            "weights are used elsewhere",
        ),
    ],
)
def test_unfoldable_conv_factors_are_kept(lines: str, reason: str) -> None:
    check_misses(FoldAffine(), X, W + lines, reason)


def test_per_position_conv_factors_are_kept() -> None:
    for shape in ("[1,1,1,3]", "[2,6,1,1]"):
        graph = graph_from(
            f"{W}const %k: float32{shape} = ...\n%p = Conv(%x, %w)\n%y = Mul(%p, %k)",
            "%x: float32[2,4,5,5]",
        )
        assert not apply(FoldAffine(), graph).hits


def test_float16_conv_factors_are_kept() -> None:
    check_misses(
        FoldAffine(),
        "%x: float16[B,4,S]",
        """const %w: float16[6,4,1] = ...
        const %c: float16[6,1] = ...
        %p = Conv(%x, %w)
        %y: float16[?] = Mul(%p, %c)""",
        "round",
    )


def test_pad_is_folded_into_conv() -> None:
    check_becomes(
        FoldPad(),
        X,
        W
        + """const %n: int64[8] = [0, 0, 1, 2, 0, 0, 0, 3]
        %p = Pad(%x, %n)
        %y = Conv{pads=[1,0,0,1]}(%p, %w, %b)""",
        W + "%y = Conv{pads=[2,2,0,4]}(%x, %w, %b)",
    )


@pytest.mark.parametrize(
    ("pads", "op", "reason"),
    [
        ("[0, 1, 0, 0, 0, 0, 0, 0]", "Pad", "spatial"),
        ("[0, 0, -1, 0, 0, 0, 2, 0]", "Pad", "crops"),
        ("[0, 0, 1, 1, 0, 0, 1, 1]", 'Pad{mode="edge"}', "not constant 0"),
    ],
)
def test_unfoldable_pad_is_kept(pads: str, op: str, reason: str) -> None:
    channels = 5 if pads.startswith("[0, 1") else 4
    lines = f"""const %w: float32[6,{channels},3,3] = ...
    const %n: int64[8] = {pads}
    %p = {op}(%x, %n)
    %y = Conv(%p, %w)"""
    check_misses(FoldPad(), X, lines, reason)


def test_zero_pad_is_removed() -> None:
    lines = "const %n: int64[8] = {}\n%p = Pad(%x, %n)\n%y = Abs(%p)"
    check_becomes(RemoveIdentity(), X, lines.format([0] * 8), "%y = Abs(%x)")
    moved = graph_from(lines.format([0, 0, -1, 0, 0, 0, 1, 0]), X)
    assert not apply(RemoveIdentity(), moved).hits


def test_conv_epilogue_fuses_scale_residual_and_relu() -> None:
    check_becomes(
        FuseEpilogue(),
        X + ", %r: float32[B,6,S,T], %s: float32[B,6,1,1]",
        W
        + """%p = Conv{pads=[1,1,1,1]}(%x, %w, %b)
        %q = Mul(%p, %s)
        %o = Add(%r, %q)
        %y = Relu(%o)""",
        W
        + """%y = clrt.FusedConv{pads=[1,1,1,1],
        steps=[Mul(0, 1), Add(2, 3), Relu(4)]}(%x, %w, %b, %s, %r)""",
    )


@pytest.mark.parametrize("shape", ["[T]", "[S,T]", "[1,6,1,T]"])
def test_conv_epilogue_operand_of_unfit_shape_is_not_fused(shape: str) -> None:
    lines = W + "%p = Conv{pads=[1,1,1,1]}(%x, %w)\n%y = Add(%p, %r)"
    if shape == "[S,T]":  # whole planes
        graph = graph_from(lines, f"{X}, %r: float32{shape}")
        apply(FuseEpilogue(), graph)
        assert ops_of(graph) == ["FusedConv"]
    else:
        check_misses(FuseEpilogue(), f"{X}, %r: float32{shape}", lines, "does not fit")


def test_conv_epilogue_operand_not_float32_is_not_fused() -> None:
    check_misses(
        FuseEpilogue(),
        X + ", %k: bool[B,6,S,T]",
        W + "%p = Conv{pads=[1,1,1,1]}(%x, %w)\n%y = Where(%k, %p, %p)",
        "not float32",
    )


def test_mobile_block_optimizes_to_two_fused_convs() -> None:
    lines = f"""const %n: int64[8] = [0, 0, 1, 1, 0, 0, 1, 1]
    const %low: float32[] = 0.0
    const %high: float32[] = 6.0
    const %d: float32[6,1,3,3] = ...
    %e = Pad(%x, %n)
    %p = Conv(%e, %w)
    %q = {NORM}
    %a = Clip(%q, %low, %high)
    %i = Conv{{group=6, pads=[1,1,1,1]}}(%a, %d)
    %j = {NORM.replace("%p", "%i")}
    %h = HardSigmoid(%j)
    %k = Mul(%j, %h)
    %y = Add(%k, %a)"""
    graph = graph_from(W + lines, X)
    optimize(graph)
    assert ops_of(graph) == ["FusedConv", "FusedConv"]
    optimize(graph)
    assert ops_of(graph) == ["FusedConv", "FusedConv"]
