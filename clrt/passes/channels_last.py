"""Channels-last (NHWC) layout of convolutions and the nodes around them.

A convolution is rewritten between two Transposes. The Transpose behind it sinks through the
following nodes until it cancels with the Transpose before the next convolution. So a chain of
convolutions stays in one layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields, replace
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Shape, provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import Array, ElementwiseInstruction, IrOp
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import device_thresholds
from clrt.ops.base import Op
from clrt.ops.checks import normalize_axis
from clrt.ops.conv.channels_last import (
    MAX_DEPTHWISE_TAPS,
    ChannelsLastConv,
    order_to_first,
    order_to_last,
)
from clrt.ops.conv.conv import Conv, Convolution, FloatConvolution, FusedConv
from clrt.ops.movement.concat import Concat, Split
from clrt.ops.movement.pad import Pad
from clrt.ops.movement.slice import Slice
from clrt.ops.movement.transpose import Transpose
from clrt.ops.norm.group_normalization import GroupStatistics
from clrt.ops.norm.group_normalization_last import ChannelsLastGroupNormalization
from clrt.ops.norm.softmax import SoftmaxBase
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.fused import Fused
from clrt.ops.pointwise.quantize_linear import Quantization
from clrt.ops.reduce.reduction import Reduce
from clrt.ops.vision.pooling import AveragePool, GlobalPool, MaxPool, WindowPool
from clrt.ops.vision.pooling_last import ChannelsLastAveragePool, ChannelsLastMaxPool
from clrt.ops.vision.resize import Resize
from clrt.passes.canonicalize_views import CanonicalizeViews, SimplifyTransposes
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fuse_epilogue import FuseEpilogue
from clrt.passes.matching import is_elementwise, keeps_shape
from clrt.passes.remove_identity import RemoveIdentity
from clrt.passes.sink_transpose import SinkTranspose
from clrt.util.fast_dataclass import dataclass

# Supported tensor ranks: 1-D to 3-D convolutions.
_RANKS = (3, 4, 5)
# Channel counts of images, which the first convolution reads with channels first.
_IMAGE_CHANNELS = range(2, 5)


class ChannelsLastThresholds(Thresholds):
    """Thresholds of the choice of layouts of convolutions."""

    group_width: int = tunable(
        8, "channels", "Minimum of a group; narrower ones fill too little of a panel."
    )
    merged: int = tunable(
        8,
        "groups",
        "Maximum of narrow groups merged into one, which multiplies the operations by as much.",
        most=1024,
    )
    image_steps: int = tunable(
        8,
        "nodes",
        "Maximum between a graph input and the convolution that reads it as an image: scaling, "
        "cropping, padding.",
    )

    group: ClassVar = "channels_last"


def _reads_image(node: Node, steps: int) -> bool:
    """Whether a 2-D convolution reads an image of 2 to 4 channels near a graph input.

    The convolution must have one group, explicit padding, and windows of more than one element. Its
    epilogue must read no other tensors.

    Args:
        steps: Maximum number of nodes between the graph input and the convolution.
    """
    op, x, w = node.op_as(Convolution), node.arg(0), node.arg(1)
    assert x.shape is not None and w.type.static_shape is not None
    few = len(x.shape) == 4 and op.group == 1 and w.type.static_shape[1] in _IMAGE_CHANNELS
    padded = not op.auto_pad.startswith("SAME") and prod(w.type.static_shape[2:]) > 1
    return few and padded and len(node.inputs) <= 3 and _is_near_input(x, steps)


def _is_near_input(value: Value, steps: int) -> bool:
    """Whether a value is computed from a graph input or constant by fewer than `steps` nodes.

    Only first inputs are followed; a convolution or Transpose among the nodes makes it false.
    """
    for _ in range(steps):
        if value.producer is None:
            return True
        if isinstance(value.producer.op, (Transpose, Convolution)):
            return False
        first = value.producer.input(0)
        if first is None:
            return False
        value = first
    return False


def _from_image(
    build: OpBuilder, node: Node, op: Convolution, steps: tuple[ElementwiseInstruction, ...]
) -> Value:
    """Builds the convolution of a channels-first image; its channels become an axis of the window.

    Args:
        node: The convolution of the model.
        op: Op of `node`.
        steps: Epilogue of `node`.

    Returns:
        The output in channels-last layout.
    """
    x, w, y = node.arg(0), node.arg(1), node.output
    assert x.shape is not None and y.shape is not None and w.numbers is not None
    maps, channels, *window = w.numbers.shape
    pads = op.pads or (0,) * 4
    conv = ChannelsLastConv(
        kernel_shape=(channels, *window),
        strides=(1, *(op.strides or (1, 1))),
        dilations=(1, *(op.dilations or (1, 1))),
        pads=(0, *pads[:2], 0, *pads[2:]),
        steps=steps,
    )
    stack = build.reshaped(x, *x.shape, 1)
    weights = build.numbers(w.numbers.reshape(maps, 1, channels, *window), w.dtype)
    value = build.add(conv, stack, weights, *node.inputs[2:])
    return build.reshaped(value, y.shape[0], *y.shape[2:], maps)


def _reject_reason(node: Node, limits: ChannelsLastThresholds) -> str | None:
    """Returns why a convolution stays channels-first; None if it can become a ChannelsLastConv."""
    op, x, w = node.op_as(Convolution), node.arg(0), node.arg(1)
    if x.dtype is not DType.FLOAT32 or x.shape is None or len(x.shape) not in _RANKS:
        return f"its input is {x.type}"
    if not (w.is_constant and w.has_numbers) or w.type.static_shape is None:
        return "the weights are computed"
    maps, channels, *window = w.type.static_shape
    if 0 in (maps, channels, *window):
        return "there are no weights"
    if _is_depthwise(op.group, maps, channels):
        taps = int(np.prod(window))
        return f"a window of {taps} elements" if taps > MAX_DEPTHWISE_TAPS else None
    if _merged_groups(op.group, maps, channels, limits) is None:
        return f"{op.group} groups of {channels} channels"
    extras = [v for v in node.inputs[3:] if v is not None]
    if any(_has_lower_rank(v, len(x.shape)) and not v.has_numbers for v in extras):
        return "an operand of its epilogue has fewer axes"
    return None


def _is_depthwise(groups: int, maps: int, channels: int) -> bool:
    """Whether a convolution has several groups of one input and one output channel each.

    Args:
        groups: Number of groups.
        maps: Number of output channels, over all groups.
        channels: Number of input channels per group.
    """
    return groups > 1 and channels == 1 and maps == groups


def _merged_groups(
    groups: int, maps: int, channels: int, limits: ChannelsLastThresholds
) -> int | None:
    """Returns how many groups of a convolution to merge into one, for wide enough groups.

    In a merged group, an output channel has zero weights for the input channels of the other
    original groups.

    Args:
        groups: Number of groups.
        maps: Number of output channels, over all groups.
        channels: Number of input channels per group.
        limits: Minimum width of a group, and maximum number of groups to merge.

    Returns:
        Number of groups per merged group: 1 if groups are wide enough, or depthwise; all groups if
            even all together are too narrow; None if too many groups would have to be merged.
    """
    width = min(maps // groups, channels)
    if groups == 1 or width >= limits.group_width or _is_depthwise(groups, maps, channels):
        return 1
    divisors = [m for m in range(1, limits.merged + 1) if groups % m == 0]
    return next((m for m in divisors if m * width >= limits.group_width or m == groups), None)


def _merge_groups(w: Array, groups: int, merged: int) -> Array:
    """Expands the weights of a grouped convolution with zeros, for merged groups.

    Args:
        w: Weights, [output channels, input channels per group, window].
        groups: Number of groups.
        merged: Number of groups per merged group.

    Returns:
        [output channels, merged * input channels per group, window].
    """
    maps, channels = w.shape[:2]
    expanded = np.zeros((maps, merged, channels, *w.shape[2:]), w.dtype)
    group_maps = maps // groups
    for first in range(0, maps, group_maps):
        expanded[first : first + group_maps, first // group_maps % merged] = w[
            first : first + group_maps
        ]
    return expanded.reshape(maps, merged * channels, *w.shape[2:])


def _has_lower_rank(value: Value, rank: int) -> bool:
    """Whether the rank of a value is unknown, or less than `rank` but not 0."""
    return value.shape is None or 0 < len(value.shape) < rank


def _to_last(build: OpBuilder, value: Value, rank: int) -> Value:
    """Returns a channels-first operand of an elementwise op in channels-last layout.

    The result broadcasts to `[batch, …, channels]` as `value` does to `[batch, channels, …]`.
    Constants are transposed at once; operands of one element are returned unchanged.

    Args:
        value: The operand.
        rank: Rank of the op's result.
    """
    assert value.shape is not None
    if all(provably_equal(d, 1) for d in value.shape):
        return value
    if value.is_constant and value.numbers is not None:
        numbers = value.numbers
        full = numbers.reshape(*(1,) * (rank - numbers.ndim), *numbers.shape)
        return build.numbers(full.transpose(order_to_last(rank)), value.dtype)
    return build.add(Transpose(order_to_last(rank)), value)


class SinkChannels(Pass):
    """f(Transpose(x)) -> Transpose(f(x)), for a Transpose from channels last to channels first.

    f is elementwise, pooling, Reduce, Concat, Softmax, Split, Resize, Slice, Pad, QuantizeLinear,
    DequantizeLinear, or a normalization by group of channels.
    """

    name = "sink_channels"
    required_op_classes = (Transpose,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, (Pointwise, Fused)) or any(issubclass(op, c) for c, _ in _RULES)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if is_elementwise(node):
            return _match_elementwise(view, node)
        x = node.input(0)
        rule = next((r for c, r in _RULES if isinstance(node.op, c)), None)
        if rule is None or x is None or _channels_last(x) is None:
            return None
        reordered = rule(node, _order(x))
        return (
            Miss(reordered, node)
            if isinstance(reordered, str)
            else Match(view, node, payload=reordered)
        )

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        if isinstance(match.payload, _Reordered):
            return match.payload.patch(build, node)
        rank = match.payload
        inputs = [_elementwise_input(build, v, rank) for v in node.inputs if v is not None]
        value = build.add(node.op, *inputs)
        return build.patch({node.output: build.add(Transpose(order_to_first(rank)), value)})


@dataclass(eq=False)
class UseChannelsLast(Pass):
    """Conv -> Transpose, ChannelsLastConv, Transpose, for constant float32 weights.

    An image of 2 to 4 channels is not transposed before: its channels become an axis of the window.

    Attributes:
        limits: Thresholds of the device.
    """

    limits: ChannelsLastThresholds = field(default_factory=ChannelsLastThresholds)

    name = "use_channels_last"
    # Cancel the transposes around channels-last nodes.
    follow_ups = (
        SimplifyTransposes(),
        SinkTranspose(),
        SinkChannels(),
        RemoveIdentity(),
        CanonicalizeViews(),
        FuseEpilogue(),  # activations after normalizations
        EliminateCommonSubexpressions(),
        EliminateDead(),
    )

    def is_for(self, caps: DeviceCaps) -> bool:
        return caps.is_cpu

    def tuned(self, caps: DeviceCaps) -> Pass:
        return UseChannelsLast(device_thresholds(ChannelsLastThresholds, caps))

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, FloatConvolution) and op is not ChannelsLastConv

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        reason = _reject_reason(node, self.limits)
        return Miss(reason, node) if reason else Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        build, node = match.builder(self.name), match.root
        op, x, y = node.op_as(Conv, FusedConv), node.arg(0), node.output
        assert x.shape is not None
        rank = len(x.shape)
        steps = op.steps if isinstance(op, FusedConv) else ()
        if _reads_image(node, self.limits.image_steps):
            value = _from_image(build, node, op, steps)
            return build.patch({y: build.add(Transpose(order_to_first(rank)), value)})
        attributes = {f.name: getattr(op, f.name) for f in fields(Convolution)}
        w = node.arg(1)
        maps, channels = w.dims[:2]
        merged = _merged_groups(op.group, maps, channels, self.limits)
        assert merged is not None and w.numbers is not None
        if merged > 1:
            w = build.numbers(_merge_groups(w.numbers, op.group, merged), w.dtype)
            attributes["group"] = op.group // merged
        extras = [None if v is None else _to_last(build, v, rank) for v in node.inputs[3:]]
        value = build.add(
            ChannelsLastConv(**attributes, steps=steps),
            build.add(Transpose(order_to_last(rank)), x),
            w,
            node.input(2),
            *extras,
        )
        return build.patch({y: build.add(Transpose(order_to_first(rank)), value)})


def _order(x: Value) -> tuple[int, ...]:
    """Returns for each axis of a channels-first x its index in channels-last layout."""
    assert x.shape is not None
    return order_to_first(len(x.shape))


def _channels_last(x: Value) -> Value | None:
    """Returns the input of x's producer if it transposes channels last to first, else None."""
    node = x.producer
    if node is None or not isinstance(node.op, Transpose) or x.shape is None:
        return None
    rank = len(x.shape)
    return node.arg(0) if rank >= 3 and node.op.order(rank) == order_to_first(rank) else None


