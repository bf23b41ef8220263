"""Q, K and V projections of an attention -> one product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dims import provably_equal
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.fused_rotary import FusedRotary
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.pointwise.table import Add
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.util.fast_dataclass import dataclass

_FIELDS = ("q_offset", "k_offset", "v_offset")


@dataclass
class _QkvProjection:
    """Projection x @ weight + bias that an attention reads as q, k or v.

    Attributes:
        node: The FusedMatMul.
        places: Indices of the attention inputs that read the projection: 0 is q, 1 is k, 2 is v.
        rotary: Rotary embedding between the product and the attention; None if there is none.
    """

    node: Node
    places: list[int]
    rotary: Node | None = None

    @property
    def weight(self) -> Value:
        """Weight matrix of the projection; stored transposed if the op has trans_b."""
        return self.node.arg(1)

    @property
    def columns(self) -> int:
        """Number of output columns of the projection."""
        shape = self.weight.shape
        assert shape is not None
        return int(shape[0] if self.node.op_as(FusedMatMul).trans_b else shape[1])


class MergeQkv(Pass):
    """Two or three projections of one value that an attention reads -> one product.

    If q or k has a FusedRotary, the FusedRotary is kept and reads columns of the merged product.

    One product of three times the width is faster than three products, and reads its input once.
    Layers that share weights share the merged weight.
    """

    name = "merge_qkv"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, FusedAttention)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        projections: dict[Node, _QkvProjection] = {}
        for place in range(3):
            producer, rotary = node.arg(place).producer, None
            if producer is not None and isinstance(producer.op, FusedRotary):
                producer, rotary = producer.arg(0).producer, producer
            if producer is not None and isinstance(producer.op, FusedMatMul):
                entry = projections.setdefault(producer, _QkvProjection(producer, [], rotary))
                entry.places.append(place)
        groups: dict[Value, list[_QkvProjection]] = {}
        for projection in projections.values():
            groups.setdefault(projection.node.arg(0), []).append(projection)
        group = max(groups.values(), key=len, default=[])
        if len(group) < 2:
            return (
                None
                if len(projections) == 1
                else Miss("q, k and v are not projections of one value", node)
            )
        reason = _mismatch(view, node, group)
        if reason is not None:
            return Miss(reason, node)
        rotaries = [p.rotary for p in group if p.rotary is not None]
        return Match(
            view, node, replaced_nodes=[*(p.node for p in group), *rotaries, node], payload=group
        )

    def rewrite(self, match: Match) -> Patch:
        build, node, group = match.builder(self.name), match.root, match.payload
        first: Node = group[0].node
        product, attention = first.op_as(FusedMatMul), node.op_as(FusedAttention)
        axis = 0 if product.trans_b else 1
        weight = _joined(match.view, build, [p.weight for p in group], axis)
        extras = (
            [_joined(match.view, build, [p.node.arg(2) for p in group], 0)] if product.steps else []
        )
        merged = build.add(product, first.arg(0), weight, *extras)
        inputs, offsets, start = list(node.inputs), {}, 0
        for projection in group:
            rotary = projection.rotary
            for place in projection.places:
                if rotary is None:
                    inputs[place] = merged
                    offsets[_FIELDS[place]] = start + getattr(attention, _FIELDS[place])
                else:
                    op = rotary.op_as(FusedRotary)
                    rotated = replace(op, offset=start + op.offset)
                    inputs[place] = build.add(rotated, merged, *rotary.inputs[1:])
            start += projection.columns
        return build.patch({node.output: build.add(replace(attention, **offsets), *inputs)})


def _mismatch(view: GraphView, attention: Node, group: list[_QkvProjection]) -> str | None:
    """Returns why projections cannot be merged into one product; None if they can.

    Args:
        view: Graph of the nodes.
        attention: The attention that reads the projections.
        group: Projections of one value.
    """
    first = group[0].node.op_as(FusedMatMul)
    for projection in group:
        node, weight = projection.node, projection.weight
        op = node.op_as(FusedMatMul)
        rotary = projection.rotary
        if view.only_user(node.output) is not (rotary or attention):
            return f"the projection '{node.output.name}' is used elsewhere, too"
        if rotary is not None and view.only_user(rotary.output) is not attention:
            return f"the rotation '{rotary.output.name}' is used elsewhere, too"
        if node.output.type.rank != 3:
            return "the projections are not of rank 3"
        if weight.numbers is None or not weight.is_constant or weight.numbers.ndim != 2:
            return "a projection's weight is not a constant matrix"
        if op.trans_a or op.trans_b != first.trans_b:
            return "the projections' weights are laid out differently"
        if op.a_dtype is not first.a_dtype:
            return "the projections' inputs are of different dtypes in the model"
        if op.steps != first.steps or not _is_bias(node, projection.columns):
            return "the projections differ in more than their bias"
    return None


def _is_bias(node: Node, columns: int) -> bool:
    """Whether a FusedMatMul's epilogue is empty or adds one constant vector of size `columns`."""
    op = node.op_as(FusedMatMul)
    if not op.steps:
        return len(node.inputs) == 2
    if len(op.steps) != 1 or not isinstance(op.steps[0].op, Add):
        return False
    bias = node.input(2)
    if bias is None or not bias.is_constant or bias.numbers is None or bias.shape is None:
        return False
    return len(bias.shape) == 1 and provably_equal(bias.shape[0], columns)


def _joined(view: GraphView, build: Builder, parts: list[Value], axis: int) -> Value:
    """Returns the concatenation of constants along an axis; the same Value for equal arguments."""
    key = (axis, *parts)
    memo = view.memo
    if key not in memo:
        arrays = [p.numbers for p in parts]
        memo[key] = build.constant(np.concatenate([a for a in arrays if a is not None], axis))
    value = memo[key]
    assert isinstance(value, Value)
    return value
