"""Common neural-network functions under PyTorch's names.

Inputs are NumPy arrays, device tensors, numbers or lists. If an input is a device tensor, so is the
result; else the result is an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from clrt.errors import InputError
from clrt.functional.calls import Operation, results_of
from clrt.functional.operands import coerce_inputs, dtype_of
from clrt.functional.operators import call, form_of
from clrt.ir.builder import Builder
from clrt.ir.graph import Graph, Value
from clrt.ir.op import TensorType
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.transpose import Transpose
from clrt.ops.pointwise.table import Add

Device = str | int | None
Sizes = int | Sequence[int]

__all__ = [
    "attention",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "concat",
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "embedding",
    "gelu",
    "group_norm",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "matmul",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "normalize",
    "relu",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]


def relu(x: Any, *, device: Device = None) -> Any:
    """Returns max(x, 0) of each element of x.

    Args:
        x: Input of any shape.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Relu", x, device=device)


def leaky_relu(x: Any, negative_slope: float = 0.01, *, device: Device = None) -> Any:
    """Returns, per element of x, x if x > 0, else `negative_slope` * x.

    Args:
        x: Input of any shape.
        negative_slope: Factor of negative elements.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("LeakyRelu", x, alpha=negative_slope, device=device)


def gelu(x: Any, approximate: Literal["none", "tanh"] = "none", *, device: Device = None) -> Any:
    """Returns x * Phi(x) per element; Phi is the standard normal distribution function.

    Args:
        x: Input of any shape.
        approximate: "none" for the exact function, "tanh" for its approximation.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Gelu", x, approximate=approximate, device=device)


def silu(x: Any, *, device: Device = None) -> Any:
    """Returns x * sigmoid(x) per element, also called swish.

    Args:
        x: Input of any shape.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Swish", x, device=device)


def sigmoid(x: Any, *, device: Device = None) -> Any:
    """Returns 1 / (1 + exp(-x)) per element of x.

    Args:
        x: Input of any shape.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Sigmoid", x, device=device)


def tanh(x: Any, *, device: Device = None) -> Any:
    """Returns the hyperbolic tangent of each element of x.

    Args:
        x: Input of any shape.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Tanh", x, device=device)


def softplus(x: Any, *, device: Device = None) -> Any:
    """Returns log(1 + exp(x)) per element of x.

    Args:
        x: Input of any shape.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Softplus", x, device=device)


def softmax(x: Any, axis: int = -1, *, device: Device = None) -> Any:
    """Returns exp(x) divided by its sum along an axis, computed without overflow.

    Args:
        x: Input of any shape, [...].
        axis: Axis along which the results sum to 1.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Softmax", x, axis=axis, device=device)


def log_softmax(x: Any, axis: int = -1, *, device: Device = None) -> Any:
    """Returns the natural logarithm of the softmax of x along an axis.

    Args:
        x: Input of any shape, [...].
        axis: Axis along which the softmax sums to 1.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("LogSoftmax", x, axis=axis, device=device)


def matmul(a: Any, b: Any, *, device: Device = None) -> Any:
    """Returns the matrix products a @ b; leading axes broadcast.

    Args:
        a: Left matrices, [..., rows, inner].
        b: Right matrices, [..., inner, columns].
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("MatMul", a, b, device=device)


def linear(x: Any, weight: Any, bias: Any = None, *, device: Device = None) -> Any:
    """Returns x times the transposed weight, plus a bias.

    Args:
        x: Input vectors, [..., inputs].
        weight: Matrix [outputs, inputs], as in PyTorch.
        bias: Term added per output, [outputs]; None for zeros.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.

    Returns:
        [..., outputs].
    """
    # The schema of Sum requires one dtype for all inputs, as `linear` does.
    inputs = coerce_inputs(form_of("Sum"), [x, weight, *([] if bias is None else [bias])])
    return results_of(Operation("linear", _linear_graph), inputs, device)[0]


def _linear_graph(types: Sequence[TensorType | None]) -> Graph:
    values = [Value(f"x{k}", t) for k, t in enumerate(types) if t is not None]
    build = Builder()
    if values[1].type.rank != 2:
        raise InputError(f"linear: its weight is {values[1].type}; expected two axes.")
    transposed = build.add(Transpose((1, 0)), values[1])
    result = build.add(MatMul(), values[0], transposed)
    if len(values) == 3:
        result = build.add(Add(), result, values[2])
    return build.graph("linear", values, [result])


def embedding(ids: Any, weight: Any, *, device: Device = None) -> Any:
    """Looks up rows of a table by index.

    Args:
        ids: Integer row indices, of any shape.
        weight: Table, [rows, width].
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.

    Returns:
        Array [..., width]: the shape of `ids`, with an axis for the row's elements.
    """
    return call("Gather", weight, ids, axis=0, device=device)


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    axis: int = -1,
    *,
    device: Device = None,
) -> Any:
    """Returns (x - mean) / sqrt(variance + eps) * weight + bias, over the axes from `axis` on.

    Args:
        x: Input of any shape, [...].
        weight: Array with the shape of x from `axis` on; None for ones.
        bias: Array of the same shape as the weight; None for zeros.
        eps: Term added to the variance.
        axis: First normalised axis.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    (x,) = coerce_inputs(form_of("LayerNormalization"), [x])
    scale = _ones(x, axis) if weight is None else weight
    return call("LayerNormalization", x, scale, bias, epsilon=eps, axis=axis, device=device)


