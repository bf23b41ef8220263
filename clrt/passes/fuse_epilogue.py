"""Elementwise work behind a product or convolution -> steps of its epilogue."""

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

MAX_EXTRAS = 6


class FuseEpilogue(Pass):
    """Bias, activation, residual, … on a result that nothing else reads -> its op's steps.

    The fused node takes the place of the elementwise one, whose inputs are all computed by then:
    no cycle can come of it.
    """

    name = "fuse_epilogue"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Fused, Pointwise))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not is_elementwise(node) or not all(v is not None for v in node.inputs):
            return None
        miss: Miss | None = None
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            made = value.producer
            if made is None or not isinstance(made.op, EpilogueOp):
                continue
            found = _absorb(view, made, made.op, node)
            if not isinstance(found, str):
                return Match(view, node, replaced_nodes=[made, node], payload=(made, found))
            miss = Miss(found, node)
        return miss

    def rewrite(self, match: Match) -> Patch:
        made, builder = match.payload
        assert isinstance(made, Node) and isinstance(made.op, EpilogueOp)
        assert isinstance(builder, ProgramBuilder)
        build, leading = match.builder(self.name), made.op.num_fixed_inputs
        own = [*made.inputs[:leading], *[None] * (leading - len(made.inputs))]
        value = build.add(made.op.with_epilogue(builder.build()), *own, *builder.inputs[1:])
        return build.patch({match.root.output: value})


def _absorb(view: GraphView, made: Node, op: EpilogueOp, node: Node) -> ProgramBuilder | str:
    """The program of the op's own steps and then the node's, or why it cannot be."""
    value = made.output
    if view.only_user(value) is not node:
        return f"the result '{value.name}' is used elsewhere, too"
    if not keeps_shape(value, node.output):
        return f"the result {value.type} is broadcast to {node.output.type}"
    if value.dtype is not node.output.dtype:
        return f"it turns {value.dtype} into {node.output.dtype}"
    builder = ProgramBuilder([value])
    own = [
        builder.operand(v) for v in [value, *made.inputs[op.num_fixed_inputs :]] if v is not None
    ]
    result = builder.splice(op.epilogue, own)
    last = builder.run(node.op, operand_refs(builder, node, {value: result}))
    assert last != result
    for extra in builder.inputs[1:]:
        if not op.supports_operand(extra.shape, value.shape):
            return f"operand {extra.type} does not fit the result {value.type}"
    if len(builder.inputs) > MAX_EXTRAS + 1:
        return f"the epilogue would have more than {MAX_EXTRAS} operands"
    return builder.trouble() or _slower(builder) or builder


def _slower(builder: ProgramBuilder) -> str | None:
    """Why the fast kernels of float32 would not take the epilogue."""
    dtypes = [v.dtype for v in builder.inputs]
    if dtypes[0] is not DType.FLOAT32 or can_vectorise(builder.build(), dtypes):
        return None
    return "an operand or a step is not float32"
