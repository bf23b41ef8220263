"""RoundedMatMul -> float product, for devices without VNNI int8 kernels."""

from __future__ import annotations

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.rounded_matmul import RoundedMatMul
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.fused import Fused
from clrt.ops.pointwise.quantize_linear import DequantizeLinear
from clrt.ops.pointwise.round_to_scale import RoundToScale
from clrt.passes.driver import GraphView, Match, Miss, Pass


class UndoRoundedMatmul(Pass):
    """RoundedMatMul -> MatMul(RoundToScale(A), DequantizeLinear(B)): undoes FuseRoundedMatmul."""

    name = "restore_rounded"
    required_op_classes = (RoundedMatMul,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, RoundedMatMul)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        op, (a, b, scales, zeros) = node.op, (node.arg(i) for i in range(4))
        assert isinstance(op, RoundedMatMul)
        numbers = (op.scale, float(op.low), float(op.high))
        levels = [build.numbers(n, DType.FLOAT32) for n in numbers]
        weight = build.add(DequantizeLinear(0 if op.trans_b else 1), b, scales, zeros)
        if op.trans_b:
            weight = build.add(Transpose((1, 0)), weight)
        y = build.add(MatMul(), build.add(RoundToScale(), a, *levels), weight)
        if op.steps:
            y = build.add(Fused(op.steps), y, *op.extras(node))
        return build.patch({node.output: y})
