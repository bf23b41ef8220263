"""ConvInteger, scaled and quantized -> ChannelsLastQuantizedConv."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import numpy as np

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, IrOp
from clrt.kernels.quantize_launches import bounds
from clrt.ops.base import Op
from clrt.ops.conv.channels_last import order_to_first, order_to_last
from clrt.ops.conv.conv import Convolution
from clrt.ops.conv.conv_integer import ConvInteger
from clrt.ops.conv.conv_quantized import ChannelsLastQuantizedConv
from clrt.ops.matmul.matmul_integer import BYTES
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.fused import Literal, steps_of
from clrt.ops.pointwise.quantize_linear import QuantizeLinear
from clrt.ops.pointwise.table import Add, Mul
from clrt.passes.channels_last import UseChannelsLast
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import is_elementwise, scalar

_RANKS = (3, 4, 5)


class _Requantized(NamedTuple):
    """A quantized convolution.

    Attributes:
        conv: The ConvInteger.
        bias: int32 `[O]`, added to the sums of the O output channels.
        factors: float32 `[O]`, by which the sums are multiplied.
    """

    conv: Node
    bias: Array
    factors: Array


class FuseRequantizedConv(Pass):
    """QuantizeLinear(float(ConvInteger(x, w) + bias) * factor) -> Transpose and quantized conv.

    w, zero points, bias and factors must be constant, the scale of QuantizeLinear 1.
    """

    name = "fuse_requantized_conv"
    required_op_classes = (ConvInteger, QuantizeLinear)
    follow_ups = UseChannelsLast.follow_ups

    def is_for(self, caps: DeviceCaps) -> bool:
        return caps.is_cpu and (VNNI_INT8 in caps.matrix_shapes or caps.simulator)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, QuantizeLinear)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        scaled = node.arg(0).producer
        if scaled is None or not is_elementwise(scaled):
            return None
        convs = [
            v.producer
            for v in scaled.inputs
            if v is not None and v.producer is not None and isinstance(v.producer.op, ConvInteger)
        ]
        if len(convs) != 1:
            return None
        found = _requantized(node, scaled, convs[0])
        if isinstance(found, str):
            return Miss(found, node)
        return Match(view, node, [convs[0], scaled, node], payload=found)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        conv, bias, factors = match.payload
        x, w = conv.arg(0), conv.arg(1)
        assert x.shape is not None
        rank, to = len(x.shape), node.output.dtype
        low, high = map(int, bounds(to))
        op = ChannelsLastQuantizedConv(
            **{f.name: getattr(conv.op, f.name) for f in fields(Convolution)},
            x_zero=_zero(conv.input(2)),
            y_zero=_zero(node.input(2)),
            low=low,
            high=high,
            to=to,
        )
        zeros = np.zeros(1, np.int32) if conv.input(3) is None else conv.arg(3).numbers
        assert zeros is not None
        columns = np.array(np.broadcast_to(zeros.astype(np.int32).reshape(-1), bias.shape))
        constants = [build.constant(a) for a in (columns, bias, factors)]
        image = build.add(Transpose(order_to_last(rank)), x)
        y = build.add(op, image, w, *constants)
        return build.patch({node.output: build.add(Transpose(order_to_first(rank)), y)})


def _zero(value: Value | None) -> int:
    """Returns the only zero point of a tensor, 0 if it is omitted."""
    number = 0.0 if value is None else scalar(value)
    assert number is not None
    return int(number)


def _requantized(node: Node, scaled: Node, conv: Node) -> _Requantized | str:
    """Returns a quantized convolution, or why it is none.

    Args:
        node: The QuantizeLinear.
        scaled: Elementwise node before it.
        conv: ConvInteger before that.
    """
    op, x, w = node.op_as(QuantizeLinear), conv.arg(0), conv.arg(1)
    quotient = op.quotient(scaled.output.dtype, node.arg(1).dtype)
    if node.output.dtype not in BYTES or quotient is not DType.FLOAT32:
        return f"it quantizes {quotient} to {node.output.dtype}"
    if scalar(node.arg(1)) != 1.0 or (node.input(2) is not None and scalar(node.arg(2)) is None):
        return "its scale is not 1, or its zero point is computed"
    if x.shape is None or len(x.shape) not in _RANKS or w.type.static_shape is None:
        return f"the image is {x.type}"
    if not w.has_numbers or 0 in w.type.static_shape:
        return "the weights are computed"
    if conv.input(2) is not None and scalar(conv.arg(2)) is None:
        return "the zero point of x is computed"
    if conv.input(3) is not None and not (conv.arg(3).is_constant and conv.arg(3).has_numbers):
        return "the zero points of w are computed"
    maps, rank = w.type.static_shape[0], len(x.shape)
    inputs = [v for v in scaled.inputs if v is not None]
    constants = {i: _by_channel(v, maps, rank) for i, v in enumerate(inputs)}
    bias: Array = np.zeros(maps, np.int32)
    factors, is_float, value = None, False, inputs.index(conv.output)
    for index, step in enumerate(steps_of(scaled.op_as(Op), len(inputs)), start=len(inputs)):
        if isinstance(step.op, Literal):
            constants[index] = np.full(maps, step.op.value, step.op.dtype.numpy)
            continue
        operand = next((constants.get(a) for a in step.args if a != value), None)
        if isinstance(step.op, Cast) and step.op.to is DType.FLOAT32 and not is_float:
            is_float = True
        elif operand is None or value not in step.args:
            return f"{step.op.name} has other operands"
        elif isinstance(step.op, Add) and not is_float:
            bias = bias + operand
        elif isinstance(step.op, Mul) and is_float and factors is None:
            factors = operand
        else:
            return f"{step.op.name} is no part of the pattern"
        value = index
    return "there are no factors" if factors is None else _Requantized(conv, bias, factors)


def _by_channel(value: Value, maps: int, rank: int) -> Array | None:
    """Returns a constant as `[maps]` if it broadcasts along the channels alone, else None."""
    numbers = value.numbers if value.is_constant else None
    if numbers is None or numbers.ndim > rank:
        return None
    shape = (1,) * (rank - numbers.ndim) + numbers.shape
    if shape[1] not in (1, maps) or any(d != 1 for d in (shape[0], *shape[2:])):
        return None
    return np.array(np.broadcast_to(numbers.reshape(-1), (maps,)))
