"""Per-channel scale and shift after a convolution -> folded into the weights and bias."""

from __future__ import annotations

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, IrOp
from clrt.ops.conv.scalable_weights import HasScalableWeights
from clrt.ops.norm.batch_normalization import BatchNormalization
from clrt.ops.pointwise.table import Add, Mul
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import keeps_shape, op_name, operand_orders

# Dtypes that are folded. In 16 bits, factors and folded weights would be rounded.
_DTYPES = (DType.FLOAT32, DType.FLOAT64)


class ExpandBatchNormalization(Pass):
    """BatchNormalization with constant statistics -> x * factor + shift.

    Later passes fold Mul and Add into a convolution before them, or fuse them with other nodes.

    Numerics: factor and shift are rounded once, from float64.
    """

    name = "expand_batch_normalization"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, BatchNormalization)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        x = node.arg(0)
        if x.shape is None or len(x.shape) < 2 or x.dtype not in _DTYPES:
            return Miss(f"its input is {x.type}", node)
        stats = [node.arg(i) for i in range(1, 5)]
        if any(v.dtype is not x.dtype or _numbers(v) is None for v in stats):
            return Miss(f"its statistics are not constants of {x.dtype}", node)
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        node, build = match.root, match.builder(self.name)
        x, *stats = (node.arg(i) for i in range(5))
        arrays = (_numbers(v) for v in stats)
        scale, bias, mean, variance = (a.astype(np.float64) for a in arrays if a is not None)
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(variance + node.op_as(BatchNormalization).epsilon)
            shift = bias - mean * factor
        assert x.shape is not None
        column = (-1, *(1,) * (len(x.shape) - 2))
        with np.errstate(all="ignore"):
            operands = [build.numbers(a.reshape(column), x.dtype) for a in (factor, shift)]
        scaled = build.add(Mul(), x, operands[0])
        return build.patch({node.output: build.add(Add(), scaled, operands[1])})


class FoldAffine(Pass):
    """Conv(x, w, bias) * a + b with per-channel constants -> Conv(x, w * a, bias * a + b).

    Mul and Add match separately, after a convolution of float32 or float64 whose output nothing
    else reads. Constant folding then computes the new weights and bias.
    """

    name = "fold_affine"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Add, Mul))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        for value, constant in operand_orders(node):
            conv = value.producer
            if conv is None or not isinstance(conv.op, HasScalableWeights):
                continue
            numbers = _by_channel(constant, value)
            if numbers is None or not keeps_shape(value, node.output):
                return None
            reason = _mismatch(view, conv, node)
            return (
                Miss(reason, node) if reason else Match(view, node, [conv, node], payload=numbers)
            )
        return None

    def rewrite(self, match: Match) -> Patch:
        (conv, node), build = match.replaced_nodes, match.builder(self.name)
        op, weights, bias = conv.op_as(HasScalableWeights), conv.arg(1), conv.input(2)
        assert weights.shape is not None
        numbers = build.numbers(match.payload, weights.dtype)
        if op_name(node) == "Add":
            bias = numbers if bias is None else build.add(Add(), bias, numbers)
        else:
            by_weight = op.factors(match.payload, tuple(int(d) for d in weights.shape))
            weights = build.add(Mul(), weights, build.numbers(by_weight, weights.dtype))
            bias = None if bias is None else build.add(Mul(), bias, numbers)
        return build.patch({node.output: build.add(op, conv.arg(0), weights, bias)})


def _numbers(value: Value) -> Array | None:
    return value.numbers if value.is_constant else None


def _mismatch(view: GraphView, conv: Node, node: Node) -> str | None:
    """Returns why a scale or shift cannot be folded into a convolution; None if it can.

    Args:
        view: Graph of both nodes.
        conv: The convolution.
        node: Mul (scale) or Add (shift) of the convolution's output with a constant.
    """
    weights, bias = conv.arg(1), conv.input(2)
    if view.only_user(conv.output) is not node:
        return f"the result '{conv.output.name}' is used elsewhere, too"
    if conv.output.dtype not in _DTYPES:
        return f"the weights are {conv.output.dtype}, which would round them"
    if bias is not None and _numbers(bias) is None:
        return "the bias is computed"
    if op_name(node) == "Add":
        return None
    if _numbers(weights) is None:
        return "the weights are computed"
    if view.user_count(weights) > 1:
        return "the weights are used elsewhere, too"
    if not view.budget.has(0, 2 * weights.nbytes):
        return "the budget of constant folding is used up"
    return None


def _by_channel(constant: Value, y: Value) -> Array | None:
    """Returns a constant as one number per channel of y, `[channels]`.

    Returns None if `constant` is computed or varies along another axis than channels (axis 1), or
    if y has no spatial axes.
    """
    numbers = _numbers(constant)
    if numbers is None or y.shape is None or len(y.shape) < 3 or numbers.ndim > len(y.shape):
        return None
    full = numbers.reshape(*(1,) * (len(y.shape) - numbers.ndim), *numbers.shape)
    channels = y.shape[1]
    if not isinstance(channels, int) or full.size != full.shape[1]:
        return None
    return np.broadcast_to(full.reshape(-1), (channels,)) if full.size in (1, channels) else None
