"""Cast and BitCast: conversion between dtypes by value, or reinterpretation of the bits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from clrt.errors import InputError, ShapeError, UnsupportedError
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import FLOAT_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.gradients.expression import Expression
from clrt.ops.movement.views import View
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.conversions import integer_cl, truncated
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import check_texts

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

FLOAT8 = (DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ)
_RoundMode: TypeAlias = Literal["up", "down", "nearest"]
ROUND_MODES: tuple[_RoundMode, ...] = ("nearest", "up", "down")
_INTEGER = re.compile(r"\s*[+-]?\d+", re.ASCII)
_FLOAT = re.compile(
    r"\s*[+-]?(?!0x)(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)",
    re.ASCII | re.IGNORECASE,
)


def onnx_dtype(code: int, op: str) -> DType:
    """Returns the DType of an ONNX TensorProto.DataType code.

    Args:
        code: The code.
        op: Name of the op for the message.

    Raises:
        UnsupportedError: clrt does not support the dtype.
    """
    dtype = DType.from_onnx(code)
    if dtype is None:
        raise UnsupportedError(f"{op}: ONNX data type {code} is not supported.")
    return dtype


@register
@dataclass(frozen=True)
class Cast(Pointwise):
    """Converts to another dtype; floats are truncated to integers, and integers wrap.

    ONNX does not define the conversion of floats outside the range of an integer dtype. clrt
    converts floats to int32 first (for uint32, int64 and uint64 to int64) and keeps the low bits:
    -1 becomes 255 in uint8. NaN, infinity and floats outside the range of int32 (int64) become the
    smallest int32 (int64), whose low 8 or 16 bits are 0. NumPy on x86 does the same; ONNX Runtime
    does so mostly. For uint64, floats from 2^63 to 2^64 are converted correctly, too.

    Strings are converted on the host.

    Attributes:
        to: Dtype of the result.
        saturate: For 8-bit floats: values that are too large become the largest number instead of
            infinity or NaN.
        round_mode: Rounding to float8e8m0 (powers of two): "up", "down" or "nearest".

    Source: ONNX Cast, opset 6 to 25.
    """

    to: DType = DType.FLOAT32
    saturate: bool = True
    round_mode: _RoundMode = "up"

    memory_traits = MemoryTraits(is_data_movement=True)
    accuracy = Accuracy.EXACT
    host_traits = HostTraits(evaluates_dims=True)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        mode = node.attrs.get("round_mode", "up")
        to = onnx_dtype(node.attrs["to"], cls.name)
        return cls(to, bool(node.attrs.get("saturate", 1)), mode)

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        return self.to

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        with np.errstate(all="ignore"):
            return (np.asarray(self.evaluate(x)),)

    def derivative(self, *operands: Expression) -> Any:
        return 1

    def evaluate(self, *arrays: Array) -> Any:
        (x,) = arrays
        if x.dtype == object:
            return self._dims(x)
        if self.to is DType.STRING:
            return _texts(x)
        if x.dtype.kind == "U":
            x = _floats(x) if self.to.is_float else _integers(x)
        if self.to is DType.FLOAT8E8M0:
            return powers_of_two(x, self.round_mode, self.saturate)
        if self.to in FLOAT8 and self.saturate:
            info = ml_dtypes.finfo(self.to.numpy)
            x = np.clip(x.astype(np.float32), float(info.min), float(info.max))
        if self.to is not DType.BOOL and DType.of(x.dtype).storage != "plain":
            x = x.astype(np.float32 if DType.of(x.dtype).is_float else np.int32)
        if self.to.is_int and x.dtype.kind == "f":
            return truncated(x, self.to)
        return x.astype(self.to.numpy)

    def _dims(self, x: Array) -> Array:
        if self.to in (DType.INT64, DType.INT32):
            return x
        if self.to is DType.BOOL:
            return np.array([d != 0 for d in x.flat], bool).reshape(x.shape)
        raise TypeError("symbolic dims are integers")

    def cl(self, args: Sequence[Code], dtypes: Sequence[DType]) -> Code | None:
        (x,), (source,), to = args, dtypes, self.to
        if to is DType.BOOL:
            return Code("({} != 0)").substitute(x)
        # 16-bit floats are computed in float32 and rounded when they are stored.
        if to is source or (to in FLOAT_STORAGES and source.compute == "float"):
            return x
        if to in FLOAT_STORAGES and source is DType.BOOL:
            return Code("PICK({}, (F)1, (F)0)").substitute(x)
        if to.is_int and source.is_float:
            return integer_cl(x, source, to)
        if to is DType.INT64 and source.itemsize <= 4 and source is not DType.UINT32:
            return Code("i_long({})").substitute(x)
        value = Code("({})({})").substitute(to.compute, x)
        if to is DType.FLOAT8E8M0:
            mode = ROUND_MODES.index(self.round_mode)
            return Code("power_of_two({}, {}, {})").substitute(value, mode, self.saturate)
        if to in FLOAT8 and self.saturate:
            return Code("saturated({}, {}f)").substitute(
                value, float(ml_dtypes.finfo(to.numpy).max)
            )
        return value


def powers_of_two(x: Array, mode: str, saturate: bool) -> Array:
    """Rounds the magnitudes of numbers to powers of two, as float8e8m0 (only an exponent).

    Infinity and NaN give NaN.

    Args:
        x: Numbers, whose signs are ignored.
        mode: "nearest" (ties away from 0), "up" or "down".
        saturate: Whether magnitudes above 2^127, the maximum, stay 2^127 if rounded up, instead of
            becoming NaN.
    """
    bits = x.astype(np.float32).view(np.uint32)
    exponent = (bits >> 23) & 0xFF
    fraction = bits & 0x7FFFFF
    if mode == "nearest":
        half, rest = fraction >= 0x400000, fraction & 0x3FFFFF
        more = half & ((rest > 0) | (exponent > 0))
    else:
        more = (fraction > 0) & (mode == "up")
    more &= exponent < (0xFE if saturate else 0xFF)
    return (exponent + more).astype(np.uint8).view(DType.FLOAT8E8M0.numpy)


# Characters per number assumed for the check of host memory.
_MAX_NUMBER_CHARS = 32


def _texts(x: Array) -> Array:
    """Formats numbers as strings; integral ones have no decimal point.

    Floats have 8 significant digits, as in ONNX Runtime; float64 numbers have as many digits as are
    needed to parse them back exactly. NaN and infinity become "NaN", "INF" and "-INF".
    """
    check_texts(x.size, _MAX_NUMBER_CHARS)
    if x.dtype.kind in "iubU":
        return (x.astype(np.uint8) if x.dtype.kind == "b" else x).astype("U")
    if DType.of(x.dtype) is DType.FLOAT64:
        texts = [np.format_float_positional(v, trim="-") for v in x.flat]
    else:
        texts = [f"{v:.8g}" for v in x.astype(np.float32).flat]
    names = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
    return np.array([names.get(t, t) for t in texts], "U").reshape(x.shape)


def _floats(x: Array) -> Array:
    return np.array([float(_head(text, _FLOAT)) for text in x.flat], np.float64).reshape(x.shape)


def _integers(x: Array) -> Array:
    """Parses the integers at the start of strings as int64; integers of 2^63 and more wrap.

    Raises:
        InputError: A string does not start with an integer, or the integer exceeds 64 bits.
    """
    numbers = [int(_head(text, _INTEGER)) for text in x.flat]
    for number in numbers:
        if not -(1 << 63) <= number < 1 << 64:
            raise InputError(f"Cast: {number} has more than 64 bits.")
    wrapped = np.array([n & ((1 << 64) - 1) for n in numbers], np.uint64)
    return wrapped.view(np.int64).reshape(x.shape)


def _head(text: str, number: re.Pattern[str]) -> str:
    """Returns the number at the start of `text`; as in C, characters behind it are ignored.

    Args:
        text: The string.
        number: Pattern of a number.

    Raises:
        InputError: The string does not start with a number.
    """
    match = number.match(text)
    if match is None:
        raise InputError(f"Cast: the text {str(text)!r} is not a number.")
    return match[0]


@register
@dataclass(frozen=True)
class BitCast(View):
    """Reinterprets bits as another dtype, `to`, of the same size.

    Source: ONNX BitCast, opset 26.
    """

    to: DType = DType.FLOAT32

    memory_traits = replace(View.memory_traits, is_data_movement=False)
    host_traits = HostTraits(evaluates_dims=False)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        return cls(onnx_dtype(node.attrs["to"], cls.name))

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.dtype.file_bits != self.to.file_bits or DType.STRING in (x.dtype, self.to):
            raise ShapeError(f"BitCast: {x} and {self.to} have different numbers of bits.")
        return [TensorType(self.to, x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        return [None]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (np.ascontiguousarray(x).view(self.to.numpy).reshape(x.shape),)
