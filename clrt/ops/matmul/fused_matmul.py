"""FusedMatMul: a matrix product with an elementwise epilogue in the same kernel."""

from __future__ import annotations

from clrt.ir.dtypes import HALVES, WIDENED_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.ops.base import Accuracy, Types
from clrt.ops.epilogue import EpilogueOp, fused_reference, fused_type
from clrt.ops.matmul.matmul import MatrixProduct, multiply
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass


@register
@dataclass(frozen=True)
class FusedMatMul(MatrixProduct, EpilogueOp):
    """The matrix product A B, followed by the epilogue `steps`.

    Inputs: A, B, then the extras, tensors that the epilogue reads. If A is float32, B may be a
    constant in float16 or bfloat16. The extras broadcast to the product and never widen it;
    `epilogue_operand_fits` tells which shapes the kernels support. The output is the result of the
    last step.

    Attributes:
        trans_a: 1 to swap the last two axes of A.
        trans_b: 1 to swap the last two axes of B.
        steps: Elementwise ops over the product (operand 0) and the extras (1, 2, …).
        a_dtype: 16-bit dtype of A in the model, to which kernels for many rows may round A; None if
            kernels must not round A.

    Source: clrt.
    """

    trans_a: int = 0
    trans_b: int = 0
    steps: tuple[ElementwiseInstruction, ...] = ()
    a_dtype: DType | None = None

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    half_weight_dtypes = HALVES
    input_traits = InputTraits(half_storage=(1,))
    num_fixed_inputs = 2
    # Only epilogue operands may be overwritten: the work-item that reads an element stores the
    # result there, whereas many work-items read an element of A or B.
    memory_traits = MemoryTraits(inplace_inputs=tuple(range(2, 64)))

    def transposed(self) -> tuple[bool, bool]:
        return bool(self.trans_a), bool(self.trans_b)

    def rounds_a(self) -> DType | None:
        return self.a_dtype

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        return self.steps

    def extras(self, node: Node) -> list[Value]:
        return [v for v in node.inputs[2:] if v is not None]

    def infer(self, inputs: Types) -> list[TensorType]:
        extras = [t for t in inputs[2:] if t is not None]
        return [fused_type(self, self.steps, self.product_type(inputs), extras)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b, *extras = inputs
        assert a is not None and b is not None
        return (fused_reference(self.steps, multiply(a, b, *self.transposed()), extras),)
