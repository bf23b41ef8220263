"""MatMul and Gemm -> FusedMatMul, which absorbs transposes, alpha, beta and the bias."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatrixProduct
from clrt.ops.movement.transpose import Transpose
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import op_name, produced_by
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class Operands:
    """Operands a and b of a matrix product.

    Attributes:
        a: First operand.
        b: Second operand.
        trans_a: Whether the product swaps the last two axes of `a`.
        trans_b: Whether the product swaps the last two axes of `b`.
    """

    a: Value
    b: Value
    trans_a: bool
    trans_b: bool


class CanonicalizeMatmul(Pass):
    """MatMul(a, Transpose(b)) -> FusedMatMul(a, b) with trans_b; Gemm's alpha, beta, C -> epilogue.

    A transposed weight is then not stored: the GEMM kernel packs the original.
    """

    name = "canonicalize_matmul"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, MatrixProduct)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        kind = op_name(node)
        if kind not in ("MatMul", "Gemm", "clrt.FusedMatMul"):
            return None
        a, b = node.arg(0), node.arg(1)
        if not a.dtype.is_float:
            return Miss(f"its operands are {a.dtype}", node) if kind != "clrt.FusedMatMul" else None
        if any(v.shape is None or len(v.shape) < 2 for v in (a, b)):
            return Miss("an operand is a vector, or of unknown rank", node)
        bias = node.input(2) if kind == "Gemm" else None
        if bias is not None and not FusedMatMul().supports_operand(bias.shape, node.output.shape):
            return Miss(f"its C {bias.type} varies by row, which epilogues do not support", node)
        operands = strip_transposes(node)
        if kind == "clrt.FusedMatMul" and operands.a is a and operands.b is b:
            return None
        return Match(view, node, payload=operands)

    def rewrite(self, match: Match) -> Patch:
        operands, node, build = match.payload, match.root, match.builder(self.name)
        assert isinstance(operands, Operands)
        product = node.op_as(MatrixProduct)
        steps = product.program(node.input_types)
        trans_a, trans_b = int(operands.trans_a), int(operands.trans_b)
        op = FusedMatMul(trans_a, trans_b, steps, product.rounds_a())
        value = build.add(op, operands.a, operands.b, *product.extras(node))
        return build.patch({node.output: value})


def strip_transposes(node: Node) -> Operands:
    """Returns the operands of a matrix product before Transposes that swap their last two axes."""
    op = node.op_as(MatrixProduct)
    operands = []
    for value, swapped in zip((node.arg(0), node.arg(1)), op.transposed(), strict=True):
        while (inner := _swapped(value)) is not None:
            value, swapped = inner, not swapped
        operands.append((value, swapped))
    (a, trans_a), (b, trans_b) = operands
    return Operands(a, b, trans_a, trans_b)


def _swapped(value: Value) -> Value | None:
    """Returns the input of the Transpose that swapped the last two axes of a value, else None."""
    node = produced_by(value, "Transpose")
    if node is None or value.shape is None:
        return None
    rank = len(value.shape)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    return node.arg(0) if node.op_as(Transpose).order(rank) == swap else None
