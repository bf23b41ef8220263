"""QuantizeLinear and DequantizeLinear, per tensor, per axis or per block."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dims import Shape, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.quantize_launches import ScaleIndexing, bounds, dequantize_launch, quantize_launch
from clrt.kernels.spec import Launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.pointwise.cast import onnx_dtype
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

# Dtypes to which kernels round x / scale.
_QUOTIENTS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
# Dtypes of quantized tensors.
QUANTIZED = (
    DType.UINT8, DType.INT8, DType.UINT16, DType.INT16, DType.UINT4, DType.INT4, DType.UINT2,
    DType.INT2, DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ,
    DType.FLOAT6E2M3, DType.FLOAT6E3M2, DType.FLOAT4E2M1,
)  # fmt: skip


@dataclass(frozen=True)
class Quantization(Op):
    """Base class of QuantizeLinear and DequantizeLinear.

    Inputs: x, a scale, and optionally a zero point of the scale's shape. The scale is a scalar, or
    `[n]` for n elements along `axis`, or has the shape of x with ceil(n / `block_size`) elements
    along `axis`.

    Attributes:
        axis: Axis of per-axis and blocked scales.
        block_size: Elements along `axis` that share a scale; 0 if the scale is not blocked.
        output_dtype: Dtype of the output; None if the inputs imply it.
    """

    axis: int = 1
    block_size: int = 0
    output_dtype: DType | None = None

    accuracy = Accuracy.EXACT
    supported_storages: ClassVar[frozenset[str] | None] = None

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        for name in ("output_dtype", "precision"):
            code = node.attrs.pop(name, 0)
            if code:
                node.attrs[name] = onnx_dtype(code, cls.name)
        if "saturate" in node.attrs:
            node.attrs["saturate"] = bool(node.attrs["saturate"])
        return super().from_onnx(node)

    def walk(self, dims: tuple[int, ...], scale: tuple[int, ...]) -> ScaleIndexing:
        """Returns how the elements of x index the scales.

        Args:
            dims: Shape of x.
            scale: Shape of the scale.
        """
        one = prod(scale) == 1 and len(scale) < 2
        axis = 0 if one else normalize_axis(self.axis, len(dims), self)
        return ScaleIndexing.of(dims, axis, self.block_size, one=one)

    def spread(self, x: Array, parameter: Array) -> Array:
        """Reshapes or repeats scales or zero points so that they broadcast against x.

        Args:
            x: The tensor.
            parameter: Scales or zero points of x.
        """
        if parameter.ndim < 2 and parameter.size == 1:
            return parameter.reshape(())
        axis = normalize_axis(self.axis, x.ndim, self)
        if not self.block_size:
            return parameter.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return np.repeat(parameter, self.block_size, axis).take(range(x.shape[axis]), axis)

    @staticmethod
    def levels(dtype: DType, zero: Array) -> tuple[Array, Array]:
        """Returns the bounds of quantized values minus the zero points, as float32.

        Args:
            dtype: Integer dtype of the quantized values.
            zero: Zero points.

        Returns:
            The lower and the upper bound, in the shape of `zero`.
        """
        low, high = (np.float32(bound) for bound in bounds(dtype))
        return low - zero.astype(np.float32), high - zero.astype(np.float32)

    def check(self, inputs: Types) -> None:
        """Checks the shapes of scale (input 1) and zero point (input 2) against x (input 0).

        Raises:
            ShapeError: The scale does not fit x, or the zero point does not fit the scale.
        """
        x, scale = need(inputs, 0, self), need(inputs, 1, self)
        zero = inputs[2] if len(inputs) > 2 else None
        parameters = [t.shape for t in (scale, zero) if t is not None and t.is_static]
        if len(set(parameters)) > 1 and not all(_may_be_one(s) for s in parameters):
            raise ShapeError(f"{self.name}: zero point {zero} does not match scale {scale}.")
        if x.shape is None or scale.shape is None or _may_be_one(scale.shape):
            return
        axis = normalize_axis(self.axis, len(x.shape), self)
        if self.block_size:
            size = x.shape[axis]
            blocks = -(-size // self.block_size)
            wanted: Shape = tuple(blocks if i == axis else d for i, d in enumerate(x.shape))
        else:
            wanted = (x.shape[axis],)
        if len(wanted) != len(scale.shape) or any(map(provably_different, wanted, scale.shape)):
            blocks_of = f" in blocks of {self.block_size}" if self.block_size else ""
            raise ShapeError(
                f"{self.name}: scale {scale} does not match x {x} along axis {axis}{blocks_of}."
            )


def _may_be_one(shape: Shape | None) -> bool:
    return shape is not None and (
        not shape or (len(shape) == 1 and not provably_different(shape[0], 1))
    )


def _emit_quantize(node: Node, ctx: Lowering) -> list[Launch]:
    x, scale, op = node.arg(0), node.arg(1), node.op_as(QuantizeLinear)
    if DType.FLOAT64 in (x.dtype, scale.dtype):
        raise UnsupportedError("no kernel for float64")
    walk = op.walk(x.dims, scale.dims)
    zero = node.input(2)
    zero = None if node.output.dtype.is_float else zero
    quotient = op.quotient(x.dtype, scale.dtype)
    return [quantize_launch(node.output, x, scale, zero, quotient, op.saturate, walk, ctx)]


@register
@dataclass(frozen=True)
class QuantizeLinear(Quantization):
    """y = clamp(round(x / scale) + zero point), rounded half to even.

    The result is clamped to the range of the output dtype. Low-bit float outputs are rounded as by
    Cast, without a zero point.

    Attributes:
        saturate: Whether 8-bit float outputs are clamped to finite numbers.
        precision: Dtype to which the quotient x / scale is rounded; None for the dtype of the
            scale, or of x if the scale is no float of 16 or 32 bits, or else float32.

    Numerics: NaN gives the smallest integer. Source: ONNX QuantizeLinear, opset 10 to 28.
    """

    saturate: bool = True
    precision: DType | None = None

    variants = (Variant("any", _emit_quantize),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        self.check(inputs)
        zero = inputs[2] if len(inputs) > 2 else None
        to = self.output_dtype or (DType.UINT8 if zero is None else zero.dtype)
        if zero is not None and zero.dtype is not to:
            raise ShapeError(
                f"{self.name}: output_dtype {to} differs from that of the zero point {zero}."
            )
        if to not in QUANTIZED:
            raise ShapeError(f"{self.name}: {to} is not a quantised dtype.")
        return [TensorType(to, x.shape)]

    def quotient(self, x: DType, scale: DType) -> DType:
        """Returns the dtype to which the quotient x / scale is rounded.

        Args:
            x: Dtype of x.
            scale: Dtype of the scale.
        """
        if self.precision is not None:
            return self.precision
        return next((d for d in (scale, x) if d in _QUOTIENTS), DType.FLOAT32)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale, zero = (*inputs, None)[:3]
        assert x is not None and scale is not None
        to = self.output_dtype or (DType.UINT8 if zero is None else DType.of(zero.dtype))
        quotient_dtype = self.quotient(DType.of(x.dtype), DType.of(scale.dtype)).numpy
        with np.errstate(all="ignore"):
            quotient = x.astype(np.float32) / self.spread(x, scale).astype(np.float32)
            v = quotient.astype(quotient_dtype).astype(np.float32)
            low, high = bounds(to)
            if to.is_float:
                large = (to.itemsize, self.saturate) == (1, True)
                return ((np.clip(v, low, high) if large else v).astype(to.numpy),)
            v = np.rint(v)
            if zero is not None:
                v = v + self.spread(x, zero).astype(np.float32)
            whole = np.fmin(np.fmax(v, low), high).astype(np.int32)
        return (whole.astype(to.numpy),)


def _emit_dequantize(node: Node, ctx: Lowering) -> list[Launch]:
    x, scale, op = node.arg(0), node.arg(1), node.op_as(DequantizeLinear)
    walk = op.walk(x.dims, scale.dims)
    y = node.output
    zero = None if x.dtype.is_float else node.input(2)
    return [dequantize_launch(y, y.dtype, x, scale, zero, walk, ctx)]


@register
class DequantizeLinear(Quantization):
    """y = (x - zero point) * scale; low-bit float inputs have no zero point.

    Numerics: in float32, rounded once to the output's dtype. Source: ONNX DequantizeLinear, opset
    10 to 28.
    """

    variants = (Variant("any", _emit_dequantize),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, scale = need(inputs, 0, self), need(inputs, 1, self)
        self.check(inputs)
        zero = inputs[2] if len(inputs) > 2 else None
        if zero is not None and zero.dtype is not x.dtype:
            raise ShapeError(f"{self.name}: x {x} and zero point {zero} must have one dtype.")
        if x.dtype not in (*QUANTIZED, DType.INT32):
            raise ShapeError(f"{self.name}: x {x} is not quantised.")
        return [TensorType(self.output_dtype or scale.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale, zero = (*inputs, None)[:3]
        assert x is not None and scale is not None
        to = self.output_dtype or DType.of(scale.dtype)
        is_float = DType.of(x.dtype).is_float
        v = x.astype(np.float32 if is_float else np.int32)
        if zero is not None and not is_float:
            v = v - self.spread(x, zero).astype(np.int32)
        with np.errstate(all="ignore"):
            y = v.astype(np.float32) * self.spread(x, scale).astype(np.float32)
            return (y.astype(to.numpy),)
