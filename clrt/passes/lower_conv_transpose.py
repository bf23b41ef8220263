"""ConvTranspose -> Conv and pixel shuffle (sub-pixel convolution).

With stride s along an axis, y[s * q + r] depends on elements of x around q and on the window
elements of phase r. So one convolution of x computes all phases as output channels, which are then
interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import product
from math import prod
from typing import ClassVar

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch
from clrt.ir.op import Array, IrOp
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import device_thresholds
from clrt.ops.conv.channels_last import order_to_first, order_to_last
from clrt.ops.conv.col2im import Windows
from clrt.ops.conv.conv import Conv
from clrt.ops.conv.conv_transpose import ConvTranspose
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.transpose import Transpose
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.util.fast_dataclass import dataclass

_RANKS = (3, 4, 5)


@dataclass(frozen=True)
class _Axis:
    """Geometry of a ConvTranspose along one spatial axis: y[s * q + r] is phase r at position q.

    Attributes:
        size: Window size of the ConvTranspose in elements.
        stride: Stride s of the ConvTranspose, the number of phases.
        before: Number of elements by which padding crops the start of y.
        first: Index of the first element of x that any phase at position q reads, minus q.
        last: Index of the last element of x that any phase at position q reads, minus q.
        more: Number of positions q minus number of elements of x.
        whole: Whether y includes all phases of the last position.
    """

    size: int
    stride: int
    before: int
    first: int
    last: int
    more: int
    whole: bool

    @classmethod
    def of(cls, size: int, stride: int, before: int, beyond: int) -> _Axis:
        """Computes the geometry of an axis.

        Args:
            size: Window size of the ConvTranspose in elements.
            stride: Stride of the ConvTranspose.
            before: Number of elements by which padding crops the start of y.
            beyond: Size of y minus stride times size of x.
        """
        more = -(-beyond // stride)
        lasts = [(r + before) // stride for r in range(stride)]
        counts = [-(-(size - (r + before) % stride) // stride) for r in range(stride)]
        first = min(0, *(f - n + 1 for f, n in zip(lasts, counts, strict=True)))
        return cls(size, stride, before, first, max(*lasts, -more, 0), more, beyond % stride == 0)

    @property
    def taps(self) -> int:
        """Window size of the Conv that computes all phases of the ConvTranspose, in elements."""
        return self.last - self.first + 1

    @property
    def pads(self) -> tuple[int, int]:
        """Zero padding of the equivalent Conv, before and after x."""
        return -self.first, self.more + self.last

    def tap(self, phase: int, place: int) -> int | None:
        """Returns the index in the ConvTranspose's window of a weight of the equivalent Conv.

        Args:
            phase: Phase r of y[s * q + r], an output channel of the equivalent Conv.
            place: Index in the window of the equivalent Conv, which reads x[q + first + place].

        Returns:
            The index; None if the weight is 0, as the phase does not depend on the element of x.
        """
        tap = phase + self.before - (self.first + place) * self.stride
        return tap if 0 <= tap < self.size else None


class SubPixelThresholds(Thresholds):
    """Threshold of the choice to compute a ConvTranspose as a Conv."""

    work_percent: int = tunable(
        250,
        "percent",
        "Maximum operations of the Conv, of the ConvTranspose: phases with short windows are "
        "padded with zeros.",
        most=10_000,
    )

    group: ClassVar = "sub_pixels"


@dataclass(eq=False)
class LowerConvTranspose(Pass):
    """ConvTranspose -> Conv with the phases of y as output channels, Reshape and Transpose.

    Applies to float32 without groups or dilations, if zero weights do not increase the number of
    operations too much.

    Attributes:
        limits: Thresholds of the device.
    """

    limits: SubPixelThresholds = field(default_factory=SubPixelThresholds)

    name = "use_sub_pixels"

    def is_for(self, caps: DeviceCaps) -> bool:
        return caps.is_cpu

    def tuned(self, caps: DeviceCaps) -> Pass:
        return LowerConvTranspose(device_thresholds(SubPixelThresholds, caps))

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, ConvTranspose)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        reason = _reject_reason(node)
        if reason is not None:
            return Miss(reason, node)
        windows, most = _windows(node), self.limits.work_percent / 100
        # Lower bound first, as each phase has at least one tap: `_axes` iterates over all phases,
        # and their number is an attribute that a file may set to any size.
        work = prod(windows.strides) / prod(windows.kernel)
        if work <= most:
            axes = _axes(windows)
            work = prod(a.taps * a.stride / a.size for a in axes)
        if work > most:
            return Miss(f"{work:.1f} times the operations", node)
        return Match(view, node, payload=axes)

    def rewrite(self, match: Match) -> Patch:
        build, node, axes = match.builder(self.name), match.root, match.payload
        x, w, bias, y = node.arg(0), node.arg(1), node.input(2), node.output
        assert x.shape is not None and y.shape is not None and w.numbers is not None
        rank, count = len(x.shape), len(axes)
        strides = [a.stride for a in axes]
        if bias is not None:
            assert bias.numbers is not None
            bias = build.numbers(np.tile(bias.numbers, prod(strides)), bias.dtype)
        befores, behinds = zip(*(a.pads for a in axes), strict=True)
        conv = Conv(kernel_shape=tuple(a.taps for a in axes), pads=(*befores, *behinds))
        weights = build.numbers(_phases(w.numbers, axes), w.dtype)
        maps = build.add(Transpose(order_to_last(rank)), build.add(conv, x, weights, bias))
        positions = [d + a.more for d, a in zip(x.shape[2:], axes, strict=True)]
        images, channels = y.shape[:2]
        split = build.reshaped(maps, images, *positions, *strides, channels)
        pairs = ((1 + a, 1 + count + a) for a in range(count))
        interleaved = build.add(
            Transpose((0, *(i for p in pairs for i in p), 1 + 2 * count)), split
        )
        sizes = [q * s for q, s in zip(positions, strides, strict=True)]
        value = build.reshaped(interleaved, images, *sizes, channels)
        cropped = [a for a in range(count) if not axes[a].whole]
        if cropped:
            ends = build.dims([y.shape[2 + a] for a in cropped])
            starts, crop_axes = (
                build.ints(*(0 for _ in cropped)),
                build.ints(*(1 + a for a in cropped)),
            )
            value = build.add(Slice(), value, starts, ends, crop_axes)
        return build.patch({y: build.add(Transpose(order_to_first(rank)), value)})


def _reject_reason(node: Node) -> str | None:
    """Returns why a ConvTranspose cannot be rewritten; None if it can."""
    op, x, w, bias = node.op_as(ConvTranspose), node.arg(0), node.arg(1), node.input(2)
    if x.dtype is not DType.FLOAT32 or x.shape is None or len(x.shape) not in _RANKS:
        return f"its input is {x.type}"
    if node.output.shape is None:
        return "its sizes are computed"
    if not (w.is_constant and w.has_numbers) or 0 in (w.type.static_shape or (0,)):
        return "the weights are computed"
    if bias is not None and not (bias.is_constant and bias.has_numbers):
        return "the bias is computed"
    if op.group != 1 or any(d != 1 for d in op.dilations):
        return "it is grouped or dilated"
    if op.output_shape or op.auto_pad not in ("NOTSET", "VALID"):
        return "its padding depends on sizes (auto_pad, output_shape)"
    return None


def _windows(node: Node) -> Windows:
    """Returns the windows of a ConvTranspose for an x of size 0.

    So `image` of the result is the size of y minus stride times size of x.
    """
    op, w = node.op_as(ConvTranspose), node.arg(1)
    return op.windows((0,) * len(w.dims), w.dims)


def _axes(windows: Windows) -> tuple[_Axis, ...]:
    return tuple(map(_Axis.of, windows.kernel, windows.strides, windows.before, windows.image))


def _phases(w: Array, axes: Sequence[_Axis]) -> Array:
    """Rearranges the weights of a ConvTranspose to weights of the equivalent Conv.

    Args:
        w: [input channels, output channels, window].
        axes: Geometry of each spatial axis.

    Returns:
        [phases * output channels, input channels, taps], 0 for taps that a phase does not read.
    """
    channels, maps = w.shape[:2]
    strides, taps = [a.stride for a in axes], [a.taps for a in axes]
    by_phase = np.zeros((*strides, *taps, maps, channels), w.dtype)
    for phase in product(*map(range, strides)):
        for place in product(*map(range, taps)):
            tap = [a.tap(r, u) for a, r, u in zip(axes, phase, place, strict=True)]
            present = tuple(t for t in tap if t is not None)
            if len(present) == len(axes):
                by_phase[(*phase, *place)] = w.T[present[::-1]]
    by_map = by_phase.reshape(prod(strides), *taps, maps, channels)
    rank = len(axes)
    order = (0, 1 + rank, 2 + rank, *range(1, 1 + rank))
    return by_map.transpose(order).reshape(prod(strides) * maps, channels, *taps)
