"""Elementwise nodes after a product or convolution -> steps of its epilogue."""

from __future__ import annotations

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.epilogue import EpilogueOp
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import Fused, can_vectorise
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.elementwise_program import ProgramBuilder, operand_refs
from clrt.passes.matching import is_elementwise, keeps_shape

# Maximum number of extra operands of an epilogue, such as bias and residual.
MAX_EXTRAS = 6


class FuseEpilogue(Pass):
    """Elementwise node on the output of a product or convolution -> steps of its epilogue.

    Applies to bias, activation, residual and the like, if no other node reads the output. The fused
    node gets the position of the elementwise node, at which all its inputs are computed.
    """

    name = "fuse_epilogue"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Fused, Pointwise))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not is_elementwise(node) or not all(v is not None for v in node.inputs):
            return None
        miss: Miss | None = None
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            producer = value.producer
            if producer is None or not isinstance(producer.op, EpilogueOp):
                continue
            result = _absorb(view, producer, producer.op, node)
            if not isinstance(result, str):
                return Match(
                    view, node, replaced_nodes=[producer, node], payload=(producer, result)
                )
            miss = Miss(result, node)
        return miss

    def rewrite(self, match: Match) -> Patch:
        producer, builder = match.payload
        assert isinstance(producer, Node)
        assert isinstance(builder, ProgramBuilder)
        op = producer.op_as(EpilogueOp)
        build, leading = match.builder(self.name), op.num_fixed_inputs
        fixed_inputs = [*producer.inputs[:leading], *[None] * (leading - len(producer.inputs))]
        value = build.add(op.with_epilogue(builder.build()), *fixed_inputs, *builder.inputs[1:])
        return build.patch({match.root.output: value})


def _absorb(view: GraphView, producer: Node, op: EpilogueOp, node: Node) -> ProgramBuilder | str:
    """Builds the epilogue of an op with an elementwise node appended; changes no node.

    Args:
        view: Graph of the nodes.
        producer: Product or convolution whose output `node` reads.
        op: Op of `producer`.
        node: Elementwise node.

    Returns:
        The new epilogue, whose first input is the output of `producer`; else a reject reason.
    """
    value = producer.output
    if view.only_user(value) is not node:
        return f"the result '{value.name}' is used elsewhere, too"
    if not keeps_shape(value, node.output):
        return f"the result {value.type} is broadcast to {node.output.type}"
    if value.dtype is not node.output.dtype:
        return f"it converts {value.dtype} to {node.output.dtype}"
    builder = ProgramBuilder([value])
    operands = [
        builder.operand(v)
        for v in [value, *producer.inputs[op.num_fixed_inputs :]]
        if v is not None
    ]
    result = builder.splice(op.epilogue, operands)
    last = builder.run(node.op, operand_refs(builder, node, {value: result}))
    assert last != result
    for extra in builder.inputs[1:]:
        if not op.supports_operand(extra.shape, value.shape):
            return f"operand {extra.type} does not fit the result {value.type}"
    if len(builder.inputs) > MAX_EXTRAS + 1:
        return f"the epilogue would have more than {MAX_EXTRAS} operands"
    return builder.trouble() or _slower(builder) or builder


def _slower(builder: ProgramBuilder) -> str | None:
    """Returns why vectorised float32 kernels cannot compute an epilogue; None if they can.

    Also returns None if the product's output is not float32, which those kernels do not compute.
    """
    dtypes = [v.dtype for v in builder.inputs]
    if dtypes[0] is not DType.FLOAT32 or can_vectorise(builder.build(), dtypes):
        return None
    return "an operand or a step is not float32"
