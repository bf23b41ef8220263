"""Fusion of InstanceNormalization over groups of channels."""

from __future__ import annotations

import pytest

from clrt.passes.fuse_group_norm import FuseGroupNorm
from tests.passes.helpers import check, check_miss

X = "%x: float32[B,4,S,3]"
ONES, ZEROS = "[1.0, 1.0]", "[0.0, 0.0]"
FACTORS, SHIFTS = "[1.0, 2.0, 3.0, 4.0]", "[5.0, 6.0, 7.0, 8.0]"


def normalization(ones: str = ONES, zeros: str = ZEROS, result: str = "%g") -> str:
    return f"""const %s: int64[3] = [0, 2, -1]
const %o: float32[2] = {ones}
const %z: float32[2] = {zeros}
%h: int64[4] = Shape(%x)
%r: float32[B,2,6*S] = Reshape(%x, %s)
%i: float32[B,2,6*S] = InstanceNormalization{{epsilon=0.5}}(%r, %o, %z)
{result}: float32[B,4,S,3] = Reshape(%i, %h)
"""


def expected(factors: str, shifts: str) -> str:
    return f"""const %f: float32[4] = {factors}
const %e: float32[4] = {shifts}
%y: float32[B,4,S,3] = GroupNormalization{{num_groups=2, epsilon=0.5}}(%x, %f, %e)"""


@pytest.mark.parametrize("shape", ["[4,1,1]", "[1,4,1,1]"])
def test_group_norm_with_factors_is_fused(shape: str) -> None:
    nested = "[" + ", ".join(f"[[{v}]]" for v in FACTORS[1:-1].split(", ")) + "]"
    offsets = "[" + ", ".join(f"[[{v}]]" for v in SHIFTS[1:-1].split(", ")) + "]"
    if shape.startswith("[1"):
        nested, offsets = f"[{nested}]", f"[{offsets}]"
    affine = f"""const %f: float32{shape} = {nested}
const %e: float32{shape} = {offsets}
%m: float32[B,4,S,3] = Mul(%f, %g)
%y: float32[B,4,S,3] = Add(%m, %e)"""
    check(FuseGroupNorm(), X, normalization() + affine, expected(FACTORS, SHIFTS))


def test_group_norm_without_factors_is_fused() -> None:
    neutral = expected("[1.0, 1.0, 1.0, 1.0]", "[0.0, 0.0, 0.0, 0.0]")
    check(FuseGroupNorm(), X, normalization(result="%y"), neutral)


@pytest.mark.parametrize(("ones", "zeros"), [("[1.0, 2.0]", ZEROS), (ONES, "[0.0, 1.0]")])
def test_instance_norm_with_scale_by_group_is_not_fused(ones: str, zeros: str) -> None:
    body = normalization(ones, zeros, "%y")
    check_miss(FuseGroupNorm(), X, body, "a scale and a bias by group")


def test_factor_by_column_is_not_fused() -> None:
    body = f"""{normalization().replace("S,3", "S,4").replace("6*S", "8*S")}
const %f: float32[4] = {FACTORS}
%y: float32[B,4,S,4] = Mul(%g, %f)"""
    graph = f"""const %a: float32[4] = [1.0, 1.0, 1.0, 1.0]
const %b: float32[4] = [0.0, 0.0, 0.0, 0.0]
const %f: float32[4] = {FACTORS}
%g: float32[B,4,S,4] = GroupNormalization{{num_groups=2, epsilon=0.5}}(%x, %a, %b)
%y: float32[B,4,S,4] = Mul(%g, %f)"""
    check(FuseGroupNorm(), "%x: float32[B,4,S,4]", body, graph)


def test_no_groups_of_no_channels_are_not_fused() -> None:
    body = """const %s: int64[3] = [1, 0, 16]
const %t: int64[4] = [1, 0, 4, 4]
const %e: float32[0] = []
%r: float32[1,0,16] = Reshape{allowzero=1}(%x, %s)
%i: float32[1,0,16] = InstanceNormalization(%r, %e, %e)
%y: float32[1,0,4,4] = Reshape{allowzero=1}(%i, %t)"""
    check_miss(FuseGroupNorm(), "%x: float32[1,0,4,4]", body, "do not divide into groups")
