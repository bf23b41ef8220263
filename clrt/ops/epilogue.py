"""Base class of ops that apply an elementwise program, the epilogue, to their result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import Shape, same_shape
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels.gemm_problem import epilogue_operand_fits
from clrt.ops.base import Op
from clrt.ops.checks import broadcast_shapes
from clrt.ops.pointwise.fused import Fused, step_types
from clrt.ops.pointwise.table import Add


class EpilogueOp(Op):
    """Base class of ops with an epilogue: elementwise `steps` after a product or convolution.

    The steps read the result of the product or convolution (operand 0) and the extras (1, 2, …),
    which are the last inputs of the node. Extras broadcast to the result and never widen it. The
    output is the result of the last step.

    Class attributes:
        num_fixed_inputs: Number of inputs before the extras.
    """

    num_fixed_inputs: ClassVar[int]

    @property
    def epilogue(self) -> tuple[ElementwiseInstruction, ...]:
        """Steps of the epilogue; () if the op has none yet."""
        steps: tuple[ElementwiseInstruction, ...] = getattr(self, "steps", ())
        return steps

    def with_epilogue(self, steps: tuple[ElementwiseInstruction, ...]) -> Op:
        """Returns a copy of the op with `steps` as its epilogue, in place of the current one."""
        return replace(self, steps=steps)  # type: ignore[call-arg]

    def supports_operand(self, extra: Shape | None, out: Shape | None) -> bool:
        """Returns whether kernels can read a tensor of a certain shape in the epilogue.

        Args:
            extra: Shape of the tensor; None if its rank is unknown.
            out: Shape of the op's output; None if its rank is unknown.
        """
        return epilogue_operand_fits(extra, out)


def after_bias(
    steps: Sequence[ElementwiseInstruction], extras: int
) -> tuple[ElementwiseInstruction, ...]:
    """Prepends the addition of a bias to an epilogue.

    Args:
        steps: Program over the biased result (operand 0) and `extras` extras (1, 2, …).
        extras: Number of extras, tensors that the steps read besides the result.

    Returns:
        The program over the result (0), the bias (1) and the extras (2, 3, …).
    """
    biased = 2 + extras

    def moved(operand: int) -> int:
        return biased if operand == 0 else operand + 1 + (operand > extras)

    return (
        ElementwiseInstruction(Add(), (0, 1)),
        *(ElementwiseInstruction(s.op, tuple(map(moved, s.args))) for s in steps),
    )


def fused_type(
    op: Op,
    steps: Sequence[ElementwiseInstruction],
    result: TensorType,
    extras: Sequence[TensorType],
) -> TensorType:
    """Returns the output type of an op with an epilogue.

    Args:
        op: Op, named in the message.
        steps: Program over the result (operand 0) and the extras (1, 2, …).
        result: Type of the product or convolution before the epilogue.
        extras: Types of the extras, the tensors that the steps read besides the result.

    Raises:
        ShapeError: An extra would widen the result when it broadcasts.
    """
    output = step_types(steps, [result, *extras])[-1] if steps else result
    full = broadcast_shapes([result.shape, *(t.shape for t in extras)], op)
    if result.shape is not None and full is not None and len(full) != len(result.shape):
        raise ShapeError(f"{op.name}: an operand widens the result {result}.")
    static = TensorType(result.dtype, full).is_static and result.is_static
    if static and not same_shape(full, result.shape):
        raise ShapeError(f"{op.name}: an operand widens the result {result}.")
    return TensorType(output.dtype, result.shape)


def fused_reference(
    steps: Sequence[ElementwiseInstruction], result: Array, extras: Sequence[Array | None]
) -> Array:
    """Applies an epilogue by NumPy.

    Args:
        steps: Program over the result (operand 0) and the extras (1, 2, …).
        result: Product or convolution before the epilogue.
        extras: Arrays of the extras, tensors that the steps read besides the result.

    Returns:
        An array of the shape of `result`.
    """
    if not steps:
        return result
    (output,) = Fused(tuple(steps)).reference(result, *extras)
    return np.broadcast_to(output, result.shape).copy()
