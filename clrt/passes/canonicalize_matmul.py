"""MatMul and Gemm -> FusedMatMul, with transpositions, factors and the bias inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clrt.ir.graph import Node, Patch, Value
from clrt.ops.fused import Literal
from clrt.ops.fused_matmul import FusedMatMul, epilogue_operand_fits
from clrt.ops.pointwise import Add, Mul
from clrt.ops.transpose import Transpose
from clrt.passes.driver import GraphView, Match, Miss, Pass, Rewriter
from clrt.passes.matching import int_attribute, op_name, produced_by
from clrt.passes.programs import ProgramBuilder


@dataclass(frozen=True)
class MatrixProduct:
    """The operands of a product and whether their last two axes are swapped first."""

    a: Value
    b: Value
    trans_a: bool
    trans_b: bool


class CanonicalizeMatmul(Pass):
    """MatMul(a, Transpose(b)) -> FusedMatMul(a, b) with trans_b; Gemm's alpha, beta, C as steps.

    A transposed weight is thus never copied; its kernel packs it as it is.
    """

    name = "canonicalize_matmul"

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
        if bias is not None and not epilogue_operand_fits(bias.shape, node.output.shape):
            return Miss(f"its C {bias.type} differs by row, which no epilogue reads", node)
        product = strip_transposes(node)
        if kind == "clrt.FusedMatMul" and product.a is a and product.b is b:
            return None
        return Match(view, node, facts=product)

    def rewrite(self, match: Match) -> Patch:
        product, node, rewriter = match.facts, match.root, Rewriter(match, self.name)
        assert isinstance(product, MatrixProduct)
        extras: list[Value] = []
        if isinstance(node.op, FusedMatMul):
            steps, extras = node.op.steps, [v for v in node.inputs[2:] if v is not None]
        elif op_name(node) == "Gemm":
            builder = _gemm_program(rewriter, node)
            steps, extras = builder.build(), builder.inputs[1:]
        else:
            steps = ()
        op = FusedMatMul(int(product.trans_a), int(product.trans_b), steps)
        value = rewriter.add(op, product.a, product.b, *extras)
        return rewriter.patch({node.output: value})


def strip_transposes(node: Node) -> MatrixProduct:
    """The operands of a MatMul, Gemm or FusedMatMul before their last two axes are swapped."""
    is_gemm = op_name(node) == "Gemm"
    names = ("transA", "transB") if is_gemm else ("trans_a", "trans_b")
    operands = []
    for value, name in zip((node.arg(0), node.arg(1)), names, strict=True):
        swapped = bool(int_attribute(node.op, name, 0))
        while (inner := _swapped(value)) is not None:
            value, swapped = inner, not swapped
        operands.append((value, swapped))
    (a, trans_a), (b, trans_b) = operands
    return MatrixProduct(a, b, trans_a, trans_b)


def _swapped(value: Value) -> Value | None:
    """x where a value is x with its last two axes swapped."""
    node = produced_by(value, "Transpose")
    if node is None or value.shape is None:
        return None
    assert isinstance(node.op, Transpose)
    rank = len(value.shape)
    swap = (*range(rank - 2), rank - 1, rank - 2)
    return node.arg(0) if node.op.order(rank) == swap else None


def _gemm_program(rewriter: Rewriter, node: Node) -> ProgramBuilder:
    """alpha * product + beta * C over the product as operand 0."""
    dtype = node.output.dtype
    alpha = float(getattr(node.op, "alpha", 1.0))
    beta = float(getattr(node.op, "beta", 1.0))
    builder = ProgramBuilder([node.output])
    result = builder.operand(node.output)
    if alpha != 1.0:
        result = builder.step(Mul(), result, builder.step(Literal(alpha, dtype)))
    bias = node.input(2)
    if bias is None or beta == 0.0:
        return builder
    if beta != 1.0 and bias.is_constant and bias.numbers is not None:
        scaled = np.asarray(bias.numbers * np.asarray(beta, bias.dtype.numpy), bias.dtype.numpy)
        bias, beta = rewriter.constant(scaled), 1.0
    term = builder.operand(bias)
    if beta != 1.0:
        term = builder.step(Mul(), term, builder.step(Literal(beta, dtype)))
    builder.step(Add(), result, term)
    return builder
