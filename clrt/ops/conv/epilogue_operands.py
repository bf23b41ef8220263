"""Operands of the epilogue of a channels-first convolution."""

from __future__ import annotations

from clrt.ir.dims import Shape, provably_equal, same_shape
from clrt.ir.graph import Value
from clrt.kernels.gemm_problem import EpilogueOperand
from clrt.kernels.strided import broadcast_strides
from clrt.ops.pointwise.fused import symbolic_shape


def operand_of(value: Value, y: Value, rows: int) -> EpilogueOperand:
    """Returns a tensor that a convolution's epilogue reads, with its strides over the product.

    The strides are over images, groups and rows of the product.

    Args:
        value: Tensor that broadcasts to `y`.
        y: Output of the convolution.
        rows: Rows of the product, the output channels of a group.
    """
    shape, dims = symbolic_shape(value), value.dims
    symbolic = (*(1,) * (len(y.dims) - len(shape)), *shape)
    strides = broadcast_strides(dims, y.dims)
    per_column = not all(provably_equal(d, 1) for d in symbolic[2:])
    return EpilogueOperand(value, (strides[0], strides[1] * rows, strides[1]), per_column)


def epilogue_operand_fits(extra: Shape | None, out: Shape | None) -> bool:
    """Returns whether the kernels can read an epilogue operand of shape `extra` for a result `out`.

    The operand must be of size 1 or full size along the images, along the channels, and along all
    spatial axes together. Unknown ranks (None) do not fit.
    """
    if extra is None or out is None or len(extra) > len(out):
        return False
    full = (1,) * (len(out) - len(extra)) + extra
    if not all(
        provably_equal(e, 1) or provably_equal(e, o) for e, o in zip(full[:2], out[:2], strict=True)
    ):
        return False
    return all(provably_equal(e, 1) for e in full[2:]) or same_shape(full[2:], out[2:])
