"""Every elementwise op: one row each.

A row gives the OpenCL C expression and the NumPy function. In an expression {0}, {1}… are the
operands; `@name` is `c_name` of common/math.clh for float32 (scalar or vector lanes) and float16,
and `d_name` for float64. Conditions are C truth values, 0/-1 per lane in vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from clrt.errors import ShapeError, counted
from clrt.ir.code import Code
from clrt.ir.dims import Dim, floordiv, maximum
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, Op, Sample, Types, broadcast_shapes, need, register

NumpyFunction = Callable[..., Any]


def widened(array: Array) -> Array:
    """The array in the dtype in which the device computes with its elements."""
    if array.dtype == object or DType.of(array.dtype).storage == "plain":
        return array
    return array.astype(np.float32 if DType.of(array.dtype).is_float else np.int32)


def literal(value: float, dtype: DType) -> Code:
    """A number in OpenCL C, exact to the last bit."""
    if not dtype.is_float:
        return Code("({})({})").fill(dtype.cl, int(value))
    with np.errstate(over="ignore"):
        number = float(value if dtype is DType.FLOAT64 else np.float32(value))
    if math.isnan(number):
        return Code("NAN")
    if math.isinf(number):
        return Code("INFINITY") if number > 0 else Code("(-INFINITY)")
    return (Code("({})") if dtype is DType.FLOAT64 else Code("({}f)")).fill(number)


def truncated(array: Array, dtype: DType) -> Array:
    """Floats as integers of a dtype, rounded towards 0: what `integer_cl` computes.

    They become int32, or int64 for uint32, int64 and uint64, of which the low bits are kept; what
    does not fit there, and NaN, becomes the least one. uint64 holds what is below 2^64, too.
    """
    wide = array.astype(np.float64)
    target, bound = (np.int32, 2.0**31) if dtype in _BY_INT32 else (np.int64, 2.0**63)
    fits = (wide >= -bound) & (wide < bound)
    whole = np.where(fits, wide, -bound).astype(target)
    if dtype is DType.UINT64:
        high = (wide >= bound) & (wide < 2 * bound)
        upper = np.where(high, wide - bound, 0).astype(np.uint64) + np.uint64(1 << 63)
        return np.where(high, upper, whole.astype(np.uint64))
    return whole.astype(dtype.numpy)


def integer_cl(text: Code, source: DType, dtype: DType) -> Code:
    """The OpenCL C expression of a float as an integer of a dtype, as `truncated` has it."""
    kind = Code("double") if source is DType.FLOAT64 else Code("float")
    wide = DType.INT32 if dtype in _BY_INT32 else DType.INT64
    wide = dtype if dtype is DType.UINT64 else wide
    return Code("({})({}_to_{}({}))").fill(dtype.compute, kind, wide.cl, text)


_BY_INT64 = (DType.UINT32, DType.INT64, DType.UINT64)
_BY_INT32 = frozenset(d for d in DType if d.is_int and d not in _BY_INT64)


@dataclass(frozen=True)
class Pointwise(Op):
    """Base of the elementwise ops, with NumPy's broadcasting.

    Class attributes:
        expr: The expression for floating point, and for integers where `int_expr` is None.
        function: NumPy's function of the operands (the attributes are on self).
        compares: The result is bool.
        domain_low, domain_high: Where samples are drawn from.
        edge_dtypes: The integers whose extremes are samples, too.
    """

    expr: ClassVar[Code] = Code("")
    int_expr: ClassVar[Code | None] = None
    function: ClassVar[NumpyFunction]
    arity: ClassVar[int] = 1
    compares: ClassVar[bool] = False
    integers: ClassVar[bool] = False
    floats: ClassVar[bool] = True
    booleans: ClassVar[bool] = False
    domain_low: ClassVar[float] = -4.0
    domain_high: ClassVar[float] = 4.0
    edge_dtypes: ClassVar[Sequence[DType]] = (DType.INT64, DType.INT32)
    accuracy = Accuracy.TRANSCENDENTAL
    storages = None
    in_place: ClassVar[tuple[int, ...]] = (0, 1, 2)

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        """Dtype of the result."""
        return DType.BOOL if self.compares else dtypes[0]

    def infer(self, inputs: Types) -> list[TensorType]:
        present = [need(inputs, i, self) for i, t in enumerate(inputs) if t is not None or i == 0]
        if not self.takes(len(present)):
            raise ShapeError(f"{self.name}: it does not take {counted(len(present), 'operand')}.")
        self.check(present)
        shape = broadcast_shapes([t.shape for t in present], self)
        return [TensorType(self.result_dtype([t.dtype for t in present]), shape)]

    def takes(self, operands: int) -> bool:
        """Whether it is an op of so many operands."""
        return operands == self.arity

    def check(self, inputs: Sequence[TensorType]) -> None:
        """Refuses mixed dtypes.

        Raises:
            ShapeError: Operands have different dtypes.
        """
        if not self.floats and any(t.dtype.is_float for t in inputs):
            raise ShapeError(f"{self.name}: it takes no floats; its operand is {inputs[0]}.")
        if len({t.dtype for t in inputs}) > 1:
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

    def evaluate(self, *arrays: Array) -> Any:
        """The NumPy function applied to the operands."""
        return self.function(*arrays)

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        """The OpenCL C expression, or None where there is none for these dtypes."""
        template = self.expr
        if not dtypes[0].is_float and self.int_expr is not None:
            template = self.int_expr
        prefix = Code("d_") if dtypes[0] is DType.FLOAT64 else Code("c_")
        return self.fill(template.renamed(Code("@"), prefix), args, dtypes)

    def fill(self, template: Code, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        """Puts operands and attributes into a template."""
        return Code("({})").fill(template.fill(*args)) if template else None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """Flat and broadcast operands with tails around the vector width, per dtype."""
        rng = np.random.default_rng(7)
        shapes: list[tuple[tuple[int, ...], ...]] = [((n,),) * cls.arity for n in (0, 1, 7, 33)]
        if cls.arity == 2:
            shapes += [((2, 3, 5), (5,)), ((4, 1, 5), (3, 1)), ((), (3, 4))]
        if cls.arity == 3:
            shapes += [((2, 1, 5), (3, 1), (2, 3, 5))]
        for group in shapes:
            for dtype in cls.sample_dtypes():
                yield Sample(cls(), tuple(cls.draw(rng, shape, dtype) for shape in group))
        for dtype in cls.edge_dtypes if cls.integers else ():
            yield Sample(cls(), tuple(np.meshgrid(*[_edges(dtype)] * cls.arity)))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        for count in range(1, cls.arity + 2):
            if not cls().takes(count):
                yield Sample(cls(), (np.zeros(3, np.float32),) * count), ShapeError

    @classmethod
    def sample_dtypes(cls) -> list[DType]:
        """The dtypes that samples are drawn in."""
        floats = [DType.FLOAT32] if cls.floats else []
        integers = [DType.INT64, DType.INT32] if cls.integers else []
        return floats + integers + ([DType.BOOL] if cls.booleans else [])

    @classmethod
    def draw(cls, rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
        """Random elements of the op's input domain."""
        if dtype is DType.BOOL:
            return np.asarray(rng.integers(0, 2, shape), bool)
        low, high = cls.domain_low, cls.domain_high
        if dtype.is_int:
            return np.asarray(rng.integers(math.ceil(low), math.ceil(high), shape), dtype.numpy)
        return np.asarray(rng.uniform(low, high, shape), dtype.numpy)


