"""ConvTranspose: transposed convolution, by a matrix product and col2im."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dim_operations import mod
from clrt.ir.dims import Dim, provably_different
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels import gemm_variants
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand, image_chunks
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.variant import Emit, Lowering
from clrt.ops.base import Types
from clrt.ops.checks import agree, checked_sizes, need
from clrt.ops.conv.col2im import Windows, add_up_launch, reject_axes
from clrt.ops.conv.conv_gradients import (
    Geometry,
    bias_gradient,
    convolve,
    weight_gradient,
    window_sizes,
)
from clrt.ops.conv.scalable_weights import HasScalableWeights
from clrt.ops.gradients.shapes import known_shape
from clrt.ops.movement.common import fresh_dims
from clrt.ops.pointwise.fused import compute_type
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.ops.vision.pooling import AutoPad, check_windows
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit(emit: gemm_variants.EmitProduct) -> Emit:
    """Returns the emit function of ConvTranspose by the GEMM kernel of `emit`, then col2im."""

    def launches(node: Node, ctx: Lowering) -> list[Launch]:
        x, w, y, op = node.arg(0), node.arg(1), node.output, node.op_as(ConvTranspose)
        if 0 in y.dims:
            return []
        windows = op.windows(x.dims, w.dims)
        groups, channels, positions = op.group, x.dims[1] // op.group, prod(x.dims[2:])
        rows = prod(w.dims[1:])
        columns = groups * rows * positions
        varies = any(not isinstance(d, int) for d in (x.symbolic_shape or x.dims)[2:])
        result = []
        for first, images, chunk in image_chunks(x.dims[0], columns * x.dtype.itemsize, ctx):
            target = chunk.scratch(images * columns, x.dtype)
            size = groups * channels * positions
            product = GemmProblem(
                target,
                x.dtype,
                (images, groups),
                rows,
                positions,
                channels,
                MatrixOperand(BufferArg(w), (0, channels * rows, 1, rows)),
                MatrixOperand(
                    BufferArg(x, first * size), (size, channels * positions, positions, 1)
                ),
                accumulator=compute_type(x.dtype),
                n_varies=varies,
            )
            if rows:  # without window elements the result is the bias
                result += emit(product, chunk)
            planes = images * y.dims[1]
            y_images = BufferArg(y, first * prod(y.dims[1:]))
            result.append(
                add_up_launch(
                    y_images,
                    BufferArg(target),
                    windows,
                    x.dtype,
                    planes,
                    y.dims[1],
                    ctx,
                    node.input(2),
                )
            )
        return result

    return launches


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return reject_axes(len(node.output.dims) - 2, node.arg(0).dtype)


@register
@dataclass(frozen=True)
class ConvTranspose(HasScalableWeights):
    """Transposed convolution: each element of x, times the weights, is added to a window of y.

    Inputs: x `[N, C, spatial axes …]` for N images of C channels, w `[C, O / group, window …]` for
    O output channels, and optionally bias `[O]`. For each image and group, the columns `[O / group
    * window, positions]` are the product of w and x.

    Attributes:
        auto_pad: Rule that computes the padding; "NOTSET" for `pads`.
        dilations: Distance between elements of a window, per spatial axis; () for 1.
        group: Number of groups into which the channels are divided.
        kernel_shape: Window size per spatial axis; () for that of w.
        output_padding: Elements added behind each spatial axis of y; () for 0.
        output_shape: Spatial sizes of y, from which the padding follows; () to use `pads`.
        pads: Elements cut off before each spatial axis of y, then behind each; () for 0.
        strides: Distance between windows of y, per spatial axis; () for 1.

    Numerics: as MatMul. Source: ONNX ConvTranspose, opset 1 to 22.
    """

    auto_pad: AutoPad = "NOTSET"
    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    input_traits = InputTraits(same_dtype=((0, 1, 2),))
    variants = gemm_variants.variants(_emit, _reject, typed=False)

    def _ones(self, values: tuple[int, ...], rank: int) -> tuple[int, ...]:
        return values or (1,) * rank

    def _full(self, sizes: Sequence[Dim], kernel: Sequence[int]) -> list[Dim]:
        """Returns the spatial sizes of y before padding is cut off.

        Args:
            sizes: Spatial sizes of x.
            kernel: Window size.
        """
        rank = len(kernel)
        strides, dilations = self._ones(self.strides, rank), self._ones(self.dilations, rank)
        extra = self.output_padding or (0,) * rank
        return [
            (sizes[a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1 + extra[a]
            for a in range(rank)
        ]

    def _sizes(self, sizes: Sequence[Dim], kernel: Sequence[int]) -> list[Dim]:
        """Returns the spatial sizes of y.

        Args:
            sizes: Spatial sizes of x.
            kernel: Window size.
        """
        rank = len(kernel)
        if self.output_shape:
            return list(self.output_shape[-rank:])
        if self.auto_pad.startswith("SAME"):
            strides = self._ones(self.strides, rank)
            return [sizes[a] * strides[a] for a in range(rank)]
        pads = self.pads if self.pads and self.auto_pad == "NOTSET" else (0,) * (2 * rank)
        return [full - pads[a] - pads[rank + a] for a, full in enumerate(self._full(sizes, kernel))]

    def windows(self, x: Sequence[int], w: Sequence[int]) -> Windows:
        """Returns the geometry of the windows of y; each spatial position of x has one.

        Args:
            x: Shape of x.
            w: Shape of w.
        """
        kernel = tuple(w[2:])
        rank = len(kernel)
        image = cast("tuple[int, ...]", tuple(self._sizes(x[2:], kernel)))
        whole = cast("list[int]", self._full(x[2:], kernel))
        totals = [full - size for full, size in zip(whole, image, strict=True)]
        if not self.output_shape and not self.auto_pad.startswith("SAME"):
            before = self.pads[:rank] if self.pads and self.auto_pad == "NOTSET" else (0,) * rank
        elif self.auto_pad == "SAME_UPPER":
            before = tuple(total // 2 for total in totals)
        else:
            before = tuple(total - total // 2 for total in totals)
        strides, dilations = self._ones(self.strides, rank), self._ones(self.dilations, rank)
        return Windows(image, tuple(x[2:]), kernel, strides, dilations, tuple(before))

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w = need(inputs, 0, self), need(inputs, 1, self)
        if x.dtype is not w.dtype:
            raise ShapeError(f"ConvTranspose: x {x} and w {w} must have one dtype.")
        if x.shape is None or w.shape is None:
            return [TensorType(x.dtype, None)]
        rank = len(x.shape) - 2
        if rank < 1 or len(w.shape) != len(x.shape):
            raise ShapeError(f"ConvTranspose: x {x} and w {w} must have one rank, at least 3.")
        if self.group < 1:
            raise ShapeError(f"ConvTranspose: group {self.group}; expected 1 or more.")
        check_windows(self, x.shape[2:], w.shape[2:], self.strides, self.dilations, self.pads)
        if self.kernel_shape and not agree(w, (None, None, *self.kernel_shape)):
            raise ShapeError(
                f"ConvTranspose: kernel_shape {self.kernel_shape} does not match w {w}."
            )
        extra = self.output_padding
        if extra and (len(extra) != rank or min(extra) < 0):
            raise ShapeError(f"ConvTranspose: output_padding {extra} for {rank} axes.")
        if self.output_shape and not rank <= len(self.output_shape) <= rank + 2:
            raise ShapeError(f"ConvTranspose: output_shape {self.output_shape} for {rank} axes.")
        bias = inputs[2] if len(inputs) > 2 else None
        if bias is not None and not agree(bias, (w.shape[1] * self.group,)):
            raise ShapeError(f"ConvTranspose: a bias {bias} for w {w} in {self.group} groups.")
        channels, rows = x.shape[1], w.shape[0]
        if provably_different(channels, rows) or provably_different(mod(rows, self.group), 0):
            raise ShapeError(f"ConvTranspose: x {x} and w {w} do not match {self.group} groups.")
        kernel = [d for d in w.shape[2:] if isinstance(d, int)]
        if len(kernel) < rank:
            return [TensorType(x.dtype, (x.shape[0], w.shape[1] * self.group, *fresh_dims(rank)))]
        dims = checked_sizes(
            self._sizes(x.shape[2:], kernel),
            lambda: f"ConvTranspose: nothing is left of {x} behind {self}.",
        )
        return [TensorType(x.dtype, (x.shape[0], w.shape[1] * self.group, *dims))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = inputs[:2]
        bias = inputs[2] if len(inputs) > 2 else None
        assert x is not None and w is not None
        windows = self.windows(x.shape, w.shape)
        groups, maps = self.group, w.shape[1]
        channels, positions = x.shape[1] // groups, prod(x.shape[2:])
        data = x.astype(np.float64).reshape(x.shape[0], groups, channels, positions)
        weights = w.astype(np.float64).reshape(groups, channels, prod(w.shape[1:]))
        columns = weights.swapaxes(1, 2) @ data
        shape = (x.shape[0], groups * maps, prod(w.shape[2:]), data.shape[-1])
        y = windows.add_up(columns.reshape(shape))
        if bias is not None:
            y = y + bias.astype(np.float64).reshape(-1, *(1,) * len(windows.image))
        return (y.astype(x.dtype),)

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        x, w = node.arg(0), node.arg(1)
        sizes, images = known_shape(x)[2:], known_shape(node.output)[2:]
        kernel, ones = window_sizes(w), (1,) * (len(sizes))
        strides, dilations = self.strides or ones, self.dilations or ones
        numbers = [d for d in sizes if isinstance(d, int)]
        if len(numbers) == len(sizes):
            begins = self.windows((1, 1, *numbers), (1, 1, *kernel)).before
        elif self.output_shape or self.auto_pad != "NOTSET":
            raise UnsupportedError("its padding depends on the input; use fixed sizes")
        else:
            begins = self.pads[: len(ones)] or (0,) * len(ones)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        ends = [
            (n - 1) * s + span - begin - image
            for n, s, span, begin, image in zip(sizes, strides, spans, begins, images, strict=True)
        ]
        if not all(isinstance(n, int) for n in ends):
            raise UnsupportedError("its padding depends on the input; use fixed sizes")
        # Elements behind the last window have no part in x.
        padding = tuple(max(int(n), 0) for n in ends)
        by_bias = bias_gradient(b, cotangent)
        for axis, (image, end) in enumerate(zip(images, ends, strict=True), start=2):
            if end < 0:
                cotangent = b.slice(cotangent, 0, image + end, axis)
        g = Geometry(kernel, strides, dilations, tuple(begins), padding, self.group)
        by_x = convolve(b, cotangent, w, g)
        by_w = weight_gradient(b, cotangent, x, w, g)
        return [by_x, by_w, by_bias]

    def factors(self, scale: Array, weights: tuple[int, ...]) -> Array:
        by_group = scale.reshape(self.group, 1, weights[1])
        spread = np.repeat(by_group, weights[0] // self.group, axis=1)
        return spread.reshape(*weights[:2], *(1,) * (len(weights) - 2))

    def flops(self, inputs: Types, outputs: Types) -> int:
        x, w = need(inputs, 0, self).shape, need(inputs, 1, self).shape
        assert x is not None and w is not None
        return 2 * prod(int(d) for d in x) * prod(int(d) for d in w[1:])
