"""MatMulInteger: a matrix product of 8-bit integers with zero points."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from clrt.device import requires
from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels import gemm_integer
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.gemm_int8_cpu import Int8Weights, emit_integers
from clrt.kernels.gemm_problem import GemmProblem
from clrt.kernels.quantize_launches import ScaleIndexing
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Types
from clrt.ops.checks import need
from clrt.ops.matmul.matmul import MatrixProduct, lower_product, product_shape
from clrt.ops.registry import register

BYTES = (DType.INT8, DType.UINT8)


def _zero_indexing(value: Value, zero: Value | None, *, per_row: bool) -> ScaleIndexing:
    """Returns which zero point applies to each element of a stack of matrices.

    A zero point applies to all elements, to one row or column of each matrix, or to one row or
    column of all matrices.

    Args:
        value: Stack of matrices, A or B.
        zero: Zero points; None if omitted.
        per_row: Whether zero points are per row (A), else per column (B).

    Raises:
        UnsupportedError: The zero points have another shape.
    """
    dims = value.dims
    if zero is None or prod(zero.dims) == 1:
        return ScaleIndexing(1, prod(dims), 1)
    if len(dims) < 2:
        raise UnsupportedError(f"zero points {zero.type} for {value.type}")
    outer, rows, columns = prod(dims[:-2]), dims[-2], dims[-1]
    count = rows if per_row else columns
    matrix = (rows, 1) if per_row else (1, columns)
    step = (1, 0) if per_row else (0, 1)
    if zero.dims in ((count,), matrix):
        return ScaleIndexing(outer, rows, columns, 1, (0, *step))
    if zero.dims == (*dims[:-2], *matrix):
        return ScaleIndexing(outer, rows, columns, 1, (count, *step))
    raise UnsupportedError(f"zero points {zero.type} for {value.type}")


def _lower(node: Node, ctx: Lowering, to: DType) -> tuple[list[Launch], GemmProblem]:
    """Emits the launches that compute A minus its zero points in dtype `to`.

    Args:
        to: Dtype of the difference.

    Returns:
        The launches, and the GEMM of the difference and the unchanged B.
    """
    zero = node.input(2)
    product = replace(lower_product(node), dtype=to)
    indexing = _zero_indexing(node.arg(0), zero, per_row=True)
    launches, a = gemm_integer.difference(node.arg(0), zero, indexing, to, ctx)
    return launches, replace(product, a=replace(product.a, buffer=a))


def _with_b(node: Node, product: GemmProblem, ctx: Lowering) -> tuple[list[Launch], GemmProblem]:
    """Emits the launches that compute B minus its zero points in the dtype of `product`.

    Returns:
        The launches, and `product` with the difference as B.
    """
    zero = node.input(3)
    indexing = _zero_indexing(node.arg(1), zero, per_row=False)
    launches, b = gemm_integer.difference(node.arg(1), zero, indexing, product.dtype, ctx)
    return launches, replace(product, b=replace(product.b, buffer=b))


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    if 0 in node.output.dims:
        return []
    launches, product = _lower(node, ctx, DType.FLOAT32)
    b, zero = node.arg(1), node.input(3)
    indexing = _zero_indexing(b, zero, per_row=False)
    panels = gemm_integer.constant_panels(b, zero, indexing, product, ctx)
    if panels is not None:
        view, kind = panels
        return [*launches, *gemm_integer.emit_cpu(replace(product, b=view), ctx, kind)]
    b_launches, product = _with_b(node, product, ctx)
    return [*launches, *b_launches, *gemm_integer.emit_cpu(product, ctx)]


def _emit_bytes(node: Node, ctx: Lowering) -> list[Launch]:
    k, n = node.arg(1).dims
    weights = Int8Weights(k, n, False, node.arg(1), node.input(3))
    return emit_integers(replace(lower_product(node), weights=weights), node.input(2), ctx)


def _reject_bytes(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the kernel of 8-bit integers does not apply; None if it does.

    The kernel needs the CPU's 8-bit dot products (its fallback in plain C runs on simulators only),
    a constant matrix B, constant zero points of B, and at most one zero point of A.
    """
    if VNNI_INT8 not in caps.matrix_shapes and not caps.simulator:
        return f"needs {VNNI_INT8}"
    b, a_zero, b_zeros = node.arg(1), node.input(2), node.input(3)
    if not (b.is_constant and b.has_numbers and len(b.dims) == 2 and b.dims[0]):
        return "for a constant matrix B"
    if a_zero is not None and prod(a_zero.dims) != 1:
        return "for one zero point of A"
    if b_zeros is not None and b_zeros.numbers is None:
        return "for constant zero points of B"
    return None


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    if 0 in node.output.dims:
        return []
    launches, product = _lower(node, ctx, DType.INT16)
    b_launches, product = _with_b(node, product, ctx)
    return [*launches, *b_launches, *gemm_integer.emit_any(product, ctx)]


@register
class MatMulInteger(MatrixProduct):
    """(A - zero points of A) times (B - zero points of B), in int32.

    Inputs: A and B of 8-bit integers, and optionally zero points of A and of B: scalars, or one per
    row of A (`[M]`, `[…, M, 1]` for M rows) and one per column of B (`[N]`, `[…, 1, N]` for N
    columns).

    Numerics: exact; sums wrap at 32 bits. Source: ONNX MatMulInteger, opset 10.
    """

    accuracy = Accuracy.EXACT
    variants = (
        Variant("gemm_bytes", _emit_bytes, _reject_bytes, requires.CPU),
        Variant("gemm_integer_cpu", _emit_cpu, requires=requires.CPU),
        Variant("gemm_integer_any", _emit_any, speed=PlainEfficiency),
    )

    def product_type(self, inputs: Types) -> TensorType:
        a, b = need(inputs, 0, self), need(inputs, 1, self)
        for t, zero in zip((a, b), (*inputs[2:], None, None), strict=False):
            if t.dtype not in BYTES or (zero is not None and zero.dtype is not t.dtype):
                raise ShapeError(
                    f"{self.name}: {t} with zero point {zero} is not a valid 8-bit operand."
                )
        return TensorType(DType.INT32, product_shape(a, b, self))

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b, a_zero, b_zero = (*inputs, None, None)[:4]
        assert a is not None and b is not None
        left, right = a.astype(np.int32), b.astype(np.int32)
        if a_zero is not None:
            rows = a_zero.ndim == 1 and a_zero.size > 1
            left = left - (a_zero[:, None] if rows else a_zero).astype(np.int32)
        if b_zero is not None:
            right = right - b_zero.astype(np.int32)
        if a_zero is not None and a.ndim == 1:
            left = left.reshape(a.shape)
        return (np.asarray(np.matmul(left, right), np.int32),)
