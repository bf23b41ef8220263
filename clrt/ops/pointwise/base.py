"""Base class of the elementwise ops.

In OpenCL C expressions {0}, {1}… are the operands; `@name` stands for `c_name` of common/math.clh
for float32 (scalar or vector) and float16, and for `d_name` for float64. Conditions are C truth
values, 0/-1 per lane in vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clrt.errors import ShapeError, counted
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import broadcast_shapes, need
from clrt.ops.gradients.expression import Expression
from clrt.ops.gradients.shapes import sum_to
from clrt.ops.pointwise.conversions import widened
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

NumpyFunction = Callable[..., Any]


@dataclass(frozen=True)
class Pointwise(Op):
    """Base class of the elementwise ops, with NumPy's broadcasting.

    Class attributes:
        expr: OpenCL C expression of floats, and of integers if `int_expr` is None.
        int_expr: OpenCL C expression of integers; None for `expr`.
        function: NumPy function of the operands that computes the result.
        arity: Number of operands.
        compares: Whether the result is bool.
        integers: Whether tests cover integer operands.
        floats: Whether floats are supported.
        booleans: Whether tests cover bool operands.
        only_floats: Whether only float operands are allowed, since `expr` is wrong for integers.
    """

    expr: ClassVar[Code] = Code("")
    int_expr: ClassVar[Code | None] = None
    function: ClassVar[NumpyFunction]
    arity: ClassVar[int] = 1
    compares: ClassVar[bool] = False
    integers: ClassVar[bool] = False
    floats: ClassVar[bool] = True
    booleans: ClassVar[bool] = False
    only_floats: ClassVar[bool] = False
    accuracy = Accuracy.TRANSCENDENTAL
    supported_storages = None
    memory_traits = MemoryTraits(inplace_inputs=(0, 1, 2))

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        """Returns the dtype of the result for operands of the dtypes `dtypes`."""
        return DType.BOOL if self.compares else dtypes[0]

    def infer(self, inputs: Types) -> list[TensorType]:
        present = [t for t in inputs if t is not None]
        need(inputs, 0, self)
        if not self.takes(len(present)):
            raise ShapeError(
                f"{self.name}: it does not support {counted(len(present), 'operand')}."
            )
        self.check(present)
        shape = broadcast_shapes([t.shape for t in present], self)
        return [TensorType(self.result_dtype([t.dtype for t in present]), shape)]

    def takes(self, operands: int) -> bool:
        """Returns whether the op accepts `operands` operands."""
        return operands == self.arity

    def check(self, inputs: Sequence[TensorType]) -> None:
        """Checks the dtypes of the operands.

        Args:
            inputs: Types of the operands.

        Raises:
            ShapeError: The operands differ in dtype, or the op does not support the dtype.
        """
        if not self.floats and any(t.dtype.is_float for t in inputs):
            raise ShapeError(
                f"{self.name}: it does not support floats; its operand is {inputs[0]}."
            )
        dtype = inputs[0].dtype
        if self.only_floats and not dtype.is_float:
            raise ShapeError(f"{self.name}: it supports only floats; its operand is {inputs[0]}.")
        for other in inputs:
            if other.dtype is not dtype:
                text = ", ".join(str(t) for t in inputs)
                raise ShapeError(f"{self.name}: operands must have one dtype; they are {text}.")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [a for a in inputs if a is not None]
        with np.errstate(all="ignore"):
            arrays = [widened(a) for a in arrays]
            result = np.asarray(self.evaluate(*arrays))
        if any(a.dtype == object for a in arrays):
            return (result,)
        dtype = self.result_dtype([DType.of(a.dtype) for a in inputs if a is not None])
        return (result.astype(dtype.numpy, copy=False),)

    def derivative(self, *operands: Expression) -> Any:
        """Returns the derivative of the result by each operand.

        Args:
            operands: The operands, then the result.

        Returns:
            A tuple with an entry per operand, or for a single operand the entry: an `Expression`
            that broadcasts to the result, or a number. A bool expression selects the elements whose
            derivative is 1; None stands for 0.
        """
        raise NotImplementedError(self.name)

    @classmethod
    def has_gradient(cls) -> bool:
        return cls.derivative is not Pointwise.derivative

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        inputs = [v for v in node.inputs if v is not None]
        assert cotangent is not None
        parts = self.derivative(*(Expression(b, v) for v in (*inputs, node.output)))
        parts = parts if isinstance(parts, tuple) else (parts,)
        given = Expression(b, cotangent)
        results: list[Value | None] = []
        for value, part in zip(inputs, parts, strict=True):
            if part is None or not value.dtype.is_float:
                results.append(None)
                continue
            if isinstance(part, Expression) and part.value.dtype is DType.BOOL:
                product = given.where(part)
            else:
                product = given if isinstance(part, int) and part == 1 else given * part
            results.append(b.cast(sum_to(b, product.value, value), value.dtype))
        return results

    def evaluate(self, *arrays: Array) -> Any:
        """Computes the result of the operands `arrays` by NumPy; the operands broadcast."""
        return self.function(*arrays)

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        """Returns the op as an OpenCL C expression; None if kernels do not support the dtypes.

        Args:
            args: Expressions of the operands.
            dtypes: Dtypes of the operands.
        """
        template = self.expr
        if not dtypes[0].is_float and self.int_expr is not None:
            template = self.int_expr
        prefix = Code("d_") if dtypes[0] is DType.FLOAT64 else Code("c_")
        return self.fill(template.renamed(Code("@"), prefix), args, dtypes)

    def fill(self, template: Code, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        """Substitutes operands (and, in subclasses, attributes) into an OpenCL C expression.

        Args:
            template: Expression with {0}, {1}, … for the operands.
            args: Expressions of the operands.
            dtypes: Dtypes of the operands.

        Returns:
            The expression in parentheses; None if the template is empty.
        """
        return Code("({})").substitute(template.substitute(*args)) if template else None
