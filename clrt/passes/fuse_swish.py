"""Swish (SiLU) in primitive ops -> Swish."""

from __future__ import annotations

from clrt.ir.graph import Patch
from clrt.ir.pattern import Captures, any_value, op
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.table import Mul, Sigmoid
from clrt.passes.driver import Match
from clrt.passes.matching import keeps_shape, multiple_of, scaled
from clrt.passes.pattern_pass import PatternPass

_X = any_value("x")


class FuseSwish(PatternPass):
    """x * sigmoid(alpha x) -> Swish.

    As one op, Swish fits the epilogue of the matrix product that computes x. So does multiplying by
    a second matrix product of the same rows (SwiGLU); one launch then computes both products.
    """

    name = "fuse_swish"
    pattern = op(
        Mul, _X, op(Sigmoid, _X | multiple_of(_X, "alpha x").used_once()).used_once(), name="y"
    ).where(lambda f: keeps_shape(f["x"], f["y"]))

    def rewrite(self, match: Match) -> Patch:
        found, build = match.payload, match.builder(self.name)
        assert isinstance(found, Captures)
        multiple = scaled(found.node("alpha x")) if "alpha x" in found.values else None
        alpha = 1.0 if multiple is None else multiple[1]
        return build.patch({match.root.output: build.add(Swish(alpha), found["x"])})
