"""Builder of elementwise programs: the `steps` of Fused, and epilogues such as FusedMatMul's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clrt.ir.graph import Node, Value
from clrt.ir.op import ElementwiseStep, IrOp
from clrt.ops.pointwise.fused import Fused, Literal, render
from clrt.passes.matching import has_one_element

# Maximum number of steps of a fused program.
MAX_STEPS = 32


@dataclass(frozen=True)
class _Input:
    """Reference to an operand of the program, by index in `inputs`."""

    index: int


@dataclass(frozen=True)
class _Result:
    """Reference to the result of a step, by index of the step."""

    index: int


Ref = _Input | _Result


@dataclass
class ProgramBuilder:
    """Elementwise program under construction; `build` numbers operands and results.

    Attributes:
        inputs: Operands from outside the program, without duplicates.
    """

    inputs: list[Value] = field(default_factory=list)
    _steps: list[tuple[IrOp, tuple[Ref, ...]]] = field(default_factory=list)
    _literals: dict[Literal, Ref] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of steps, including literals."""
        return len(self._steps)

    @property
    def literals(self) -> frozenset[IrOp]:
        """Steps that are literal numbers."""
        return frozenset(self._literals)

    def operand(self, value: Value) -> Ref:
        """Adds a value as an operand unless it is one; returns its reference."""
        if value not in self.inputs:
            self.inputs.append(value)
        return _Input(self.inputs.index(value))

    def step(self, op: IrOp, *args: Ref) -> Ref:
        """Adds a step, or reuses an equal literal; returns the reference to its result."""
        if isinstance(op, Literal) and op in self._literals:
            return self._literals[op]
        self._steps.append((op, args))
        ref = _Result(len(self._steps) - 1)
        if isinstance(op, Literal):
            self._literals[op] = ref
        return ref

    def run(self, op: IrOp, args: Sequence[Ref]) -> Ref:
        """Adds an elementwise op, or all steps of a Fused op; returns its result."""
        if not isinstance(op, Fused):
            return self.step(op, *args)
        return self.splice(op.steps, args)

    def splice(self, steps: Sequence[ElementwiseStep], args: Sequence[Ref]) -> Ref:
        """Adds the steps of a program on given operands; returns its result, `args[0]` if empty."""
        refs = list(args)
        for step in steps:
            refs.append(self.step(step.op, *(refs[a] for a in step.args)))
        return refs[-1] if steps else refs[0]

    def build(self) -> tuple[ElementwiseStep, ...]:
        """Returns the steps, with operands numbered as `inputs` followed by results."""
        base = len(self.inputs)
        return tuple(
            ElementwiseStep(
                op, tuple(r.index + (base if isinstance(r, _Result) else 0) for r in args)
            )
            for op, args in self._steps
        )

    def trouble(self) -> str | None:
        """Returns why no kernel can be generated for the program; None if one can."""
        if self.size > MAX_STEPS:
            return f"the program would have {self.size} steps (at most {MAX_STEPS})"
        program = render(self.build(), [v.dtype for v in self.inputs])
        return program if isinstance(program, str) else None


def literal(value: Value, node: Node) -> Literal | None:
    """Returns an operand of a node as a literal, if it is a constant of one element; else None.

    A constant stays an operand if its rank determines the rank of the node's output, or if it is an
    integer that a float64 does not represent exactly.
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
    """Returns references to a node's inputs: known results, literals, or operands.

    Args:
        known: References to the results of nodes in the program, by value.
    """
    refs: list[Ref] = []
    for value in node.inputs:
        assert value is not None
        if known and value in known:
            refs.append(known[value])
            continue
        number = literal(value, node)
        refs.append(builder.operand(value) if number is None else builder.step(number))
    return refs
