"""RoiAlign: pools regions of images to grids of a fixed size."""

from __future__ import annotations

from typing import Literal

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, reject_in_float32
from clrt.ops.base import OnnxNode, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.index_checks import check_lengths, length_status
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.ops.vision.max_roi_pool import region_grid, region_sizes
from clrt.util.fast_dataclass import dataclass


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, rois, batches, y, op = (
        node.arg(0),
        node.arg(1),
        node.arg(2),
        node.output,
        node.op_as(RoiAlign),
    )
    if 0 in y.dims:
        return []
    cpu = ctx.caps.is_cpu
    kernel = KernelSpec.of(
        "vision/roi_align.cl",
        "roi_align_bins" if cpu else "roi_align",
        CPU=int(cpu),
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        INDEX_T=batches.dtype.cl,
        MAX=int(op.mode == "max"),
        HALF_PIXEL=int(op.coordinate_transformation_mode == "half_pixel"),
    )
    status = length_status(node, 2, x.dims[0] - 1, "an image")
    tensors = dict(y=y, x=x, rois=rois, batches=batches, status=status)
    args = dict(ratio=op.sampling_ratio, scale=op.spatial_scale)
    size, local = ((op.output_height, y.dims[0]), (1, 1)) if cpu else (region_grid(y), None)
    return [launch(kernel, size, local, **tensors, **region_sizes(x, y), **args)]


# Regions with coordinates or bin sizes beyond this magnitude have no samples, as in the kernel.
_FAR = 1e9
_MAX_SAMPLES = 1024  # maximum sampling_ratio


@register
@dataclass(frozen=True)
class RoiAlign(Op):
    """Divides regions of images into bins; returns the pooled samples of each bin.

    Inputs: images x `[N, C, H, W]`, for N images of C channels with H rows and W columns; R regions
    `[R, 4]` (x1, y1, x2, y2); image index per region `[R]`. Output:
    `[R, C, output_height, output_width]`. A sample is interpolated from four pixels, each times a
    weight.

    Attributes:
        coordinate_transformation_mode: "half_pixel" shifts regions by half a pixel.
        mode: "avg" for the mean of a bin's samples; "max" for the largest weighted pixel of all
            samples of a bin.
        output_height: Rows of bins per region.
        output_width: Columns of bins per region.
        sampling_ratio: Samples of a bin along each axis; 0 for one per pixel.
        spatial_scale: Factor of the coordinates of regions.

    Numerics: float32. Source: ONNX RoiAlign, opset 10 to 22.
    """

    coordinate_transformation_mode: str = "half_pixel"
    mode: Literal["avg", "max"] = "avg"
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0

    input_traits = InputTraits(index=(2,), same_dtype=((0, 1),))
    variants = (Variant("any", _emit, reject_in_float32),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        if node.opset < 16:
            node.attrs["coordinate_transformation_mode"] = "output_half_pixel"
        return super().from_onnx(node)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, rois, batches = (need(inputs, i, self) for i in range(3))
        if min(self.output_height, self.output_width) < 1:
            raise ShapeError(
                f"RoiAlign: output_height {self.output_height} and output_width "
                f"{self.output_width}; expected 1 or more."
            )
        if not 0 <= self.sampling_ratio <= _MAX_SAMPLES:
            raise ShapeError(
                f"RoiAlign: sampling_ratio {self.sampling_ratio}; expected 0..{_MAX_SAMPLES}."
            )
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        regions = batches.shape or rois.shape
        fits = len(x.shape) == 4 and agree(rois, (None, 4)) and agree(batches, (None,))
        if not fits or (
            rois.shape and batches.shape and provably_different(rois.shape[0], batches.shape[0])
        ):
            raise ShapeError(
                f"RoiAlign: x {x} must be [N, C, H, W], regions {rois} [R, 4] and "
                f"images {batches} [R]."
            )
        if regions is None:
            return [TensorType(x.dtype, None)]
        return [
            TensorType(x.dtype, (regions[0], x.shape[1], self.output_height, self.output_width))
        ]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, rois, batches = inputs
        assert x is not None and rois is not None and batches is not None
        check_lengths(batches, len(x) - 1, self.name, 2, "an image")
        wide = x.astype(np.float64)
        shape = (len(batches), x.shape[1], self.output_height, self.output_width)
        result = np.zeros(shape)
        regions = zip(rois, batches, strict=True) if x.size else ()
        for number, (roi, image) in enumerate(regions):
            result[number] = self._region(wide[image], roi.astype(np.float64))
        return (result.astype(x.dtype),)

    def _region(self, image: Array, roi: Array) -> Array:
        """Returns the pooled bins of a region, `[channels, output_height, output_width]`.

        Args:
            image: `[channels, rows, columns]`.
            roi: x1, y1, x2, y2.
        """
        half = self.coordinate_transformation_mode == "half_pixel"
        left, top, right, bottom = roi * self.spatial_scale - (0.5 if half else 0.0)
        wide, high = right - left, bottom - top
        if not half:
            wide, high = max(wide, 1.0), max(high, 1.0)
        axes = [
            self._samples(top, high, self.output_height, image.shape[1]),
            self._samples(left, wide, self.output_width, image.shape[2]),
        ]
        (v, v_in, down), (u, u_in, across) = axes
        corners = []
        v0, u0 = v.astype(int), u.astype(int)
        for dv, wv in ((0, 1 - (v - v0)), (1, v - v0)):
            for du, wu in ((0, 1 - (u - u0)), (1, u - u0)):
                rows = np.minimum(v0 + dv, image.shape[1] - 1)
                columns = np.minimum(u0 + du, image.shape[2] - 1)
                weight = (wv * v_in)[:, :, None, None] * (wu * u_in)[None, None]
                corners.append(image[:, rows[:, :, None, None], columns[None, None]] * weight)
        if self.mode == "max":
            largest = np.max(corners, axis=0)
            return np.asarray(largest.max(axis=(2, 4), initial=-np.inf if largest.size else 0))
        total = np.sum(corners, axis=0).sum(axis=(2, 4))
        return np.asarray(total / max(down * across, 1))

    def _samples(
        self, start: float, extent: float, bins: int, size: int
    ) -> tuple[Array, Array, int]:
        """Returns the sample coordinates of all bins along an axis.

        With a `sampling_ratio` of 0, samples far outside the image are omitted if there are many,
        and a region that is NaN, too large or too far away has no samples.

        Args:
            start: Start of the region, in pixels.
            extent: Length of the region, in pixels.
            bins: Number of bins.
            size: Size of the image along the axis.

        Returns:
            Coordinates `[bins, samples]`, clamped to the image; weights of the same shape, 0 for
            samples that were outside the image, else 1; number of samples per bin, including
            omitted ones.
        """
        step = extent / bins
        # As in the kernel: a region that is NaN, too large or too far away has no samples.
        near = abs(start) < _FAR and abs(step) < _FAR
        count = self.sampling_ratio or (int(np.ceil(step)) if near else 0)
        evaluated = count if self.sampling_ratio else min(count, 2 * size + 8)
        starts = start + np.arange(bins)[:, None] * step
        first = np.zeros_like(starts)
        if evaluated < count:
            first = np.clip(np.floor((-1 - starts) * count / step - 1.5), 0, count - evaluated)
        coordinates = starts + (first + np.arange(evaluated) + 0.5) * step / count
        inside = (coordinates >= -1) & (coordinates <= size)
        return np.clip(np.where(inside, coordinates, 0), 0, size - 1), inside.astype(float), count
