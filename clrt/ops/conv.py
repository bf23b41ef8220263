"""Conv: windows as columns of a matrix, then a product with the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dims import Dim, Shape, floordiv
from clrt.ir.graph import Node
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, Lowering, i32
from clrt.ops.base import Op, Sample, Types, need, register
from clrt.ops.movement import UNSIGNED
from clrt.ops.pointwise import Add
from clrt.ops.products import Matrix, Product, ProductEmitter, wide_matmul

MAX_SPATIAL_AXES = 3


@dataclass(frozen=True)
class Windows:
    """The geometry of sliding windows, one entry per spatial axis.

    Attributes:
        pads: Zeros before the first element.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Dim, ...]
    output: tuple[Dim, ...]


def _steps(node: Node) -> tuple[Step, ...]:
    return () if node.input(2) is None else (Step(Add(), (0, 1)),)


def _three(values: Any, fill: int) -> tuple[int, ...]:
    return (fill,) * (MAX_SPATIAL_AXES - len(values)) + tuple(int(v) for v in values)


def _describe(node: Node, ctx: Lowering) -> Product:
    op, x, w = node.op, node.arg(0), node.arg(1)
    assert isinstance(op, Conv)
    images, channels, *spatial = x.dims
    windows = op.windows(x.dims, w.dims)
    m, k = w.dims[0] // op.group, math.prod(w.dims[1:])
    positions = math.prod(node.output.dims[2:])
    stack = (op.group * k * positions, k * positions)
    before: list[Launch] = []
    pointwise = windows.size == windows.strides == (1,) * len(spatial) and not any(windows.pads)
    source: BufferArg = BufferArg(x)
    if not (pointwise and positions == math.prod(spatial)):
        source = BufferArg(ctx.scratch(images * op.group * k * positions, x.dtype))
        scalars = (
            positions, channels // op.group, *_three(spatial, 1),
            *_three(node.output.dims[2:], 1)[1:], *_three(windows.size, 1),
            *_three(windows.strides, 1), *_three(windows.dilations, 1), *_three(windows.pads, 0),
        )  # fmt: skip
        kernel = KernelSpec.of("im2col.cl", "im2col", DATA_T=UNSIGNED[x.dtype.itemsize])
        size = (positions, k, images * op.group)
        before.append(Launch(kernel, size, None, (source, BufferArg(x), *map(i32, scalars))))
    return Product(
        node,
        _steps(node),
        Matrix(BufferArg(w), (0, m * k), k, 1),
        Matrix(source, stack, positions, 1),
        (images, op.group),
        m,
        positions,
        k,
        tuple(before),
        row_bias=True,
    )


def _too_many_axes(node: Node, caps: DeviceCaps) -> str | None:
    axes = len(node.arg(0).dims) - 2
    return (
        f"{axes} spatial axes; kernels walk {MAX_SPATIAL_AXES}" if axes > MAX_SPATIAL_AXES else None
    )


