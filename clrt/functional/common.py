"""The usual functions of neural networks, under their usual names.

Each takes arrays of NumPy, tensors on a device, or numbers and lists; where an input lies on a
device the result does, too.
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
    """max(x, 0)."""
    return call("Relu", x, device=device)


def leaky_relu(x: Any, negative_slope: float = 0.01, *, device: Device = None) -> Any:
    """x where it is above 0, else `negative_slope` times x."""
    return call("LeakyRelu", x, alpha=negative_slope, device=device)


def gelu(x: Any, approximate: Literal["none", "tanh"] = "none", *, device: Device = None) -> Any:
    """x times the normal distribution's cumulative function, or its approximation by tanh."""
    return call("Gelu", x, approximate=approximate, device=device)


def silu(x: Any, *, device: Device = None) -> Any:
    """x sigmoid(x), which is also called swish."""
    return call("Swish", x, device=device)


def sigmoid(x: Any, *, device: Device = None) -> Any:
    """1 / (1 + exp(-x))."""
    return call("Sigmoid", x, device=device)


def tanh(x: Any, *, device: Device = None) -> Any:
    """The hyperbolic tangent."""
    return call("Tanh", x, device=device)


def softplus(x: Any, *, device: Device = None) -> Any:
    """log(1 + exp(x))."""
    return call("Softplus", x, device=device)


def softmax(x: Any, axis: int = -1, *, device: Device = None) -> Any:
    """exp(x - max) over its sum along an axis."""
    return call("Softmax", x, axis=axis, device=device)


def log_softmax(x: Any, axis: int = -1, *, device: Device = None) -> Any:
    """The logarithm of `softmax`."""
    return call("LogSoftmax", x, axis=axis, device=device)


def matmul(a: Any, b: Any, *, device: Device = None) -> Any:
    """The product of matrices in the last two axes; those before broadcast."""
    return call("MatMul", a, b, device=device)


def linear(x: Any, weight: Any, bias: Any = None, *, device: Device = None) -> Any:
    """x times the transposed weight, plus a bias.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs], as PyTorch keeps it.
        bias: [outputs].
        device: As in `clrt.load`, if no input lies on a device.

    Returns:
        [..., outputs].
    """
    # MatMul's inputs have one dtype, as those of Sum, which takes any number of them.
    inputs = coerce_inputs(form_of("Sum"), [x, weight, *([] if bias is None else [bias])])
    return results_of(Operation("linear", _linear_graph), inputs, device)[0]


def _linear_graph(types: Sequence[TensorType | None]) -> Graph:
    values = [Value(f"x{k}", t) for k, t in enumerate(types) if t is not None]
    make = Builder()
    if values[1].type.rank != 2:
        raise InputError(f"linear: its weight is {values[1].type}; it has two axes.")
    turned = make.add(Transpose((1, 0)), values[1])
    result = make.add(MatMul(), values[0], turned)
    if len(values) == 3:
        result = make.add(Add(), result, values[2])
    return make.graph("linear", values, [result])


