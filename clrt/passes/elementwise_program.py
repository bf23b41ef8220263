"""Builder of elementwise programs: the `steps` of Fused, and epilogues such as FusedMatMul's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache

from clrt.ir.graph import Node, Value
from clrt.ir.op import ElementwiseInstruction, IrOp
from clrt.ops.pointwise.fused import Fused, Literal, render
from clrt.passes.matching import has_one_element
from clrt.util.fast_dataclass import dataclass

# Maximum number of steps of a fused program.
MAX_STEPS = 32


@dataclass(frozen=True)
class _Input:
    """Reference to an operand of an elementwise program, by index in `ProgramBuilder.inputs`."""

    index: int


@dataclass(frozen=True)
class _Result:
    """Reference to the result of a step of an elementwise program, by index of the step."""

    index: int


Ref = _Input | _Result


@dataclass
class ProgramBuilder:
    """Builds an elementwise program: steps on operands, literals and results of earlier steps.

    Attributes:
        inputs: Operands from outside the program, without duplicates.
    """

    inputs: list[Value] = field(default_factory=list)
    _steps: list[tuple[IrOp, tuple[Ref, ...]]] = field(default_factory=list)
    _literals: dict[Literal, Ref] = field(default_factory=dict)
    # Numbers of inputs and steps at the last `build`, and its result.
    _built: tuple[tuple[int, int], tuple[ElementwiseInstruction, ...]] | None = None

    @property
    def size(self) -> int:
        """Number of steps so far, including one per literal."""
        return len(self._steps)

    @property
    def literals(self) -> frozenset[IrOp]:
        """Literal ops of the program: constant numbers, each of which is a step."""
        return frozenset(self._literals)

    def operand(self, value: Value) -> Ref:
        """Returns a reference to a value as an operand, adding it to `inputs` if needed."""
        if value not in self.inputs:
            self.inputs.append(value)
        return _Input(self.inputs.index(value))

    def step(self, op: IrOp, *args: Ref) -> Ref:
        """Adds a step that applies an op; returns a reference to its result.

        For a Literal that the program already has, returns the result of the existing step.
        """
        if isinstance(op, Literal) and op in self._literals:
            return self._literals[op]
        self._steps.append((op, args))
        ref = _Result(len(self._steps) - 1)
        if isinstance(op, Literal):
            self._literals[op] = ref
        return ref

    def run(self, op: IrOp, args: Sequence[Ref]) -> Ref:
        """Adds an elementwise op, or all steps of a Fused op; returns a reference to the result.

        Args:
            op: Elementwise op or Fused op.
            args: References to the operands.
        """
        if not isinstance(op, Fused):
            return self.step(op, *args)
        return self.splice(op.steps, args)

    def splice(self, steps: Sequence[ElementwiseInstruction], args: Sequence[Ref]) -> Ref:
        """Appends the steps of another program.

        Args:
            steps: Steps of the other program.
            args: References that replace the inputs of the other program, at least one.

        Returns:
            Reference to the result of the last step; `args[0]` if there are no steps.
        """
        refs = list(args)
        for step in steps:
            refs.append(self.step(step.op, *(refs[a] for a in step.args)))
        return refs[-1] if steps else refs[0]

    def build(self) -> tuple[ElementwiseInstruction, ...]:
        """Returns the steps as instructions, whose args index the inputs, then results of steps."""
        base = len(self.inputs)
        if self._built is None or self._built[0] != (base, len(self._steps)):
            steps = tuple(
                [
                    (op, tuple([r.index + base if type(r) is _Result else r.index for r in args]))
                    for op, args in self._steps
                ]
            )
            self._built = (base, len(steps)), _instructions(steps)
        return self._built[1]

    def trouble(self) -> str | None:
        """Returns why no kernel can be generated for the program; None if one can be."""
        if self.size > MAX_STEPS:
            return f"the program would have {self.size} steps (at most {MAX_STEPS})"
        program = render(self.build(), [v.dtype for v in self.inputs])
        return program if isinstance(program, str) else None


@lru_cache(maxsize=1024)
def _instructions(
    steps: tuple[tuple[IrOp, tuple[int, ...]], ...],
) -> tuple[ElementwiseInstruction, ...]:
    """Returns steps, given as op and args, as instructions; layers of a model share them."""
    return tuple(ElementwiseInstruction(op, args) for op, args in steps)


def literal(value: Value, node: Node) -> Literal | None:
    """Returns an input of a node as a literal if it is a constant of one element, else None.

    Also returns None if the rank of the constant exceeds that of the other inputs, since it then
    determines the output's rank; and for integers that float64 does not represent exactly.
    """
    if not value.is_constant or not has_one_element(value):
        return None
    numbers = value.numbers
    if numbers is None:
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
    """Returns a reference to each input of a node: known if possible, else a literal or operand.

    Args:
        builder: Program to which literals and operands are added.
        node: Elementwise node without omitted inputs.
        known: References to values that the program computes already; None for none.
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
