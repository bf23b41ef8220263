"""RoundedMatMul -> float product, for devices without VNNI int8 kernels."""

from __future__ import annotations

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.rounded_matmul import RoundedMatMul
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.fused import Fused
from clrt.ops.pointwise.quantize_linear import DequantizeLinear
from clrt.ops.pointwise.round_to_scale import RoundToScale
from clrt.passes.canonicalize_matmul import CanonicalizeMatmul
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fold_constants import FoldConstants
from clrt.passes.fuse_dequantized_matmul import FuseDequantizedMatmul
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.fuse_epilogue import FuseEpilogue


class UndoRoundedMatmul(Pass):
    """RoundedMatMul -> MatMul(RoundToScale(A), DequantizeLinear(B)): undoes FuseRoundedMatmul."""

    name = "restore_rounded"
    required_op_classes = (RoundedMatMul,)
    # Fuse the float products as `optimize` does.
    follow_ups = (
        EliminateCommonSubexpressions(),  # one RoundToScale for all products of the same A
        FoldConstants(),
        FuseDequantizedMatmul(),
        CanonicalizeMatmul(),
        FuseEpilogue(),
        FuseElementwise(),
        EliminateDead(),
    )

    def is_for(self, caps: DeviceCaps) -> bool:
        return VNNI_INT8 not in caps.matrix_shapes

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, RoundedMatMul)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        op, (a, b, scales, zeros) = node.op_as(RoundedMatMul), (node.arg(i) for i in range(4))
        numbers = (op.scale, float(op.low), float(op.high))
        levels = [build.numbers(n, DType.FLOAT32) for n in numbers]
        weight = build.add(DequantizeLinear(0 if op.trans_b else 1), b, scales, zeros)
        if op.trans_b:
            weight = build.add(Transpose((1, 0)), weight)
        y = build.add(MatMul(), build.add(RoundToScale(), a, *levels), weight)
        if op.steps:
            y = build.add(Fused(op.steps), y, *op.extras(node))
        return build.patch({node.output: y})
