"""RandomUniform, RandomNormal and their Like forms.

The ops are pure functions (see `clrt.ops.random.philox`): `seed`, or else the node's name,
determines the numbers, so that each run draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import Shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, f32, launch
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import checked_sizes, need
from clrt.ops.movement.common import num_elements
from clrt.ops.pointwise.cast import onnx_dtype
from clrt.ops.random.philox import FLOAT_BITS, RandomOp, key_args, key_of, uniforms
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

# Random bits of a uniform number per dtype: no more than its precision, else it could round to 1.
_BITS = {DType.FLOAT64: 53, DType.FLOAT16: 11, DType.BFLOAT16: 8}


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    y, op = node.output, node.op_as(RandomTensor)
    elems = num_elements(y.dims)
    lanes = 2 if y.dtype is DType.FLOAT64 else 4
    kernel = KernelSpec.of(
        "random/random.cl",
        "random",
        DATA_T=y.dtype.cl,
        STORAGE=y.dtype.storage,
        REAL_T=y.dtype.compute,
        NORMAL=int(op.normal),
        LANES=lanes,
        BITS=op.bits(y.dtype),
    )
    a, b = op.line
    if not elems:
        return []
    return [launch(kernel, (ceil_div(elems, lanes),), y=y, n=elems, a=a, b=b, **key_args(op.key))]


@dataclass(frozen=True)
class RandomTensor(RandomOp):
    """Base of RandomUniform, RandomUniformLike, RandomNormal and RandomNormalLike.

    Class attributes:
        normal: Whether the distribution is normal, not uniform.
    """

    normal: ClassVar[bool] = False
    supported_storages = None
    accuracy = Accuracy.TRANSCENDENTAL
    variants = (Variant("philox", _emit, reject_float64),)

    @property
    def line(self) -> tuple[float, float]:
        """(a, b) of output = a + b v, for v uniform in [0, 1) or standard normal."""
        raise NotImplementedError(self.name)

    def bits(self, dtype: DType) -> int:
        """Returns the number of random bits per output element of a dtype.

        By default 53 for float64, else FLOAT_BITS.
        """
        return 53 if dtype is DType.FLOAT64 else FLOAT_BITS

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        attrs = {k: v for k, v in node.attrs.items() if k != "seed"}
        if "shape" in attrs:
            attrs["shape"] = tuple(attrs["shape"])
        if "dtype" in attrs:
            attrs["dtype"] = onnx_dtype(attrs["dtype"], cls.name)
        return cls(key=key_of(node), **attrs)

    def type_of(self, dtype: DType, shape: Shape | None) -> TensorType:
        """Returns the output type for a dtype and shape (None: unknown rank).

        Raises:
            ShapeError: The dtype is not a float.
        """
        if not dtype.is_float:
            raise ShapeError(f"{self.name}: its dtype is {dtype}; expected floats.")
        return TensorType(dtype, shape)

    def draw(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Returns the op's random numbers as an array of a shape and dtype."""
        elems = num_elements(shape)
        v = uniforms(self.key, elems + elems % 2, self.bits(dtype))
        if self.normal:
            radius, angle = np.sqrt(-2 * np.log(1 - v[::2])), 2 * np.pi * v[1::2]
            v = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
        a, b = (float(f32(x)) for x in self.line)
        return np.asarray(a + b * v[:elems]).astype(dtype.numpy).reshape(shape)


@dataclass(frozen=True)
class Uniform(RandomTensor):
    """Base of RandomUniform and RandomUniformLike, which draw numbers in [low, high)."""

    low: float = 0.0
    high: float = 1.0

    @property
    def line(self) -> tuple[float, float]:
        return self.low, self.high - self.low

    def bits(self, dtype: DType) -> int:
        return _BITS.get(dtype, FLOAT_BITS)


@dataclass(frozen=True)
class Normal(RandomTensor):
    """Base of RandomNormal and RandomNormalLike, which draw normally distributed numbers.

    Attributes:
        mean: Mean of the distribution.
        scale: Standard deviation.
    """

    mean: float = 0.0
    scale: float = 1.0

    normal = True

    @property
    def line(self) -> tuple[float, float]:
        return self.mean, self.scale


@dataclass(frozen=True)
class Shaped(RandomTensor):
    """Base of RandomUniform and RandomNormal, whose output shape is an attribute.

    Attributes:
        shape: Shape of the output.
        dtype: Dtype of the output.
    """

    shape: tuple[int, ...] = ()
    dtype: DType = DType.FLOAT32

    def infer(self, inputs: Types) -> list[TensorType]:
        trouble = f"{self.name}: its shape {list(self.shape)} has a size below 0."
        return [self.type_of(self.dtype, checked_sizes(self.shape, lambda: trouble))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (self.draw(self.shape, self.dtype),)


@dataclass(frozen=True)
class Like(RandomTensor):
    """Base of random ops whose output has the shape of input 0.

    Attributes:
        dtype: Dtype of the output; None for that of input 0.
    """

    dtype: DType | None = None

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        return [self.type_of(self.dtype or x.dtype, x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        return [None]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        return (self.draw(x.shape, self.dtype or DType.of(x.dtype)),)


@register
@dataclass(frozen=True)
class RandomUniform(Shaped, Uniform):
    """Draws uniform numbers in [low, high). Source: ONNX RandomUniform, opset 1 to 22."""


@register
@dataclass(frozen=True)
class RandomNormal(Shaped, Normal):
    """Draws normally distributed numbers. Source: ONNX RandomNormal, opset 1 to 22."""


@register
@dataclass(frozen=True)
class RandomUniformLike(Like, Uniform):
    """Draws uniform numbers in the shape of x. Source: ONNX RandomUniformLike, opset 1 to 22."""


@register
@dataclass(frozen=True)
class RandomNormalLike(Like, Normal):
    """Draws normal numbers in the shape of x. Source: ONNX RandomNormalLike, opset 1 to 22."""