@register
@dataclass(frozen=True)
class Conv(Op):
    """Convolution of [image, channel, spatial…] with [out channel, channel / group, window…].

    Numerics: float32 accumulation (float64 in the reference).
    Source: ONNX Conv, opset 1 to 22.
    """

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] | None = None
    group: int = 1
    kernel_shape: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    variants = ProductEmitter(_describe, _steps).variants(_too_many_axes)

    def windows(self, x: Shape, w: Shape) -> Windows:
        """The windows over an input, with `auto_pad` resolved."""
        axes = len(x) - 2
        size = tuple(int(str(d)) for d in w[2:])
        strides = self.strides or (1,) * axes
        dilations = self.dilations or (1,) * axes
        spans = [(s - 1) * d + 1 for s, d in zip(size, dilations, strict=True)]
        begin: list[Dim] = list((self.pads or (0,) * 2 * axes)[:axes])
        end: list[Dim] = list((self.pads or (0,) * 2 * axes)[axes:])
        output: list[Dim] = []
        for i in range(axes):
            if self.auto_pad.startswith("SAME"):
                out = floordiv(x[i + 2] + (strides[i] - 1), strides[i])
                total = (out - 1) * strides[i] + spans[i] - x[i + 2]
                total = max(total, 0) if isinstance(total, int) else total
                small = floordiv(total, 2)
                begin[i] = small if self.auto_pad == "SAME_UPPER" else total - small
            else:
                room = x[i + 2] + begin[i] + end[i] - spans[i]
                out = floordiv(room, strides[i]) + 1
            output.append(out)
        return Windows(size, strides, dilations, tuple(begin), tuple(output))

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is None or w.shape is None:
            return [TensorType(x.dtype, None)]
        if len(x.shape) != len(w.shape) or len(x.shape) < 3:
            raise ShapeError(f"Conv: input {x} and weights {w} must have one rank, 3 or more.")
        channels, expected = x.shape[1], w.shape[1] * self.group
        if isinstance(channels, int) and isinstance(expected, int) and channels != expected:
            raise ShapeError(
                f"Conv: input {x} has {channels} channels; weights {w} want {expected}."
            )
        windows = self.windows(x.shape, w.shape)
        return [TensorType(x.dtype, (x.shape[0], w.shape[0], *windows.output))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w, *rest = inputs
        assert x is not None and w is not None
        windows = self.windows(x.shape, w.shape)
        output = tuple(int(str(d)) for d in windows.output)
        begin = [int(str(p)) for p in windows.pads]
        padded = x
        for axis, size in enumerate(windows.size):
            span = (size - 1) * windows.dilations[axis] + 1
            length = max((output[axis] - 1) * windows.strides[axis] + span, 0)
            after = max(length - begin[axis] - x.shape[axis + 2], 0)
            width = [(0, 0)] * x.ndim
            width[axis + 2] = (begin[axis], after)
            padded = np.pad(padded, width)
        columns = np.empty((*x.shape[:2], *windows.size, *output), x.dtype)
        for place in np.ndindex(*windows.size):
            starts = [p * d for p, d in zip(place, windows.dilations, strict=True)]
            slices = [
                slice(start, start + (count - 1) * stride + 1, stride)
                for start, count, stride in zip(starts, output, windows.strides, strict=True)
            ]
            columns[(slice(None), slice(None), *place)] = padded[
                (slice(None), slice(None), *slices)
            ]
        group = self.group
        stack = columns.reshape(x.shape[0], group, math.prod(w.shape[1:]), math.prod(output))
        kernels = w.reshape(group, w.shape[0] // group, -1)
        result = wide_matmul(kernels, stack).reshape(x.shape[0], w.shape[0], *output)
        if rest and rest[0] is not None:
            result = result + rest[0].reshape(-1, *([1] * len(output)))
        return (result.astype(x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rng = np.random.default_rng(8)

        def draw(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        yield Sample(cls(strides=(4, 4)), (draw(2, 3, 16, 16), draw(8, 3, 4, 4), draw(8)))
        yield Sample(cls(pads=(1, 1, 1, 1)), (draw(1, 4, 7, 9), draw(6, 4, 3, 3), None))
        yield Sample(cls(), (draw(2, 5, 4, 6), draw(7, 5, 1, 1), draw(7)))
        yield Sample(cls(group=2, strides=(2, 1)), (draw(2, 4, 9, 8), draw(6, 2, 3, 2), draw(6)))
        yield Sample(cls(group=4, pads=(1, 1, 1, 1)), (draw(1, 4, 6, 6), draw(4, 1, 3, 3), draw(4)))
        yield Sample(cls(dilations=(2,), pads=(2, 2)), (draw(2, 3, 11), draw(5, 3, 3), None))
        yield Sample(cls("SAME_UPPER", strides=(2, 2)), (draw(1, 2, 7, 8), draw(3, 2, 3, 3), None))
        yield Sample(cls("SAME_LOWER", strides=(2, 2)), (draw(1, 2, 7, 8), draw(3, 2, 3, 3), None))
        yield Sample(cls(), (draw(1, 2, 4, 5, 6), draw(3, 2, 2, 3, 2), draw(3)))

    @classmethod
    def error_samples(cls) -> Iterator[tuple[Sample, type[Exception]]]:
        x, w = np.zeros((1, 3, 8, 8), np.float32), np.zeros((4, 5, 3, 3), np.float32)
        yield Sample(cls(), (x, w)), ShapeError
        yield Sample(cls(), (x, w[0])), ShapeError
