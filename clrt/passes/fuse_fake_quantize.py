"""QuantizeLinear and DequantizeLinear patterns -> RoundToScale and int8 RoundedMatMul."""

from __future__ import annotations

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, IrOp
from clrt.ops.matmul.gemm import Gemm
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.rounded_matmul import BYTES, MAX_DEPTH, RoundedMatMul
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.quantize_linear import DequantizeLinear, QuantizeLinear
from clrt.ops.pointwise.round_to_scale import RoundToScale
from clrt.ops.pointwise.table import Add
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.util.fast_dataclass import dataclass

# Range of scales s for which round(q * s / s) == q holds in float32 for every quantized value q.
_SCALES = (2.0**-100, 2.0**100)


class FuseFakeQuantize(Pass):
    """DequantizeLinear(QuantizeLinear(x)) with equal scales and zero points -> RoundToScale(x).

    RoundToScale is an elementwise op on floats, so it can be fused with neighboring nodes.
    """

    name = "fuse_rounding"
    required_op_classes = (QuantizeLinear, DequantizeLinear)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, DequantizeLinear)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        quantize = node.arg(0).producer
        if quantize is None or not isinstance(quantize.op, QuantizeLinear):
            return None
        x = _unquantized(node)
        return Miss(x, node) if isinstance(x, str) else Match(view, node, payload=x)

    def rewrite(self, match: Match) -> Patch:
        build, node, x = match.builder(self.name), match.root, match.payload
        op, scale = node.op_as(DequantizeLinear), node.arg(1).numbers
        assert isinstance(x, Value) and scale is not None
        numbers = (scale, *op.levels(node.arg(0).dtype, _zero_points(node)))
        operands = [build.constant(_broadcastable(np.asarray(n), op, x)) for n in numbers]
        return build.patch({node.output: build.add(RoundToScale(), x, *operands)})


class FuseRoundedMatmul(Pass):
    """MatMul or Gemm of DequantizeLinear(q) and DequantizeLinear(constant) -> RoundedMatMul.

    The kernel of RoundedMatMul quantizes its float32 input A. If q is QuantizeLinear(x) with the
    same scale and zero point, A is x. Otherwise A is DequantizeLinear(q), and quantizing it gives q
    again.
    """

    name = "fuse_rounded_matmul"
    required_op_classes = (DequantizeLinear,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (MatMul, Gemm))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        product = rounded_product(node)
        if product is None:
            return None
        return (
            Miss(product, node) if isinstance(product, str) else Match(view, node, payload=product)
        )

    def rewrite(self, match: Match) -> Patch:
        build, product, node = match.builder(self.name), match.payload, match.root
        assert isinstance(product, RoundedProduct)
        constants = [build.constant(a) for a in (product.scales, product.zeros)]
        y = build.add(product.op, product.a, product.b, *constants)
        bias = node.input(2)
        if bias is not None:
            y = build.add(Add(), y, bias)
        return build.patch({node.output: y})


@dataclass(frozen=True, eq=False)
class RoundedProduct:
    """RoundedMatMul op and its inputs except the bias.

    Attributes:
        op: The op.
        a: First operand, float32.
        b: Second operand, a constant of 8-bit integers.
        scales: Scales of `b`, `[N]`: one per column.
        zeros: Zero points of `b`, `[N]`.
    """

    op: RoundedMatMul
    a: Value
    b: Value
    scales: Array
    zeros: Array


def rounded_product(node: Node) -> RoundedProduct | str | None:
    """Matches MatMul or Gemm of two DequantizeLinear, the second of a constant.

    Returns:
        The RoundedMatMul and its inputs; a reject reason for a near miss; None for other nodes.
    """
    op = node.op
    if not isinstance(op, (MatMul, Gemm)):
        return None
    left, right = node.arg(0).producer, node.arg(1).producer
    transposed = isinstance(op, Gemm) and bool(op.transB)
    while right is not None and isinstance(right.op, Transpose) and right.output.type.rank == 2:
        if right.op.perm not in (None, (1, 0)):
            break
        right, transposed = right.arg(0).producer, not transposed
    for side in (left, right):
        if side is None or not isinstance(side.op, DequantizeLinear):
            return None
    assert left is not None and right is not None
    if not right.arg(0).is_constant or right.arg(0).numbers is None:
        return None
    if isinstance(op, Gemm) and (op.transA or (op.alpha, op.beta) != (1.0, 1.0)):
        return "A is transposed, or there are factors"
    a = node.arg(0)
    if a.dtype is not DType.FLOAT32 or a.type.rank is None or a.type.rank < 2:
        return f"A is {a.type}"
    return _int8_product(left, right, transposed)


