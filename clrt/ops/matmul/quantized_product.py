"""Matrix products with a quantized constant B: the base class of their ops, and their lowering."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from math import prod

from clrt.ir.graph import Node
from clrt.kernels.gemm_gpu import emit_gpu
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.gemm_variants import emit_levels_cpu
from clrt.kernels.quantized_weights import QuantizedWeights
from clrt.kernels.spec import Buffer, BufferArg, Launch
from clrt.kernels.strided import contiguous_strides
from clrt.kernels.variant import Lowering, RejectReason
from clrt.kernels.weight_format import WeightFormat
from clrt.ops.base import Types
from clrt.ops.checks import need
from clrt.ops.epilogue import EpilogueOp
from clrt.ops.matmul.matmul import MatrixProduct, epilogue_operand, make_epilogue
from clrt.ops.pointwise.fused import compute_type

ROUNDED_BITS = 8
"""Value of `a_bits` if kernels round A for 8-bit dot products."""


class QuantizedProduct(MatrixProduct, EpilogueOp):
    """Base class of products of A `[…, K]` with a quantized constant B, which is input 1.

    K is the summed axis.

    Attributes:
        N: Columns of the product.
        a_bits: `ROUNDED_BITS` if rows of A are rounded to 8 bits; else 0.
    """

    # Not fields: subclasses declare them, in the order of their ONNX attributes.
    N: int
    a_bits: int

    @abstractmethod
    def weight_format(self, node: Node) -> WeightFormat:
        """Returns the weight format of B of a node of this op."""

    def reject_rounding(self) -> str | None:
        """Returns why rows of A must not be rounded to 8 bits; None if they may be."""
        return None

    def with_rounding(self) -> QuantizedProduct:
        """Returns this op with rows of A rounded to 8 bits."""
        return replace(self, a_bits=ROUNDED_BITS)  # type: ignore[call-arg]

    def flops(self, inputs: Types, outputs: Types) -> int:
        a = need(inputs, 0, self).shape
        assert a is not None
        return 2 * prod(int(d) for d in a) * self.N


def format_of(node: Node) -> WeightFormat:
    """Returns the weight format of B of a `QuantizedProduct` node."""
    return node.op_as(QuantizedProduct).weight_format(node)


def product_of(
    node: Node,
    n: int,
    k: int,
    b: Buffer,
    strides: tuple[int, int],
    weights: QuantizedWeights | None = None,
) -> GemmProblem:
    """Lowers a product of A `[…, k]` and one matrix B, which is input 1, to a GEMM.

    Args:
        node: A node with a `MatrixProduct`.
        n: Columns of the product.
        k: Columns of A, the summed axis.
        b: Buffer of B.
        strides: Strides of B along k and along n, in elements.
        weights: B as kernels read it in place of `b`; None if they read `b`.

    Raises:
        UnsupportedError: Kernels do not support a step of the epilogue.
    """
    op, a, y = node.op_as(MatrixProduct), node.arg(0), node.output
    rows = a.dims[:-1] or (1,)
    full, missing = (*rows, n), (len(a.dims) == 1, False)
    operands = [epilogue_operand(value, y, full, missing) for value in op.extras(node)]
    left = MatrixOperand(BufferArg(a), contiguous_strides((*rows, k)))
    right = MatrixOperand(BufferArg(b), (*(0 for _ in rows[:-1]), *strides))
    program = make_epilogue(op.program(node.input_types), a.dtype, operands)
    return GemmProblem(
        y,
        a.dtype,
        rows[:-1],
        rows[-1],
        n,
        k,
        left,
        right,
        program,
        compute_type(a.dtype),
        weights=weights,
    )


def packed_product(node: Node, weights: QuantizedWeights) -> GemmProblem:
    """Lowers a product of A, input 0, and packed weights B, input 1, to a GEMM.

    Args:
        node: A node with a `MatrixProduct`; A may have any rank.
        weights: B as kernels read it.

    Raises:
        UnsupportedError: Kernels do not support a step of the epilogue.
    """
    return product_of(node, weights.n, weights.k, node.arg(1), (weights.n, 1), weights)


def panels_product(node: Node) -> GemmProblem:
    """Lowers a node with a `QuantizedProduct` to a GEMM of the int8 dot-product kernel of CPUs."""
    return packed_product(node, format_of(node).panels())


def emit_panels(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits the launches of the int8 dot-product kernel of CPUs for a `QuantizedProduct` node."""
    return emit_levels_cpu(panels_product(node), ctx)


def emit_rows(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits the launches of the GPU kernel, which unpacks B, for a `QuantizedProduct` node."""
    return emit_gpu(packed_product(node, format_of(node).rows()), ctx)


def rounded(reject: RejectReason) -> RejectReason:
    """Returns `reject`, extended to reject nodes whose A is not rounded to 8 bits."""
    return lambda node, caps: _other_bits(node, True) or reject(node, caps)


def exact(reject: RejectReason) -> RejectReason:
    """Returns `reject`, extended to reject nodes whose A is rounded to 8 bits."""
    return lambda node, caps: _other_bits(node, False) or reject(node, caps)


def _other_bits(node: Node, wanted: bool) -> str | None:
    is_rounded = bool(node.op_as(QuantizedProduct).a_bits)
    return None if is_rounded is wanted else f"for A {'' if wanted else 'not '}in 8 bits"
