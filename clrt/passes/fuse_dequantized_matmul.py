"""MatMul with a dequantized constant -> MatMulNBits, which reads the quantized weight."""

from __future__ import annotations

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, IrOp
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.ops.pointwise.quantize_linear import DequantizeLinear
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.util.fast_dataclass import dataclass

# Added to quantized values to make them unsigned, as MatMulNBits stores them.
_OFFSETS = {DType.INT4: 8, DType.UINT4: 0, DType.INT8: 128, DType.UINT8: 0}


@dataclass(frozen=True)
class _Weight:
    """MatMulNBits op and its constant inputs.

    Attributes:
        op: The op.
        levels: Packed levels of B.
        scales: Scales, `[N, blocks]`: one per column of B and block of the summed axis.
        zeros: Zero points, `[N, blocks]`.
    """

    op: MatMulNBits
    levels: Array
    scales: Array
    zeros: Array


class FuseDequantizedMatmul(Pass):
    """A @ DequantizeLinear(constant of 4 or 8 bits) -> MatMulNBits.

    Before this pass, constant folding turns 8-bit weights into floats if the floats have at most
    16 MiB. All other weights stay quantized on the device.
    """

    name = "fuse_dequantized_matmul"
    required_op_classes = (DequantizeLinear,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, MatMul)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        weight = node.arg(1).producer
        if weight is None or not isinstance(weight.op, DequantizeLinear):
            return None
        if weight.arg(0).numbers is None or not weight.arg(0).is_constant:
            return None
        operands = _weight(weight)
        if isinstance(operands, str):
            return Miss(operands, node)
        shape = node.arg(0).shape
        if shape is None or len(shape) < 2 or weight.output.dtype is not node.arg(0).dtype:
            return Miss("A is a vector, or of another dtype", node)
        return Match(view, node, payload=operands)

    def rewrite(self, match: Match) -> Patch:
        build, operands = match.builder(self.name), match.payload
        assert isinstance(operands, _Weight)
        constants = [build.constant(a) for a in (operands.levels, operands.scales, operands.zeros)]
        y = build.add(operands.op, match.root.arg(0), *constants)
        return build.patch({match.root.output: y})


def _weight(node: Node) -> _Weight | str:
    """Converts DequantizeLinear of a constant matrix to a MatMulNBits.

    Returns:
        The op with its inputs; a reject reason if MatMulNBits does not support the weight.
    """
    value, scale, zero = node.arg(0), node.arg(1), node.input(2)
    op = node.op_as(DequantizeLinear)
    assert value.numbers is not None
    if value.dtype not in _OFFSETS or value.numbers.ndim != 2:
        return f"a weight {value.type}"
    if scale.numbers is None or (zero is not None and zero.numbers is None):
        return "its scales or zero points are computed"
    (k, n), bits = value.numbers.shape, 4 if value.dtype.file_bits == 4 else 8
    axis = op.axis % 2
    if op.block_size and axis == 1:
        return "its blocks are along N"
    if not op.block_size and axis == 0 and scale.numbers.size > 1:
        return "it has a scale per row"
    block = op.block_size or k
    if block * bits % 8 or not k or not n:
        return f"blocks of {block} are not whole bytes"
    blocks, offset = -(-k // block), _OFFSETS[value.dtype]
    levels = value.numbers.astype(np.int16) + np.int16(offset)
    product = MatMulNBits(k, n, bits, block)
    return _Weight(
        product,
        product.packed(levels.T.astype(np.uint8)),
        _by_column(scale.numbers, blocks, n),
        _zeros(zero, offset, blocks, n, node.output.dtype),
    )


def _by_column(parameter: Array, blocks: int, n: int) -> Array:
    """Broadcasts scales or zero points of DequantizeLinear to `[n, blocks]`, as in MatMulNBits.

    Args:
        parameter: Scales or zero points, `[]`, `[n]` or `[blocks, n]`.
        blocks: Number of blocks per column.
        n: Number of columns of the weight.
    """
    whole = np.broadcast_to(
        parameter.reshape(-1, n) if parameter.size > 1 else parameter, (blocks, n)
    )
    return np.ascontiguousarray(whole.T)


def _zeros(zero: Value | None, offset: int, blocks: int, n: int, dtype: DType) -> Array:
    """Returns zero points of DequantizeLinear as MatMulNBits reads them, `[N, blocks]` floats.

    Args:
        zero: Zero points of the weight; None for 0.
        offset: Number added to quantized values and zero points, so that they are unsigned.
        blocks: Number of blocks along K, the summed axis.
        n: Number of columns N.
        dtype: Float dtype of the result, which represents the zero points exactly.
    """
    numbers = np.zeros(()) if zero is None or zero.numbers is None else zero.numbers
    return _by_column(numbers.astype(np.float32) + offset, blocks, n).astype(dtype.numpy)
