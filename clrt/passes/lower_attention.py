"""ONNX's Attention -> FusedAttention."""

from __future__ import annotations

from clrt.ir.dims import Shape
from clrt.ir.graph import Node, Patch, Value
from clrt.ops.attention.attention import Attention
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape
from clrt.passes.attention_parts import find_heads
from clrt.passes.driver import GraphView, Match, Miss, Pass

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
        reason = op.reject_reason(node.input_types)
        return Match(view, node) if reason is None else Miss(reason, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        op, q = node.op, node.arg(0)
        assert isinstance(op, Attention) and q.shape is not None
        by_head = len(q.shape) == 4
        operands, offsets = [node.arg(i) for i in range(3)], [0, 0, 0]
        parts = [op.heads(v.type, i) for i, v in enumerate(operands)]
        (heads, kv_heads, _), (size, _, v_size) = ([int(p[axis]) for p in parts] for axis in (1, 3))
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
        result = build.add(fused, *operands, node.input(3))
        if by_head:
            shape: Shape = (q.shape[0], q.shape[2], heads, v_size)
            split = build.add(Reshape(1), result, build.dims(shape))
            result = build.add(Transpose(_BY_HEAD), split)
        return build.patch({node.output: result})


def _unsplit(value: Value) -> tuple[Value, int]:
    """The projection behind [B, H, S, D] and the first column of its heads; else that as it is."""
    heads = find_heads(value, transposed=False)
    if isinstance(heads, str) or heads.source is None or heads.scale != 1 or heads.repeat != 1:
        return value, 0
    return heads.source, heads.offset