def _int8_product(left: Node, right: Node, transposed: bool) -> RoundedProduct | str:
    """Builds the int8 product of two DequantizeLinear; returns a reject reason if unsupported.

    Args:
        left: DequantizeLinear of A.
        right: DequantizeLinear of the constant B.
        transposed: Whether the product reads B transposed.
    """
    level = _number(left.arg(1))
    zero = 0 if left.input(2) is None else _number(left.arg(2))
    if left.arg(0).dtype not in BYTES or level is None or zero is None:
        return "A has more than one scale, or a computed one, or is not of 8 bits"
    if not _SCALES[0] < level < _SCALES[1]:
        return f"the scale of A is {level}"
    b, scales = right.arg(0), right.arg(1).numbers
    if b.dtype not in BYTES or b.type.rank != 2 or right.output.dtype is not DType.FLOAT32:
        return f"B is {b.type}"
    if scales is None or scales.dtype != np.float32 or not right.arg(1).is_constant:
        return "the scales of B are computed, or no float32"
    if right.input(2) is not None and right.arg(2).numbers is None:
        return "the zero points of B are computed"
    k, n = (int(d) for d in (reversed(b.shape or ()) if transposed else b.shape or ()))
    op = right.op_as(DequantizeLinear)
    if scales.size > 1 and (op.block_size or op.axis % 2 != (0 if transposed else 1)):
        return "B has scales by block, or along K"
    if not 0 < k <= MAX_DEPTH or not n:
        return f"K is {k}; expected 1 to {MAX_DEPTH}"
    low, high = map(int, op.levels(left.arg(0).dtype, np.asarray(zero)))
    x = _unquantized(left)
    return RoundedProduct(
        RoundedMatMul(int(transposed), level, low, high),
        left.output if isinstance(x, str) else x,
        b,
        np.array(np.broadcast_to(scales.reshape(-1), (n,))),
        np.array(np.broadcast_to(_zero_points(right), (n,))),
    )


def _unquantized(node: Node) -> Value | str:
    """Returns x of DequantizeLinear(QuantizeLinear(x)) with equal scales and zero points.

    Args:
        node: A DequantizeLinear.

    Returns:
        The float32 value x; a reject reason if `node` does not have this form.
    """
    quantize, op = node.arg(0).producer, node.op_as(DequantizeLinear)
    if quantize is None or not isinstance(quantize.op, QuantizeLinear):
        return "its input is no output of QuantizeLinear"
    x, quantize_op = quantize.arg(0), quantize.op
    if node.arg(0).dtype.is_float or quantize_op.precision not in (None, DType.FLOAT32):
        return f"{node.arg(0).type} is not quantized in float32 to integers"
    if any(v.dtype is not DType.FLOAT32 for v in (x, quantize.arg(1), node.arg(1), node.output)):
        return f"{x.type} is not float32"
    scale, dequantize_scale = quantize.arg(1).numbers, node.arg(1).numbers
    is_known = all(
        v is None or (v.is_constant and v.numbers is not None)
        for n in (quantize, node)
        for v in (n.arg(1), n.input(2))
    )
    if (
        not is_known
        or scale is None
        or dequantize_scale is None
        or not np.array_equal(scale, dequantize_scale)
    ):
        return "scales differ, or are computed"
    if not np.array_equal(_zero_points(quantize), _zero_points(node)):
        return "zero points differ"
    rank = x.type.rank
    if scale.size > 1:
        if rank is None or quantize_op.block_size or op.block_size:
            return "it has scales by block, or no known rank"
        if quantize_op.axis % rank != op.axis % rank:
            return "scales lie along other axes"
    return x


def _broadcastable(parameter: Array, op: DequantizeLinear, x: Value) -> Array:
    """Reshapes scales or zero points, one or `[n]`, to broadcast against x along the op's axis."""
    if parameter.size == 1:
        return parameter.reshape(())
    rank = x.type.rank
    assert rank is not None
    axis = op.axis % rank
    return parameter.reshape([-1 if i == axis else 1 for i in range(rank)])


def _zero_points(node: Node) -> Array:
    """Returns zero points of QuantizeLinear or DequantizeLinear, `[]` or `[n]`; 0 if omitted."""
    value = node.input(2)
    if value is None:
        dtype = node.arg(0).dtype if isinstance(node.op, DequantizeLinear) else node.output.dtype
        return np.zeros((), dtype.numpy)
    assert value.numbers is not None
    return value.numbers.reshape(()) if value.numbers.size == 1 else value.numbers


def _number(value: Value) -> float | None:
    """Returns the element of a constant scalar or one-element vector; None for other values."""
    numbers = value.numbers if value.is_constant else None
    if numbers is None or numbers.size != 1 or numbers.ndim > 1:
        return None
    return float(numbers.reshape(()))