def _edges(dtype: DType) -> Array:
    """Integers around 0 and at both ends of a dtype."""
    info = np.iinfo(dtype.value)
    low, high = int(info.min), int(info.max)
    numbers = {*range(max(low, -4), 5), *range(low, low + 5), *range(high - 4, high + 1)}
    return np.array(sorted(numbers), dtype.numpy)


def _row(
    name: str, expr: str, function: NumpyFunction, int_expr: str | None = None, **traits: Any
) -> type[Pointwise]:
    """Makes and registers an op without attributes; its expressions are literals."""
    body = {
        "name": name,
        "expr": Code(expr),
        "int_expr": None if int_expr is None else Code(int_expr),
        "function": staticmethod(function),
        "__doc__": f"ONNX {name}: {expr}.",
    }
    cls = type(name, (Pointwise,), {**body, **traits, "__module__": __name__})
    return register(dataclass(frozen=True)(cls))


def either(plain: NumpyFunction, symbolic: NumpyFunction) -> NumpyFunction:
    """A function that treats arrays of dims one by one."""
    one_by_one = np.frompyfunc(symbolic, 2, 1)

    def apply(a: Array, b: Array) -> Any:
        symbolic_operands = object in (np.asarray(a).dtype, np.asarray(b).dtype)
        return (one_by_one if symbolic_operands else plain)(a, b)

    return apply


