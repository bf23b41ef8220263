"""Elementwise work behind a matrix product -> steps of its epilogue."""

from __future__ import annotations

from dataclasses import replace

from clrt.ir.graph import Node, Patch, Value
from clrt.ops.matmul.fused_matmul import FusedMatMul, epilogue_operand_fits
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import is_elementwise, keeps_shape
from clrt.passes.programs import ProgramBuilder, operand_refs

MAX_EXTRAS = 6
_WITH_STEPS = (FusedMatMul, MatMulNBits)


class FuseMatmulEpilogue(Pass):
    """Bias, activation, residual, … on a product that nothing else reads -> its steps.

    The fused node takes the place of the elementwise one, whose inputs are all computed by then:
    no cycle can come of it.
    """

    name = "fuse_matmul_epilogue"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not is_elementwise(node) or not all(v is not None for v in node.inputs):
            return None
        miss: Miss | None = None
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            product = value.producer
            if product is None or not isinstance(product.op, _WITH_STEPS):
                continue
            found = _absorb(view, product, node)
            if not isinstance(found, str):
                return Match(view, node, nodes=[product, node], facts=(product, found))
            miss = Miss(found, node)
        return miss

    def rewrite(self, match: Match) -> Patch:
        product, builder = match.facts
        assert isinstance(product, Node) and isinstance(product.op, _WITH_STEPS)
        assert isinstance(builder, ProgramBuilder)
        build, leading = match.builder(self.name), product.op.leading
        op = replace(product.op, steps=builder.build())
        own = [*product.inputs[:leading], *[None] * (leading - len(product.inputs))]
        value = build.add(op, *own, *builder.inputs[1:])
        return build.patch({match.root.output: value})


def _absorb(view: GraphView, product: Node, node: Node) -> ProgramBuilder | str:
    """The program of the product's own steps and then the node's, or why it cannot be."""
    assert isinstance(product.op, _WITH_STEPS)
    value = product.output
    if view.only_user(value) is not node:
        return f"the product '{value.name}' is used elsewhere, too"
    if not keeps_shape(value, node.output):
        return f"the product {value.type} is broadcast to {node.output.type}"
    if value.dtype is not node.output.dtype:
        return f"it turns {value.dtype} into {node.output.dtype}"
    builder = ProgramBuilder([value])
    own = [
        builder.operand(v) for v in [value, *product.inputs[product.op.leading :]] if v is not None
    ]
    result = builder.splice(product.op.steps, own)
    last = builder.run(node.op, operand_refs(builder, node, {value: result}))
    assert last != result
    for extra in builder.inputs[1:]:
        if (reason := _reject(extra, value)) is not None:
            return reason
    if len(builder.inputs) > MAX_EXTRAS + 1:
        return f"the epilogue would have more than {MAX_EXTRAS} operands"
    return builder.trouble() or builder


def _reject(extra: Value, product: Value) -> str | None:
    if epilogue_operand_fits(extra.shape, product.shape):
        return None
    return f"operand {extra.type} does not fit the product {product.type}"
