"""ConvTranspose as a convolution: elements of y that lie a stride apart are maps of their own.

With a stride of s along an axis, y[s * q + r] is made of the elements of x around q, by those taps
of the window that fall on phase r. So a convolution of x makes the phases, as sub-pixels, and their
order is all that is left to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch
from clrt.ir.op import Array, IrOp
from clrt.ops.conv.channels_last import order_to_first, order_to_last
from clrt.ops.conv.col2im import Windows
from clrt.ops.conv.conv import Conv
from clrt.ops.conv.conv_transpose import ConvTranspose
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.views import Reshape
from clrt.passes.driver import GraphView, Match, Miss, Pass

_RANKS = (3, 4, 5)
# How often the operations of the ConvTranspose: phases whose windows are short have zeros in them.
_MOST_WORK = 2.5


@dataclass(frozen=True)
class _Axis:
    """A spatial axis of x, and of y, whose phases are maps.

    Attributes:
        first, last: The elements of x around place q that a phase of y is made of, counted from q.
        more: How many places there are more than elements of x.
        whole: Whether all phases of the last place are in y.
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
        """Of a window, padding before, and by how much y exceeds x times the stride."""
        more = -(-beyond // stride)
        lasts = [(r + before) // stride for r in range(stride)]
        counts = [-(-(size - (r + before) % stride) // stride) for r in range(stride)]
        first = min(0, *(f - n + 1 for f, n in zip(lasts, counts, strict=True)))
        return cls(size, stride, before, first, max(*lasts, -more, 0), more, beyond % stride == 0)

    @property
    def taps(self) -> int:
        """The window of the convolution."""
        return self.last - self.first + 1

    @property
    def pads(self) -> tuple[int, int]:
        """The zeros that it reads before and behind x."""
        return -self.first, self.more + self.last

    def tap(self, phase: int, place: int) -> int | None:
        """The tap of the window that element `first + place` goes to a phase by."""
        tap = phase + self.before - (self.first + place) * self.stride
        return tap if 0 <= tap < self.size else None


class UseSubPixels(Pass):
    """ConvTranspose -> Conv, whose maps are the phases of y; Transpose."""

    name = "use_sub_pixels"

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, ConvTranspose)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        reason = _reject_reason(node)
        if reason is not None:
            return Miss(reason, node)
        windows = _windows(node)
        # Each phase has one tap at least. What follows goes through all phases: their number comes
        # from the file, the elements of the window are there.
        work = prod(windows.strides) / prod(windows.kernel)
        if work <= _MOST_WORK:
            axes = _axes(windows)
            work = prod(a.taps * a.stride / a.size for a in axes)
        if work > _MOST_WORK:
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
        places = [d + a.more for d, a in zip(x.shape[2:], axes, strict=True)]
        images, channels = y.shape[:2]
        split = build.add(Reshape(1), maps, build.dims((images, *places, *strides, channels)))
        pairs = ((1 + a, 1 + count + a) for a in range(count))
        woven = build.add(Transpose((0, *(i for p in pairs for i in p), 1 + 2 * count)), split)
        sizes = [q * s for q, s in zip(places, strides, strict=True)]
        value = build.add(Reshape(1), woven, build.dims((images, *sizes, channels)))
        cut = [a for a in range(count) if not axes[a].whole]
        if cut:
            ends = build.dims([y.shape[2 + a] for a in cut])
            starts, along = build.ints(*(0 for _ in cut)), build.ints(*(1 + a for a in cut))
            value = build.add(Slice(), value, starts, ends, along)
        return build.patch({y: build.add(Transpose(order_to_first(rank)), value)})


def _reject_reason(node: Node) -> str | None:
    """Why a ConvTranspose stays as it is."""
    op, x, w, bias = node.op, node.arg(0), node.arg(1), node.input(2)
    assert isinstance(op, ConvTranspose)
    if x.dtype is not DType.FLOAT32 or x.shape is None or len(x.shape) not in _RANKS:
        return f"its input is {x.type}"
    if node.output.shape is None:
        return "its sizes are computed"
    if not (w.is_constant and w.has_numbers) or 0 in (w.type.static_shape or (0,)):
        return "the weights are computed"
    if bias is not None and not (bias.is_constant and bias.has_numbers):
        return "the bias is computed"
    if op.group != 1 or any(d != 1 for d in op.dilations):
        return "it has groups, or its windows have holes"
    if op.output_shape or op.auto_pad not in ("NOTSET", "VALID"):
        return "its padding follows from its sizes"
    return None


def _windows(node: Node) -> Windows:
    """Those where x has no elements: their image is what y exceeds x times the stride by."""
    op, w = node.op, node.arg(1)
    assert isinstance(op, ConvTranspose)
    return op.windows((0,) * len(w.dims), w.dims)


def _axes(windows: Windows) -> tuple[_Axis, ...]:
    return tuple(map(_Axis.of, windows.kernel, windows.strides, windows.before, windows.image))


def _phases(w: Array, axes: Sequence[_Axis]) -> Array:
    """Weights [C, O, window] as [phases and O, C, taps]."""
    channels, maps = w.shape[:2]
    strides, taps = [a.stride for a in axes], [a.taps for a in axes]
    found = np.zeros((*strides, *taps, maps, channels), w.dtype)
    for phase in product(*map(range, strides)):
        for place in product(*map(range, taps)):
            tap = [a.tap(r, u) for a, r, u in zip(axes, phase, place, strict=True)]
            known = tuple(t for t in tap if t is not None)
            if len(known) == len(axes):
                found[(*phase, *place)] = w.T[known[::-1]]
    by_map = found.reshape(prod(strides), *taps, maps, channels)
    rank = len(axes)
    order = (0, 1 + rank, 2 + rank, *range(1, 1 + rank))
    return by_map.transpose(order).reshape(prod(strides) * maps, channels, *taps)