def _divide_dims(a: Dim, b: Dim) -> Dim:
    """The quotient, rounded towards 0."""
    if b < 0:
        a, b = -a, -b
    return floordiv(maximum(a, 0), b) - floordiv(maximum(-a, 0), b)


def _divide(a: Array, b: Array) -> Any:
    if a.dtype == object or b.dtype == object:
        return np.frompyfunc(_divide_dims, 2, 1)(a, b)
    if a.dtype.kind == "f":
        return a / b
    quotient = np.floor_divide(a, np.where(b == 0, 1, b))
    truncated = quotient + ((quotient < 0) & (quotient * b != a))
    return np.where(b == 0, 0, truncated)


def _integer_power(x: Array, y: Array) -> Array:
    """Powers modulo 2^64, as uint64; fractions are 0."""
    with np.errstate(all="ignore"):
        power = np.power(x.astype(np.uint64), np.where(y < 0, 0, y).astype(np.uint64))
    of_one = np.where((x == 1) | (y % 2 == 0), 1, x)
    small = np.where((x == 1) | (x == -1), of_one, 0).astype(np.int64).astype(np.uint64)
    return np.where(y < 0, small, power)


def _erf(x: Array) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


_INTEGERS = tuple(d for d in DType if d.is_int and d.storage == "plain")
_NUMBERS: dict[str, Any] = {"integers": True}
_EXACT: dict[str, Any] = {"accuracy": Accuracy.EXACT}
_BINARY: dict[str, Any] = {"arity": 2, **_NUMBERS, "shape_data": True}
_ARITHMETIC: dict[str, Any] = {**_BINARY, "accuracy": Accuracy.ELEMENTWISE}
_COMPARE: dict[str, Any] = {**_BINARY, **_EXACT, "compares": True, "in_place": ()}
_LOGIC: dict[str, Any] = {
    **_EXACT,
    "arity": 2,
    "floats": False,
    "booleans": True,
    "shape_data": True,
}
_BITS: dict[str, Any] = {**_EXACT, "arity": 2, "floats": False, **_NUMBERS}
_ONE: dict[str, Any] = {"domain_low": -1.0, "domain_high": 1.0}
_POSITIVE: dict[str, Any] = {"domain_low": 0.01, "domain_high": 9.0}