def _is_view(shape: Shape) -> bool:
    """Whether a Transpose of a shape [batch, channels, …] to channels last moves no elements."""
    return provably_equal(shape[1], 1) or all(provably_equal(d, 1) for d in shape[2:])


def _match_elementwise(view: GraphView, node: Node) -> Match | Miss | None:
    values = [v for v in node.inputs if v is not None]
    channels_last = [v for v in values if _channels_last(v) is not None]
    y = node.output
    full_shape = [v for v in channels_last if keeps_shape(v, y)]
    if not full_shape or y.shape is None or len(values) != len(node.inputs):
        return None
    rank, moved = len(y.shape), 0
    for value in values:
        if value in channels_last or value.has_numbers or value.shape == ():
            continue
        if value.shape is None or len(value.shape) != rank:
            return Miss(f"operand {value.type} has other axes", node)
        moved += not _is_view(value.shape) or (_is_own_inverse(rank) and keeps_shape(value, y))
    if moved > len(full_shape) - _is_own_inverse(rank):
        return Miss("more operands would be transposed than before", node)
    return Match(view, node, payload=rank)


def _is_own_inverse(rank: int) -> bool:
    """Whether the permutations to channels last and to channels first are equal (rank 3).

    If they are equal, SinkChannels also matches Transposes that it added itself. To terminate, it
    must then reduce the number of transposed operands.
    """
    return order_to_last(rank) == order_to_first(rank)


