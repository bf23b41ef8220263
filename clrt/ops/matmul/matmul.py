"""MatMul, and the base class, shape rule, reference and lowering of all matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dims import Dim, Shape, product, provably_different, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels import gemm_variants
from clrt.kernels.gemm_problem import Epilogue, EpilogueOperand, GemmProblem, MatrixOperand
from clrt.kernels.spec import BufferArg
from clrt.kernels.strided import broadcast_strides
from clrt.kernels.variant import Emit
from clrt.ops.base import Op, Types
from clrt.ops.checks import broadcast_shapes, need
from clrt.ops.gradients.shapes import known_shape, sum_to, swapped
from clrt.ops.pointwise.fused import can_vectorise, compute_type, render, symbolic_shape
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _lowered(emit: gemm_variants.EmitProduct) -> Emit:
    return lambda node, ctx: emit(lower_product(node), ctx)


@dataclass(frozen=True)
class MatrixProduct(Op):
    """Base class of ops that compute a (batched) matrix product and an elementwise epilogue.

    Class attributes:
        half_weight_dtypes: 16-bit dtypes that B may have instead of float32 if A is float32.
    """

    half_weight_dtypes: ClassVar[frozenset[DType]] = frozenset()
    variants = (gemm_variants.unit_variant(_lowered), *gemm_variants.variants(_lowered))

    def transposed(self) -> tuple[bool, bool]:
        """Returns whether the product swaps the last two axes of A, and of B."""
        return False, False

    def rounds_a(self) -> DType | None:
        """Returns the 16-bit dtype to which kernels may round A; None if they must not round A."""
        return None

    def program(self, inputs: Types) -> tuple[ElementwiseInstruction, ...]:
        """Returns the epilogue: steps over the product (operand 0) and the `extras` (1, 2, …).

        Args:
            inputs: Types of the node's inputs.

        Returns:
            The steps; () if the product is the output.
        """
        return ()

    def extras(self, node: Node) -> list[Value]:
        """Returns the inputs of a node that the epilogue reads besides A and B; [] if none."""
        return []

    def product_type(self, inputs: Types) -> TensorType:
        """Returns the type of the product before the epilogue.

        Raises:
            ShapeError: The shapes or dtypes of A and B do not fit each other.
        """
        a, b = need(inputs, 0, self), need(inputs, 1, self)
        if a.dtype is not b.dtype and not (
            a.dtype is DType.FLOAT32 and b.dtype in self.half_weight_dtypes
        ):
            raise ShapeError(f"{self.name}: operands must have one dtype; they are {a}, {b}.")
        return TensorType(a.dtype, product_shape(a, b, self, *self.transposed()))

    def infer(self, inputs: Types) -> list[TensorType]:
        return [self.product_type(inputs)]

    def flops(self, inputs: Types, outputs: Types) -> int:
        a, b = need(inputs, 0, self).shape, need(inputs, 1, self).shape
        product = self.product_type(inputs).shape
        assert a is not None and b is not None and product is not None
        depth = a[-2] if self.transposed()[0] and len(a) > 1 else a[-1]
        return 2 * int(depth) * prod(int(d) for d in product)


def product_shape(
    a: TensorType, b: TensorType, op: Op, trans_a: bool = False, trans_b: bool = False
) -> Shape | None:
    """Returns the shape of A B by the rules of NumPy's matmul; None if a rank is unknown.

    Args:
        a: Type of A.
        b: Type of B.
        op: Op, named in the message.
        trans_a: Whether the last two axes of A are swapped first.
        trans_b: Whether the last two axes of B are swapped first.

    Raises:
        ShapeError: A rank is 0, the inner dims differ, or the batch dims do not broadcast.
    """
    if a.shape is None or b.shape is None:
        return None
    if not a.shape or not b.shape:
        raise ShapeError(f"{op.name}: a product needs at least rank 1; operands are {a} and {b}.")
    left, right = _swap(a.shape, trans_a), _swap(b.shape, trans_b)
    inner = right[-2] if len(right) > 1 else right[0]
    if provably_different(left[-1], inner):
        raise ShapeError(f"{op.name}: inner dims {left[-1]} and {inner} differ ({a} times {b}).")
    batch = broadcast_shapes([left[:-2], right[:-2]], op)
    assert batch is not None
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else ()
    return (*batch, *rows, *columns)


def _swap(shape: Shape, swap: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if swap and len(shape) > 1 else shape


def multiply(a: Array, b: Array, trans_a: bool = False, trans_b: bool = False) -> Array:
    """Multiplies A and B by NumPy's matmul, floats in float64; the result has the dtype of A.

    Args:
        a: A.
        b: B.
        trans_a: Whether the last two axes of A are swapped first.
        trans_b: Whether the last two axes of B are swapped first.
    """
    left = a.swapaxes(-1, -2) if trans_a and a.ndim > 1 else a
    right = b.swapaxes(-1, -2) if trans_b and b.ndim > 1 else b
    if a.dtype.kind == "f":
        left, right = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(left, right)).astype(a.dtype)


def make_epilogue(
    steps: tuple[ElementwiseInstruction, ...],
    product: DType,
    operands: Sequence[EpilogueOperand],
) -> Epilogue:
    """Renders an elementwise program as the epilogue of a GEMM in OpenCL C.

    Args:
        steps: Program over the product (operand 0) and `operands` (1, 2, …).
        product: Dtype of the product.
        operands: Tensors that the steps read besides the product.

    Raises:
        UnsupportedError: Kernels do not support a step.
    """
    dtypes = [product, *(o.value.dtype for o in operands)]
    program = render(steps, dtypes)
    if isinstance(program, str):
        raise UnsupportedError(program)
    kinds = tuple(compute_type(o.value.dtype) for o in operands)
    vectorises = can_vectorise(steps, dtypes)
    return Epilogue(
        tuple(operands), kinds, program.numbers, program.body, program.result, vectorises
    )


def lower_product(node: Node) -> GemmProblem:
    """Lowers a matrix product node of static shapes to a GEMM.

    Raises:
        UnsupportedError: Kernels do not support a step of the epilogue, or one of its operands
            does not broadcast to the product.
    """
    op, a, b = node.op_as(MatrixProduct), node.arg(0), node.arg(1)
    trans_a, trans_b = op.transposed()
    left, right = _as_matrix(a.dims, False), _as_matrix(b.dims, True)
    batch = cast("tuple[int, ...]", broadcast_shapes((left[:-2], right[:-2]), op))
    a_strides = _with_batch(left, batch, swap=trans_a and len(a.dims) > 1)
    b_strides = _with_batch(right, batch, swap=trans_b and len(b.dims) > 1)
    m, k = _swapped(left, trans_a and len(a.dims) > 1)
    _, n = _swapped(right, trans_b and len(b.dims) > 1)
    missing = (len(a.dims) == 1, len(b.dims) == 1)
    full = (*batch, m, n)
    operands = [epilogue_operand(value, node.output, full, missing) for value in op.extras(node)]
    epilogue = make_epilogue(op.program(node.input_types), a.dtype, operands)
    return GemmProblem(
        node.output,
        a.dtype,
        batch,
        m,
        n,
        k,
        MatrixOperand(BufferArg(a), a_strides),
        MatrixOperand(BufferArg(b), b_strides),
        epilogue,
        compute_type(a.dtype),
        a_dtype=op.rounds_a(),
        b_dtype=b.dtype if b.dtype in op.half_weight_dtypes else None,
    )


def _as_matrix(dims: tuple[int, ...], is_column: bool) -> tuple[int, ...]:
    if len(dims) > 1:
        return dims
    return (*dims, 1) if is_column else (1, *dims)


def _swapped(dims: tuple[int, ...], swap: bool) -> tuple[int, int]:
    return (dims[-1], dims[-2]) if swap else (dims[-2], dims[-1])


def _with_batch(dims: tuple[int, ...], batch: tuple[int, ...], *, swap: bool) -> tuple[int, ...]:
    """Returns the strides of A or B over the GEMM's batch axes, rows and columns, in elements.

    Strides are 0 for axes of size 1 that broadcast.

    Args:
        dims: Shape of the operand, rank 2 or more.
        batch: Sizes of the product's batch axes; the operand's batch axes broadcast to them.
        swap: Whether the last two axes are swapped.
    """
    strides = broadcast_strides(dims, (*batch, *dims[-2:]))
    rows, columns = strides[-2:]
    return (*strides[:-2], columns, rows) if swap else strides


def epilogue_operand(
    value: Value, y: Value, full: tuple[int, ...], missing: tuple[bool, bool]
) -> EpilogueOperand:
    """Returns a tensor that the epilogue reads, with its strides over the product.

    Args:
        value: Tensor that broadcasts to `y`.
        y: Output of the product node.
        full: Sizes of the batch axes, rows and columns of the product.
        missing: Whether `y` lacks the axis of rows (A is a vector), and the axis of columns (B is
            a vector).

    Raises:
        UnsupportedError: The tensor does not broadcast to the product.
    """
    dims, symbolic = (_pad(s, y, missing) for s in (value.dims, symbolic_shape(value)))
    target = _pad(symbolic_shape(y), y, missing)
    numbers = cast("tuple[int, ...]", dims)
    fits = len(dims) == len(full) and all(
        d in (1, goal) for d, goal in zip(numbers, full, strict=True)
    )
    if not fits:
        raise UnsupportedError(
            f"operand '{value.name}' {value.type} does not fit the product {list(full)}"
        )
    # Symbolic shapes decide if they can, so that all input shapes share one kernel.
    if provably_equal(symbolic[-1], 1):
        per_column = False
    elif provably_equal(symbolic[-1], target[-1]):
        per_column = True
    else:
        per_column = numbers[-1] != 1
    strides = broadcast_strides(numbers, full)
    return EpilogueOperand(value, strides[:-1], per_column)


def _pad(shape: Shape, y: Value, missing: tuple[bool, bool]) -> tuple[Dim, ...]:
    """Pads a shape with leading 1s to the rank of `y`, and inserts 1 for missing matrix axes.

    Args:
        shape: Shape that broadcasts to `y`.
        y: Output of the product node.
        missing: Whether `y` lacks the axis of rows, and the axis of columns.
    """
    padded: list[Dim] = [*(1,) * (len(y.dims) - len(shape)), *shape]
    no_rows, no_columns = missing
    if no_columns:
        padded.append(1)
    if no_rows:
        padded.insert(len(padded) - 1, 1)
    return tuple(padded)


@register
class MatMul(MatrixProduct):
    """NumPy's matmul: a product of vectors, matrices, or stacks of matrices that broadcast.

    Numerics: float32 and float16 accumulate in float32, float64 in float64, integers wrap.
    Source: ONNX MatMul, opset 1 to 13.
    """

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = inputs
        assert a is not None and b is not None
        return (multiply(a, b),)

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        left, right, cotangent = node.arg(0), node.arg(1), cotangents[0]
        assert cotangent is not None
        a, c = left, right
        if len(known_shape(left)) == 1:
            row = -2 if len(known_shape(right)) > 1 else 0
            a, cotangent = b("Unsqueeze", a, b.ints(0)), b("Unsqueeze", cotangent, b.ints(row))
        if len(known_shape(right)) == 1:
            c, cotangent = b("Unsqueeze", c, b.ints(1)), b("Unsqueeze", cotangent, b.ints(-1))
        by_left = b("MatMul", cotangent, swapped(b, c))
        if len(known_shape(c)) == 2 and len(known_shape(a)) > 2:
            a, cotangent = (_rows(b, v) for v in (a, cotangent))  # one product for the whole batch
        by_right = b("MatMul", swapped(b, a), cotangent)
        matrices = (by_left, left), (by_right, right)
        return [_as_operand(b, gradient, operand) for gradient, operand in matrices]


def _rows(b: OpBuilder, value: Value) -> Value:
    """Returns a stack of matrices as one matrix of all their rows."""
    *rows, width = known_shape(value)
    return b.reshaped(value, product(rows), width)


def _as_operand(b: OpBuilder, gradient: Value, operand: Value) -> Value:
    """Sums a cotangent over the batch axes along which a product's operand was broadcast.

    Args:
        gradient: Cotangent of the operand as a stack of matrices.
        operand: The operand, which may be a vector.
    """
    shape = known_shape(operand)
    if len(shape) > 1:
        return sum_to(b, gradient, operand)
    lead = len(known_shape(gradient)) - 2
    if lead:
        gradient = b("ReduceSum", gradient, b.ints(*range(lead)), keepdims=0)
    return b.reshaped(gradient, *shape)
