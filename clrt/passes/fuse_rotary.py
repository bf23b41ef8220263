"""x * cos + concat(-x2, x1) * sin, rotary position embedding -> FusedRotary."""

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
    """x [B, H, S, D] and its tables, which broadcast to [B or 1, 1, S or 1, D]."""

    x: Value
    cos: Value
    sin: Value
    heads: Heads
    nodes: list[Node]


class FuseRotary(Pass):
    """The rotation of heads, as the exporters of Llama and its kin write it -> FusedRotary.

    Heads are read where the projection has them and written side by side, so that attention reads
    them there; the transposition to [B, H, S, D] that stands between goes with it.
    """

    name = "fuse_rotary"
    required_op_classes = (Concat,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Add)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        for straight, turned in operand_orders(node):
            found = _rotation(straight, turned)
            if found is None:
                continue
            if isinstance(found, str):
                return Miss(found, node)
            found.nodes.append(node)
            return Match(view, node, replaced_nodes=found.nodes, payload=found)
        return None

    def rewrite(self, match: Match) -> Patch:
        build, found = match.builder(self.name), match.payload
        assert isinstance(found, _Rotation)
        heads, y = found.heads, match.root.output
        op = FusedRotary(heads.count, heads.size, heads.offset)
        rotated = build.add(op, merged(build, heads), found.cos, found.sin)
        split: Shape = (heads.batch, heads.length, heads.count, heads.size)
        like = Value("", type(y.type)(y.dtype, split))
        apart = build.add(Transpose((0, 2, 1, 3)), reshape(build, rotated, like))
        return build.patch({y: apart})


def _rotation(straight: Value, turned: Value) -> _Rotation | str | None:
    """x * cos + turn(x) * sin; a reason where it nearly is."""
    left, right = produced_by(straight, "Mul"), produced_by(turned, "Mul")
    if left is None or right is None:
        return None
    for turn, sin in operand_orders(right):
        found = _turned(turn)
        if found is None:
            continue
        x, nodes = found
        for value, cos in operand_orders(left):
            if value is x:
                return _with_heads(x, cos, sin, [*nodes, left, right], straight)
    return None


def _turned(value: Value) -> tuple[Value, list[Node]] | None:
    """x of concat(-second half of x, first half), and the nodes from there."""
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
    """What a Slice or a Split takes of the last axis: of which value, from where to where."""
    node, shape = value.producer, value.shape
    if node is None or shape is None or not isinstance(shape[-1], int):
        return None
    part = part_of(value)
    return None if part is None else (part[0], (part[1], part[1] + shape[-1]), node)


def _with_heads(
    x: Value, cos: Value, sin: Value, nodes: list[Node], result: Value
) -> _Rotation | str:
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
