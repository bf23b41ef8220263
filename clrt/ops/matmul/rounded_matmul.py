"""RoundedMatMul: a matrix product of A, quantized by a constant scale, with 8-bit weights."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels.gemm_int8_cpu import ScaledInt8Weights, emit_bytes
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, Variant, reject_but_float32
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.epilogue import EpilogueOp, fused_reference, fused_type
from clrt.ops.matmul.matmul import MatrixProduct
from clrt.ops.matmul.quantized_product import packed_product
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass

BYTES = (DType.INT8, DType.UINT8)
MAX_DEPTH = 1 << 15
"""Maximum K: products of 8-bit integers are summed in 32 bits."""
# Number of integers that 8 bits represent, the maximum span of the quantized values of A.
_MAX_LEVELS = 256


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    op = node.op_as(RoundedMatMul)
    k, n = op.matrix(node.input_types)
    levels, scales, zeros = (node.arg(i) for i in (1, 2, 3))
    weights = ScaledInt8Weights(
        k, n, bool(op.trans_b), levels, zeros, scales, op.scale, op.low, op.high
    )
    return emit_bytes(packed_product(node, weights), ctx)


@register
@dataclass(frozen=True)
class RoundedMatMul(MatrixProduct, EpilogueOp):
    """Product of A, rounded to multiples of `scale`, and dequantized B, then the epilogue `steps`.

    Inputs: A float32 `[…, K]`; B, a constant int8 or uint8 `[K, N]`; constant float32 scales `[N]`
    and zero points `[N]` of B's dtype; then the extras, tensors that `steps` read, as in
    FusedMatMul. Output: float32 `[…, N]`. K is the summed axis, N the columns of B.

    Attributes:
        trans_b: 1 if B is `[N, K]`.
        scale: Step of the rounding of A.
        low: Minimum of A / scale, to which smaller quotients are clamped (as RoundToScale does).
        high: Maximum of A / scale.
        steps: Epilogue over the product (operand 0) and the extras (1, 2, …).

    Numerics: integers are multiplied and summed exactly, then scaled in float32.

    Source: clrt.
    """

    trans_b: int = 0
    scale: float = 1.0
    low: int = -128
    high: int = 127
    steps: tuple[ElementwiseInstruction, ...] = ()

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    input_traits = InputTraits(plan_time=(1, 2, 3))
    num_fixed_inputs = 4
    # Epilogue operands may be overwritten, for the reason given at FusedMatMul.
    memory_traits = MemoryTraits(inplace_inputs=tuple(range(4, 64)))
    variants = (Variant("gemm_bytes", _emit, reject_but_float32),)

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        return self.steps

    def extras(self, node: Node) -> list[Value]:
        return [v for v in node.inputs[4:] if v is not None]

    def matrix(self, inputs: Types) -> tuple[int, int]:
        """Returns K, the rows of the constant B, and N, its columns, in that order.

        Raises:
            ShapeError: B is not 8-bit or too large, its scales or zero points do not fit B, or the
                range of A exceeds 8 bits.
        """
        b, scales, zeros = (need(inputs, i, self) for i in (1, 2, 3))
        if b.dtype not in BYTES or b.rank != 2 or not b.is_static:
            raise ShapeError(f"{self.name}: B is {b}; expected 8-bit integers [K, N].")
        assert b.shape is not None
        k, n = (int(d) for d in (reversed(b.shape) if self.trans_b else b.shape))
        if not 0 < k <= MAX_DEPTH:
            raise ShapeError(f"{self.name}: B is {b}; expected K from 1 to {MAX_DEPTH}.")
        dtypes = (scales.dtype, zeros.dtype)
        if dtypes != (DType.FLOAT32, b.dtype) or not scales.shape == zeros.shape == (n,):
            raise ShapeError(
                f"{self.name}: scales {scales} and zero points {zeros} do not match B {b}."
            )
        if not -_MAX_LEVELS < self.low <= self.high < self.low + _MAX_LEVELS:
            raise ShapeError(f"{self.name}: levels {self.low} to {self.high} are not of 8 bits.")
        return k, n

    def product_type(self, inputs: Types) -> TensorType:
        a = need(inputs, 0, self)
        k, n = self.matrix(inputs)
        if a.shape is None:
            return TensorType(a.dtype, None)
        if a.dtype is not DType.FLOAT32 or not a.shape or provably_different(a.shape[-1], k):
            raise ShapeError(f"{self.name}: A is {a}; expected float32 […, {k}].")
        return TensorType(a.dtype, (*a.shape[:-1], n))

    def infer(self, inputs: Types) -> list[TensorType]:
        extras = [t for t in inputs[4:] if t is not None]
        return [fused_type(self, self.steps, self.product_type(inputs), extras)]

    def flops(self, inputs: Types, outputs: Types) -> int:
        a = need(inputs, 0, self).shape
        assert a is not None
        return 2 * prod(int(d) for d in a) * self.matrix(inputs)[1]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b, scales, zeros, *extras = inputs
        assert a is not None and b is not None and scales is not None and zeros is not None
        scale = np.float32(self.scale)
        with np.errstate(all="ignore"):
            levels = np.rint(np.fmin(np.fmax(a / scale, self.low), self.high))
        wide = (b.T if self.trans_b else b).astype(np.int64) - zeros.astype(np.int64)
        sums = np.matmul(levels.astype(np.int64), wide).astype(np.float32)
        with np.errstate(over="ignore"):
            product = sums * (scales * scale)
        return (fused_reference(self.steps, product, extras),)
