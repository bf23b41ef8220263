"""MaxRoiPool: max pooling over regions of images."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError, NumberError, ShapeError
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, StatusWord, launch
from clrt.kernels.variant import Lowering, Variant, reject_in_float32
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, rois, y, op = node.arg(0), node.arg(1), node.output, node.op_as(MaxRoiPool)
    if 0 in y.dims:
        return []
    kernel = KernelSpec.of(
        "vision/max_roi_pool.cl", "max_roi_pool", DATA_T=x.dtype.cl, STORAGE=x.dtype.storage
    )
    status = StatusWord(node, 1, "an image", ((0, x.dims[0] - 1),), real=True)
    args = dict(y=y, x=x, rois=rois, status=status, scale=op.spatial_scale)
    return [launch(kernel, region_grid(y), **args, **region_sizes(x, y))]


def region_grid(y: Value) -> tuple[int, int, int]:
    """Returns the global size of region pooling kernels for output `y`.

    Its three numbers are the columns, the rows, and the regions times channels of `y`.
    """
    return (y.dims[3], y.dims[2], y.dims[0] * y.dims[1])


def region_sizes(x: Value, y: Value) -> dict[str, int]:
    """Returns the size arguments of region pooling kernels, by name.

    Args:
        x: Images `[images, channels, height, width]`.
        y: Output `[regions, channels, rows, columns]`.
    """
    names = ("images", "channels", "height", "width", "rows", "columns")
    return dict(zip(names, (*x.dims, *y.dims[2:]), strict=True))


# Coordinates of regions are clamped to this magnitude, as in the kernel.
_FAR = 2.0**28


@register
@dataclass(frozen=True)
class MaxRoiPool(Op):
    """Divides regions of images into bins; returns the maximum of each bin, 0 if it is empty.

    Inputs: images x `[N, C, H, W]`, for N images of C channels with H rows and W columns; R regions
    `[R, 5]`. A region is (image, x1, y1, x2, y2), scaled and rounded to pixels. Output:
    `[R, C, *pooled_shape]`.

    Attributes:
        pooled_shape: Rows and columns of bins per region.
        spatial_scale: Factor of the coordinates of regions.

    Source: ONNX MaxRoiPool, opset 1 to 22.
    """

    pooled_shape: tuple[int, ...] = (1, 1)
    spatial_scale: float = 1.0

    accuracy = Accuracy.EXACT
    input_traits = InputTraits(same_dtype=((0, 1),))
    variants = (Variant("any", _emit, reject_in_float32),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.pooled_shape) != 2 or min(self.pooled_shape) < 1:
            raise ModelError(
                f"MaxRoiPool: attribute 'pooled_shape' is {list(self.pooled_shape[:9])}; expected "
                "two sizes."
            )

    def infer(self, inputs: Types) -> list[TensorType]:
        x, rois = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is None or rois.shape is None:
            return [TensorType(x.dtype, None)]
        if len(x.shape) != 4 or not agree(rois, (None, 5)):
            raise ShapeError(f"MaxRoiPool: x {x} must be [N, C, H, W], and regions {rois} [R, 5].")
        return [TensorType(x.dtype, (rois.shape[0], x.shape[1], *self.pooled_shape))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, rois = inputs
        assert x is not None and rois is not None
        rows, columns = self.pooled_shape
        result = np.zeros((len(rois), x.shape[1], rows, columns), x.dtype)
        for number, roi in enumerate(rois.astype(np.float32)):
            if not -1 < roi[0] < len(x):
                allowed = f"allowed are 0..{len(x) - 1}"
                raise NumberError("MaxRoiPool", 1, "an image", roi[0].item(), allowed)
            image = int(roi[0])
            scaled = roi[1:] * np.float32(self.spatial_scale)
            rounded = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
            corners = np.fmin(np.fmax(rounded, -_FAR), _FAR).astype(int)
            spans = [_bins(corners[1], corners[3], rows, x.shape[2]),
                     _bins(corners[0], corners[2], columns, x.shape[3])]  # fmt: skip
            for i, (v0, v1) in enumerate(spans[0]):
                for j, (u0, u1) in enumerate(spans[1]):
                    if v1 > v0 and u1 > u0:
                        result[number, :, i, j] = x[image, :, v0:v1, u0:u1].max(axis=(1, 2))
        return (result,)


def _bins(start: int, end: int, count: int, size: int) -> list[tuple[int, int]]:
    """Returns start and end of each pooling bin along an axis of the image.

    Args:
        start: First pixel of the region.
        end: Last pixel of the region.
        count: Number of bins.
        size: Size of the image along the axis; bins are clamped to it.
    """
    step = np.float32(max(end - start + 1, 1)) / np.float32(count)
    edges = [(int(np.floor(k * step)), int(np.ceil((k + 1) * step))) for k in range(count)]
    return [(min(max(a + start, 0), size), min(max(b + start, 0), size)) for a, b in edges]
