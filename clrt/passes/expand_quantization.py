"""QuantizeLinear and DequantizeLinear beside elementwise nodes -> elementwise nodes."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.kernels.quantize_launches import bounds
from clrt.ops.matmul.matmul_integer import BYTES
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.quantize_linear import DequantizeLinear, Quantization, QuantizeLinear
from clrt.ops.pointwise.round_to_scale import RoundToScale
from clrt.ops.pointwise.table import Add, Div, Mul, Sub
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.matching import is_elementwise, scalar


class ExpandQuantization(Pass):
    """QuantizeLinear and DequantizeLinear of 8 bits -> elementwise nodes, to be fused with others.

    Only those beside elementwise nodes, with one constant scale and zero point. Results are equal
    to the bit.
    """

    name = "expand_quantization"
    follow_ups = (EliminateCommonSubexpressions(), FuseElementwise(), EliminateDead())

    def is_for(self, caps: DeviceCaps) -> bool:
        return caps.is_cpu

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Quantization)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        x, y, zero = node.arg(0), node.output, node.input(2)
        if isinstance(node.op, QuantizeLinear):
            floats, levels = x, y
            fuses = x.producer is not None and is_elementwise(x.producer)
        else:
            floats, levels = y, x
            fuses = any(is_elementwise(user) for user in view.users(y))
        if not fuses:
            return None
        precision = node.op.precision if isinstance(node.op, QuantizeLinear) else None
        if levels.dtype not in BYTES or precision not in (None, DType.FLOAT32):
            return Miss(f"it is between {x.type} and {y.type}", node)
        if any(v.dtype is not DType.FLOAT32 for v in (floats, node.arg(1))):
            return Miss(f"it is between {x.type} and {y.type}", node)
        if any(v is not None and not _is_scalar(v) for v in (node.arg(1), zero)):
            return Miss("there are several scales, or computed ones", node)
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        x, scale = node.arg(0), node.arg(1).numbers
        assert scale is not None
        factor = build.numbers(scale.reshape(()), DType.FLOAT32)
        zero = 0.0 if node.input(2) is None else scalar(node.arg(2))
        assert zero is not None
        shift = build.numbers(zero, DType.FLOAT32)
        if isinstance(node.op, DequantizeLinear):
            centered = build.add(Sub(), build.add(Cast(DType.FLOAT32), x), shift)
            return build.patch({node.output: build.add(Mul(), centered, factor)})
        to = node.output.dtype
        one, low, high = (
            build.numbers(n, DType.FLOAT32) for n in (1.0, *(b - zero for b in bounds(to)))
        )
        rounded = build.add(RoundToScale(), build.add(Div(), x, factor), one, low, high)
        return build.patch({node.output: build.add(Cast(to), build.add(Add(), rounded, shift))})


def _is_scalar(value: Value) -> bool:
    return scalar(value) is not None and len(value.shape or ()) < 2
