"""Fusion of elementwise DAGs into one kernel each (Fused)."""

from __future__ import annotations

from functools import lru_cache

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import IrOp
from clrt.ops.base import Op
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.fused import Fused, Literal, render, steps_of
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.elementwise_program import MAX_STEPS, ProgramBuilder, Ref, literal, operand_refs
from clrt.passes.matching import has_one_element, is_elementwise, keeps_shape
from clrt.util.fast_dataclass import dataclass

# Maximum number of operands of a fused node: buffer arguments of its kernel.
MAX_OPERANDS = 8


class FuseElementwise(Pass):
    """Elementwise node and its elementwise producers -> one Fused node; scalars become literals.

    A producer is fused if only fused nodes read it, and if it has the shape of the result or one
    element. So nothing is computed more often than before. A producer is not fused if its result is
    cast to 16-bit floats, or has a low-precision dtype such as an 8-bit float: kernels round to
    these dtypes only when they store a value.
    """

    name = "fuse_elementwise"
    visits_outputs_first = True

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Fused, Pointwise))

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if not _can_join(node):
            return None
        group = _FusionGroup(view, node)
        members, refused = group.members, ""
        while True:
            candidate, reason = group.candidate()
            refused = reason or refused
            if candidate is None:
                break
            group.add(candidate)
        if len(members) == 1:
            return Miss(refused, node) if refused else None
        order = _topological(members)
        builder = _program(order)
        trouble = builder.trouble()
        if trouble is not None:
            return Miss(trouble, node)
        return Match(view, node, replaced_nodes=order, payload=builder)

    def rewrite(self, match: Match) -> Patch:
        builder, build = match.payload, match.builder(self.name)
        assert isinstance(builder, ProgramBuilder)
        result = match.root.output
        value = build.add(Fused(builder.build()), *builder.inputs, types=[result.type])
        return build.patch({result: value})


def _can_join(node: Node) -> bool:
    """Whether a node can be fused: elementwise, of known rank, without omitted inputs.

    Nodes whose output elements type inference knows are not fused: FoldShapeData replaces them.
    """
    return (
        is_elementwise(node)
        and node.outputs[0].shape is not None
        and None not in node.inputs
        and node.outputs[0].type.data is None
    )


@dataclass(frozen=True)
class _Contribution:
    """Operands and steps that one node adds to a fused program.

    Attributes:
        operands: Values that the node reads, except literals.
        literals: Literal ops of scalar constants; one step each, shared by the nodes of a program.
        steps: Number of steps except literals.
    """

    operands: frozenset[Value]
    literals: frozenset[IrOp]
    steps: int

    @classmethod
    def of(cls, node: Node) -> _Contribution:
        """Returns what a node adds to a program, without building the program."""
        operands: set[Value] = set()
        ops = [step.op for step in node.op.steps] if isinstance(node.op, Fused) else [node.op]
        literal_ops: list[IrOp] = [op for op in ops if isinstance(op, Literal)]
        steps, literals = len(ops) - len(literal_ops), set(literal_ops)
        for value in node.inputs:
            assert value is not None
            number = literal(value, node)
            if number is None:
                operands.add(value)
            else:
                literals.add(number)
        return cls(frozenset(operands), frozenset(literals), steps)


class _FusionGroup:
    """Root node and the producers fused into it so far; grows by one producer at a time.

    Attributes:
        members: Nodes of the group, in the order of their addition.
    """

    def __init__(self, view: GraphView, root: Node) -> None:
        self.members: dict[Node, None] = {}
        # Nodes that may join next, by their output: elementwise producers of values that members
        # read.
        self._open: dict[Value, Node] = {}
        self._view, self._result = view, root.output
        # The program of the group: values that it reads, its distinct literals (a step each), and
        # its number of steps except literals.
        self._operands: set[Value] = set()
        self._literals: set[IrOp] = set()
        self._steps = 0
        self.add(root)

    def add(self, node: Node) -> None:
        """Adds a node to the group, without checks."""
        contribution = self._contribution(node)
        self._operands |= contribution.operands
        self._operands.discard(node.output)
        self._literals |= contribution.literals
        self._steps += contribution.steps
        self.members[node] = None
        self._open.pop(node.output, None)
        for value in node.inputs:
            producer = None if value is None else value.producer
            if value is None or producer is None or producer in self.members:
                continue
            if value not in self._open and _can_join(producer):
                self._open[value] = producer

    def _contribution(self, node: Node) -> _Contribution:
        """Returns the operands and steps that a node adds to a fused program, from a cache."""
        contribution: _Contribution | None = self._view.memo.get(node)
        if contribution is None:
            contribution = self._view.memo[node] = _Contribution.of(node)
        return contribution

    def candidate(self) -> tuple[Node | None, str]:
        """Finds a producer of the group's inputs that can be fused.

        Returns:
            The producer, None if there is none. The reject reason of the last producer that was
            tried and rejected, "" if none was.
        """
        refused, members = "", self.members.keys()
        for value, producer in self._open.items():
            if not self._view.stays_inside(value, members):
                continue
            reason = self._reject_reason(value, producer)
            if reason is None:
                return producer, refused
            refused = reason
        return None, refused

    def _reject_reason(self, value: Value, producer: Node) -> str | None:
        """Returns why a producer cannot join; None if it can.

        Args:
            value: Output of the producer, which members read.
            producer: The producer.
        """
        if value.dtype.is_low_precision or _rounds(producer):
            return f"'{value.name}' is rounded to {value.dtype}, so it must be stored"
        if not keeps_shape(value, self._result) and not has_one_element(value):
            return f"'{value.name}' {value.type} is smaller than the result {self._result.type}"
        contribution = self._contribution(producer)
        operands = self._operands | contribution.operands
        steps = self._steps + contribution.steps + len(self._literals | contribution.literals)
        if len(operands) - (value in operands) > MAX_OPERANDS or steps > MAX_STEPS:
            return f"with '{value.name}' it would have too many operands or steps"
        return _trouble(
            producer.op_as(Op), tuple([v.dtype for v in producer.inputs if v is not None])
        )


@lru_cache(maxsize=1024)
def _trouble(op: Op, dtypes: tuple[DType, ...]) -> str | None:
    """Returns why no kernel can be generated for an elementwise op; None if one can.

    Args:
        op: Elementwise op or Fused op.
        dtypes: Dtypes of its operands.
    """
    program = render(steps_of(op, len(dtypes)), dtypes)
    return program if isinstance(program, str) else None


def _rounds(node: Node) -> bool:
    """Whether a node ends with a Cast to a float dtype that kernels compute in a wider dtype.

    An example is float16. Only storing such a value rounds it to the dtype.
    """
    op, dtype = node.op, node.output.dtype
    last = op.steps[-1].op if isinstance(op, Fused) else op
    return isinstance(last, Cast) and dtype.is_float and dtype.compute != dtype.cl


def _topological(members: dict[Node, None]) -> list[Node]:
    """Returns the members of a group in topological order."""
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
    """Returns the elementwise program that computes nodes, given in topological order."""
    builder = ProgramBuilder()
    known: dict[Value, Ref] = {}
    for node in order:
        known[node.output] = builder.run(node.op, operand_refs(builder, node, known))
    return builder