def _elementwise_input(build: OpBuilder, value: Value, rank: int) -> Value:
    source = _channels_last(value)
    if source is not None and value.shape is not None and len(value.shape) == rank:
        return source
    return _to_last(build, value, rank)


@dataclass(frozen=True)
class _Reordered:
    """A node rewritten for channels-last inputs.

    Attributes:
        op: Op with its axes mapped to the channels-last order.
        inputs: Inputs after the first one; a tuple of ints becomes an int64 constant.
        every: Whether all inputs of the node become channels-last, as for Concat; then `inputs` is
            unused.
        bare: Whether the output needs no Transpose: a reduction dropped the spatial axes.
    """

    op: Op
    inputs: tuple[Any, ...] = ()
    every: bool = False
    bare: bool = False

    def patch(self, build: OpBuilder, node: Node) -> Patch:
        """Builds the patch that replaces `node`: op on channels-last inputs, then Transposes."""
        rank = len(node.arg(0).shape or ())
        if self.every:
            inputs = [_elementwise_input(build, v, rank) for v in node.inputs if v is not None]
        else:
            source = _channels_last(node.arg(0))
            assert source is not None
            rest = (build.ints(*v) if isinstance(v, tuple) else v for v in self.inputs)
            inputs = [source, *rest]
        values = build.add_all(self.op, *inputs)
        back = Transpose(order_to_first(rank))
        results = values if self.bare else [build.add(back, v) for v in values]
        return build.patch(dict(zip(node.outputs, results, strict=True)))


