"""ResizeImage: resamples an image as Pillow does, crops and normalizes it into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import NumberError, ShapeError
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import Buffer, KernelSpec, Launch, StatusWord, i32, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need
from clrt.ops.index_checks import check_lengths, length_status
from clrt.ops.movement.scatter_elements import copy_of
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

# Fractional bits of the weights, as in Pillow for 8-bit channels.
WEIGHT_BITS = 22
_SOURCE = "vision/resize_image.cl"
_INPUTS = (
    ("batch", DType.FLOAT32, 4),
    ("pixels", DType.UINT8, 3),
    ("columns", DType.INT32, 1),
    ("column_weights", DType.INT32, 2),
    ("rows", DType.INT32, 1),
    ("row_weights", DType.INT32, 2),
    ("colours", DType.FLOAT32, 2),
    ("place", DType.INT32, 1),
)


class ImagePartition(Thresholds):
    """Threshold of the partition of ResizeImage into CPU work-groups."""

    rows: int = tunable(
        64, "rows", "Maximum per work-group, which reuses weights for four rows at a time."
    )

    group: ClassVar = "resize_image_shares"


# Entry points, in the order of the values of PART in the source.
_PARTS = ("image_columns", "image_lanes", "image_columns_cpu", "image_rows", "image_rows_cpu")


def _kernel(entry: str) -> KernelSpec:
    """Returns the ResizeImage kernel with entry point `entry`."""
    return KernelSpec.of(_SOURCE, entry, PART=_PARTS.index(entry))


def _vectors(node: Node) -> int:
    """Returns the number of vectors of 4 pixels that hold the source pixels of an output pixel."""
    return ceil_div(node.arg(3).dims[1], 4)


def _reject_cpu(node: Node, caps: DeviceCaps) -> str | None:
    pixels = node.arg(1)
    return "the rows are short" if pixels.dims[1] < 4 * _vectors(node) else None


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    pixels, columns, weights = (node.arg(i) for i in (1, 2, 3))
    height, width, _ = pixels.dims
    outputs, taps = weights.dims
    status = length_status(node, 2, width - taps, "a first column")
    planes = ctx.scratch(3 * height * outputs, DType.UINT8)
    vectors = _vectors(node)
    lanes = ctx.scratch(outputs * vectors * 12, DType.INT32)
    firsts = ctx.scratch(outputs, DType.INT32)
    spread = launch(
        _kernel("image_lanes"), (vectors * 12, outputs),
        lanes=lanes, firsts=firsts, columns=columns, column_weights=weights, status=status,
        width=width, taps=taps, vectors=vectors,
    )  # fmt: skip
    block = ctx.chunks_per_group(height, ctx.thresholds(ImagePartition).rows)
    across = launch(
        _kernel("image_columns_cpu"), (ceil_div(height, block),), (1,),
        2 * 3 * height * outputs * taps, planes=planes, pixels=pixels, lanes=lanes, firsts=firsts,
        width=width, height=height, outputs=outputs, vectors=vectors, block=block,
    )  # fmt: skip
    return _launches(node, ctx, [spread, across], planes, cpu=True)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    pixels, columns, weights = (node.arg(i) for i in (1, 2, 3))
    height, width, _ = pixels.dims
    outputs, taps = weights.dims
    status = length_status(node, 2, width - taps, "a first column")
    planes = ctx.scratch(3 * height * outputs, DType.UINT8)
    across = launch(
        _kernel("image_columns"), (outputs, height), None,
        2 * 3 * height * outputs * taps, planes=planes, pixels=pixels, columns=columns,
        column_weights=weights, status=status, width=width, height=height, outputs=outputs,
        taps=taps,
    )  # fmt: skip
    return _launches(node, ctx, [across], planes)


def _launches(
    node: Node, ctx: Lowering, across: list[Launch], planes: Buffer, cpu: bool = False
) -> list[Launch]:
    """Returns all launches of a ResizeImage node.

    Args:
        node: ResizeImage node.
        ctx: Lowering context.
        across: Launches that resample along the rows, into `planes`.
        planes: Buffer of the image resampled along its rows, uint8 `[3, height, outputs]`.
        cpu: Whether to use the CPU kernel for the second pass.

    Returns:
        Launches that copy the batch, unless it is in place; `across`; the launch that resamples
        along the columns. Empty if the batch is empty.
    """
    op, y, (height, *_) = node.op_as(ResizeImage), node.output, node.arg(1).dims
    images, high, wide = op.sizes(y.dims)
    (outputs, _), (outputs_down, taps) = node.arg(3).dims, node.arg(5).dims
    for dims in (y.dims, node.arg(1).dims):
        i32(prod(dims))  # kernels use 32-bit indices
    if not prod(y.dims):
        return []
    if not outputs * outputs_down:  # the image is empty: only fill
        across = []
    places = ((0, images - 1), (0, high - outputs_down), (0, wide - outputs))
    args: dict[str, Any] = dict(
        batch=y, planes=planes, rows=node.arg(4), row_weights=node.arg(5), colours=node.arg(6),
        place=node.arg(7), status=length_status(node, 4, height - taps, "a first row"),
        place_status=StatusWord(node, 7, "a place", places, "image, row, column"),
        images=images, high=high, wide=wide, height=height, outputs=outputs,
        outputs_down=outputs_down, taps=taps, **op.steps(high, wide),
    )  # fmt: skip
    kernel = _kernel(f"image_rows{'_cpu' * cpu}")
    size, local = ((high, 3), (1, 1)) if cpu else ((wide, high, 3), None)
    flops = 2 * 3 * outputs * outputs_down * taps
    return [*copy_of(node, ctx), *across, launch(kernel, size, local, flops, **args)]


@register
@dataclass(frozen=True)
class ResizeImage(Op):
    """Replaces one image of a batch by another image, resampled, cropped and normalized.

    The image is resampled along its rows and rounded to bytes, then along its columns. Pixels of
    the new image outside the resampled one are filled.

    Inputs:
        batch: float32 `[images, 3, height, width]`, or channels last.
        pixels: The image, uint8 `[rows, columns, 3]`.
        columns: First source column of each output column, int32 `[outputs]`.
        column_weights: Weights of `taps` source columns, from the first one on, int32
            `[outputs, taps]`, in units of 2^-22.
        rows: First source row of each output row, int32 `[outputs]`.
        row_weights: Weights of `taps` source rows, from the first one on, as `column_weights`.
        colours: float32 `[3, 3]`, per channel: factor, offset, fill value.
        place: int32 `[3]`: image index in the batch, and position of the first row and column in
            that image.

    Attributes:
        channels_last: Whether the batch is `[images, height, width, 3]`.
        transposed: Whether `pixels` is transposed: its columns are then the rows of the batch's
            image, so that the image's height is resampled first.

    Numerics: sums in int32, rounded to bytes, as in Pillow; normalization in float32.

    Source: Pillow's Resample.c.
    """

    channels_last: bool = False
    transposed: bool = False

    domain = "clrt"
    accuracy = Accuracy.ELEMENTWISE
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    supported_storages = frozenset({"plain"})
    input_traits = InputTraits(index=(2, 4, 7))
    variants = (Variant("cpu", _emit_cpu, _reject_cpu, requires.CPU), Variant("flat", _emit))

    def sizes(self, dims: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Returns the number of images in a batch, and their sizes along `rows` and `columns`.

        Args:
            dims: Shape of the batch.
        """
        high, wide = dims[1:3] if self.channels_last else dims[2:4]
        return (dims[0], wide, high) if self.transposed else (dims[0], high, wide)

    def steps(self, high: int, wide: int) -> dict[str, int]:
        """Returns the strides in the batch from channel to channel, and along `rows` and `columns`.

        Args:
            high: Size of the batch along the axis that `rows` resamples.
            wide: Size of the batch along the axis that `columns` resamples.

        Returns:
            Strides in elements, by argument name.
        """
        inner = 3 if self.channels_last else 1
        step_c = 1 if self.channels_last else high * wide
        step_y, step_x = (inner, inner * high) if self.transposed else (inner * wide, inner)
        return {"step_c": step_c, "step_y": step_y, "step_x": step_x}

    def infer(self, inputs: Types) -> list[TensorType]:
        types = [need(inputs, i, self) for i in range(len(_INPUTS))]
        for type_, (name, dtype, rank) in zip(types, _INPUTS, strict=True):
            if type_.dtype is not dtype or (type_.shape is not None and len(type_.shape) != rank):
                axes = "axis" if rank == 1 else "axes"
                raise ShapeError(
                    f"ResizeImage: {name} is {type_}; expected {dtype} with {rank} {axes}."
                )
        batch, pixels, columns, across, rows, down, colours, place = types
        if any(t.shape is None for t in types):
            return [TensorType(batch.dtype, batch.shape)]
        assert batch.shape and pixels.shape and across.shape and down.shape
        images, high, wide = self.sizes(batch.shape)
        edges = (wide, high) if self.transposed else (high, wide)
        channels = (images, *edges, 3) if self.channels_last else (images, 3, *edges)
        expected: list[tuple[TensorType, Sequence[Dim | None]]] = [
            (batch, channels),
            (pixels, (None, None, 3)),
            (columns, across.shape[:1]),
            (rows, down.shape[:1]),
            (colours, (3, 3)),
            (place, (3,)),
        ]
        for (type_, shape), name in zip(expected, _CHECKED, strict=True):
            if not agree(type_, shape):
                raise ShapeError(
                    f"ResizeImage: {name} is {type_}; expected {_format_shape(shape)}."
                )
        for size, taps, outputs, available, axis in (
            (pixels.shape[1], across.shape[1], across.shape[0], wide, "columns"),
            (pixels.shape[0], down.shape[1], down.shape[0], high, "rows"),
        ):
            if isinstance(size, int) and isinstance(taps, int) and not 1 <= taps <= size:
                raise ShapeError(
                    f"ResizeImage: {axis} have {taps} weights each, for {pixels}; expected "
                    f"1..{size}."
                )
            if isinstance(outputs, int) and isinstance(available, int) and outputs > available:
                raise ShapeError(f"ResizeImage: {outputs} {axis} do not match {batch}.")
        return [TensorType(batch.dtype, batch.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        batch, pixels, columns, across, rows, down, colours, place = map(np.asarray, inputs)
        images, high, wide = self.sizes(batch.shape)
        image, top, left = (int(p) for p in place)
        for number, most in (
            (image, images - 1),
            (top, high - len(rows)),
            (left, wide - len(columns)),
        ):
            if not 0 <= number <= most:
                allowed = f"allowed are 0..{most}"
                raise NumberError(self.name, 7, "a place", number, allowed)
        planes = _resample(pixels, columns, across, 1, 2, "a first column")
        resampled = _resample(planes, rows, down, 0, 4, "a first row")
        scale, offset, fill = colours
        new = np.broadcast_to(fill, (high, wide, 3)).copy()
        inside = new[top : top + len(rows), left : left + len(columns)]
        inside[...] = (resampled * scale.astype(np.float64) + offset).astype(np.float32)
        new = new.swapaxes(0, 1) if self.transposed else new
        result = batch.copy()
        result[image] = new if self.channels_last else new.transpose(2, 0, 1)
        return (result,)


_CHECKED = ("batch", "pixels", "columns", "rows", "colours", "place")


def _format_shape(shape: Sequence[Dim | None]) -> str:
    """Formats a shape for messages, with ? for unknown dims."""
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def _resample(
    pixels: Array, firsts: Array, weights: Array, axis: int, operand: int, what: str
) -> Array:
    """Resamples an image `[rows, columns, 3]` along an axis and rounds it to bytes.

    Args:
        pixels: Image.
        firsts: First source pixel of each output, `[outputs]`.
        weights: Weights of the first source pixel and the next ones, in units of 2^-22,
            `[outputs, taps]`.
        axis: Resampled axis.
        operand: Input that holds `firsts`, for messages.
        what: Name of an element of `firsts`, for messages.

    Raises:
        NumberError: An output needs pixels outside the image.
    """
    taps = weights.shape[1]
    check_lengths(firsts, pixels.shape[axis] - taps, ResizeImage.name, operand, what)
    tap_values = np.take(pixels.astype(np.int64), firsts[:, None] + np.arange(taps), axis)
    sums = np.einsum(
        "hoti,ot->hoi" if axis else "otwi,ot->owi", tap_values, weights.astype(np.int64)
    )
    return np.asarray(np.clip((sums + (1 << WEIGHT_BITS - 1)) >> WEIGHT_BITS, 0, 255))
