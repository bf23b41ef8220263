"""Gradients of convolutions and poolings, as convolutions of other operands."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.errors import UnsupportedError
from clrt.ir.dims import Dim, provably_equal
from clrt.ir.graph import Value
from clrt.ops.gradients.shapes import known_shape
from clrt.ops.op_builder import OpBuilder
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class Geometry:
    """Windows of a convolution over its spatial axes.

    Attributes:
        kernel: Window size per axis.
        strides: Distance between windows per axis.
        dilations: Distance between elements of a window per axis.
        begins: Padding before each axis.
        ends: Padding behind each axis.
        group: Number of groups of channels.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    group: int = 1

    @property
    def pads(self) -> tuple[int, ...]:
        return (*self.begins, *self.ends)

    def spans(self) -> list[int]:
        """Returns the extent of a window per axis, gaps between its elements included."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def window_sizes(weights: Value) -> tuple[int, ...]:
    """Returns the window size per spatial axis of weights.

    Raises:
        UnsupportedError: It depends on the input.
    """
    sizes = tuple(d for d in known_shape(weights)[2:] if isinstance(d, int))
    if len(sizes) < len(known_shape(weights)) - 2:
        raise UnsupportedError("the size of its window depends on the input")
    return sizes


def convolve(b: OpBuilder, x: Value, weights: Value, geometry: Geometry) -> Value:
    """Returns the convolution of x with weights."""
    g = geometry
    return b(
        "Conv", x, weights, strides=g.strides, dilations=g.dilations, pads=g.pads, group=g.group
    )


def data_gradient(
    b: OpBuilder, cotangent: Value, weights: Value, sizes: Sequence[Dim], geometry: Geometry
) -> Value:
    """Returns the gradient of a convolution by its data: a transposed convolution.

    Args:
        b: Adds the nodes.
        cotangent: Cotangent of the result.
        weights: Weights of the convolution.
        sizes: Spatial sizes of the data.
        geometry: Windows of the convolution.
    """
    g, rank = geometry, len(geometry.kernel)
    places = known_shape(cotangent)[2:]
    # Elements behind the end of x that windows cover; negative if windows end before x does.
    excess = [
        (places[a] - 1) * g.strides[a] + g.spans()[a] - g.begins[a] - sizes[a] for a in range(rank)
    ]
    ends = tuple(max(n, 0) if isinstance(n, int) else 0 for n in excess)
    x = b(
        "ConvTranspose", cotangent, weights, strides=g.strides, dilations=g.dilations,
        pads=(*g.begins, *ends), group=g.group,
    )  # fmt: skip
    rest = [end - n for end, n in zip(ends, excess, strict=True)]
    if all(provably_equal(n, 0) for n in rest):
        return x
    return b("Pad", x, b.dims([*(0,) * rank, *rest]), None, b.ints(*range(2, rank + 2)))


def weight_gradient(
    b: OpBuilder, x: Value, cotangent: Value, weights: Value, geometry: Geometry
) -> Value:
    """Returns the gradient of a convolution by its weights: a convolution over the images.

    Images take the place of channels, and strides that of dilations.

    Args:
        b: Adds the nodes.
        x: Data of the convolution.
        cotangent: Cotangent of the result.
        weights: Weights of the convolution, whose shape the result has.
        geometry: Windows of the convolution.
    """
    g, rank = geometry, len(geometry.kernel)
    batch, _, *sizes = known_shape(x)
    per_group = known_shape(weights)[1]
    spatial = range(3, rank + 3)
    apart = b.reshaped(x, batch, g.group, per_group, *sizes)
    turned = b("Transpose", apart, perm=(2, 1, 0, *spatial))
    data = b.reshaped(turned, per_group, g.group * batch, *sizes)
    windows = b("Transpose", cotangent, perm=(1, 0, *range(2, rank + 2)))
    swapped = Geometry(g.kernel, g.dilations, g.strides, g.begins, g.ends, g.group)
    total = _cut(b, convolve(b, data, windows, swapped), g.kernel)
    by_weights = b("Transpose", total, perm=(1, 0, *range(2, rank + 2)))
    return b.reshaped(by_weights, *known_shape(weights))


def bias_gradient(b: OpBuilder, cotangent: Value) -> Value:
    """Returns the sum of a cotangent over images and positions."""
    rank = len(known_shape(cotangent))
    return b("ReduceSum", cotangent, b.ints(0, *range(2, rank)), keepdims=0)


def _cut(b: OpBuilder, value: Value, sizes: Sequence[Dim]) -> Value:
    """Returns the first elements along each spatial axis of a value."""
    shape = value.shape
    for axis, size in enumerate(sizes, start=2):
        if shape is None or not provably_equal(shape[axis], size):
            value = b.slice(value, 0, size, axis)
    return value
