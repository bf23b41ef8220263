"""GridSample: samples images at given coordinates."""

from __future__ import annotations

import itertools
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dims import provably_different
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.resample_tables import cubic_weights
from clrt.kernels.spec import KernelSpec, Launch, indexed_args, launch
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.ops.traits import OnnxTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

_Mode: TypeAlias = Literal["nearest", "linear", "cubic"]
_Padding: TypeAlias = Literal["zeros", "border", "reflection"]
TAPS_OF: dict[_Mode, int] = {"nearest": 1, "linear": 2, "cubic": 4}
PADDING_OF: dict[_Padding, int] = {"zeros": 0, "border": 1, "reflection": 2}


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    x, grid = node.arg(0), node.arg(1)
    if x.dtype.compute != "float" or grid.dtype.compute != "float":
        return f"no kernel for {x.dtype} with a grid of {grid.dtype}"
    rank = len(x.dims) - 2
    return None if rank in (2, 3) else f"{rank} spatial axes; the kernel has 2 or 3"


# Maximum taps of the positions that a CPU work-item processes together.
_MAX_TAPS = 256


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, grid, y, op = node.arg(0), node.arg(1), node.output, node.op_as(GridSample)
    if 0 in y.dims:
        return []
    rank, positions = len(x.dims) - 2, prod(y.dims[2:])
    block = _MAX_TAPS // TAPS_OF[op.mode] ** rank if ctx.caps.is_cpu else 1
    kernel = KernelSpec.of(
        "vision/grid_sample.cl",
        "grid_sample_blocks" if ctx.caps.is_cpu else "grid_sample",
        CPU=int(ctx.caps.is_cpu),
        BLOCK=block,
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        GRID_T=grid.dtype.cl,
        GRID_STORAGE=grid.dtype.storage,
        RANK=rank,
        TAPS=TAPS_OF[op.mode],
        PADDING=PADDING_OF[op.padding_mode],
        CORNERS=int(op.align_corners),
    )
    sizes = (1,) * (3 - rank) + x.dims[2:]
    args = dict(y=y, x=x, grid=grid, positions=positions, channels=x.dims[1])
    work = 2 * prod(y.dims) * TAPS_OF[op.mode] ** rank
    groups = (ceil_div(positions, block), x.dims[0])
    local = (1, 1) if ctx.caps.is_cpu else None
    return [launch(kernel, groups, local, work, **args, **indexed_args("s", sizes))]


@register
@dataclass(frozen=True)
class GridSample(Op):
    """Samples x `[N, C, spatial axes …]` at coordinates in grid `[N, output axes …, rank]`.

    x has N images of C channels. A position has a coordinate per spatial axis, last axis first; -1
    to 1 spans x, and other coordinates are outside x.

    Attributes:
        align_corners: Whether -1 and 1 are the centers of the border elements, not their outer
            edges.
        mode: Interpolation between elements.
        padding_mode: Elements outside x: zeros, the nearest border element, or x mirrored.

    Numerics: float32. Source: ONNX GridSample, opset 16 to 22.
    """

    align_corners: bool = False
    mode: _Mode = "linear"
    padding_mode: _Padding = "zeros"

    onnx_traits = OnnxTraits(since_version=20)
    variants = (Variant("any", _emit, _reject),)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        names = {"bilinear": "linear", "bicubic": "cubic"}
        mode = node.attrs.get("mode", "linear")
        mode = names.get(mode, mode)
        padding = node.attrs.get("padding_mode", "zeros")
        return cls(bool(node.attrs.get("align_corners", 0)), mode, padding)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, grid = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is None or grid.shape is None:
            return [TensorType(x.dtype, None)]
        rank = len(x.shape) - 2
        if len(grid.shape) != rank + 2 or provably_different(grid.shape[-1], rank):
            raise ShapeError(f"GridSample: grid {grid} does not match x {x}.")
        if provably_different(grid.shape[0], x.shape[0]):
            raise ShapeError(f"GridSample: the batch sizes of grid {grid} and x {x} differ.")
        return [TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, grid = inputs
        assert x is not None and grid is not None
        sizes = x.shape[2:]
        coordinates = grid.astype(np.float32).reshape(grid.shape[0], -1, len(sizes))[..., ::-1]
        axes = [self._taps(coordinates[..., a], n) for a, n in enumerate(sizes)]
        result = np.zeros((*x.shape[:2], coordinates.shape[1]))
        batch = np.arange(x.shape[0])[:, None]
        for choice in itertools.product(range(TAPS_OF[self.mode]), repeat=len(sizes)):
            picks = [(i[k], w[k]) for (i, w), k in zip(axes, choice, strict=True)]
            inside = np.all([i >= 0 for i, _ in picks], axis=0)
            weight = np.prod([w for _, w in picks], axis=0) * inside
            index = tuple(np.maximum(i, 0) for i, _ in picks)
            elements = x[(batch, slice(None), *index)].astype(np.float64)  # [N, P, C]
            result += np.moveaxis(
                np.where(inside[..., None], elements, 0) * weight[..., None], -1, 1
            )
        return (result.reshape(*x.shape[:2], *grid.shape[1:-1]).astype(x.dtype),)

    def _taps(self, coordinates: Array, size: int) -> tuple[Array, Array]:
        """Returns the elements that are read along one axis, and their weights.

        Args:
            coordinates: Coordinates of the grid along the axis, `[images, positions]`; -1 to 1
                spans the axis.
            size: Size of the axis.

        Returns:
            Element indices, -1 outside x, and weights: `[taps, images, positions]` each.
        """
        low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)
        unit = (coordinates + 1) / 2
        x = unit * (size - 1) if self.align_corners else unit * size - 0.5
        taps = TAPS_OF[self.mode]
        x = np.rint(x) if taps == 1 else x
        if self.padding_mode == "border":
            # As in PyTorch and ONNX Runtime, but not in onnx.reference: cubic weights are those of
            # the unclamped coordinate.
            reach = 4 if taps == 4 else 0
            x = np.where((x < low) | (x > high), np.clip(x, -reach, size - 1 + reach), x)
        elif self.padding_mode == "reflection":
            x = _reflected(x, low, high)
        start = np.floor(x)
        index = start.astype(np.int64) + np.arange(taps)[:, None, None] - (taps == 4)
        if self.padding_mode == "border":
            index = np.clip(index, 0, size - 1)
        elif self.padding_mode == "reflection":
            index = np.clip(_reflected(index, low, high).astype(np.int64), 0, size - 1)
        t = x - start
        if taps == 1:
            weights = np.ones((1, *x.shape))
        elif taps == 2:
            weights = np.stack([1 - t, t])
        else:
            weights = cubic_weights(np.stack([t + 1, t, 1 - t, 2 - t]), -0.75)
        return np.where((index >= 0) & (index < size), index, -1), weights


def _reflected(x: Array, low: float, high: float) -> Array:
    """Reflects coordinates at `low` and `high` until they are between the two.

    Returns `low` for all if high <= low.
    """
    span = high - low
    if span <= 0:
        return np.full(np.shape(x), low)
    out = np.where(x < low, low - x, x - high)
    reflections = np.floor(out / span)
    rest = out - reflections * span
    even = reflections % 2 == 0
    return np.asarray(np.where(out <= 0, x, np.where((x < low) == even, low + rest, high - rest)))
