"""DeformConv: a deformable convolution, whose sampling positions have computed offsets."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import product, provably_different
from clrt.ir.graph import Node
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels import gemm_variants
from clrt.kernels.gemm_problem import (
    Epilogue,
    EpilogueOperand,
    GemmProblem,
    MatrixOperand,
    image_chunks,
)
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, indexed_args, launch, optional
from clrt.kernels.variant import Emit, Lowering, reject_in_float32
from clrt.ops.base import Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.matmul.matmul import make_epilogue
from clrt.ops.pointwise.fused import compute_type
from clrt.ops.pointwise.table import Add
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.ops.vision.pooling import WindowPool, check_windows
from clrt.util.fast_dataclass import dataclass


def _emit(emit: gemm_variants.EmitProduct) -> Emit:
    """Returns the emit function of DeformConv by deformed im2col and the GEMM kernel of `emit`."""

    def launches(node: Node, ctx: Lowering) -> list[Launch]:
        x, w, y, op = node.arg(0), node.arg(1), node.output, node.op_as(DeformConv)
        if 0 in y.dims:
            return []
        window = op.window(w.dims)
        channels = x.dims[1]
        taps, positions = prod(w.dims[2:]), prod(y.dims[2:])
        tensors = {"x": x, "offsets": node.arg(2), **optional(mask=node.input(4))}
        kernel = KernelSpec.of(
            "conv/deform_columns.cl",
            "deform_columns",
            DATA_T=x.dtype.cl,
            STORAGE=x.dtype.storage,
            MASK=int("mask" in tensors),
        )
        before, _ = window.padding(x.dims[2:])
        named = ("height", "width", "rows", "columns")
        sizes = dict(zip(named, (*x.dims[2:], *y.dims[2:]), strict=True))
        sizes |= {"channels": channels, "groups": op.offset_group, **indexed_args("w", w.dims[2:])}
        sizes |= indexed_args("st", window.steps(op.strides)) | indexed_args("b", before)
        sizes |= indexed_args("dl", window.steps(op.dilations))
        rows, depth = w.dims[0] // op.group, w.dims[1] * taps
        columns, result = channels * taps * positions, []
        for first, images, chunk in image_chunks(x.dims[0], columns * x.dtype.itemsize, ctx):
            target = BufferArg(chunk.scratch(images * columns, x.dtype))
            sources = {k: BufferArg(v, first * prod(v.dims[1:])) for k, v in tensors.items()}
            grid = (positions, taps, images * channels)
            result.append(launch(kernel, grid, y=target, **sources, **sizes))
            product = GemmProblem(
                y,
                x.dtype,
                (images, op.group),
                rows,
                positions,
                depth,
                MatrixOperand(BufferArg(w), (0, rows * depth, depth, 1)),
                MatrixOperand(
                    target, (op.group * depth * positions, depth * positions, positions, 1)
                ),
                _epilogue(node, rows),
                compute_type(x.dtype),
                first * prod(y.dims[1:]),
            )
            result += emit(product, chunk)
        return result

    return launches


def _epilogue(node: Node, rows: int) -> Epilogue:
    """Returns the epilogue that adds the bias (input 3), if any, to each row of the product.

    Args:
        rows: Rows of the product, the output channels of a group.
    """
    bias = node.input(3)
    dtype = node.output.dtype
    if bias is None:
        return make_epilogue((), dtype, ())
    operand = EpilogueOperand(bias, (0, rows, 1), per_column=False)
    return make_epilogue((ElementwiseInstruction(Add(), (0, 1)),), dtype, (operand,))


@register
@dataclass(frozen=True)
class DeformConv(Op):
    """Conv of x `[N, C, H, W]` that shifts each window element by its own offset.

    x has N images of C channels with H rows and W columns. x is interpolated bilinearly between
    pixels, and is 0 outside. Inputs: x; w `[O, C / group, window …]` for O output channels; offsets
    `[N, offset_group * window * 2, …]`, a row and a column offset per window element; optionally
    bias `[O]`; optionally a mask `[N, offset_group * window, …]`, a factor per window element.

    Attributes:
        dilations: Distance between elements of a window, per spatial axis; () for 1.
        group: Number of groups into which the channels are divided.
        kernel_shape: Window size per spatial axis; () for that of w.
        offset_group: Number of groups of input channels, each with its own offsets.
        pads: Padding before each spatial axis, then behind each; () for 0.
        strides: Distance between windows, per spatial axis; () for 1.

    Numerics: as Conv. Source: ONNX DeformConv, opset 19 to 22.
    """

    dilations: tuple[int, ...] = ()
    group: int = 1
    kernel_shape: tuple[int, ...] = ()
    offset_group: int = 1
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    input_traits = InputTraits(same_dtype=((0, 1, 2, 3, 4),))
    variants = gemm_variants.variants(_emit, reject_in_float32, typed=False)

    def window(self, weights: tuple[int, ...]) -> WindowPool:
        """Returns the geometry of the windows for w of shape `weights`."""
        return WindowPool(tuple(weights[2:]), self.strides, self.dilations, self.pads)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w, offsets = (need(inputs, i, self) for i in range(3))
        if x.shape is None or w.shape is None or offsets.shape is None:
            return [TensorType(x.dtype, None)]
        if not len(x.shape) == len(w.shape) == len(offsets.shape) == 4:
            raise ShapeError(f"DeformConv: x {x}, w {w} and offsets {offsets} must have four axes.")
        channels = x.shape[1]
        if provably_different(channels, w.shape[1] * self.group):
            raise ShapeError(f"DeformConv: x {x} and w {w} do not match {self.group} groups.")
        if self.group < 1 or (isinstance(w.shape[0], int) and w.shape[0] % self.group):
            raise ShapeError(f"DeformConv: w {w} does not divide into {self.group} groups.")
        groups = self.offset_group
        if groups < 1 or (isinstance(channels, int) and channels % groups):
            raise ShapeError(f"DeformConv: {channels} channels, {groups} offset groups.")
        window = w.shape[2:]
        check_windows(self, x.shape[2:], window, self.strides, self.dilations, self.pads)
        if self.kernel_shape and not agree(w, (None, None, *self.kernel_shape)):
            raise ShapeError(f"DeformConv: kernel_shape {self.kernel_shape} does not match w {w}.")
        taps = groups * product(window)
        bias, mask = (*inputs[3:], None, None)[:2]
        for operand, shape in (
            (offsets, (x.shape[0], 2 * taps, *offsets.shape[2:])),
            (bias, (w.shape[0],)),
            (mask, (x.shape[0], taps, *offsets.shape[2:])),
        ):
            if operand is not None and not agree(operand, shape):
                raise ShapeError(
                    f"DeformConv: an input is {operand}; expected [{','.join(map(str, shape))}]."
                )
        return [TensorType(x.dtype, (x.shape[0], w.shape[0], *offsets.shape[2:]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w, offsets, bias, mask = (*inputs, None, None)[:5]
        assert x is not None and w is not None and offsets is not None
        window = self.window(w.shape)
        (images, channels, *size), (rows, columns) = x.shape, offsets.shape[2:]
        (w0, w1), groups = w.shape[2:], self.offset_group
        before, _ = window.padding(size)
        moved = offsets.astype(np.float64).reshape(images, groups, w0 * w1, 2, rows, columns)
        coordinates = []
        for axis, (count, window_size) in enumerate(((rows, w0), (columns, w1))):
            start = np.arange(count) * window.steps(self.strides)[axis] - before[axis]
            inner = np.arange(window_size) * window.steps(self.dilations)[axis]
            shape = (1, 1, 1, count, 1) if axis == 0 else (1, 1, 1, 1, count)
            grid = np.repeat(inner, w1) if axis == 0 else np.tile(inner, w0)
            coordinates.append(
                start.reshape(shape) + grid.reshape(1, 1, -1, 1, 1) + moved[:, :, :, axis]
            )
        v, u = (np.repeat(c, channels // groups, axis=1) for c in coordinates)
        image = np.arange(images).reshape(-1, 1, 1, 1, 1)
        channel = np.arange(channels).reshape(1, -1, 1, 1, 1)
        sampled = np.zeros(v.shape)
        for i in (0, 1):
            for j in (0, 1):
                a, b = np.floor(v).astype(int) + i, np.floor(u).astype(int) + j
                inside = (a >= 0) & (a < size[0]) & (b >= 0) & (b < size[1])
                pixel = x[image, channel, a.clip(0, size[0] - 1), b.clip(0, size[1] - 1)]
                sampled += np.where(inside, pixel, 0) * (1 - abs(v - a)) * (1 - abs(u - b))
        if mask is not None:
            weights = mask.astype(np.float64).reshape(images, groups, w0 * w1, rows, columns)
            sampled *= np.repeat(weights, channels // groups, axis=1)
        depth, maps = w.shape[1] * w0 * w1, w.shape[0] // self.group
        matrix = sampled.reshape(images, self.group, depth, rows * columns)
        kernel = w.astype(np.float64).reshape(self.group, maps, depth)
        y = (kernel @ matrix).reshape(images, w.shape[0], rows, columns)
        if bias is not None:
            y = y + bias.astype(np.float64).reshape(-1, 1, 1)
        return (y.astype(x.dtype),)
