"""Col2Im: sums overlapping window columns into images."""

from __future__ import annotations

import itertools
from math import prod
from typing import Any, ClassVar

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, counted
from clrt.ir.cl_code import Define
from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import product
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, i32, launch, optional
from clrt.kernels.strided import axes
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import elements, fresh_dim, fresh_dims, length
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.ops.vision.pooling import check_windows
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

# Maximum number of image axes that the kernel indexes.
MAX_AXES = 3


class Col2ImPartition(Thresholds):
    """Threshold of the partition of col2im into CPU work-items."""

    elems: int = tunable(
        16384, "elements", "Maximum that a work-item reads of the columns, to amortize its start."
    )

    group: ClassVar = "col2im_shares"


@dataclass(frozen=True)
class Windows:
    """Geometry of windows over an image; each attribute has one number per spatial axis.

    Attributes:
        image: Image size.
        positions: Number of windows.
        kernel: Window size.
        strides: Distance between windows.
        dilations: Distance between elements of a window.
        before: Padding before the image.
    """

    image: tuple[int, ...]
    positions: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]

    def add_up(self, columns: Array) -> Array:
        """Adds each column to its window of the images by NumPy.

        Args:
            columns: `[..., K, L]` for windows of K elements and L positions.

        Returns:
            Images `[..., *image]`, the sums of overlapping windows.
        """
        lead = columns.shape[:-2]
        parts = columns.reshape(*lead, *self.kernel, *self.positions)
        result = np.zeros((*lead, *self.image), columns.dtype)
        axes = range(len(self.image))
        for tap in itertools.product(*map(range, self.kernel)):
            for window in itertools.product(*map(range, self.positions)):
                pixel = [
                    window[a] * self.strides[a] + tap[a] * self.dilations[a] - self.before[a]
                    for a in axes
                ]
                if all(0 <= pixel[a] < self.image[a] for a in axes):
                    to: tuple[Any, ...] = (..., *pixel)
                    source: tuple[Any, ...] = (..., *tap, *window)
                    result[to] += parts[source]
        return result


def add_up_launch(
    target: BufferArg,
    columns: BufferArg,
    windows: Windows,
    dtype: DType,
    planes: int,
    channels: int,
    ctx: Lowering,
    bias: Value | None = None,
) -> Launch:
    """Returns the launch that adds columns to their windows of images (col2im).

    Args:
        target: Images `[planes, *windows.image]`.
        columns: `[planes, K, L]` for windows of K elements and L positions.
        windows: Geometry of the windows.
        dtype: Dtype of columns and images.
        planes: Number of images times channels.
        channels: Number of output channels; plane p has channel p % `channels`.
        bias: Value added per channel, `[channels]`; None for none.

    Raises:
        ShapeError: A coordinate in the padding exceeds 32 bits (`i32`).
    """
    for extent, window, dilation, before in zip(
        windows.image, windows.kernel, windows.dilations, windows.before, strict=True
    ):
        i32(extent + window * dilation + abs(before))
    macros: dict[str, Define] = dict(DATA_T=dtype.cl, VALUE_T=dtype.compute, STORAGE=dtype.storage)
    macros |= dict(BIAS=int(bias is not None), CPU=int(ctx.caps.is_cpu))
    geometry = {
        **axes("o", windows.image, 1, MAX_AXES),
        **axes("p", windows.positions, 1, MAX_AXES),
        **axes("w", windows.kernel, 1, MAX_AXES),
        **axes("st", windows.strides, 1, MAX_AXES),
        **axes("dl", windows.dilations, 1, MAX_AXES),
        **axes("b", windows.before, 0, MAX_AXES),
    }
    tensors = {"y": target, "x": columns, **optional(bias=bias)}
    geometry |= {"planes": planes, "channels": channels}
    flops = planes * prod(windows.kernel) * prod(windows.positions)
    rows = prod(windows.image[:-1])
    if ctx.caps.is_cpu:
        kernel = KernelSpec.of("conv/col2im.cl", "col2im_rows", **macros)
        max_rows = ceil_div(
            ctx.thresholds(Col2ImPartition).elems, max(windows.image[-1] * prod(windows.kernel), 1)
        )
        geometry["height"] = height = ctx.chunks_per_group(planes * rows, max_rows)
        size: tuple[int, ...] = (ceil_div(planes * rows, height),)
        return launch(kernel, size, (1,), flops, **tensors, **geometry)
    kernel = KernelSpec.of("conv/col2im.cl", "col2im", **macros)
    size = (windows.image[-1], rows, planes)
    return launch(kernel, size, None, flops, **tensors, **geometry)


