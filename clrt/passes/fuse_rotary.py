"""Rotary position embedding in primitive ops: x * cos + concat(-x2, x1) * sin -> FusedRotary."""

from __future__ import annotations

from dataclasses import dataclass

from clrt.ir.dims import Shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.table import Add
from clrt.passes.attention_matching import Heads, find_heads, merged, part_of
from clrt.passes.canonicalize_views import reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import keeps_shape, operand_orders, produced_by


@dataclass
class _Rotation:
    """Matched rotary embedding.

    Attributes:
        x: Input [B, H, S, D].
        cos: Table of cosines that broadcasts to [B or 1, 1, S or 1, D].
        sin: Table of sines of the same shape.
        heads: x before its heads were split.
        nodes: Nodes of the pattern, which the rewrite makes dead.
    """

    x: Value
    cos: Value
    sin: Value
    heads: Heads
    nodes: list[Node]


class FuseRotary(Pass):
    """Rotary embedding of heads, as exported from Llama-like models -> FusedRotary.

    FusedRotary reads heads from the projection [B, S, W] and writes them side by side, as
    FusedAttention reads them. The Transpose to [B, H, S, D] that is added after it then cancels.
    """

    name = "fuse_rotary"
    required_op_classes = (Concat,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Add)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        for straight, rotated_half in operand_orders(node):
            rotation = _rotation(straight, rotated_half)
            if rotation is None:
                continue
            if isinstance(rotation, str):
                return Miss(rotation, node)
            rotation.nodes.append(node)
            return Match(view, node, replaced_nodes=rotation.nodes, payload=rotation)
        return None

    def rewrite(self, match: Match) -> Patch:
        build, rotation = match.builder(self.name), match.payload
        assert isinstance(rotation, _Rotation)
        heads, y = rotation.heads, match.root.output
        op = FusedRotary(heads.count, heads.size, heads.offset)
        rotated = build.add(op, merged(build, heads), rotation.cos, rotation.sin)
        split: Shape = (heads.batch, heads.length, heads.count, heads.size)
        like = Value("", type(y.type)(y.dtype, split))
        by_head = build.add(Transpose((0, 2, 1, 3)), reshape(build, rotated, like))
        return build.patch({y: by_head})


def _rotation(straight: Value, rotated_half: Value) -> _Rotation | str | None:
    """Matches x * cos + rotate_half(x) * sin.

    Args:
        straight: x * cos.
        rotated_half: rotate_half(x) * sin.

    Returns:
        The match; a reject reason for a near miss; None for other values.
    """
    left, right = produced_by(straight, "Mul"), produced_by(rotated_half, "Mul")
    if left is None or right is None:
        return None
    for half_rotated, sin in operand_orders(right):
        half_match = _rotate_half(half_rotated)
        if half_match is None:
            continue
        x, nodes = half_match
        for value, cos in operand_orders(left):
            if value is x:
                return _with_heads(x, cos, sin, [*nodes, left, right], straight)
    return None


def _rotate_half(value: Value) -> tuple[Value, list[Node]] | None:
    """Matches concat(-second half of x, first half of x); returns x and the nodes, else None."""
    joined = produced_by(value, "Concat")
    if joined is None or len(joined.inputs) != 2 or value.shape is None:
        return None
    rank, size = len(value.shape), value.shape[-1]
    if not isinstance(size, int) or size % 2 or getattr(joined.op, "axis", 0) % rank != rank - 1:
        return None
    negative = produced_by(joined.arg(0), "Neg")
    second = None if negative is None else _columns(negative.arg(0))
    first = _columns(joined.arg(1))
    if negative is None or first is None or second is None or first[0] is not second[0]:
        return None
    halves = (0, size // 2), (size // 2, size)
    if (first[1], second[1]) != halves or not keeps_shape(first[0], value):
        return None
    nodes = dict.fromkeys([first[2], second[2], negative, joined])
    return first[0], list(nodes)


def _columns(value: Value) -> tuple[Value, tuple[int, int], Node] | None:
    """Looks through a Slice or Split along the last axis.

    Returns:
        The input of the Slice or Split, the range (first, end) of columns in it, and the node;
        None if the value has another producer or the range is not constant.
    """
    node, shape = value.producer, value.shape
    if node is None or shape is None or not isinstance(shape[-1], int):
        return None
    columns = part_of(value)
    return None if columns is None else (columns[0], (columns[1], columns[1] + shape[-1]), node)


def _with_heads(
    x: Value, cos: Value, sin: Value, nodes: list[Node], result: Value
) -> _Rotation | str:
    """Builds the match of a rotary embedding; returns a reject reason if no kernel supports it.

    Args:
        x: Rotated value, [B, H, S, D].
        cos: Table of cosines.
        sin: Table of sines.
        nodes: Nodes of the pattern except the Add.
        result: Value of the shape of the output.
    """
    if x.dtype is not DType.FLOAT32 and x.dtype is not DType.FLOAT16:
        return f"there is no rotary kernel for {x.dtype}"
    if x.type.rank != 4 or not keeps_shape(x, result):
        return f"x {x.type} is not [B, H, S, D], or is broadcast"
    heads = find_heads(x, transposed=False)
    if isinstance(heads, str):
        return heads
    if heads.scale != 1 or heads.repeat != 1:
        return "its heads are scaled or repeated before"
    op = FusedRotary(heads.count, heads.size)
    for table in (cos, sin):
        if not op.table_fits(table.type, heads.batch, heads.length):
            return f"a table {table.type} does not fit x {x.type}"
    if not keeps_shape(cos, sin):
        return f"the tables {cos.type} and {sin.type} differ in shape"
    return _Rotation(x, cos, sin, heads, nodes)