def rms_norm(
    x: Any, weight: Any = None, eps: float = 1e-5, axis: int = -1, *, device: Device = None
) -> Any:
    """Returns x / sqrt(mean of squares + eps) * weight, over the axes from `axis` on.

    Args:
        x: Input of any shape, [...].
        weight: Array with the shape of x from `axis` on; None for ones.
        eps: Term added to the mean of squares.
        axis: First normalised axis.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    (x,) = coerce_inputs(form_of("RMSNormalization"), [x])
    scale = _ones(x, axis) if weight is None else weight
    return call("RMSNormalization", x, scale, epsilon=eps, axis=axis, device=device)


def group_norm(
    x: Any, num_groups: int, weight: Any, bias: Any, eps: float = 1e-5, *, device: Device = None
) -> Any:
    """Normalises each group of channels to mean 0 and variance 1, then scales and shifts channels.

    Args:
        x: Input, [batch, channels, ...].
        num_groups: Number of groups, which divides the number of channels.
        weight: Factor per channel, [channels].
        bias: Term added per channel, [channels].
        eps: Term added to the variance.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    inputs = x, weight, bias
    return call("GroupNormalization", *inputs, num_groups=num_groups, epsilon=eps, device=device)


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    eps: float = 1e-5,
    *,
    device: Device = None,
) -> Any:
    """Returns (x - mean) / sqrt(variance + eps) * weight + bias, per channel.

    Args:
        x: Input, [batch, channels, ...].
        running_mean: Mean per channel, [channels].
        running_var: Variance per channel, [channels].
        weight: Factor per channel, [channels].
        bias: Term added per channel, [channels].
        eps: Term added to the variance.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    inputs = x, weight, bias, running_mean, running_var
    return call("BatchNormalization", *inputs, epsilon=eps, device=device)


def normalize(x: Any, axis: int = -1, p: int = 2, *, device: Device = None) -> Any:
    """Divides x by its p-norm along an axis; vectors of zeros stay zeros.

    Args:
        x: Input of any shape, [...].
        axis: Axis along which the norm is computed.
        p: Order of the norm, 1 or 2.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("LpNormalization", x, axis=axis, p=p, device=device)


def attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    num_heads: int | None = None,
    kv_num_heads: int | None = None,
    device: Device = None,
) -> Any:
    """Computes attention in one kernel: softmax(query key^T scale + mask) value.

    Args:
        query: [batch, heads, queries, size], or [batch, queries, heads * size] with `num_heads`.
        key: [batch, heads, keys, size], or [batch, keys, heads * size] with `num_heads`. If `key`
            has fewer heads than the query, several heads of the query share a head of `key`.
        value: Array in the layout of `key`; its size per head may differ from that of `key`.
        mask: Numbers added to the scores, or bools that are False for hidden keys; broadcasts to
            [batch, heads, queries, keys].
        causal: Whether keys after a query's position are hidden.
        scale: Factor of the scores; None for 1 / sqrt(size).
        softcap: Bound of the scores, applied by a tanh; 0 for none.
        num_heads: Number of heads of a query with three axes.
        kv_num_heads: Number of heads of keys and values with three axes; None for `num_heads`.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.

    Returns:
        Array in the layout of the query, with the size per head of `value`.
    """
    heads = {
        "q_num_heads": num_heads,
        "kv_num_heads": num_heads if kv_num_heads is None else kv_num_heads,
    }
    return call(
        "Attention", query, key, value, mask,
        is_causal=causal, scale=scale, softcap=softcap, device=device, **heads,
    )  # fmt: skip