def reject_axes(axes: int, dtype: DType) -> str | None:
    """Returns why the col2im kernel does not apply; None if it does.

    Args:
        axes: Number of spatial axes.
        dtype: Dtype of columns and images.
    """
    if axes > MAX_AXES:
        return f"{axes} spatial axes; the kernel walks up to {MAX_AXES}"
    return f"no kernel for {dtype}" if dtype in (DType.FLOAT64, DType.BOOL) else None


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return reject_axes(len(node.output.dims) - 2, node.arg(0).dtype)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y, op = node.arg(0), node.output, node.op_as(Col2Im)
    if 0 in y.dims:
        return []
    windows = op.windows(node.input_types)
    planes = y.dims[0] * y.dims[1]
    return [add_up_launch(BufferArg(y), BufferArg(x), windows, x.dtype, planes, y.dims[1], ctx)]


@register
@dataclass(frozen=True)
class Col2Im(Op):
    """Sums columns `[N, C * K, L]` of windows into images `[N, C, ...]`.

    N is the number of images, C of channels, K of window elements, and L of window positions.
    Inputs: the columns, the image size, and the window size.

    Attributes:
        dilations: Distance between elements of a window, per spatial axis; () for 1.
        pads: Padding before each spatial axis, then behind each; () for 0.
        strides: Distance between windows, per spatial axis; () for 1.

    Source: ONNX Col2Im, opset 18.
    """

    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    input_traits = InputTraits(plan_time=(1, 2))
    variants = (Variant("gather", _emit, _reject),)

    def windows(self, inputs: Types) -> Windows:
        """Returns the geometry of the windows.

        Args:
            inputs: Types of the inputs; the elements of 1 (image size) and 2 (window size) must be
                known.

        Raises:
            ShapeError: The attributes and sizes differ in their number of axes, or a size is
                invalid.
        """
        image, kernel = (tuple(int(d) for d in elements(inputs, i) or ()) for i in (1, 2))
        rank = len(image)
        strides, dilations = self.strides or (1,) * rank, self.dilations or (1,) * rank
        pads = self.pads or (0,) * (2 * rank)
        if {len(kernel), len(strides), len(dilations), len(pads) // 2} != {rank}:
            raise ShapeError(
                f"Col2Im: {self} does not match an image of {counted(rank, 'axis', 'axes')}."
            )
        check_windows(self, image, kernel, strides, dilations, pads)
        if min(image, default=0) < 0 or min(kernel, default=1) < 1:
            raise ShapeError(f"Col2Im: windows {list(kernel)} of images {list(image)}.")
        positions = tuple(
            (image[a] + pads[a] + pads[rank + a] - dilations[a] * (kernel[a] - 1) - 1) // strides[a]
            + 1
            for a in range(rank)
        )
        return Windows(image, positions, kernel, strides, dilations, pads[:rank])

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        image, kernel = elements(inputs, 1), elements(inputs, 2)
        rank = length(inputs, 1)
        if x.shape is None or (image is None and rank is None):
            return [TensorType(x.dtype, None)]
        if len(x.shape) != 3:
            raise ShapeError(f"Col2Im: {x} is not of shape [N, C * K, L].")
        if any(isinstance(d, int) and d < 1 for d in kernel or ()):
            raise ShapeError(f"Col2Im: a window of {kernel}; expected sizes of 1 or more.")
        channels = fresh_dim() if kernel is None else floordiv(x.shape[1], product(kernel))
        dims = image if image is not None else fresh_dims(rank or 0)
        if x.is_static and all(need(inputs, i, self).has_numbers for i in (1, 2)):
            positions = prod(self.windows(inputs).positions)
            if positions != x.shape[2]:
                raise ShapeError(f"Col2Im: {x} has {x.shape[2]} columns; expected {positions}.")
            whole = prod(self.windows(inputs).kernel)
            if isinstance(x.shape[1], int) and x.shape[1] % whole:
                raise ShapeError(f"Col2Im: axis 1 of {x} is not a multiple of windows of {whole}.")
        return [TensorType(x.dtype, (x.shape[0], channels, *dims))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = inputs[0]
        assert x is not None
        types = [None if a is None else TensorType.of(a) for a in inputs]
        windows = self.windows(types)
        channels = x.shape[1] // prod(windows.kernel)
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        columns = wide.reshape(x.shape[0], channels, prod(windows.kernel), -1)
        return (windows.add_up(columns).astype(x.dtype),)
