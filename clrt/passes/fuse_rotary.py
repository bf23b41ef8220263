"""Rotary position embedding in primitive ops: x * cos + concat(-x2, x1) * sin -> FusedRotary."""

from __future__ import annotations

from clrt.ir.dims import Shape, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Patch, Value
from clrt.ir.pattern import Captures, Pattern, Verdict, any_value, op
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.movement.concat import Concat, Split
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.table import Add, Mul, Neg
from clrt.passes.attention_matching import Heads, find_heads, merged, part_of
from clrt.passes.canonicalize_views import reshape
from clrt.passes.driver import Match
from clrt.passes.matching import keeps_shape
from clrt.passes.pattern_pass import PatternPass


def _swaps_halves(found: Captures) -> bool:
    """Whether a Concat joins the second and the first half of x, along the last axis."""
    rotated, node = found["rotated"], found.node("rotated")
    if rotated.shape is None:
        return False
    rank, size = len(rotated.shape), rotated.shape[-1]
    if not isinstance(size, int) or size % 2 or getattr(node.op, "axis", 0) % rank != rank - 1:
        return False
    return keeps_shape(found["x"], rotated) and all(
        part_of(found[name]) == (found["x"], start) and _has_columns(found[name], size // 2)
        for name, start in (("first", 0), ("second", size // 2))
    )


def _has_columns(value: Value, count: int) -> bool:
    return value.shape is not None and provably_equal(value.shape[-1], count)


def _is_supported(found: Captures) -> Verdict:
    """Returns True if FusedRotary can compute a matched embedding, else a reject reason."""
    x, cos, sin = found["x"], found["cos"], found["sin"]
    if x.dtype is not DType.FLOAT32 and x.dtype is not DType.FLOAT16:
        return f"there is no rotary kernel for {x.dtype}"
    if x.type.rank != 4 or not keeps_shape(x, found["straight"]):
        return f"x {x.type} is not [B, H, S, D], or is broadcast"
    heads = find_heads(x, transposed=False)
    if isinstance(heads, str):
        return heads
    if heads.scale != 1 or heads.repeat != 1:
        return "its heads are scaled or repeated before"
    rotary = FusedRotary(heads.count, heads.size)
    for table in (cos, sin):
        if not rotary.table_fits(table.type, heads.batch, heads.length):
            return f"a table {table.type} does not fit x {x.type}"
    return keeps_shape(cos, sin) or f"the tables {cos.type} and {sin.type} differ in shape"


_X = any_value("x")


def _part(name: str) -> Pattern:
    return op((Slice, Split), _X, ..., name=name)


_ROTATED_HALF = op(Concat, op(Neg, _part("second")), _part("first"), name="rotated")


class FuseRotary(PatternPass):
    """Rotary embedding of heads, as exported from Llama-like models -> FusedRotary.

    FusedRotary reads heads from a projection [batch, tokens, columns] and writes them side by side,
    as FusedAttention reads them. A Transpose to [batch, heads, tokens, head size] is added after
    FusedRotary; it cancels with the model's own Transpose.
    """

    name = "fuse_rotary"
    required_op_classes = (Concat,)
    pattern = op(
        Add,
        op(Mul, _X, any_value("cos"), name="straight"),
        op(Mul, _ROTATED_HALF.where(_swaps_halves), any_value("sin")),
    ).where(_is_supported)

    def rewrite(self, match: Match) -> Patch:
        build, found, y = match.builder(self.name), match.payload, match.root.output
        assert isinstance(found, Captures)
        heads = find_heads(found["x"], transposed=False)
        assert isinstance(heads, Heads)
        rotary = FusedRotary(heads.count, heads.size, heads.offset)
        rotated = build.add(rotary, merged(build, heads), found["cos"], found["sin"])
        split: Shape = (heads.batch, heads.length, heads.count, heads.size)
        like = Value("", type(y.type)(y.dtype, split))
        by_head = build.add(Transpose((0, 2, 1, 3)), reshape(build, rotated, like))
        return build.patch({y: by_head})