Add = _row("Add", "{0} + {1}", lambda a, b: a + b, int_expr="i_add({0}, {1})", **_ARITHMETIC)
Sub = _row("Sub", "{0} - {1}", lambda a, b: a - b, int_expr="i_sub({0}, {1})", **_ARITHMETIC)
Mul = _row("Mul", "{0} * {1}", lambda a, b: a * b, int_expr="i_mul({0}, {1})", **_ARITHMETIC)
Div = _row(
    "Div",
    "{0} / {1}",
    _divide,
    int_expr="i_div({0}, {1})",
    edge_dtypes=_INTEGERS,
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
IsNaN = _row("IsNaN", "{0} != {0}", np.isnan, compares=True, in_place=(), **_EXACT)

Neg = _row(
    "Neg",
    "-{0}",
    lambda x: -x,
    int_expr="i_sub(0, {0})",
    shape_data=True,
    **_NUMBERS,
    **_EXACT,
)
Abs = _row(
    "Abs",
    "@abs({0})",
    np.abs,
    int_expr="{0} < 0 ? i_sub(0, {0}) : {0}",
    **_NUMBERS,
    **_EXACT,
)
Sign = _row(
    "Sign",
    "PICK({0} > 0, (F)1, PICK({0} < 0, (F)-1, {0}))",
    np.sign,
    int_expr="({0} > 0) - ({0} < 0)",
    **_NUMBERS,
    **_EXACT,
)
Reciprocal = _row("Reciprocal", "1 / {0}", lambda x: 1 / x, **_POSITIVE)
Sqrt = _row("Sqrt", "sqrt({0})", np.sqrt, **_POSITIVE)
Exp = _row("Exp", "@exp({0})", np.exp)
Log = _row("Log", "@log({0})", np.log, **_POSITIVE)
Erf = _row("Erf", "@erf({0})", _erf)
Tanh = _row("Tanh", "@tanh({0})", np.tanh)
Sigmoid = _row("Sigmoid", "@sigmoid({0})", lambda x: 1 / (1 + np.exp(-x.astype(np.float64))))
Softplus = _row("Softplus", "@softplus({0})", lambda x: np.logaddexp(x, 0))
Softsign = _row("Softsign", "{0} / (1 + @abs({0}))", lambda x: x / (1 + np.abs(x)))
Relu = _row(
    "Relu", "PICK({0} < 0, (F)0, {0})", lambda x: np.maximum(x, 0),
    int_expr="{0} < 0 ? 0 : {0}", **_NUMBERS, **_EXACT,
)  # fmt: skip
Mish = _row("Mish", "@mish({0})", lambda x: x * np.tanh(np.logaddexp(x, 0)))
HardSwish = _row(
    "HardSwish",
    "{0} * @max(@min({0} / 6 + 0.5f, (F)1), (F)0)",
    lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
)
Floor = _row("Floor", "floor({0})", np.floor, **_EXACT)
Ceil = _row("Ceil", "ceil({0})", np.ceil, **_EXACT)
Round = _row("Round", "rint({0})", np.rint, **_EXACT)
Sin = _row("Sin", "@sin({0})", np.sin)
Cos = _row("Cos", "@cos({0})", np.cos)
Tan = _row("Tan", "@tan({0})", np.tan, **_ONE)
Asin = _row("Asin", "asin({0})", np.arcsin, **_ONE)
Acos = _row("Acos", "acos({0})", np.arccos, **_ONE)
Atan = _row("Atan", "atan({0})", np.arctan)
Sinh = _row("Sinh", "sinh({0})", np.sinh)
Cosh = _row("Cosh", "cosh({0})", np.cosh)
Asinh = _row("Asinh", "asinh({0})", np.arcsinh)
Acosh = _row("Acosh", "acosh({0})", np.arccosh, domain_low=1.01, domain_high=9.0)
Atanh = _row("Atanh", "atanh({0})", np.arctanh, domain_low=-0.9, domain_high=0.9)


@register
@dataclass(frozen=True)
class Pow(Pointwise):
    """x to the power y; y may have another dtype.

    Of integers an integer, in its dtype's arithmetic, which wraps: 0 for what lies between -1 and
    1, such as negative powers of 2 and more, and for negative powers of 0.

    Source: ONNX Pow, opset 7 to 15.
    """

    expr = Code("@pow({0}, {1})")
    arity = 2
    domain_low = 0.25

    def check(self, inputs: Sequence[TensorType]) -> None:
        """Any two numeric dtypes go together."""

    def evaluate(self, *arrays: Array) -> Any:
        x, y = arrays
        if x.dtype.kind in "iu" and y.dtype.kind in "iu":
            return _integer_power(x, y).astype(x.dtype)
        # np.power takes square roots for 0.5, which err at -infinity and -0.
        if x.dtype.kind in "iu":
            return truncated(np.float_power(x, y), DType.of(x.dtype))
        return np.float_power(x, y.astype(x.dtype))

    def fill(self, template: Code, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        if not dtypes[0].is_float and not dtypes[1].is_float:
            return super().fill(Code("i_pow({0}, {1})"), args, dtypes)
        kind = Code("double") if dtypes[0] is DType.FLOAT64 else Code("F")
        if dtypes[0].is_float:
            return super().fill(template, (args[0], Code("({})({})").fill(kind, args[1])), dtypes)
        if dtypes[1] is DType.FLOAT64:
            wide = Code("pow((double)({}), {})").fill(*args)
            return integer_cl(wide, DType.FLOAT64, dtypes[0])
        return integer_cl(Code("c_pow((F)({}), (F)({}))").fill(*args), DType.FLOAT32, dtypes[0])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        for dtype in (np.int32, np.int64):
            x, y = np.meshgrid(np.arange(-9, 10, dtype=dtype), np.arange(-2, 9, dtype=dtype))
            yield Sample(cls(), (x, y))
            yield Sample(cls(), (np.abs(x), np.full(1, 0.75, np.float32)))
            yield Sample(cls(), (x.astype(np.float32), y))
        for integer in _INTEGERS:
            yield Sample(cls(), tuple(np.meshgrid(*[_edges(integer)] * 2)))
        yield Sample(cls(), (_edges(DType.INT8), np.full(1, 1000)))
        yield Sample(cls(), (_edges(DType.INT32), np.full(1, -0.5, np.float32)))


@register
@dataclass(frozen=True)
class Mod(Pointwise):
    """Remainder with the divisor's sign, or C's fmod. Source: ONNX Mod, opset 10 to 13."""

    fmod: int = 0

    expr = Code("@mod({0}, {1})")
    int_expr = Code("i_mod({0}, {1})")
    edge_dtypes = _INTEGERS
    arity = 2
    integers = True
    shape_data = True

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

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for sample in super().samples():
            is_float = sample.inputs[0] is not None and sample.inputs[0].dtype.kind == "f"
            yield Sample(cls(int(is_float)), sample.inputs)
            if not is_float:
                yield Sample(cls(1), sample.inputs)


@register
@dataclass(frozen=True)
class BitShift(Pointwise):
    """Shift of unsigned integers. Source: ONNX BitShift, opset 11."""

    direction: Literal["LEFT", "RIGHT"] = "LEFT"

    arity = 2
    floats = False

    def evaluate(self, *arrays: Array) -> Any:
        return (np.left_shift if self.direction == "LEFT" else np.right_shift)(*arrays)

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        # C leaves a shift by the width or more undefined; ONNX shifts everything out.
        left = Code("((ulong)({1}) < {2} ? {0} << {1} : 0)")
        right = Code("((ulong)({1}) < {2} ? {0} >> {1} : ({0} < 0 ? -1 : 0))")
        template = left if self.direction == "LEFT" else right
        return template.fill(*args, 8 * dtypes[0].itemsize)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (np.uint8, np.uint32):
            x, by = np.arange(9, dtype=dtype) * 7, np.arange(9, dtype=dtype) % 5
            yield Sample(cls("LEFT"), (x, by))
            yield Sample(cls("RIGHT"), (x, by))
        for wide in (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64, DType.INT64):
            width = 8 * wide.itemsize
            most = int(np.iinfo(wide.value).max)
            places = [0, 1, width - 1, width, width + 1, 63, 64, 65, 127, most]
            grid = tuple(np.meshgrid(_edges(wide), np.array(places, wide.numpy)))
            yield Sample(cls("LEFT"), grid)
            yield Sample(cls("RIGHT"), grid)


@register
@dataclass(frozen=True)
class Where(Pointwise):
    """condition ? x : y. Source: ONNX Where, opset 9 to 16."""

    arity = 3
    in_place = (1, 2)
    accuracy = Accuracy.EXACT
    shape_data = True

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        return dtypes[1]

    def check(self, inputs: Sequence[TensorType]) -> None:
        if inputs[0].dtype is not DType.BOOL:
            raise ShapeError(f"Where: the condition must be bool; it is {inputs[0]}.")
        super().check(inputs[1:])

    def evaluate(self, *arrays: Array) -> Any:
        return np.where(arrays[0].astype(bool), arrays[1], arrays[2])

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        return Code("PICK({}, {}, {})").fill(*args)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(3)
        for sample in super().samples():
            condition, *rest = sample.inputs
            assert condition is not None
            mask = np.asarray(rng.integers(0, 2, condition.shape), bool)
            yield Sample(cls(), (mask, *rest))


@register
@dataclass(frozen=True)
class Gelu(Pointwise):
    """x Φ(x), exact or by tanh. Source: ONNX Gelu, opset 20."""

    approximate: Literal["none", "tanh"] = "none"

    def evaluate(self, *arrays: Array) -> Any:
        x = arrays[0].astype(np.float64)
        if self.approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        template = Code("@gelu_tanh({0})") if self.approximate == "tanh" else Code("@gelu_erf({0})")
        prefix = Code("d_") if dtypes[0] is DType.FLOAT64 else Code("c_")
        return template.renamed(Code("@"), prefix).fill(*args)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for sample in super().samples():
            yield sample
            yield Sample(cls("tanh"), sample.inputs)


@register
@dataclass(frozen=True)
class IsInf(Pointwise):
    """Whether x is infinite, per sign. Source: ONNX IsInf, opset 10 to 20."""

    detect_negative: int = 1
    detect_positive: int = 1
    compares = True
    in_place = ()
    accuracy = Accuracy.EXACT

    def evaluate(self, *arrays: Array) -> Any:
        x = arrays[0]
        positive = np.isposinf(x) & bool(self.detect_positive)
        return positive | (np.isneginf(x) & bool(self.detect_negative))

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        positive = Code("({0} == INFINITY)") if self.detect_positive else Code("0")
        negative = Code("({0} == -INFINITY)") if self.detect_negative else Code("0")
        return Code("({} || {})").fill(positive.fill(*args), negative.fill(*args))
