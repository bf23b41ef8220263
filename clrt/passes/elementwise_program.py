"""Builds elementwise programs: the `steps` of Fused and FusedMatMul."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clrt.ir.graph import Node, Value
from clrt.ir.op import ElementwiseStep, IrOp
from clrt.ops.pointwise.fused import Fused, Literal, render
from clrt.passes.matching import has_one_element

MAX_STEPS = 32


@dataclass(frozen=True)
class _Input:
    index: int


@dataclass(frozen=True)
class _Result:
    index: int


Ref = _Input | _Result


@dataclass
class ProgramBuilder:
    """A program that grows; operands are numbered once all of them are known.

    Attributes:
        inputs: The operands, each once.
    """

    inputs: list[Value] = field(default_factory=list)
    _steps: list[tuple[IrOp, tuple[Ref, ...]]] = field(default_factory=list)
    _literals: dict[Literal, Ref] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many steps there are."""
        return len(self._steps)

    @property
    def literals(self) -> frozenset[IrOp]:
        """Those of the steps that are numbers."""
        return frozenset(self._literals)

    def operand(self, value: Value) -> Ref:
        """The reference to a value from outside."""
        if value not in self.inputs:
            self.inputs.append(value)
        return _Input(self.inputs.index(value))

    def step(self, op: IrOp, *args: Ref) -> Ref:
        """Adds an operation; literals are shared."""
        if isinstance(op, Literal) and op in self._literals:
            return self._literals[op]
        self._steps.append((op, args))
        ref = _Result(len(self._steps) - 1)
        if isinstance(op, Literal):
            self._literals[op] = ref
        return ref

    def run(self, op: IrOp, args: Sequence[Ref]) -> Ref:
        """Adds an elementwise op, or all steps of a fused program, on these operands."""
        if not isinstance(op, Fused):
            return self.step(op, *args)
        return self.splice(op.steps, args)

    def splice(self, steps: Sequence[ElementwiseStep], args: Sequence[Ref]) -> Ref:
        """Adds a program's steps on these operands; its last result, or operand 0 for none."""
        refs = list(args)
        for step in steps:
            refs.append(self.step(step.op, *(refs[a] for a in step.args)))
        return refs[-1] if steps else refs[0]

    def build(self) -> tuple[ElementwiseStep, ...]:
        """The steps, numbered for `inputs`."""
        base = len(self.inputs)
        return tuple(
            ElementwiseStep(
                op, tuple(r.index + (base if isinstance(r, _Result) else 0) for r in args)
            )
            for op, args in self._steps
        )

    def trouble(self) -> str | None:
        """Why there is no kernel for the program."""
        if self.size > MAX_STEPS:
            return f"the program would have {self.size} steps (at most {MAX_STEPS})"
        program = render(self.build(), [v.dtype for v in self.inputs])
        return program if isinstance(program, str) else None


def literal(value: Value, node: Node) -> Literal | None:
    """The literal that an operand of a node can become: a constant of one element.

    A constant whose rank alone makes the node's rank stays an operand.
    """
    numbers = value.numbers if value.is_constant else None
    if numbers is None or not has_one_element(value):
        return None
    others = [len(v.shape) for v in node.inputs if v is not None and v is not value and v.shape]
    if numbers.ndim and numbers.ndim > max(others, default=0):
        return None
    element = numbers.reshape(-1)[0]
    number = float(element)
    if not value.dtype.is_float and int(number) != int(element):
        return None
    return Literal(number, value.dtype)


def operand_refs(
    builder: ProgramBuilder, node: Node, known: dict[Value, Ref] | None = None
) -> list[Ref]:
    """References to a node's inputs: known results, literals, or operands from outside."""
    refs: list[Ref] = []
    for value in node.inputs:
        assert value is not None
        if known and value in known:
            refs.append(known[value])
            continue
        number = literal(value, node)
        refs.append(builder.operand(value) if number is None else builder.step(number))
    return refs
