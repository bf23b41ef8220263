"""Table of the elementwise ops, and the elementwise ops with attributes or special types.

A row of the table has the OpenCL C expression (see `pointwise.base`) and the NumPy function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.cl_code import Code
from clrt.ir.dim_operations import floordiv, maximum
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy
from clrt.ops.gradients.expression import Expression
from clrt.ops.pointwise.base import NumpyFunction, Pointwise
from clrt.ops.pointwise.conversions import integer_cl, truncated
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass


def _row(
    name: str,
    expr: str,
    function: NumpyFunction,
    int_expr: str | None = None,
    derivative: Callable[..., Any] | None = None,
    **traits: Any,
) -> type[Pointwise]:
    """Creates and registers an elementwise op class without attributes.

    Args:
        name: ONNX name of the op.
        expr: OpenCL C expression of floats; {0} and {1} are the operands.
        function: NumPy function of the operands.
        int_expr: OpenCL C expression of integers; None for `expr`.
        derivative: Function of the operands and the result, as `Pointwise.derivative`; None if the
            result is not a floating-point number.
        traits: Other class attributes of `Pointwise`, such as `arity`.
    """
    body = {
        "name": name,
        "expr": Code(expr),
        "int_expr": None if int_expr is None else Code(int_expr),
        "function": staticmethod(function),
        "__doc__": f"ONNX {name}: {expr}.",
    }
    if derivative is not None:
        body["derivative"] = staticmethod(derivative)
    return register(type(name, (Pointwise,), {**body, **traits, "__module__": __name__}))


def either(plain: NumpyFunction, symbolic: NumpyFunction) -> NumpyFunction:
    """Returns a binary function of arrays: `plain` for numbers, elementwise `symbolic` for dims.

    Args:
        plain: NumPy function for arrays of numbers.
        symbolic: Function of two dims, used if an operand is an object array.
    """
    one_by_one = np.frompyfunc(symbolic, 2, 1)

    def apply(a: Array, b: Array) -> Any:
        symbolic_operands = object in (np.asarray(a).dtype, np.asarray(b).dtype)
        return (one_by_one if symbolic_operands else plain)(a, b)

    return apply


def _divide_dims(a: Dim, b: Dim) -> Dim:
    """Divides `a` by `b`, rounding towards 0; both are dims or integers, and `b` is not 0."""
    if b < 0:
        a, b = -a, -b
    return floordiv(maximum(a, 0), b) - floordiv(maximum(-a, 0), b)


def _divide(a: Array, b: Array) -> Any:
    """Divides arrays of numbers or dims; integer quotients are truncated, and 0 if b is 0."""
    if a.dtype == object or b.dtype == object:
        return np.frompyfunc(_divide_dims, 2, 1)(a, b)
    if a.dtype.kind == "f":
        return a / b
    quotient = np.floor_divide(a, np.where(b == 0, 1, b))
    truncated = quotient + ((quotient < 0) & (quotient * b != a))
    return np.where(b == 0, 0, truncated)


def _integer_power(x: Array, y: Array) -> Array:
    """Computes x to the power y modulo 2^64, as uint64.

    For negative y the result is 0, unless x is 1 or -1.
    """
    with np.errstate(all="ignore"):
        power = np.power(x.astype(np.uint64), np.where(y < 0, 0, y).astype(np.uint64))
    of_one = np.where((x == 1) | (y % 2 == 0), 1, x)
    small = np.where((x == 1) | (x == -1), of_one, 0).astype(np.int64).astype(np.uint64)
    return np.where(y < 0, small, power)


def _erf(x: Array) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _square(x: Expression) -> Expression:
    return x * x


def _derivative_of_mish(x: Expression, y: Expression) -> Expression:
    tanh = x.apply("Softplus").apply("Tanh")
    return tanh + x * (1 - tanh * tanh) * x.apply("Sigmoid")


_NUMBERS: dict[str, Any] = {"integers": True}
_EXACT: dict[str, Any] = {"accuracy": Accuracy.EXACT}
_FLOATS: dict[str, Any] = {"only_floats": True}
_DIMS: dict[str, Any] = {"host_traits": HostTraits(evaluates_dims=True)}
_BINARY: dict[str, Any] = {"arity": 2, **_NUMBERS, **_DIMS}
_ARITHMETIC: dict[str, Any] = {**_BINARY, "accuracy": Accuracy.ELEMENTWISE}
_COMPARE: dict[str, Any] = {**_BINARY, **_EXACT, "compares": True, "memory_traits": MemoryTraits()}
_LOGIC: dict[str, Any] = {
    **_EXACT,
    "arity": 2,
    "floats": False,
    "booleans": True,
    **_DIMS,
}
_BITS: dict[str, Any] = {**_EXACT, "arity": 2, "floats": False, **_NUMBERS}

Add = _row(
    "Add",
    "{0} + {1}",
    lambda a, b: a + b,
    int_expr="i_add({0}, {1})",
    derivative=lambda a, b, y: (1, 1),
    **_ARITHMETIC,
)
Sub = _row(
    "Sub",
    "{0} - {1}",
    lambda a, b: a - b,
    int_expr="i_sub({0}, {1})",
    derivative=lambda a, b, y: (1, -1),
    **_ARITHMETIC,
)
Mul = _row(
    "Mul",
    "{0} * {1}",
    lambda a, b: a * b,
    int_expr="i_mul({0}, {1})",
    derivative=lambda a, b, y: (b, a),
    **_ARITHMETIC,
)
Div = _row(
    "Div",
    "{0} / {1}",
    _divide,
    int_expr="i_div({0}, {1})",
    derivative=lambda a, b, y: (1 / b, -y / b),
    **_ARITHMETIC,
)
Equal = _row(
    "Equal", "{0} == {1}", either(np.equal, lambda a, b: a == b), booleans=True, **_COMPARE
)
Less = _row("Less", "{0} < {1}", either(np.less, lambda a, b: a < b), **_COMPARE)
LessOrEqual = _row(
    "LessOrEqual", "{0} <= {1}", either(np.less_equal, lambda a, b: a <= b), **_COMPARE
)
Greater = _row("Greater", "{0} > {1}", either(np.greater, lambda a, b: a > b), **_COMPARE)
GreaterOrEqual = _row(
    "GreaterOrEqual", "{0} >= {1}", either(np.greater_equal, lambda a, b: a >= b), **_COMPARE
)
And = _row("And", "{0} && {1}", np.logical_and, **_LOGIC)
Or = _row("Or", "{0} || {1}", np.logical_or, **_LOGIC)
Xor = _row("Xor", "!{0} != !{1}", np.logical_xor, **_LOGIC)
Not = _row("Not", "!{0}", np.logical_not, **{**_LOGIC, "arity": 1})
BitwiseAnd = _row("BitwiseAnd", "{0} & {1}", np.bitwise_and, **_BITS)
BitwiseOr = _row("BitwiseOr", "{0} | {1}", np.bitwise_or, **_BITS)
BitwiseXor = _row("BitwiseXor", "{0} ^ {1}", np.bitwise_xor, **_BITS)
BitwiseNot = _row("BitwiseNot", "~{0}", np.bitwise_not, **{**_BITS, "arity": 1})
IsNaN = _row("IsNaN", "{0} != {0}", np.isnan, compares=True, memory_traits=MemoryTraits(), **_EXACT)

Neg = _row(
    "Neg",
    "-{0}",
    lambda x: -x,
    int_expr="i_sub(0, {0})",
    derivative=lambda x, y: -1,
    **_DIMS,
    **_NUMBERS,
    **_EXACT,
)
Abs = _row(
    "Abs",
    "@abs({0})",
    np.abs,
    int_expr="{0} < 0 ? i_sub(0, {0}) : {0}",
    derivative=lambda x, y: x.apply("Sign"),
    **_NUMBERS,
    **_EXACT,
)
Sign = _row(
    "Sign",
    "PICK({0} > 0, (F)1, PICK({0} < 0, (F)-1, {0}))",
    np.sign,
    int_expr="({0} > 0) - ({0} < 0)",
    derivative=lambda x, y: None,
    **_NUMBERS,
    **_EXACT,
)
Reciprocal = _row(
    "Reciprocal",
    "1 / {0}",
    lambda x: 1 / x,
    derivative=lambda x, y: -y * y,
)
Sqrt = _row(
    "Sqrt",
    "sqrt({0})",
    np.sqrt,
    derivative=lambda x, y: 0.5 / y,
    **_FLOATS,
)
Exp = _row(
    "Exp",
    "@exp({0})",
    np.exp,
    derivative=lambda x, y: y,
)
Log = _row(
    "Log",
    "@log({0})",
    np.log,
    derivative=lambda x, y: 1 / x,
)
Erf = _row(
    "Erf",
    "@erf({0})",
    _erf,
    derivative=lambda x, y: (-x * x).apply("Exp") * (2 / math.sqrt(math.pi)),
)
Tanh = _row(
    "Tanh",
    "@tanh({0})",
    np.tanh,
    derivative=lambda x, y: 1 - y * y,
)
Sigmoid = _row(
    "Sigmoid",
    "@sigmoid({0})",
    lambda x: 1 / (1 + np.exp(-x.astype(np.float64))),
    derivative=lambda x, y: y * (1 - y),
)
Softplus = _row(
    "Softplus",
    "@softplus({0})",
    lambda x: np.logaddexp(x, 0),
    derivative=lambda x, y: x.apply("Sigmoid"),
)
Softsign = _row(
    "Softsign",
    "{0} / (1 + @abs({0}))",
    lambda x: x / (1 + np.abs(x)),
    derivative=lambda x, y: _square(1 / (1 + x.apply("Abs"))),
)
Relu = _row(
    "Relu",
    "PICK({0} < 0, (F)0, {0})",
    lambda x: np.maximum(x, 0),
    int_expr="{0} < 0 ? 0 : {0}",
    derivative=lambda x, y: x > 0,
    **_NUMBERS,
    **_EXACT,
)
Mish = _row(
    "Mish",
    "@mish({0})",
    lambda x: x * np.tanh(np.logaddexp(x, 0)),
    derivative=_derivative_of_mish,
)
HardSwish = _row(
    "HardSwish",
    "{0} * @max(@min({0} / 6 + 0.5f, (F)1), (F)0)",
    lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    derivative=lambda x, y: (x / 3 + 0.5).where(x < 3, 1).where(x > -3),
)
Floor = _row(
    "Floor",
    "floor({0})",
    np.floor,
    derivative=lambda x, y: None,
    **_EXACT,
    **_FLOATS,
)
Ceil = _row(
    "Ceil",
    "ceil({0})",
    np.ceil,
    derivative=lambda x, y: None,
    **_EXACT,
    **_FLOATS,
)
Round = _row(
    "Round",
    "rint({0})",
    np.rint,
    derivative=lambda x, y: None,
    **_EXACT,
    **_FLOATS,
)
Sin = _row(
    "Sin",
    "@sin({0})",
    np.sin,
    derivative=lambda x, y: x.apply("Cos"),
)
Cos = _row(
    "Cos",
    "@cos({0})",
    np.cos,
    derivative=lambda x, y: -x.apply("Sin"),
)
Tan = _row(
    "Tan",
    "@tan({0})",
    np.tan,
    derivative=lambda x, y: 1 + y * y,
)
Asin = _row(
    "Asin",
    "asin({0})",
    np.arcsin,
    derivative=lambda x, y: 1 / (1 - x * x).apply("Sqrt"),
    **_FLOATS,
)
Acos = _row(
    "Acos",
    "acos({0})",
    np.arccos,
    derivative=lambda x, y: -1 / (1 - x * x).apply("Sqrt"),
    **_FLOATS,
)
Atan = _row(
    "Atan",
    "atan({0})",
    np.arctan,
    derivative=lambda x, y: 1 / (1 + x * x),
    **_FLOATS,
)
Sinh = _row(
    "Sinh",
    "sinh({0})",
    np.sinh,
    derivative=lambda x, y: x.apply("Cosh"),
    **_FLOATS,
)
Cosh = _row(
    "Cosh",
    "cosh({0})",
    np.cosh,
    derivative=lambda x, y: x.apply("Sinh"),
    **_FLOATS,
)
Asinh = _row(
    "Asinh",
    "asinh({0})",
    np.arcsinh,
    derivative=lambda x, y: 1 / (1 + x * x).apply("Sqrt"),
    **_FLOATS,
)
Acosh = _row(
    "Acosh",
    "acosh({0})",
    np.arccosh,
    derivative=lambda x, y: 1 / ((x - 1).apply("Sqrt") * (x + 1).apply("Sqrt")),
    **_FLOATS,
)
Atanh = _row(
    "Atanh",
    "atanh({0})",
    np.arctanh,
    derivative=lambda x, y: 1 / (1 - x * x),
    **_FLOATS,
)


@register
class Pow(Pointwise):
    """x to the power y; y may have another dtype.

    For integer x and y the result wraps in x's dtype. Results between -1 and 1, such as negative
    powers of 2, become 0, as do negative powers of 0.

    Source: ONNX Pow, opset 7 to 15.
    """

    expr = Code("@pow({0}, {1})")
    arity = 2

    def check(self, inputs: Sequence[TensorType]) -> None:
        """Checks nothing: the operands may have two different dtypes."""

    def derivative(self, *operands: Expression) -> Any:
        x, exponent, y = operands
        p = exponent.cast_like(x)
        by_x = (p * x.apply("Pow", p - 1)).where(~p.equals(0))
        # 0 to a positive power stays 0 for powers nearby.
        by_exponent = (y * x.apply("Log")).where(~(x.equals(0) & (p >= 0)))
        return by_x, by_exponent

    def evaluate(self, *arrays: Array) -> Any:
        x, y = arrays
        if x.dtype.kind in "iu" and y.dtype.kind in "iu":
            return _integer_power(x, y).astype(x.dtype)
        # np.power computes x^0.5 by sqrt, which is wrong for -infinity and -0.
        if x.dtype.kind in "iu":
            return truncated(np.float_power(x, y), DType.of(x.dtype))
        return np.float_power(x, y.astype(x.dtype))

    def fill(self, template: Code, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        if not dtypes[0].is_float and not dtypes[1].is_float:
            return super().fill(Code("i_pow({0}, {1})"), args, dtypes)
        kind = Code("double") if dtypes[0] is DType.FLOAT64 else Code("F")
        if dtypes[0].is_float:
            return super().fill(
                template, (args[0], Code("({})({})").substitute(kind, args[1])), dtypes
            )
        if dtypes[1] is DType.FLOAT64:
            wide = Code("pow((double)({}), {})").substitute(*args)
            return integer_cl(wide, DType.FLOAT64, dtypes[0])
        return integer_cl(
            Code("c_pow((F)({}), (F)({}))").substitute(*args), DType.FLOAT32, dtypes[0]
        )


@register
@dataclass(frozen=True)
class Mod(Pointwise):
    """Remainder of a division.

    Attributes:
        fmod: 0: the result has the divisor's sign; 1: the dividend's sign, as C's fmod.

    Source: ONNX Mod, opset 10 to 13.
    """

    fmod: int = 0

    expr = Code("@mod({0}, {1})")
    int_expr = Code("i_mod({0}, {1})")
    arity = 2
    integers = True
    host_traits = HostTraits(evaluates_dims=True)

    def derivative(self, *operands: Expression) -> Any:
        a, b, y = operands
        quotient = (a - y) / b
        return 1, -quotient.apply("Round")

    def evaluate(self, *arrays: Array) -> Any:
        a, b = arrays
        if self.fmod and object in (a.dtype, b.dtype):
            return a - b * _divide(a, b)
        return np.fmod(a, b) if self.fmod else np.mod(a, b)

    def fill(self, template: Code, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        if self.fmod:
            integers, floats = Code("i_rem({0}, {1})"), Code("fmod({0}, {1})")
            template = integers if dtypes[0].is_int else floats
        return super().fill(template, args, dtypes)


@register
@dataclass(frozen=True)
class BitShift(Pointwise):
    """x shifted by y bits, for unsigned integers.

    Attributes:
        direction: Direction of the shift.

    Source: ONNX BitShift, opset 11.
    """

    direction: Literal["LEFT", "RIGHT"] = "LEFT"

    arity = 2
    floats = False

    def evaluate(self, *arrays: Array) -> Any:
        return (np.left_shift if self.direction == "LEFT" else np.right_shift)(*arrays)

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        # Shifts by the width or more are undefined in C; in ONNX all bits are shifted out.
        left = Code("((ulong)({1}) < {2} ? {0} << {1} : 0)")
        right = Code("((ulong)({1}) < {2} ? {0} >> {1} : ({0} < 0 ? -1 : 0))")
        template = left if self.direction == "LEFT" else right
        return template.substitute(*args, 8 * dtypes[0].itemsize)


@register
class Where(Pointwise):
    """condition ? x : y. Source: ONNX Where, opset 9 to 16."""

    arity = 3
    memory_traits = MemoryTraits(inplace_inputs=(1, 2))
    accuracy = Accuracy.EXACT
    host_traits = HostTraits(evaluates_dims=True)

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        return dtypes[1]

    def check(self, inputs: Sequence[TensorType]) -> None:
        if inputs[0].dtype is not DType.BOOL:
            raise ShapeError(f"Where: the condition must be bool; it is {inputs[0]}.")
        super().check(inputs[1:])

    def derivative(self, *operands: Expression) -> Any:
        return None, operands[0], ~operands[0]

    def evaluate(self, *arrays: Array) -> Any:
        return np.where(arrays[0].astype(bool), arrays[1], arrays[2])

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        return Code("PICK({}, {}, {})").substitute(*args)


@register
@dataclass(frozen=True)
class Gelu(Pointwise):
    """x Φ(x), where Φ is the normal distribution function.

    Attributes:
        approximate: "tanh" to approximate Φ by tanh; "none" for the exact Φ.

    Source: ONNX Gelu, opset 20.
    """

    approximate: Literal["none", "tanh"] = "none"

    def derivative(self, *operands: Expression) -> Any:
        x, _ = operands
        if self.approximate == "tanh":
            root = math.sqrt(2 / math.pi)
            tanh = (x * (root + 0.044715 * root * x * x)).apply("Tanh")
            bell = 0.5 * root * x * (1 - tanh * tanh)  # 0 where x² would be infinite
            return 0.5 * (1 + tanh) + bell + 3 * 0.044715 * bell * x * x
        density = (-0.5 * x * x).apply("Exp") * (1 / math.sqrt(2 * math.pi))
        return 0.5 * (1 + (x / math.sqrt(2)).apply("Erf")) + x * density

    def evaluate(self, *arrays: Array) -> Any:
        x = arrays[0].astype(np.float64)
        if self.approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        template = Code("@gelu_tanh({0})") if self.approximate == "tanh" else Code("@gelu_erf({0})")
        prefix = Code("d_") if dtypes[0] is DType.FLOAT64 else Code("c_")
        return template.renamed(Code("@"), prefix).substitute(*args)


@register
@dataclass(frozen=True)
class IsInf(Pointwise):
    """Returns whether x is infinite.

    Attributes:
        detect_negative: 1 if -inf counts as infinite.
        detect_positive: 1 if inf counts as infinite.

    Source: ONNX IsInf, opset 10 to 20.
    """

    detect_negative: int = 1
    detect_positive: int = 1
    compares = True
    memory_traits = MemoryTraits()
    accuracy = Accuracy.EXACT

    def evaluate(self, *arrays: Array) -> Any:
        x = arrays[0]
        positive = np.isposinf(x) & bool(self.detect_positive)
        return positive | (np.isneginf(x) & bool(self.detect_negative))

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        positive = Code("({0} == INFINITY)") if self.detect_positive else Code("0")
        negative = Code("({0} == -INFINITY)") if self.detect_negative else Code("0")
        return Code("({} || {})").substitute(positive.substitute(*args), negative.substitute(*args))
