"""ONNX's Attention without a cache -> FusedAttention."""

from __future__ import annotations

from clrt.ir.dims import Shape, same
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ops.attention import Attention
from clrt.ops.fused_attention import FusedAttention
from clrt.ops.transpose import Transpose
from clrt.ops.views import Reshape
from clrt.passes.attention_parts import find_heads
from clrt.passes.driver import GraphView, Match, Miss, Pass, Rewriter

_BY_HEAD = (0, 2, 1, 3)


class LowerAttention(Pass):
    """Attention of [B, H, S, D] or [B, S, H * D] -> the kernel's, which gives [B, S, H * D].

    Heads that were split from a projection are read from there. The transposition of the result
    meets that of the exporter and both go.
    """

    name = "lower_attention"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op
        if not isinstance(op, Attention):
            return None
        reason = _trouble(node, op)
        return Match(view, node) if reason is None else Miss(reason, node)

    def rewrite(self, match: Match) -> Patch:
        rewriter, node = Rewriter(match, self.name), match.root
        op, q = node.op, node.arg(0)
        assert isinstance(op, Attention) and q.shape is not None
        by_head = len(q.shape) == 4
        heads, size = _heads(node.arg(0), op.q_num_heads)
        kv_heads, _ = _heads(node.arg(1), op.kv_num_heads)
        _, v_size = _heads(node.arg(2), op.kv_num_heads)
        operands, offsets = [node.arg(i) for i in range(3)], [0, 0, 0]
        if by_head:
            operands, offsets = map(list, zip(*map(_unsplit, operands), strict=True))
        fused = FusedAttention(
            num_heads=heads,
            kv_num_heads=kv_heads,
            head_size=size,
            v_head_size=v_size,
            q_offset=offsets[0],
            k_offset=offsets[1],
            v_offset=offsets[2],
            scale=size**-0.5 if op.scale is None else op.scale,
            is_causal=bool(op.is_causal),
            nan_to_zero=True,
        )
        result = rewriter.add(fused, *operands, node.input(3))
        if by_head:
            shape: Shape = (q.shape[0], q.shape[2], heads, v_size)
            split = rewriter.add(Reshape(1), result, rewriter.shape_constant(shape))
            result = rewriter.add(Transpose(_BY_HEAD), split)
        return rewriter.patch({node.output: result})


def _trouble(node: Node, op: Attention) -> str | None:
    """Why a node is not what FusedAttention computes."""
    if op.outputs > 1 or any(node.input(i) is not None for i in range(4, len(node.inputs))):
        return "it has a cache, or more outputs than one"
    if op.softcap or op.left_window_size >= 0 or op.right_window_size >= 0:
        return "it has a softcap or a window"
    operands = [node.arg(i) for i in range(3)]
    if any(v.dtype is not DType.FLOAT32 or v.shape is None for v in operands):
        return "its operands are not float32 of known rank"
    if any(not isinstance(v.shape[-1], int) for v in operands if v.shape):
        return "the head size depends on the input"
    if any(len(v.shape) == 4 and not isinstance(v.shape[1], int) for v in operands if v.shape):
        return "the number of heads depends on the input"
    mask, k = node.input(3), node.arg(1)
    if mask is None:
        return None
    if mask.shape is None or not 2 <= len(mask.shape) <= 4:
        return "the mask's rank is not 2 to 4"
    assert k.shape is not None
    if not (same(mask.shape[-1], 1) or same(mask.shape[-1], k.shape[-2])):
        return "the mask may be shorter than the keys"
    return None


def _heads(value: Value, count: int) -> tuple[int, int]:
    """Heads and head size of an operand."""
    assert value.shape is not None
    if len(value.shape) == 4:
        return int(str(value.shape[1])), int(str(value.shape[3]))
    return count, int(str(value.shape[2])) // count


def _unsplit(value: Value) -> tuple[Value, int]:
    """The projection behind [B, H, S, D] and the first column of its heads; else that as it is."""
    heads = find_heads(value, transposed=False)
    if isinstance(heads, str) or heads.source is None or heads.scale != 1 or heads.repeat != 1:
        return value, 0
    return heads.source, heads.offset
