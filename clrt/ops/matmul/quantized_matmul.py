"""QuantizedMatMul: a matrix product with weights in quantized blocks of GGUF."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clrt.device import requires
from clrt.errors import ShapeError
from clrt.formats.gguf.block_type import BlockType
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels import gemm_variants
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.gemm_cpu import emit_cpu, packed_width
from clrt.kernels.gemm_gpu import GPU_TILES
from clrt.kernels.gemm_problem import MatrixOperand
from clrt.kernels.quantized_panels_cpu import in_half, rounded_rows
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.variant import Emit, Lowering, Variant, reject_but_float32
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.epilogue import fused_reference, fused_type
from clrt.ops.matmul.gguf_format import GgufFormat, check_rows, coding_of, quantised_type
from clrt.ops.matmul.matmul import multiply
from clrt.ops.matmul.quantized_product import (
    ROUNDED_BITS,
    QuantizedProduct,
    emit_panels,
    emit_rows,
    exact,
    product_of,
    rounded,
)
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass


def _emit_floats(emit: gemm_variants.EmitProduct, in_panels: bool) -> Emit:
    """Returns the emit function of QuantizedMatMul for a float GEMM kernel.

    B is dequantized to float32 at load.

    Args:
        emit: Emits the launches of a GEMM.
        in_panels: Whether the kernel reads B packed in panels of columns.
    """

    def emit_node(node: Node, ctx: Lowering) -> list[Launch]:
        op = node.op_as(QuantizedMatMul)
        matrix = op.weight_format(node)
        product = product_of(node, op.N, op.K, matrix.floats(None), (1, op.K))
        if in_panels:
            panels = BufferArg(matrix.floats(packed_width(product, ctx)))
            strides = (*product.b.strides[:-2], op.N, 1)
            product = replace(product, b=MatrixOperand(panels, strides, in_panels=True))
        return emit(product, ctx)

    return emit_node


@register
@dataclass(frozen=True)
class QuantizedMatMul(QuantizedProduct):
    """A times B^T with quantized rows of B, followed by the epilogue `steps`.

    Inputs: A float32 `[…, K]`; B, a constant uint8 `[N, bytes of a row]` of GGUF blocks; then the
    extras, tensors that `steps` read, as in FusedMatMul. Output: float32 `[…, N]`.

    Attributes:
        type: Name of the GGUF block type.
        K: Columns of A and of B, the summed axis.
        N: Rows of B, the columns of the result.
        a_bits: 8: rows of A are rounded to 8 bits with a scale per block of K, and the scales and
            minima of B to float16; 0: nothing is rounded.
        steps: Epilogue over the product (operand 0) and the extras (1, 2, …).

    Numerics: float32; if `a_bits` is 8, integers are multiplied and summed by block.

    Source: llama.cpp's mul_mat.
    """

    type: str = "Q8_0"
    K: int = 0
    N: int = 0
    a_bits: int = 0
    steps: tuple[ElementwiseInstruction, ...] = ()

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    input_traits = InputTraits(plan_time=(1,))
    num_fixed_inputs = 2
    # Epilogue operands may be overwritten, for the reason given at FusedMatMul.
    memory_traits = MemoryTraits(inplace_inputs=tuple(range(2, 64)))
    variants = (
        Variant("gemm_levels_cpu", emit_panels, rounded(gemm_variants.reject_levels), requires.CPU),
        Variant("gemm_cpu", _emit_floats(emit_cpu, True), exact(reject_but_float32), requires.CPU),
        Variant("gemm_gpu", emit_rows, exact(reject_but_float32), GPU_TILES),
        Variant(
            "gemm_any",
            _emit_floats(gemm_variants.emit_any, False),
            exact(reject_but_float32),
            speed=PlainEfficiency,
        ),
    )

    @property
    def block_type(self) -> BlockType:
        """Block type of B.

        Raises:
            ShapeError: GGUF has no quantized type named `type`.
        """
        return quantised_type(self.type, self)

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        return self.steps

    def extras(self, node: Node) -> list[Value]:
        return [v for v in node.inputs[2:] if v is not None]

    def product_type(self, inputs: Types) -> TensorType:
        a, b = need(inputs, 0, self), need(inputs, 1, self)
        check_rows(self, self.block_type, b, self.N, self.K)
        if self.a_bits not in (0, ROUNDED_BITS):
            raise ShapeError(f"{self.name}: a_bits {self.a_bits}; expected 0 or {ROUNDED_BITS}.")
        if a.shape is None:
            return TensorType(a.dtype, None)
        if a.dtype is not DType.FLOAT32 or not a.shape or provably_different(a.shape[-1], self.K):
            raise ShapeError(f"{self.name}: A is {a}; expected float32 […, {self.K}].")
        return TensorType(a.dtype, (*a.shape[:-1], self.N))

    def infer(self, inputs: Types) -> list[TensorType]:
        extras = [t for t in inputs[2:] if t is not None]
        return [fused_type(self, self.steps, self.product_type(inputs), extras)]

    def weight_format(self, node: Node) -> GgufFormat:
        return GgufFormat(self.block_type, self.N, self.K, node.arg(1))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, raw, *extras = inputs
        assert a is not None and raw is not None
        if self.a_bits:
            a = rounded_rows(a, coding_of(self.block_type).block)
            b = in_half(self.block_type.levels(raw))
        else:
            b = self.block_type.dequantise(raw)
        product = multiply(a, b, False, True)
        return (fused_reference(self.steps, product.astype(np.float32), extras),)
