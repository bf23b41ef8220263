"""Elementwise DAGs -> one Fused node each."""

from __future__ import annotations

from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.elementwise import Pointwise
from clrt.ops.pointwise.fused import Fused
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.matching import has_one_element, is_elementwise, keeps_shape
from clrt.passes.programs import MAX_STEPS, ProgramBuilder, Ref, operand_refs

MAX_OPERANDS = 8


class FuseElementwise(Pass):
    """A node and the producers that serve it alone -> Fused; numbers become literals.

    A producer joins where its shape is that of the result, or it has one element: then no work
    is done more often than before. Rounding happens in memory: what a Cast rounds stays there, and
    so does every float of 8 bits or less.
    """

    name = "fuse_elementwise"
    backward = True

    def wants(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Fused, Pointwise))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not _can_join(node):
            return None
        members = {node: None}
        refused = ""
        while True:
            candidate, reason = _candidate(view, node, members)
            refused = reason or refused
            if candidate is None:
                break
            members[candidate] = None
        if len(members) == 1:
            return Miss(refused, node) if refused else None
        order = _topological(members)
        builder = _program(order)
        trouble = builder.trouble()
        if trouble is not None:
            return Miss(trouble, node)
        return Match(view, node, nodes=order, facts=builder)

    def rewrite(self, match: Match) -> Patch:
        builder, build = match.facts, match.builder(self.name)
        assert isinstance(builder, ProgramBuilder)
        value = build.add(Fused(builder.build()), *builder.inputs)
        return build.patch({match.root.output: value})


def _can_join(node: Node) -> bool:
    return (
        is_elementwise(node)
        and node.output.shape is not None
        and all(v is not None for v in node.inputs)
        and node.output.type.data is None
    )


def _candidate(view: GraphView, root: Node, members: dict[Node, None]) -> tuple[Node | None, str]:
    """A producer that can join the members, and why the last one refused could not."""
    refused = ""
    outside = [v for m in members for v in m.inputs if v is not None and v.producer not in members]
    for value in dict.fromkeys(outside):
        producer = value.producer
        if producer is None or not _can_join(producer):
            continue
        if not view.stays_inside(value, members):
            continue
        if value.dtype.is_tiny or _rounds(producer):
            refused = f"'{value.name}' is rounded to {value.dtype}, which happens in memory"
            continue
        if not keeps_shape(value, root.output) and not has_one_element(value):
            refused = f"'{value.name}' {value.type} is smaller than the result {root.output.type}"
            continue
        builder = _program(_topological({**members, producer: None}))
        if len(builder.inputs) > MAX_OPERANDS or builder.size > MAX_STEPS:
            refused = f"with '{value.name}' it would have too many operands or steps"
            continue
        if builder.trouble() is not None:
            refused = builder.trouble() or ""
            continue
        return producer, refused
    return None, refused


def _rounds(node: Node) -> bool:
    """Whether a node ends with a Cast to floats that are narrow in memory only."""
    op, dtype = node.op, node.output.dtype
    last = op.steps[-1].op if isinstance(op, Fused) else op
    return isinstance(last, Cast) and dtype.is_float and dtype.compute != dtype.cl


def _topological(members: dict[Node, None]) -> list[Node]:
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for value in node.inputs:
            if value is not None and value.producer in members and value.producer not in order:
                assert value.producer is not None
                visit(value.producer)
        order[node] = None

    for member in members:
        if member not in order:
            visit(member)
    return list(order)


def _program(order: list[Node]) -> ProgramBuilder:
    builder = ProgramBuilder()
    known: dict[Value, Ref] = {}
    for node in order:
        known[node.output] = builder.run(node.op, operand_refs(builder, node, known))
    return builder
