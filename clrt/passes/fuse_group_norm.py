"""InstanceNormalization of groups of channels, as PyTorch exports it -> GroupNormalization."""

from __future__ import annotations

import numpy as np

from clrt.ir.dims import provably_equal
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ir.pattern import Captures, any_value, op
from clrt.ops.movement.views import Reshape
from clrt.ops.norm.group_normalization import GroupNormalization
from clrt.ops.norm.instance_normalization import InstanceNormalization
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import keeps_shape, op_name, operand_orders, uniform
from clrt.util.fast_dataclass import dataclass

_GROUPS = op(Reshape, any_value("x"), ...)
_NORM = op(InstanceNormalization, _GROUPS, any_value("ones"), any_value("zeros"))
_PATTERN = op(Reshape, _NORM, ...)


@dataclass
class _GroupNorm:
    """Matched normalization: x, number of groups, and scale and bias per channel, or None."""

    x: Value
    groups: int
    epsilon: float
    scale: Value | None = None
    bias: Value | None = None


class FuseGroupNorm(Pass):
    """Reshape, InstanceNormalization, Reshape, Mul, Add -> GroupNormalization.

    The first Reshape joins the elements of each group: `[batch, groups, …]`. Mul and Add, with
    constants per channel, are optional.
    """

    name = "fuse_group_norm"
    required_op_classes = (InstanceNormalization,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Reshape)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        found = _PATTERN.find(node.output, view)
        if not isinstance(found, Captures):
            return None if found is None else Miss(found, node)
        x, normalized = found["x"], node.arg(0).producer
        assert normalized is not None
        if not keeps_shape(x, node.output) or x.shape is None or len(x.shape) < 3:
            return Miss("its output has not the shape of its input", node)
        joined, channels = normalized.arg(0).shape, x.shape[1]
        assert joined is not None
        groups = joined[1]
        if not isinstance(channels, int) or not isinstance(groups, int):
            return Miss("the number of channels or groups is unknown", node)
        if not groups or channels % groups:
            return Miss("the channels do not divide into groups", node)
        if not provably_equal(joined[0], x.shape[0]):
            return Miss("the view joins images", node)
        if uniform(found["ones"]) != 1 or uniform(found["zeros"]) != 0:
            return Miss("it has a scale and a bias by group", node)
        norm = _GroupNorm(x, groups, normalized.op_as(InstanceNormalization).epsilon)
        nodes = found.nodes
        for name in ("Mul", "Add"):
            user = view.only_user(nodes[-1].output)
            operand = None if user is None else _per_channel(user, nodes[-1], channels)
            if user is None or operand is None or op_name(user) != name:
                break
            if name == "Mul":
                norm.scale = operand
            else:
                norm.bias = operand
            nodes.append(user)
        return Match(view, nodes[-1], replaced_nodes=nodes, payload=norm)

    def rewrite(self, match: Match) -> Patch:
        norm, build = match.payload, match.builder(self.name)
        assert isinstance(norm, _GroupNorm) and norm.x.shape is not None
        channels, dtype = norm.x.shape[1], norm.x.dtype
        affine = []
        for value, default in ((norm.scale, 1), (norm.bias, 0)):
            numbers = np.full(channels, default) if value is None else value.numbers
            affine.append(build.numbers(np.asarray(numbers, dtype.numpy).reshape(-1), dtype))
        value = build.add(GroupNormalization(norm.groups, norm.epsilon), norm.x, *affine)
        return build.patch({match.root.output: value})


def _per_channel(user: Node, node: Node, channels: int) -> Value | None:
    """Returns the constant of a Mul or Add after `node` with one element per channel, else None."""
    rank = len(node.output.shape or ())
    for product, operand in operand_orders(user):
        if product is not node.output or not operand.has_numbers or operand.shape is None:
            continue
        aligned = (*(1,) * (rank - len(operand.shape)), *operand.shape)
        if aligned == (1, channels, *(1,) * (rank - 2)) and keeps_shape(user.output, product):
            return operand
    return None
