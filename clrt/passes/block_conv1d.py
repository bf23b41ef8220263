"""1-D Conv of few channels -> Conv that computes R neighboring outputs as R times the channels.

An output channel fills one SIMD lane, so few channels leave lanes of a SIMD vector idle. A block of
R outputs reads a window that is (R - 1) strides longer, and blocks are R strides apart. Resamplers
and other signal filters are such convolutions.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch
from clrt.ir.op import Array, IrOp
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import device_thresholds
from clrt.ops.conv.conv import Conv, FusedConv
from clrt.ops.movement.pad import Pad
from clrt.ops.movement.transpose import Transpose
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.util.fast_dataclass import dataclass

_RANKS = (3, 4, 5)
# Maximum number of float32 lanes of a CPU vector (512 bits).
_LANES = 16
# Candidate numbers of outputs per block.
_BLOCKS = (4, 8, 16)


@dataclass(frozen=True)
class _Geometry:
    """Geometry of a 1-D convolution computed in blocks of neighboring outputs.

    Attributes:
        axis: Axis of x along which windows move.
        taps: Window size of one output, in elements.
        stride: Distance of the windows of neighboring outputs, in elements.
        pads: Number of zeros (before, after) x.
        maps: Number of output channels.
        places: Number of outputs per block; 1 for the convolution of the model.
    """

    axis: int
    taps: int
    stride: int
    pads: tuple[int, int]
    maps: int
    places: int = 1

    @property
    def work(self) -> float:
        """Relative cost per output: SIMD lanes per output, times relative length of the window."""
        lanes = -(-self.maps * self.places // _LANES) * _LANES
        return lanes / self.places * (self.taps + self.more) / self.taps

    @property
    def more(self) -> int:
        """Number of elements by which a block's window exceeds the window of a single output."""
        return (self.places - 1) * self.stride


class BlockConvThresholds(Thresholds):
    """Threshold of the choice to compute a 1-D convolution in blocks of outputs."""

    work_percent: int = tunable(
        50,
        "percent",
        "Maximum work of the blocked convolution, of the original: its longer windows contain "
        "zeros.",
    )

    group: ClassVar = "block_conv"


@dataclass(eq=False)
class BlockConv1d(Pass):
    """1-D Conv -> Pad, Conv that computes a block of outputs as output channels, Reshape, Slice.

    Attributes:
        limits: Thresholds of the device.
    """

    limits: BlockConvThresholds = field(default_factory=BlockConvThresholds)

    name = "widen_lines"

    def is_for(self, caps: DeviceCaps) -> bool:
        return caps.is_cpu

    def tuned(self, caps: DeviceCaps) -> Pass:
        return BlockConv1d(device_thresholds(BlockConvThresholds, caps))

    def may_match(self, op: type[IrOp]) -> bool:
        return op in (Conv, FusedConv)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        line = _geometry(node)
        if line is None:
            return None
        if isinstance(line, str):
            return Miss(line, node)
        blocked = min((replace(line, places=r) for r in _BLOCKS), key=lambda x: x.work)
        if blocked.work > self.limits.work_percent / 100 * line.work:
            return Miss("longer windows would not reduce the work enough", node)
        return Match(view, node, payload=blocked)

    def rewrite(self, match: Match) -> Patch:
        build, node, line = match.builder(self.name), match.root, match.payload
        x, w, bias, y = node.arg(0), node.arg(1), node.input(2), node.output
        assert x.shape is not None and y.shape is not None and w.numbers is not None
        images, channels = x.shape[:2]
        places = y.shape[line.axis]
        value = build.reshaped(x, images, channels, x.shape[line.axis])
        before, behind = line.pads
        pads = build.ints(before, behind + line.more)
        value = build.add(Pad(), value, pads, None, build.ints(2))
        if bias is not None:
            assert bias.numbers is not None
            bias = build.numbers(np.tile(bias.numbers, line.places), bias.dtype)
        conv = replace(
            node.op_as(Conv, FusedConv),
            kernel_shape=(line.taps + line.more,),
            strides=(line.places * line.stride,),
            dilations=(),
            pads=(),
        )
        value = build.add(conv, value, build.numbers(_weights(w.numbers, line), w.dtype), bias)
        assert value.shape is not None
        blocks = build.add(Transpose((0, 2, 1)), value)
        count = value.shape[2] * line.places
        value = build.reshaped(blocks, images, count, line.maps)
        value = build.slice(value, 0, places, 1)
        value = build.add(Transpose((0, 2, 1)), value)
        return build.patch({y: build.reshaped(value, *y.shape)})


def _geometry(node: Node) -> _Geometry | str | None:
    """Returns the geometry of a convolution along one axis, a reject reason, or None if not 1-D."""
    op, x, w, bias = node.op_as(Conv, FusedConv), node.arg(0), node.arg(1), node.input(2)
    window = op.window(w.shape)
    if x.shape is None or len(x.shape) not in _RANKS or window is None or not w.type.static_shape:
        return None
    maps, channels, *sizes = w.type.static_shape
    axes = [2 + a for a, size in enumerate(sizes) if size > 1]
    if op.group != 1 or 0 in (maps, channels) or len(axes) != 1:
        return None
    (axis,), count = axes, len(sizes)
    if not all(provably_equal(d, 1) for a, d in enumerate(x.shape[2:], 2) if a != axis):
        return None
    if x.dtype is not DType.FLOAT32 or not w.has_numbers or node.output.shape is None:
        return "its input is not float32, or its weights or sizes are computed"
    if len(node.inputs) > 3 or (bias is not None and not bias.has_numbers):
        return "its bias is computed, or its epilogue reads other tensors"
    if op.auto_pad not in ("NOTSET", "VALID") or any(d != 1 for d in op.dilations):
        return "its padding depends on sizes (auto_pad), or it is dilated"
    pads = (op.pads or (0,) * 2 * count) if op.auto_pad == "NOTSET" else (0,) * 2 * count
    if any(p for a, p in enumerate(pads) if a % count != axis - 2):
        return "it pads other axes, too"
    ends = pads[axis - 2], pads[axis - 2 + count]
    return _Geometry(axis, sizes[axis - 2], (op.strides or (1,) * count)[axis - 2], ends, maps)


def _weights(w: Array, line: _Geometry) -> Array:
    """Returns the weights of the block convolution: a shifted copy for each output of a block.

    Args:
        w: Weights, [output channels, input channels, window].
        line: Geometry of the block convolution.

    Returns:
        [places * output channels, input channels, window of a block].
    """
    maps, channels = w.shape[:2]
    taps = w.reshape(maps, channels, line.taps)
    blocks = np.zeros((line.places, maps, channels, line.taps + line.more), w.dtype)
    for place in range(line.places):
        blocks[place, :, :, place * line.stride :][..., : line.taps] = taps
    return blocks.reshape(line.places * maps, channels, -1)