def embedding(ids: Any, weight: Any, *, device: Device = None) -> Any:
    """The rows of a table: [..., width] for indices [...] and a weight [rows, width]."""
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
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the axes from `axis` on.

    Args:
        x: [...].
        weight: Of the shape of x from `axis` on; None for ones.
        bias: Of the same shape; None for zeros.
        eps: Is added to the variance.
        axis: The first axis that is normalised.
        device: As in `clrt.load`, if no input lies on a device.
    """
    (x,) = coerce_inputs(form_of("LayerNormalization"), [x])
    scale = _ones(x, axis) if weight is None else weight
    return call("LayerNormalization", x, scale, bias, epsilon=eps, axis=axis, device=device)


def rms_norm(
    x: Any, weight: Any = None, eps: float = 1e-5, axis: int = -1, *, device: Device = None
) -> Any:
    """x / sqrt(mean of squares + eps) * weight, over the axes from `axis` on.

    Args:
        x: [...].
        weight: Of the shape of x from `axis` on; None for ones.
        eps: Is added to the mean.
        axis: The first axis that is normalised.
        device: As in `clrt.load`, if no input lies on a device.
    """
    (x,) = coerce_inputs(form_of("RMSNormalization"), [x])
    scale = _ones(x, axis) if weight is None else weight
    return call("RMSNormalization", x, scale, epsilon=eps, axis=axis, device=device)


def group_norm(
    x: Any, num_groups: int, weight: Any, bias: Any, eps: float = 1e-5, *, device: Device = None
) -> Any:
    """Normalises each group of channels of x [batch, channels, ...]; weight, bias: [channels]."""
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
    """(x - mean) / sqrt(variance + eps) * weight + bias of x [batch, channels, ...].

    Args:
        x: [batch, channels, ...].
        running_mean: [channels].
        running_var: [channels].
        weight: [channels].
        bias: [channels].
        eps: Is added to the variance.
        device: As in `clrt.load`, if no input lies on a device.
    """
    inputs = x, weight, bias, running_mean, running_var
    return call("BatchNormalization", *inputs, epsilon=eps, device=device)


def normalize(x: Any, axis: int = -1, p: int = 2, *, device: Device = None) -> Any:
    """x over its norm along an axis: unit length for p = 2. What is all zeros stays so."""
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
    """softmax(query key^T scale + mask) value, in one kernel.

    Args:
        query: [batch, heads, queries, size], or [batch, queries, heads * size] with `num_heads`.
        key: As the query, with a length of its own; fewer heads are shared by those of the query.
        value: As the key, perhaps with another size.
        mask: Added to the scores, or bools where False hides; broadcasts to [batch, heads, queries,
            keys].
        causal: Whether a query sees no key behind its own position.
        scale: None for 1 / sqrt(size).
        softcap: Bounds the scores, by a tanh; 0 does not.
        num_heads: Of a query with three axes.
        kv_num_heads: Of keys and values with three axes; None for as many as the query has.
        device: As in `clrt.load`, if no input lies on a device.

    Returns:
        As the query, with the size of the values.
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
    """The convolution of x [batch, in, ...] over the axes from the third on: `conv2d` of images.

    Args:
        x: [batch, in, ...].
        weight: [out, in / groups, ...].
        bias: [out].
        stride: One number, or one for each axis.
        padding: One number, or one for each axis.
        dilation: One number, or one for each axis.
        groups: Of channels, each of which gives its part of the result.
        device: As in `clrt.load`, if no input lies on a device.
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
    """The transposed convolution of x [batch, in, ...] over the axes from the third on.

    Args:
        x: [batch, in, ...].
        weight: [in, out / groups, ...].
        bias: [out].
        stride: One number, or one for each axis.
        padding: One number, or one for each axis.
        output_padding: One number, or one for each axis: what the end of the result has more.
        groups: Of channels, each of which gives its part of the result.
        dilation: One number, or one for each axis.
        device: As in `clrt.load`, if no input lies on a device.
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
    """The largest element of each window of x [batch, channels, ...]."""
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
    """The mean of each window of x [batch, channels, ...], padding included."""
    rank, strides = _window_rank(x), kernel_size if stride is None else stride
    window = _window(rank, kernel_shape=kernel_size, strides=strides)
    pads = _pads(rank, padding)
    return call("AveragePool", x, pads=pads, count_include_pad=True, device=device, **window)


# The same at each rank, which the inputs tell.
conv1d = conv2d = conv3d = conv
conv_transpose1d = conv_transpose2d = conv_transpose3d = conv_transpose
max_pool1d = max_pool2d = max_pool3d = max_pool
avg_pool1d = avg_pool2d = avg_pool3d = avg_pool


def concat(tensors: Sequence[Any], axis: int = 0, *, device: Device = None) -> Any:
    """Tensors behind each other along an axis."""
    return call("Concat", *tensors, axis=axis, device=device)


def _ones(x: Any, axis: int) -> Any:
    """A scale that changes nothing.

    Raises:
        InputError: The axis is outside the rank.
    """
    rank = len(x.shape)
    if not -rank <= axis < rank:
        raise InputError(f"axis {axis} is outside rank {rank}; expected {-rank}..{rank - 1}.")
    return np.ones(x.shape[axis % rank :], dtype_of(x).numpy)


def _window_rank(x: Any) -> int:
    """How many axes there are behind the first two.

    Raises:
        InputError: There are none.
    """
    rank = len(np.shape(x)) - 2
    if rank < 1:
        raise InputError(f"A window moves along the third axis; the shape is {np.shape(x)}.")
    return rank


def _window(rank: int, **sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Sizes of a window, each for every axis."""
    return {name: _each(rank, size) for name, size in sizes.items()}


def _pads(rank: int, padding: Sizes) -> tuple[int, ...]:
    """Padding at the start of every axis, and at the end."""
    return 2 * _each(rank, padding)


def _each(rank: int, size: Sizes) -> tuple[int, ...]:
    return (size,) * rank if isinstance(size, int) else tuple(size)
