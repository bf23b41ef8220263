"""Swish (SiLU) in primitive ops -> Swish."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.table import Mul
from clrt.passes.driver import GraphView, Match, Pass
from clrt.passes.matching import keeps_shape, op_name, operand_orders, scaled


class FuseSwish(Pass):
    """x * sigmoid(alpha x) -> Swish.

    As one op, Swish fits the epilogue of the product that computes x. So does a multiplication by a
    second product of the same rows (SwiGLU); one launch then computes both products.
    """

    name = "fuse_swish"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Mul)

    def match(self, view: GraphView, node: Node) -> Match | None:
        for x, gate in operand_orders(node):
            sigmoid = gate.producer
            if sigmoid is None or op_name(sigmoid) != "Sigmoid" or not keeps_shape(x, node.output):
                continue
            if view.only_user(gate) is not node:
                continue
            factor = _factor(view, sigmoid, x)
            if factor is not None:
                alpha, nodes = factor
                return Match(view, node, replaced_nodes=[*nodes, sigmoid, node], payload=(x, alpha))
        return None

    def rewrite(self, match: Match) -> Patch:
        x, alpha = match.payload
        build = match.builder(self.name)
        return build.patch({match.root.output: build.add(Swish(alpha), x)})


def _factor(view: GraphView, sigmoid: Node, x: Value) -> tuple[float, list[Node]] | None:
    """Returns alpha and the nodes of alpha * x if that is a Sigmoid's argument, else None."""
    argument = sigmoid.arg(0)
    if argument is x:
        return 1.0, []
    product = scaled(argument.producer)
    if product is None or product[0] is not x or view.only_user(argument) is not sigmoid:
        return None
    assert argument.producer is not None
    return product[1], [argument.producer]