_Rule: TypeAlias = Callable[[Node, tuple[int, ...]], "_Reordered | str"]


def _pool(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    """Returns a pooling node for channels-last inputs, or a reject reason."""
    op = node.op_as(WindowPool)
    if node.arg(0).dtype is not DType.FLOAT32:
        return f"no kernel for {node.arg(0).dtype}"
    if isinstance(op, MaxPool) and op.indices:
        return "it returns indices"
    target = ChannelsLastMaxPool if isinstance(op, MaxPool) else ChannelsLastAveragePool
    if type(op) is target:
        return "it is channels-last already"
    return _Reordered(target(**{f.name: getattr(op, f.name) for f in fields(op)}))


def _reduce(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    """Returns a reduction node for channels-last inputs, or a reject reason.

    Args:
        order: Channels-last index of each channels-first axis.
    """
    op = node.op_as(Reduce)
    if node.input(1) is not None and not node.arg(1).has_numbers:
        return "its axes are computed"
    rank = len(order)
    reduced = op.axes_of(node.input_types, rank)
    axes = tuple(sorted(order[a] for a in reduced))
    spatial = axes == tuple(range(1, rank - 1))
    if not op.keepdims and not spatial:
        return "it drops axes other than the spatial ones"
    if isinstance(op, GlobalPool):
        plain = next(
            c for c in type(op).__mro__ if issubclass(c, Reduce) and not issubclass(c, GlobalPool)
        )
        op = plain(keepdims=True)
    return _Reordered(op, (axes,), bare=not op.keepdims)


def _concat(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    """Returns a Concat for channels-last inputs, or a reject reason.

    Args:
        order: Channels-last index of each channels-first axis.
    """
    op = node.op_as(Concat)
    values = [v for v in node.inputs if v is not None]
    channels_last = [v for v in values if _channels_last(v) is not None]
    others = [v for v in values if v not in channels_last and not v.has_numbers]
    if len(others) > len(channels_last) - _is_own_inverse(len(order)):
        return "more operands would be transposed than before"
    if any(v.shape is None for v in values):
        return "the rank of an operand is unknown"
    return _Reordered(replace(op, axis=order[op.axis]), every=True)


def _along_axis(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    op = node.op_as(SoftmaxBase, Split)
    if isinstance(op, SoftmaxBase) and op.flatten:
        return "it flattens the axes from its axis on"
    return _Reordered(replace(op, axis=order[op.axis]), tuple(node.inputs[1:]))


def _resize(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    op = node.op_as(Resize)
    axes = tuple(order[a] for a in op.axes or range(len(order)))
    return _Reordered(replace(op, axes=axes), tuple(node.inputs[1:]))


def _slice(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    axes = node.input(3)
    if axes is None or axes.numbers is None:
        return "its axes are computed"
    moved = tuple(order[int(a)] for a in axes.numbers.reshape(-1))
    return _Reordered(_op(node), (*node.inputs[1:3], moved, *node.inputs[4:]))


def _pad(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    axes = node.input(3)
    numbers = np.arange(len(order)) if axes is None else axes.numbers
    if numbers is None:
        return "its axes are computed"
    moved = tuple(order[int(a)] for a in numbers.reshape(-1))
    return _Reordered(_op(node), (node.input(1), node.input(2), moved))


def _group_norm(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    """Returns a normalization by group for channels-last inputs, or a reject reason."""
    op, x = node.op_as(GroupStatistics), node.arg(0)
    assert x.shape is not None
    channels = x.shape[1]
    if not isinstance(channels, int) or not channels or x.dtype is not DType.FLOAT32:
        return f"no kernel for {x.type}"
    last = ChannelsLastGroupNormalization(op.groups(channels), op.epsilon, op.per_group)
    return _Reordered(last, tuple(node.inputs[1:]))


def _quantization(node: Node, order: tuple[int, ...]) -> _Reordered | str:
    """Returns QuantizeLinear or DequantizeLinear for channels-last inputs, or a reject reason."""
    op, scale = node.op_as(Quantization), node.arg(1).type.static_shape
    if scale is None or op.block_size or len(scale) > 1:
        return "its scales are by block, or of unknown shape"
    axis = normalize_axis(op.axis, len(order), op) if scale and scale != (1,) else 0
    return _Reordered(replace(op, axis=order[axis]), tuple(node.inputs[1:]))


def _op(node: Node) -> Op:
    return node.op_as(Op)


_RULES: tuple[tuple[type[Op], _Rule], ...] = (
    (MaxPool, _pool),
    (AveragePool, _pool),
    (Reduce, _reduce),
    (Concat, _concat),
    (SoftmaxBase, _along_axis),
    (Split, _along_axis),
    (Resize, _resize),
    (Slice, _slice),
    (Pad, _pad),
    (GroupStatistics, _group_norm),
    (Quantization, _quantization),
)
