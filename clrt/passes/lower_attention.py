"""ONNX Attention -> FusedAttention."""

from __future__ import annotations

from dataclasses import replace

from clrt.ir.dims import Shape
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.attention.attention import Attention
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.transpose import Transpose
from clrt.ops.op_builder import OpBuilder
from clrt.passes.attention_matching import find_heads
from clrt.passes.driver import GraphView, Match, Miss, Pass

# Permutation that swaps the axes of tokens and heads.
_BY_HEAD = (0, 2, 1, 3)


class LowerAttention(Pass):
    """ONNX Attention -> FusedAttention, which writes [batch, tokens, heads * head size].

    Heads that were split from a projection are read from the projection. If the model's operands
    are [batch, heads, tokens, head size], a Transpose to this layout is added after FusedAttention;
    it cancels with the exporter's Transpose back.
    """

    name = "lower_attention"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Attention)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op_as(Attention)
        reason = op.reject_reason(node.input_types)
        return Match(view, node) if reason is None else Miss(reason, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        op, q = node.op_as(Attention), node.arg(0)
        assert q.shape is not None
        operands, offsets = [node.arg(i) for i in range(3)], [0, 0, 0]
        parts = [op.heads(v.type, i) for i, v in enumerate(operands)]
        pasts, lengths, presents = [node.input(4), node.input(5)], node.input(6), list[Value]()
        for i, past in enumerate(pasts, 1):
            if past is not None:
                operands[i] = build.add(Concat(2), past, _by_head(build, operands[i], parts[i]))
                presents.append(operands[i])
        fused = op.fused(parts, bool(presents), lengths is not None)
        if len(q.shape) == 4:
            operands, offsets = map(list, zip(*map(_unsplit, operands), strict=True))
            q_offset, k_offset, v_offset = offsets
            fused = replace(fused, q_offset=q_offset, k_offset=k_offset, v_offset=v_offset)
        y = build.add(fused, *operands, node.input(3), lengths)
        if len(q.shape) == 4:
            y = _by_head(build, y, (q.shape[0], fused.num_heads, q.shape[2], fused.v_head_size))
        return build.patch(dict(zip(node.outputs, (y, *presents), strict=False)))


def _by_head(build: OpBuilder, value: Value, parts: Shape) -> Value:
    """Builds the conversion of a value of rank 3 to [batch, heads, tokens, head size].

    Values of rank 4 are returned unchanged.

    Args:
        value: q, k, v or the output of an attention, [batch, tokens, heads * head size].
        parts: Batch size, number of heads, number of tokens, and head size.
    """
    if value.type.rank == 4:
        return value
    batch, heads, length, size = parts
    split = build.reshaped(value, batch, length, heads, size)
    return build.add(Transpose(_BY_HEAD), split)


def _unsplit(value: Value) -> tuple[Value, int]:
    """Finds the projection [batch, tokens, columns] that the heads of q, k or v were split from.

    Returns:
        The projection and the first column of the heads in it; `value` and 0 if there is none.
    """
    heads = find_heads(value, transposed=False)
    if isinstance(heads, str) or heads.source is None or heads.scale != 1 or heads.repeat != 1:
        return value, 0
    return heads.source, heads.offset