def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    device: Device = None,
) -> Any:
    """Convolves x over its spatial axes: all axes after the first two.

    `conv1d`, `conv2d` and `conv3d` are the same function, since the inputs determine the rank.

    Args:
        x: Input, [batch, input channels, ...].
        weight: Filters, [output channels, input channels / groups, ...].
        bias: Term added per output channel; None for zeros.
        stride: Step of the window: one number, or one for each spatial axis.
        padding: Zeros added at both ends: one number, or one for each spatial axis.
        dilation: Step within the window: one number, or one for each spatial axis.
        groups: Number of channel groups, which are convolved separately.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    rank = _window_rank(weight)
    window = _window(rank, strides=stride, dilations=dilation)
    pads = _pads(rank, padding)
    return call("Conv", x, weight, bias, group=groups, pads=pads, device=device, **window)


def conv_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    device: Device = None,
) -> Any:
    """Computes a transposed convolution of x over its spatial axes: all axes after the first two.

    Args:
        x: Input, [batch, input channels, ...].
        weight: Filters, [input channels, output channels / groups, ...].
        bias: Term added per output channel; None for zeros.
        stride: Step of the window in the result: one number, or one for each spatial axis.
        padding: Elements removed from both ends of the result: one number, or one for each spatial
            axis.
        output_padding: Elements added at the end of the result: one number, or one for each
            spatial axis.
        groups: Number of channel groups, which are convolved separately.
        dilation: Step within the window: one number, or one for each spatial axis.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    rank = _window_rank(weight)
    window = _window(rank, strides=stride, dilations=dilation, output_padding=output_padding)
    pads = _pads(rank, padding)
    return call("ConvTranspose", x, weight, bias, group=groups, pads=pads, device=device, **window)


def max_pool(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    *,
    device: Device = None,
) -> Any:
    """Returns the maximum of each window over the spatial axes of x: all axes after the first two.

    Args:
        x: Input, [batch, channels, ...].
        kernel_size: Size of the window: one number, or one for each spatial axis.
        stride: Step of the window: one number, or one for each spatial axis; None for
            `kernel_size`.
        padding: Number of elements added at both ends, which are never the maximum: one number,
            or one for each spatial axis.
        dilation: Step within the window: one number, or one for each spatial axis.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    rank, strides = _window_rank(x), kernel_size if stride is None else stride
    window = _window(rank, kernel_shape=kernel_size, strides=strides, dilations=dilation)
    return call("MaxPool", x, pads=_pads(rank, padding), device=device, **window)


def avg_pool(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    *,
    device: Device = None,
) -> Any:
    """Returns the mean of each window over the spatial axes of x: all axes after the first two.

    Padding counts as zeros.

    Args:
        x: Input, [batch, channels, ...].
        kernel_size: Size of the window: one number, or one for each spatial axis.
        stride: Step of the window: one number, or one for each spatial axis; None for
            `kernel_size`.
        padding: Zeros added at both ends: one number, or one for each spatial axis.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    rank, strides = _window_rank(x), kernel_size if stride is None else stride
    window = _window(rank, kernel_shape=kernel_size, strides=strides)
    pads = _pads(rank, padding)
    return call("AveragePool", x, pads=pads, count_include_pad=True, device=device, **window)


# One function for all ranks, since the inputs determine the rank.
conv1d = conv2d = conv3d = conv
conv_transpose1d = conv_transpose2d = conv_transpose3d = conv_transpose
max_pool1d = max_pool2d = max_pool3d = max_pool
avg_pool1d = avg_pool2d = avg_pool3d = avg_pool


def concat(tensors: Sequence[Any], axis: int = 0, *, device: Device = None) -> Any:
    """Concatenates tensors along an axis; all other axes must have equal sizes.

    Args:
        tensors: Tensors to join, of one rank and dtype.
        axis: Axis along which the tensors are joined.
        device: "auto", "cpu", "gpu", part of a device name, or an index, used if no input is on a
            device; None reads CLRT_DEVICE.
    """
    return call("Concat", *tensors, axis=axis, device=device)


def _ones(x: Any, axis: int) -> Any:
    """Returns an array of ones with the dtype of x, and the shape of x from `axis` on.

    Raises:
        InputError: The axis is outside the rank.
    """
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise InputError(f"axis {axis} is outside rank {rank}; expected {-rank}..{rank - 1}.")
    return np.ones(x.shape[axis % rank :], dtype_of(x).numpy)


def _window_rank(x: Any) -> int:
    """Returns the number of spatial axes of x: all axes after the first two.

    Raises:
        InputError: x has no spatial axis.
    """
    rank = len(np.shape(x)) - 2
    if rank < 1:
        raise InputError(f"A window moves along the third axis; the shape is {np.shape(x)}.")
    return rank


def _window(rank: int, **sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Expands window sizes, such as strides, to one number per spatial axis, by attribute name.

    Args:
        rank: Number of spatial axes.
        sizes: One number for all axes, or one per axis, by attribute name.
    """
    return {name: _per_axis(rank, size) for name, size in sizes.items()}


def _pads(rank: int, padding: Sizes) -> tuple[int, ...]:
    """Returns the ONNX attribute `pads`: padding at the starts of all axes, then at all ends.

    Args:
        rank: Number of spatial axes.
        padding: One number for all spatial axes, or one per axis.
    """
    return 2 * _per_axis(rank, padding)


def _per_axis(rank: int, size: Sizes) -> tuple[int, ...]:
    return (size,) * rank if isinstance(size, int) else tuple(size)
