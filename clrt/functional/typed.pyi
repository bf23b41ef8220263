"""Made by tools/functional_stubs.py: arrays give arrays, a tensor on a device gives those."""

# Of two that fit the first is meant: all is on the host.
# mypy: disable-error-code="overload-overlap"
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.runtime.opencl.tensors import DeviceTensor

_Host: TypeAlias = Array | np.generic | bool | int | float | str | Sequence[Any]
_Operand: TypeAlias = _Host | DeviceTensor
_Device: TypeAlias = str | int | None
_Dtype: TypeAlias = int | DType | np.dtype[Any] | type
_Sizes: TypeAlias = int | Sequence[int]

@overload
def attention(
    query: _Host,
    key: _Host,
    value: _Host,
    mask: _Host | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    num_heads: int | None = None,
    kv_num_heads: int | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def attention(
    query: _Operand,
    key: _Operand,
    value: _Operand,
    mask: _Operand | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    num_heads: int | None = None,
    kv_num_heads: int | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def avg_pool(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def avg_pool(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def avg_pool1d(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def avg_pool1d(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def avg_pool2d(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def avg_pool2d(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def avg_pool3d(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def avg_pool3d(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def batch_norm(
    x: _Host,
    running_mean: _Host,
    running_var: _Host,
    weight: _Host,
    bias: _Host,
    eps: float = 1e-05,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def batch_norm(
    x: _Operand,
    running_mean: _Operand,
    running_var: _Operand,
    weight: _Operand,
    bias: _Operand,
    eps: float = 1e-05,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def concat(tensors: Sequence[_Host], axis: int = 0, *, device: _Device = None) -> Array: ...
@overload
def concat(
    tensors: Sequence[_Operand], axis: int = 0, *, device: _Device = None
) -> DeviceTensor: ...
@overload
def conv(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def conv1d(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv1d(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def conv2d(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv2d(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def conv3d(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv3d(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    groups: int = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def conv_transpose(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv_transpose(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def conv_transpose1d(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv_transpose1d(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def conv_transpose2d(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv_transpose2d(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def conv_transpose3d(
    x: _Host,
    weight: _Host,
    bias: _Host | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def conv_transpose3d(
    x: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    stride: _Sizes = 1,
    padding: _Sizes = 0,
    output_padding: _Sizes = 0,
    groups: int = 1,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def embedding(ids: _Host, weight: _Host, *, device: _Device = None) -> Array: ...
@overload
def embedding(ids: _Operand, weight: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def gelu(
    x: _Host, approximate: Literal["none", "tanh"] = "none", *, device: _Device = None
) -> Array: ...
@overload
def gelu(
    x: _Operand, approximate: Literal["none", "tanh"] = "none", *, device: _Device = None
) -> DeviceTensor: ...
@overload
def group_norm(
    x: _Host,
    num_groups: int,
    weight: _Host,
    bias: _Host,
    eps: float = 1e-05,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def group_norm(
    x: _Operand,
    num_groups: int,
    weight: _Operand,
    bias: _Operand,
    eps: float = 1e-05,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def layer_norm(
    x: _Host,
    weight: _Host | None = None,
    bias: _Host | None = None,
    eps: float = 1e-05,
    axis: int = -1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def layer_norm(
    x: _Operand,
    weight: _Operand | None = None,
    bias: _Operand | None = None,
    eps: float = 1e-05,
    axis: int = -1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def leaky_relu(x: _Host, negative_slope: float = 0.01, *, device: _Device = None) -> Array: ...
@overload
def leaky_relu(
    x: _Operand, negative_slope: float = 0.01, *, device: _Device = None
) -> DeviceTensor: ...
@overload
def linear(
    x: _Host, weight: _Host, bias: _Host | None = None, *, device: _Device = None
) -> Array: ...
@overload
def linear(
    x: _Operand, weight: _Operand, bias: _Operand | None = None, *, device: _Device = None
) -> DeviceTensor: ...
@overload
def log_softmax(x: _Host, axis: int = -1, *, device: _Device = None) -> Array: ...
@overload
def log_softmax(x: _Operand, axis: int = -1, *, device: _Device = None) -> DeviceTensor: ...
@overload
def matmul(a: _Host, b: _Host, *, device: _Device = None) -> Array: ...
@overload
def matmul(a: _Operand, b: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def max_pool(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def max_pool(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def max_pool1d(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def max_pool1d(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def max_pool2d(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def max_pool2d(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def max_pool3d(
    x: _Host,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def max_pool3d(
    x: _Operand,
    kernel_size: _Sizes,
    stride: _Sizes | None = None,
    padding: _Sizes = 0,
    dilation: _Sizes = 1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def normalize(x: _Host, axis: int = -1, p: int = 2, *, device: _Device = None) -> Array: ...
@overload
def normalize(
    x: _Operand, axis: int = -1, p: int = 2, *, device: _Device = None
) -> DeviceTensor: ...
@overload
def relu(x: _Host, *, device: _Device = None) -> Array: ...
@overload
def relu(x: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def rms_norm(
    x: _Host,
    weight: _Host | None = None,
    eps: float = 1e-05,
    axis: int = -1,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def rms_norm(
    x: _Operand,
    weight: _Operand | None = None,
    eps: float = 1e-05,
    axis: int = -1,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def sigmoid(x: _Host, *, device: _Device = None) -> Array: ...
@overload
def sigmoid(x: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def silu(x: _Host, *, device: _Device = None) -> Array: ...
@overload
def silu(x: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def softmax(x: _Host, axis: int = -1, *, device: _Device = None) -> Array: ...
@overload
def softmax(x: _Operand, axis: int = -1, *, device: _Device = None) -> DeviceTensor: ...
@overload
def softplus(x: _Host, *, device: _Device = None) -> Array: ...
@overload
def softplus(x: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def tanh(x: _Host, *, device: _Device = None) -> Array: ...
@overload
def tanh(x: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Abs(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Abs(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Acos(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Acos(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Acosh(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Acosh(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Add(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Add(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Affine(
    *inputs: _Host, alpha: float | None = None, beta: float | None = None, device: _Device = None
) -> Any: ...
@overload
def Affine(
    *inputs: _Operand, alpha: float | None = None, beta: float | None = None, device: _Device = None
) -> Any: ...
@overload
def Affine(
    *inputs: _Operand,
    alpha: float | None = None,
    beta: float | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def AffineGrid(
    theta: _Host, size: _Host, *, align_corners: int = 0, device: _Device = None
) -> Array: ...
@overload
def AffineGrid(
    theta: _Operand, size: _Operand, *, align_corners: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def And(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def And(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def ArgMax(
    data: _Host,
    *,
    select_last_index: int = 0,
    keepdims: int = 1,
    axis: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def ArgMax(
    data: _Operand,
    *,
    select_last_index: int = 0,
    keepdims: int = 1,
    axis: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ArgMin(
    data: _Host,
    *,
    select_last_index: int = 0,
    keepdims: int = 1,
    axis: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def ArgMin(
    data: _Operand,
    *,
    select_last_index: int = 0,
    keepdims: int = 1,
    axis: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Asin(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Asin(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Asinh(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Asinh(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Atan(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Atan(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Atanh(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Atanh(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Attention(
    Q: _Host,
    K: _Host,
    V: _Host,
    attn_mask: _Host | None = None,
    past_key: _Host | None = None,
    past_value: _Host | None = None,
    nonpad_kv_seqlen: _Host | None = None,
    *,
    right_window_size: int = -1,
    left_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    softcap: float = 0.0,
    softmax_precision: _Dtype | None = None,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    scale: float | None = None,
    is_causal: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def Attention(
    Q: _Operand,
    K: _Operand,
    V: _Operand,
    attn_mask: _Operand | None = None,
    past_key: _Operand | None = None,
    past_value: _Operand | None = None,
    nonpad_kv_seqlen: _Operand | None = None,
    *,
    right_window_size: int = -1,
    left_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    softcap: float = 0.0,
    softmax_precision: _Dtype | None = None,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    scale: float | None = None,
    is_causal: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Attention(
    Q: _Operand,
    K: _Operand,
    V: _Operand,
    attn_mask: _Operand | None = None,
    past_key: _Operand | None = None,
    past_value: _Operand | None = None,
    nonpad_kv_seqlen: _Operand | None = None,
    *,
    right_window_size: int = -1,
    left_window_size: int = -1,
    qk_matmul_output_mode: int = 0,
    softcap: float = 0.0,
    softmax_precision: _Dtype | None = None,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    scale: float | None = None,
    is_causal: int = 0,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def AveragePool(
    X: _Host,
    *,
    kernel_shape: Sequence[int],
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def AveragePool(
    X: _Operand,
    *,
    kernel_shape: Sequence[int],
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def BatchNormalization(
    X: _Host,
    scale: _Host,
    B: _Host,
    input_mean: _Host,
    input_var: _Host,
    *,
    training_mode: int = 0,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    device: _Device = None,
) -> Array: ...
@overload
def BatchNormalization(
    X: _Operand,
    scale: _Operand,
    B: _Operand,
    input_mean: _Operand,
    input_var: _Operand,
    *,
    training_mode: int = 0,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def BatchNormalization(
    X: _Operand,
    scale: _Operand,
    B: _Operand,
    input_mean: _Operand,
    input_var: _Operand,
    *,
    training_mode: int = 0,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def Bernoulli(
    input: _Host, *, dtype: _Dtype | None = None, seed: float | None = None, device: _Device = None
) -> Array: ...
@overload
def Bernoulli(
    input: _Operand,
    *,
    dtype: _Dtype | None = None,
    seed: float | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def BitCast(input: _Host, *, to: _Dtype, device: _Device = None) -> Array: ...
@overload
def BitCast(input: _Operand, *, to: _Dtype, device: _Device = None) -> DeviceTensor: ...
@overload
def BitShift(X: _Host, Y: _Host, *, direction: str, device: _Device = None) -> Array: ...
@overload
def BitShift(
    X: _Operand, Y: _Operand, *, direction: str, device: _Device = None
) -> DeviceTensor: ...
@overload
def BitwiseAnd(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def BitwiseAnd(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def BitwiseNot(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def BitwiseNot(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def BitwiseOr(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def BitwiseOr(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def BitwiseXor(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def BitwiseXor(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def BlackmanWindow(
    size: _Host, *, periodic: int = 1, output_datatype: _Dtype = 1, device: _Device = None
) -> Array: ...
@overload
def BlackmanWindow(
    size: _Operand, *, periodic: int = 1, output_datatype: _Dtype = 1, device: _Device = None
) -> DeviceTensor: ...
@overload
def Cast(
    input: _Host, *, to: _Dtype, round_mode: str = "up", saturate: int = 1, device: _Device = None
) -> Array: ...
@overload
def Cast(
    input: _Operand,
    *,
    to: _Dtype,
    round_mode: str = "up",
    saturate: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def CastLike(
    input: _Host,
    target_type: _Host,
    *,
    round_mode: str = "up",
    saturate: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def CastLike(
    input: _Operand,
    target_type: _Operand,
    *,
    round_mode: str = "up",
    saturate: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def CausalConvWithState(
    input: _Host,
    weight: _Host,
    bias: _Host | None = None,
    past_state: _Host | None = None,
    *,
    activation: str = "none",
    device: _Device = None,
) -> tuple[Array, Array]: ...
@overload
def CausalConvWithState(
    input: _Operand,
    weight: _Operand,
    bias: _Operand | None = None,
    past_state: _Operand | None = None,
    *,
    activation: str = "none",
    device: _Device = None,
) -> tuple[DeviceTensor, DeviceTensor]: ...
@overload
def Ceil(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Ceil(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Celu(X: _Host, *, alpha: float = 1.0, device: _Device = None) -> Array: ...
@overload
def Celu(X: _Operand, *, alpha: float = 1.0, device: _Device = None) -> DeviceTensor: ...
@overload
def CenterCropPad(
    input_data: _Host, shape: _Host, *, axes: Sequence[int] | None = None, device: _Device = None
) -> Array: ...
@overload
def CenterCropPad(
    input_data: _Operand,
    shape: _Operand,
    *,
    axes: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Clip(
    input: _Host, min: _Host | None = None, max: _Host | None = None, *, device: _Device = None
) -> Array: ...
@overload
def Clip(
    input: _Operand,
    min: _Operand | None = None,
    max: _Operand | None = None,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Col2Im(
    input: _Host,
    image_shape: _Host,
    block_shape: _Host,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def Col2Im(
    input: _Operand,
    image_shape: _Operand,
    block_shape: _Operand,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Compress(
    input: _Host, condition: _Host, *, axis: int | None = None, device: _Device = None
) -> Array: ...
@overload
def Compress(
    input: _Operand, condition: _Operand, *, axis: int | None = None, device: _Device = None
) -> DeviceTensor: ...
@overload
def Concat(*inputs: _Host, axis: int, device: _Device = None) -> Array: ...
@overload
def Concat(*inputs: _Operand, axis: int, device: _Device = None) -> DeviceTensor: ...
def ConcatFromSequence(
    input_sequence: Any, *, axis: int, new_axis: int = 0, device: _Device = None
) -> Any: ...
@overload
def ConstantFill(
    *inputs: _Host,
    dtype: _Dtype | None = None,
    extra_shape: Sequence[int] | None = None,
    input_as_shape: int | None = None,
    shape: Sequence[int] | None = None,
    value: float | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def ConstantFill(
    *inputs: _Operand,
    dtype: _Dtype | None = None,
    extra_shape: Sequence[int] | None = None,
    input_as_shape: int | None = None,
    shape: Sequence[int] | None = None,
    value: float | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def ConstantFill(
    *inputs: _Operand,
    dtype: _Dtype | None = None,
    extra_shape: Sequence[int] | None = None,
    input_as_shape: int | None = None,
    shape: Sequence[int] | None = None,
    value: float | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def ConstantOfShape(input: _Host, *, value: Any = None, device: _Device = None) -> Array: ...
@overload
def ConstantOfShape(
    input: _Operand, *, value: Any = None, device: _Device = None
) -> DeviceTensor: ...
@overload
def Conv(
    X: _Host,
    W: _Host,
    B: _Host | None = None,
    *,
    group: int = 1,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def Conv(
    X: _Operand,
    W: _Operand,
    B: _Operand | None = None,
    *,
    group: int = 1,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ConvInteger(
    x: _Host,
    w: _Host,
    x_zero_point: _Host | None = None,
    w_zero_point: _Host | None = None,
    *,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    device: _Device = None,
) -> Array: ...
@overload
def ConvInteger(
    x: _Operand,
    w: _Operand,
    x_zero_point: _Operand | None = None,
    w_zero_point: _Operand | None = None,
    *,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ConvTranspose(
    X: _Host,
    W: _Host,
    B: _Host | None = None,
    *,
    group: int = 1,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def ConvTranspose(
    X: _Operand,
    W: _Operand,
    B: _Operand | None = None,
    *,
    group: int = 1,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Cos(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Cos(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Cosh(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Cosh(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Crop(
    *inputs: _Host,
    border: Sequence[int],
    scale: Sequence[int] | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def Crop(
    *inputs: _Operand,
    border: Sequence[int],
    scale: Sequence[int] | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def Crop(
    *inputs: _Operand,
    border: Sequence[int],
    scale: Sequence[int] | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def CumProd(
    x: _Host, axis: _Host, *, reverse: int = 0, exclusive: int = 0, device: _Device = None
) -> Array: ...
@overload
def CumProd(
    x: _Operand, axis: _Operand, *, reverse: int = 0, exclusive: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def CumSum(
    x: _Host, axis: _Host, *, reverse: int = 0, exclusive: int = 0, device: _Device = None
) -> Array: ...
@overload
def CumSum(
    x: _Operand, axis: _Operand, *, reverse: int = 0, exclusive: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def DFT(
    input: _Host,
    dft_length: _Host | None = None,
    axis: _Host | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def DFT(
    input: _Operand,
    dft_length: _Operand | None = None,
    axis: _Operand | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def DeformConv(
    X: _Host,
    W: _Host,
    offset: _Host,
    B: _Host | None = None,
    mask: _Host | None = None,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    offset_group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    group: int = 1,
    dilations: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def DeformConv(
    X: _Operand,
    W: _Operand,
    offset: _Operand,
    B: _Operand | None = None,
    mask: _Operand | None = None,
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    offset_group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    group: int = 1,
    dilations: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def DepthToSpace(
    input: _Host, *, blocksize: int, mode: str = "DCR", device: _Device = None
) -> Array: ...
@overload
def DepthToSpace(
    input: _Operand, *, blocksize: int, mode: str = "DCR", device: _Device = None
) -> DeviceTensor: ...
@overload
def DequantizeLinear(
    x: _Host,
    x_scale: _Host,
    x_zero_point: _Host | None = None,
    *,
    output_dtype: _Dtype = 0,
    block_size: int = 0,
    axis: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def DequantizeLinear(
    x: _Operand,
    x_scale: _Operand,
    x_zero_point: _Operand | None = None,
    *,
    output_dtype: _Dtype = 0,
    block_size: int = 0,
    axis: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Det(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Det(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Div(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Div(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Dropout(
    data: _Host,
    ratio: _Host | None = None,
    training_mode: _Host | None = None,
    *,
    seed: int | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def Dropout(
    data: _Operand,
    ratio: _Operand | None = None,
    training_mode: _Operand | None = None,
    *,
    seed: int | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Dropout(
    data: _Operand,
    ratio: _Operand | None = None,
    training_mode: _Operand | None = None,
    *,
    seed: int | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def DynamicQuantizeLinear(x: _Host, *, device: _Device = None) -> tuple[Array, Array, Array]: ...
@overload
def DynamicQuantizeLinear(
    x: _Operand, *, device: _Device = None
) -> tuple[DeviceTensor, DeviceTensor, DeviceTensor]: ...
@overload
def DynamicSlice(*inputs: _Host, device: _Device = None) -> Any: ...
@overload
def DynamicSlice(*inputs: _Operand, device: _Device = None) -> Any: ...
@overload
def DynamicSlice(*inputs: _Operand, outputs: int, device: _Device = None) -> Any: ...
@overload
def Einsum(*Inputs: _Host, equation: str, device: _Device = None) -> Array: ...
@overload
def Einsum(*Inputs: _Operand, equation: str, device: _Device = None) -> DeviceTensor: ...
@overload
def Elu(X: _Host, *, alpha: float = 1.0, device: _Device = None) -> Array: ...
@overload
def Elu(X: _Operand, *, alpha: float = 1.0, device: _Device = None) -> DeviceTensor: ...
@overload
def Equal(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Equal(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Erf(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Erf(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Exp(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Exp(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Expand(input: _Host, shape: _Host, *, device: _Device = None) -> Array: ...
@overload
def Expand(input: _Operand, shape: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def EyeLike(
    input: _Host, *, dtype: _Dtype | None = None, k: int = 0, device: _Device = None
) -> Array: ...
@overload
def EyeLike(
    input: _Operand, *, dtype: _Dtype | None = None, k: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def Flatten(input: _Host, *, axis: int = 1, device: _Device = None) -> Array: ...
@overload
def Flatten(input: _Operand, *, axis: int = 1, device: _Device = None) -> DeviceTensor: ...
@overload
def Floor(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Floor(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def GRU(
    X: _Host,
    W: _Host,
    R: _Host,
    B: _Host | None = None,
    sequence_lens: _Host | None = None,
    initial_h: _Host | None = None,
    *,
    clip: float | None = None,
    activation_beta: Sequence[float] | None = None,
    activation_alpha: Sequence[float] | None = None,
    hidden_size: int | None = None,
    layout: int = 0,
    direction: str = "forward",
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
    device: _Device = None,
) -> tuple[Array, Array]: ...
@overload
def GRU(
    X: _Operand,
    W: _Operand,
    R: _Operand,
    B: _Operand | None = None,
    sequence_lens: _Operand | None = None,
    initial_h: _Operand | None = None,
    *,
    clip: float | None = None,
    activation_beta: Sequence[float] | None = None,
    activation_alpha: Sequence[float] | None = None,
    hidden_size: int | None = None,
    layout: int = 0,
    direction: str = "forward",
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
    device: _Device = None,
) -> tuple[DeviceTensor, DeviceTensor]: ...
@overload
def Gather(data: _Host, indices: _Host, *, axis: int = 0, device: _Device = None) -> Array: ...
@overload
def Gather(
    data: _Operand, indices: _Operand, *, axis: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def GatherElements(
    data: _Host, indices: _Host, *, axis: int = 0, device: _Device = None
) -> Array: ...
@overload
def GatherElements(
    data: _Operand, indices: _Operand, *, axis: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def GatherND(
    data: _Host, indices: _Host, *, batch_dims: int = 0, device: _Device = None
) -> Array: ...
@overload
def GatherND(
    data: _Operand, indices: _Operand, *, batch_dims: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def Gelu(X: _Host, *, approximate: str = "none", device: _Device = None) -> Array: ...
@overload
def Gelu(X: _Operand, *, approximate: str = "none", device: _Device = None) -> DeviceTensor: ...
@overload
def Gemm(
    A: _Host,
    B: _Host,
    C: _Host | None = None,
    *,
    beta: float = 1.0,
    transB: int = 0,
    alpha: float = 1.0,
    transA: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def Gemm(
    A: _Operand,
    B: _Operand,
    C: _Operand | None = None,
    *,
    beta: float = 1.0,
    transB: int = 0,
    alpha: float = 1.0,
    transA: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def GlobalAveragePool(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def GlobalAveragePool(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def GlobalLpPool(X: _Host, *, p: int = 2, device: _Device = None) -> Array: ...
@overload
def GlobalLpPool(X: _Operand, *, p: int = 2, device: _Device = None) -> DeviceTensor: ...
@overload
def GlobalMaxPool(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def GlobalMaxPool(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Greater(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Greater(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def GreaterOrEqual(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def GreaterOrEqual(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def GridSample(
    X: _Host,
    grid: _Host,
    *,
    align_corners: int = 0,
    padding_mode: str = "zeros",
    mode: str = "linear",
    device: _Device = None,
) -> Array: ...
@overload
def GridSample(
    X: _Operand,
    grid: _Operand,
    *,
    align_corners: int = 0,
    padding_mode: str = "zeros",
    mode: str = "linear",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def GroupNormalization(
    X: _Host,
    scale: _Host,
    bias: _Host,
    *,
    num_groups: int,
    stash_type: _Dtype = 1,
    epsilon: float = 1e-05,
    device: _Device = None,
) -> Array: ...
@overload
def GroupNormalization(
    X: _Operand,
    scale: _Operand,
    bias: _Operand,
    *,
    num_groups: int,
    stash_type: _Dtype = 1,
    epsilon: float = 1e-05,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def HammingWindow(
    size: _Host, *, periodic: int = 1, output_datatype: _Dtype = 1, device: _Device = None
) -> Array: ...
@overload
def HammingWindow(
    size: _Operand, *, periodic: int = 1, output_datatype: _Dtype = 1, device: _Device = None
) -> DeviceTensor: ...
@overload
def HannWindow(
    size: _Host, *, periodic: int = 1, output_datatype: _Dtype = 1, device: _Device = None
) -> Array: ...
@overload
def HannWindow(
    size: _Operand, *, periodic: int = 1, output_datatype: _Dtype = 1, device: _Device = None
) -> DeviceTensor: ...
@overload
def HardSigmoid(
    X: _Host, *, beta: float = 0.5, alpha: float = 0.2, device: _Device = None
) -> Array: ...
@overload
def HardSigmoid(
    X: _Operand, *, beta: float = 0.5, alpha: float = 0.2, device: _Device = None
) -> DeviceTensor: ...
@overload
def HardSwish(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def HardSwish(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Hardmax(input: _Host, *, axis: int = -1, device: _Device = None) -> Array: ...
@overload
def Hardmax(input: _Operand, *, axis: int = -1, device: _Device = None) -> DeviceTensor: ...
def Identity(input: Any, *, device: _Device = None) -> Any: ...
@overload
def ImageDecoder(
    encoded_stream: _Host, *, pixel_format: str = "RGB", device: _Device = None
) -> Array: ...
@overload
def ImageDecoder(
    encoded_stream: _Operand, *, pixel_format: str = "RGB", device: _Device = None
) -> DeviceTensor: ...
@overload
def ImageScaler(
    *inputs: _Host,
    bias: Sequence[float] | None = None,
    scale: float | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def ImageScaler(
    *inputs: _Operand,
    bias: Sequence[float] | None = None,
    scale: float | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def ImageScaler(
    *inputs: _Operand,
    bias: Sequence[float] | None = None,
    scale: float | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def InstanceNormalization(
    input: _Host, scale: _Host, B: _Host, *, epsilon: float = 1e-05, device: _Device = None
) -> Array: ...
@overload
def InstanceNormalization(
    input: _Operand, scale: _Operand, B: _Operand, *, epsilon: float = 1e-05, device: _Device = None
) -> DeviceTensor: ...
@overload
def IsInf(
    X: _Host, *, detect_negative: int = 1, detect_positive: int = 1, device: _Device = None
) -> Array: ...
@overload
def IsInf(
    X: _Operand, *, detect_negative: int = 1, detect_positive: int = 1, device: _Device = None
) -> DeviceTensor: ...
@overload
def IsNaN(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def IsNaN(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def LRN(
    X: _Host,
    *,
    size: int,
    bias: float = 1.0,
    beta: float = 0.75,
    alpha: float = 0.0001,
    device: _Device = None,
) -> Array: ...
@overload
def LRN(
    X: _Operand,
    *,
    size: int,
    bias: float = 1.0,
    beta: float = 0.75,
    alpha: float = 0.0001,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def LSTM(
    X: _Host,
    W: _Host,
    R: _Host,
    B: _Host | None = None,
    sequence_lens: _Host | None = None,
    initial_h: _Host | None = None,
    initial_c: _Host | None = None,
    P: _Host | None = None,
    *,
    clip: float | None = None,
    activation_beta: Sequence[float] | None = None,
    activation_alpha: Sequence[float] | None = None,
    hidden_size: int | None = None,
    direction: str = "forward",
    input_forget: int = 0,
    layout: int = 0,
    activations: Sequence[str] | None = None,
    device: _Device = None,
) -> tuple[Array, Array, Array]: ...
@overload
def LSTM(
    X: _Operand,
    W: _Operand,
    R: _Operand,
    B: _Operand | None = None,
    sequence_lens: _Operand | None = None,
    initial_h: _Operand | None = None,
    initial_c: _Operand | None = None,
    P: _Operand | None = None,
    *,
    clip: float | None = None,
    activation_beta: Sequence[float] | None = None,
    activation_alpha: Sequence[float] | None = None,
    hidden_size: int | None = None,
    direction: str = "forward",
    input_forget: int = 0,
    layout: int = 0,
    activations: Sequence[str] | None = None,
    device: _Device = None,
) -> tuple[DeviceTensor, DeviceTensor, DeviceTensor]: ...
@overload
def LayerNormalization(
    X: _Host,
    Scale: _Host,
    B: _Host | None = None,
    *,
    stash_type: _Dtype = 1,
    epsilon: float = 1e-05,
    axis: int = -1,
    device: _Device = None,
) -> Array: ...
@overload
def LayerNormalization(
    X: _Operand,
    Scale: _Operand,
    B: _Operand | None = None,
    *,
    stash_type: _Dtype = 1,
    epsilon: float = 1e-05,
    axis: int = -1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def LayerNormalization(
    X: _Operand,
    Scale: _Operand,
    B: _Operand | None = None,
    *,
    stash_type: _Dtype = 1,
    epsilon: float = 1e-05,
    axis: int = -1,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def LeakyRelu(X: _Host, *, alpha: float = 0.01, device: _Device = None) -> Array: ...
@overload
def LeakyRelu(X: _Operand, *, alpha: float = 0.01, device: _Device = None) -> DeviceTensor: ...
@overload
def Less(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Less(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def LessOrEqual(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def LessOrEqual(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def LinearAttention(
    query: _Host,
    key: _Host,
    value: _Host,
    past_state: _Host | None = None,
    decay: _Host | None = None,
    beta: _Host | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    device: _Device = None,
) -> tuple[Array, Array]: ...
@overload
def LinearAttention(
    query: _Operand,
    key: _Operand,
    value: _Operand,
    past_state: _Operand | None = None,
    decay: _Operand | None = None,
    beta: _Operand | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    device: _Device = None,
) -> tuple[DeviceTensor, DeviceTensor]: ...
@overload
def Log(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Log(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def LogSoftmax(input: _Host, *, axis: int = -1, device: _Device = None) -> Array: ...
@overload
def LogSoftmax(input: _Operand, *, axis: int = -1, device: _Device = None) -> DeviceTensor: ...
@overload
def LpNormalization(
    input: _Host, *, p: int = 2, axis: int = -1, device: _Device = None
) -> Array: ...
@overload
def LpNormalization(
    input: _Operand, *, p: int = 2, axis: int = -1, device: _Device = None
) -> DeviceTensor: ...
@overload
def LpPool(
    X: _Host,
    *,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def LpPool(
    X: _Operand,
    *,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def MatMul(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def MatMul(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def MatMulInteger(
    A: _Host,
    B: _Host,
    a_zero_point: _Host | None = None,
    b_zero_point: _Host | None = None,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def MatMulInteger(
    A: _Operand,
    B: _Operand,
    a_zero_point: _Operand | None = None,
    b_zero_point: _Operand | None = None,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Max(*data_0: _Host, device: _Device = None) -> Array: ...
@overload
def Max(*data_0: _Operand, device: _Device = None) -> DeviceTensor: ...
@overload
def MaxPool(
    X: _Host,
    *,
    kernel_shape: Sequence[int],
    storage_order: int = 0,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def MaxPool(
    X: _Operand,
    *,
    kernel_shape: Sequence[int],
    storage_order: int = 0,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def MaxPool(
    X: _Operand,
    *,
    kernel_shape: Sequence[int],
    storage_order: int = 0,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def MaxRoiPool(
    X: _Host,
    rois: _Host,
    *,
    pooled_shape: Sequence[int],
    spatial_scale: float = 1.0,
    device: _Device = None,
) -> Array: ...
@overload
def MaxRoiPool(
    X: _Operand,
    rois: _Operand,
    *,
    pooled_shape: Sequence[int],
    spatial_scale: float = 1.0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def MaxUnpool(
    X: _Host,
    I: _Host,
    output_shape: _Host | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def MaxUnpool(
    X: _Operand,
    I: _Operand,
    output_shape: _Operand | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Mean(*data_0: _Host, device: _Device = None) -> Array: ...
@overload
def Mean(*data_0: _Operand, device: _Device = None) -> DeviceTensor: ...
@overload
def MeanVarianceNormalization(
    X: _Host, *, axes: Sequence[int] = (0, 2, 3), device: _Device = None
) -> Array: ...
@overload
def MeanVarianceNormalization(
    X: _Operand, *, axes: Sequence[int] = (0, 2, 3), device: _Device = None
) -> DeviceTensor: ...
@overload
def MelWeightMatrix(
    num_mel_bins: _Host,
    dft_length: _Host,
    sample_rate: _Host,
    lower_edge_hertz: _Host,
    upper_edge_hertz: _Host,
    *,
    output_datatype: _Dtype = 1,
    device: _Device = None,
) -> Array: ...
@overload
def MelWeightMatrix(
    num_mel_bins: _Operand,
    dft_length: _Operand,
    sample_rate: _Operand,
    lower_edge_hertz: _Operand,
    upper_edge_hertz: _Operand,
    *,
    output_datatype: _Dtype = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Min(*data_0: _Host, device: _Device = None) -> Array: ...
@overload
def Min(*data_0: _Operand, device: _Device = None) -> DeviceTensor: ...
@overload
def Mish(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Mish(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Mod(A: _Host, B: _Host, *, fmod: int = 0, device: _Device = None) -> Array: ...
@overload
def Mod(A: _Operand, B: _Operand, *, fmod: int = 0, device: _Device = None) -> DeviceTensor: ...
@overload
def Mul(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Mul(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Multinomial(
    input: _Host,
    *,
    dtype: _Dtype = 6,
    seed: float | None = None,
    sample_size: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def Multinomial(
    input: _Operand,
    *,
    dtype: _Dtype = 6,
    seed: float | None = None,
    sample_size: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Neg(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Neg(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def NegativeLogLikelihoodLoss(
    input: _Host,
    target: _Host,
    weight: _Host | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    device: _Device = None,
) -> Array: ...
@overload
def NegativeLogLikelihoodLoss(
    input: _Operand,
    target: _Operand,
    weight: _Operand | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def NonMaxSuppression(
    boxes: _Host,
    scores: _Host,
    max_output_boxes_per_class: _Host | None = None,
    iou_threshold: _Host | None = None,
    score_threshold: _Host | None = None,
    *,
    center_point_box: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def NonMaxSuppression(
    boxes: _Operand,
    scores: _Operand,
    max_output_boxes_per_class: _Operand | None = None,
    iou_threshold: _Operand | None = None,
    score_threshold: _Operand | None = None,
    *,
    center_point_box: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def NonZero(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def NonZero(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Not(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Not(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def OneHot(
    indices: _Host, depth: _Host, values: _Host, *, axis: int = -1, device: _Device = None
) -> Array: ...
@overload
def OneHot(
    indices: _Operand, depth: _Operand, values: _Operand, *, axis: int = -1, device: _Device = None
) -> DeviceTensor: ...
def Optional(input: Any = None, *, type: Any = None, device: _Device = None) -> Any: ...
def OptionalGetElement(input: Any, *, device: _Device = None) -> Any: ...
def OptionalHasElement(input: Any = None, *, device: _Device = None) -> Any: ...
@overload
def Or(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Or(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def PRelu(X: _Host, slope: _Host, *, device: _Device = None) -> Array: ...
@overload
def PRelu(X: _Operand, slope: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Pad(
    data: _Host,
    pads: _Host,
    constant_value: _Host | None = None,
    axes: _Host | None = None,
    *,
    mode: str = "constant",
    device: _Device = None,
) -> Array: ...
@overload
def Pad(
    data: _Operand,
    pads: _Operand,
    constant_value: _Operand | None = None,
    axes: _Operand | None = None,
    *,
    mode: str = "constant",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ParametricSoftplus(
    *inputs: _Host, alpha: float | None = None, beta: float | None = None, device: _Device = None
) -> Any: ...
@overload
def ParametricSoftplus(
    *inputs: _Operand, alpha: float | None = None, beta: float | None = None, device: _Device = None
) -> Any: ...
@overload
def ParametricSoftplus(
    *inputs: _Operand,
    alpha: float | None = None,
    beta: float | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def Pow(X: _Host, Y: _Host, *, device: _Device = None) -> Array: ...
@overload
def Pow(X: _Operand, Y: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def QLinearConv(
    x: _Host,
    x_scale: _Host,
    x_zero_point: _Host,
    w: _Host,
    w_scale: _Host,
    w_zero_point: _Host,
    y_scale: _Host,
    y_zero_point: _Host,
    B: _Host | None = None,
    *,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    device: _Device = None,
) -> Array: ...
@overload
def QLinearConv(
    x: _Operand,
    x_scale: _Operand,
    x_zero_point: _Operand,
    w: _Operand,
    w_scale: _Operand,
    w_zero_point: _Operand,
    y_scale: _Operand,
    y_zero_point: _Operand,
    B: _Operand | None = None,
    *,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def QLinearMatMul(
    a: _Host,
    a_scale: _Host,
    a_zero_point: _Host,
    b: _Host,
    b_scale: _Host,
    b_zero_point: _Host,
    y_scale: _Host,
    y_zero_point: _Host,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def QLinearMatMul(
    a: _Operand,
    a_scale: _Operand,
    a_zero_point: _Operand,
    b: _Operand,
    b_scale: _Operand,
    b_zero_point: _Operand,
    y_scale: _Operand,
    y_zero_point: _Operand,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def QuantizeLinear(
    x: _Host,
    y_scale: _Host,
    y_zero_point: _Host | None = None,
    *,
    precision: int = 0,
    output_dtype: _Dtype = 0,
    block_size: int = 0,
    saturate: int = 1,
    axis: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def QuantizeLinear(
    x: _Operand,
    y_scale: _Operand,
    y_zero_point: _Operand | None = None,
    *,
    precision: int = 0,
    output_dtype: _Dtype = 0,
    block_size: int = 0,
    saturate: int = 1,
    axis: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def RMSNormalization(
    X: _Host,
    scale: _Host,
    *,
    stash_type: _Dtype = 1,
    epsilon: float = 1e-05,
    axis: int = -1,
    device: _Device = None,
) -> Array: ...
@overload
def RMSNormalization(
    X: _Operand,
    scale: _Operand,
    *,
    stash_type: _Dtype = 1,
    epsilon: float = 1e-05,
    axis: int = -1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def RNN(
    X: _Host,
    W: _Host,
    R: _Host,
    B: _Host | None = None,
    sequence_lens: _Host | None = None,
    initial_h: _Host | None = None,
    *,
    clip: float | None = None,
    activation_beta: Sequence[float] | None = None,
    activation_alpha: Sequence[float] | None = None,
    hidden_size: int | None = None,
    layout: int = 0,
    direction: str = "forward",
    activations: Sequence[str] = ("Tanh", "Tanh"),
    device: _Device = None,
) -> tuple[Array, Array]: ...
@overload
def RNN(
    X: _Operand,
    W: _Operand,
    R: _Operand,
    B: _Operand | None = None,
    sequence_lens: _Operand | None = None,
    initial_h: _Operand | None = None,
    *,
    clip: float | None = None,
    activation_beta: Sequence[float] | None = None,
    activation_alpha: Sequence[float] | None = None,
    hidden_size: int | None = None,
    layout: int = 0,
    direction: str = "forward",
    activations: Sequence[str] = ("Tanh", "Tanh"),
    device: _Device = None,
) -> tuple[DeviceTensor, DeviceTensor]: ...
def RandomNormal(
    *inputs: _Host,
    shape: Sequence[int],
    dtype: _Dtype = 1,
    seed: float | None = None,
    scale: float = 1.0,
    mean: float = 0.0,
    device: _Device = None,
) -> Array: ...
@overload
def RandomNormalLike(
    input: _Host,
    *,
    dtype: _Dtype | None = None,
    seed: float | None = None,
    scale: float = 1.0,
    mean: float = 0.0,
    device: _Device = None,
) -> Array: ...
@overload
def RandomNormalLike(
    input: _Operand,
    *,
    dtype: _Dtype | None = None,
    seed: float | None = None,
    scale: float = 1.0,
    mean: float = 0.0,
    device: _Device = None,
) -> DeviceTensor: ...
def RandomUniform(
    *inputs: _Host,
    shape: Sequence[int],
    dtype: _Dtype = 1,
    seed: float | None = None,
    high: float = 1.0,
    low: float = 0.0,
    device: _Device = None,
) -> Array: ...
@overload
def RandomUniformLike(
    input: _Host,
    *,
    dtype: _Dtype | None = None,
    seed: float | None = None,
    high: float = 1.0,
    low: float = 0.0,
    device: _Device = None,
) -> Array: ...
@overload
def RandomUniformLike(
    input: _Operand,
    *,
    dtype: _Dtype | None = None,
    seed: float | None = None,
    high: float = 1.0,
    low: float = 0.0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Range(
    start: _Host, limit: _Host, delta: _Host, *, stash_type: _Dtype = 1, device: _Device = None
) -> Array: ...
@overload
def Range(
    start: _Operand,
    limit: _Operand,
    delta: _Operand,
    *,
    stash_type: _Dtype = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Reciprocal(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Reciprocal(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def ReduceL1(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceL1(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceL2(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceL2(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceLogSum(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceLogSum(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceLogSumExp(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceLogSumExp(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceMax(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceMax(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceMean(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceMean(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceMin(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceMin(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceProd(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceProd(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceSum(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceSum(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReduceSumSquare(
    data: _Host,
    axes: _Host | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def ReduceSumSquare(
    data: _Operand,
    axes: _Operand | None = None,
    *,
    noop_with_empty_axes: int = 0,
    keepdims: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def RegexFullMatch(X: _Host, *, pattern: str | None = None, device: _Device = None) -> Array: ...
@overload
def RegexFullMatch(
    X: _Operand, *, pattern: str | None = None, device: _Device = None
) -> DeviceTensor: ...
@overload
def Relu(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Relu(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Reshape(data: _Host, shape: _Host, *, allowzero: int = 0, device: _Device = None) -> Array: ...
@overload
def Reshape(
    data: _Operand, shape: _Operand, *, allowzero: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def Resize(
    X: _Host,
    roi: _Host | None = None,
    scales: _Host | None = None,
    sizes: _Host | None = None,
    *,
    keep_aspect_ratio_policy: str = "stretch",
    axes: Sequence[int] | None = None,
    antialias: int = 0,
    extrapolation_value: float = 0.0,
    exclude_outside: int = 0,
    nearest_mode: str = "round_prefer_floor",
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    mode: str = "nearest",
    device: _Device = None,
) -> Array: ...
@overload
def Resize(
    X: _Operand,
    roi: _Operand | None = None,
    scales: _Operand | None = None,
    sizes: _Operand | None = None,
    *,
    keep_aspect_ratio_policy: str = "stretch",
    axes: Sequence[int] | None = None,
    antialias: int = 0,
    extrapolation_value: float = 0.0,
    exclude_outside: int = 0,
    nearest_mode: str = "round_prefer_floor",
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    mode: str = "nearest",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ReverseSequence(
    input: _Host,
    sequence_lens: _Host,
    *,
    batch_axis: int = 1,
    time_axis: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def ReverseSequence(
    input: _Operand,
    sequence_lens: _Operand,
    *,
    batch_axis: int = 1,
    time_axis: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def RoiAlign(
    X: _Host,
    rois: _Host,
    batch_indices: _Host,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    sampling_ratio: int = 0,
    output_width: int = 1,
    spatial_scale: float = 1.0,
    device: _Device = None,
) -> Array: ...
@overload
def RoiAlign(
    X: _Operand,
    rois: _Operand,
    batch_indices: _Operand,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    sampling_ratio: int = 0,
    output_width: int = 1,
    spatial_scale: float = 1.0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def RotaryEmbedding(
    X: _Host,
    cos_cache: _Host,
    sin_cache: _Host,
    position_ids: _Host | None = None,
    *,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
    interleaved: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def RotaryEmbedding(
    X: _Operand,
    cos_cache: _Operand,
    sin_cache: _Operand,
    position_ids: _Operand | None = None,
    *,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
    interleaved: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Round(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Round(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def STFT(
    signal: _Host,
    frame_step: _Host,
    window: _Host | None = None,
    frame_length: _Host | None = None,
    *,
    onesided: int = 1,
    device: _Device = None,
) -> Array: ...
@overload
def STFT(
    signal: _Operand,
    frame_step: _Operand,
    window: _Operand | None = None,
    frame_length: _Operand | None = None,
    *,
    onesided: int = 1,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Scale(*inputs: _Host, scale: float | None = None, device: _Device = None) -> Any: ...
@overload
def Scale(*inputs: _Operand, scale: float | None = None, device: _Device = None) -> Any: ...
@overload
def Scale(
    *inputs: _Operand, scale: float | None = None, outputs: int, device: _Device = None
) -> Any: ...
@overload
def ScaledTanh(
    *inputs: _Host, alpha: float | None = None, beta: float | None = None, device: _Device = None
) -> Any: ...
@overload
def ScaledTanh(
    *inputs: _Operand, alpha: float | None = None, beta: float | None = None, device: _Device = None
) -> Any: ...
@overload
def ScaledTanh(
    *inputs: _Operand,
    alpha: float | None = None,
    beta: float | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def Scatter(
    data: _Host, indices: _Host, updates: _Host, *, axis: int = 0, device: _Device = None
) -> Array: ...
@overload
def Scatter(
    data: _Operand, indices: _Operand, updates: _Operand, *, axis: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def ScatterElements(
    data: _Host,
    indices: _Host,
    updates: _Host,
    *,
    reduction: str = "none",
    axis: int = 0,
    device: _Device = None,
) -> Array: ...
@overload
def ScatterElements(
    data: _Operand,
    indices: _Operand,
    updates: _Operand,
    *,
    reduction: str = "none",
    axis: int = 0,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ScatterND(
    data: _Host, indices: _Host, updates: _Host, *, reduction: str = "none", device: _Device = None
) -> Array: ...
@overload
def ScatterND(
    data: _Operand,
    indices: _Operand,
    updates: _Operand,
    *,
    reduction: str = "none",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Selu(
    X: _Host, *, gamma: float = 1.050701, alpha: float = 1.673263, device: _Device = None
) -> Array: ...
@overload
def Selu(
    X: _Operand, *, gamma: float = 1.050701, alpha: float = 1.673263, device: _Device = None
) -> DeviceTensor: ...
@overload
def SequenceAt(input_sequence: Any, position: _Host, *, device: _Device = None) -> Array: ...
@overload
def SequenceAt(
    input_sequence: Any, position: _Operand, *, device: _Device = None
) -> DeviceTensor: ...
@overload
def SequenceConstruct(*inputs: _Host, device: _Device = None) -> Any: ...
@overload
def SequenceConstruct(*inputs: _Operand, device: _Device = None) -> Any: ...
def SequenceEmpty(*inputs: _Host, dtype: _Dtype | None = None, device: _Device = None) -> Any: ...
@overload
def SequenceErase(
    input_sequence: Any, position: _Host | None = None, *, device: _Device = None
) -> Any: ...
@overload
def SequenceErase(
    input_sequence: Any, position: _Operand | None = None, *, device: _Device = None
) -> Any: ...
@overload
def SequenceInsert(
    input_sequence: Any, tensor: _Host, position: _Host | None = None, *, device: _Device = None
) -> Any: ...
@overload
def SequenceInsert(
    input_sequence: Any,
    tensor: _Operand,
    position: _Operand | None = None,
    *,
    device: _Device = None,
) -> Any: ...
def SequenceLength(input_sequence: Any, *, device: _Device = None) -> Any: ...
@overload
def Shape(
    data: _Host, *, end: int | None = None, start: int = 0, device: _Device = None
) -> Array: ...
@overload
def Shape(
    data: _Operand, *, end: int | None = None, start: int = 0, device: _Device = None
) -> DeviceTensor: ...
@overload
def Shrink(
    input: _Host, *, bias: float = 0.0, lambd: float = 0.5, device: _Device = None
) -> Array: ...
@overload
def Shrink(
    input: _Operand, *, bias: float = 0.0, lambd: float = 0.5, device: _Device = None
) -> DeviceTensor: ...
@overload
def Sigmoid(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Sigmoid(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Sign(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Sign(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def SimplifiedLayerNormalization(
    *inputs: _Host,
    axis: int | None = None,
    epsilon: float | None = None,
    stash_type: _Dtype | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def SimplifiedLayerNormalization(
    *inputs: _Operand,
    axis: int | None = None,
    epsilon: float | None = None,
    stash_type: _Dtype | None = None,
    device: _Device = None,
) -> Any: ...
@overload
def SimplifiedLayerNormalization(
    *inputs: _Operand,
    axis: int | None = None,
    epsilon: float | None = None,
    stash_type: _Dtype | None = None,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def Sin(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Sin(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Sinh(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Sinh(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Size(data: _Host, *, device: _Device = None) -> Array: ...
@overload
def Size(data: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Slice(
    data: _Host,
    starts: _Host,
    ends: _Host,
    axes: _Host | None = None,
    steps: _Host | None = None,
    *,
    device: _Device = None,
) -> Array: ...
@overload
def Slice(
    data: _Operand,
    starts: _Operand,
    ends: _Operand,
    axes: _Operand | None = None,
    steps: _Operand | None = None,
    *,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def Softmax(input: _Host, *, axis: int = -1, device: _Device = None) -> Array: ...
@overload
def Softmax(input: _Operand, *, axis: int = -1, device: _Device = None) -> DeviceTensor: ...
@overload
def SoftmaxCrossEntropyLoss(
    scores: _Host,
    labels: _Host,
    weights: _Host | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    device: _Device = None,
) -> Array: ...
@overload
def SoftmaxCrossEntropyLoss(
    scores: _Operand,
    labels: _Operand,
    weights: _Operand | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def SoftmaxCrossEntropyLoss(
    scores: _Operand,
    labels: _Operand,
    weights: _Operand | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def Softplus(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Softplus(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Softsign(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Softsign(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def SpaceToDepth(
    input: _Host, *, blocksize: int, mode: str = "DCR", device: _Device = None
) -> Array: ...
@overload
def SpaceToDepth(
    input: _Operand, *, blocksize: int, mode: str = "DCR", device: _Device = None
) -> DeviceTensor: ...
@overload
def Split(
    input: _Host,
    split: _Host | None = None,
    *,
    num_outputs: int | None = None,
    axis: int = 0,
    device: _Device = None,
) -> Any: ...
@overload
def Split(
    input: _Operand,
    split: _Operand | None = None,
    *,
    num_outputs: int | None = None,
    axis: int = 0,
    device: _Device = None,
) -> Any: ...
@overload
def Split(
    input: _Operand,
    split: _Operand | None = None,
    *,
    num_outputs: int | None = None,
    axis: int = 0,
    outputs: int,
    device: _Device = None,
) -> Any: ...
@overload
def SplitToSequence(
    input: _Host,
    split: _Host | None = None,
    *,
    keepdims: int = 1,
    axis: int = 0,
    device: _Device = None,
) -> Any: ...
@overload
def SplitToSequence(
    input: _Operand,
    split: _Operand | None = None,
    *,
    keepdims: int = 1,
    axis: int = 0,
    device: _Device = None,
) -> Any: ...
@overload
def Sqrt(X: _Host, *, device: _Device = None) -> Array: ...
@overload
def Sqrt(X: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Squeeze(data: _Host, axes: _Host | None = None, *, device: _Device = None) -> Array: ...
@overload
def Squeeze(
    data: _Operand, axes: _Operand | None = None, *, device: _Device = None
) -> DeviceTensor: ...
@overload
def StringConcat(X: _Host, Y: _Host, *, device: _Device = None) -> Array: ...
@overload
def StringConcat(X: _Operand, Y: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def StringNormalizer(
    X: _Host,
    *,
    stopwords: Sequence[str] | None = None,
    locale: str | None = None,
    is_case_sensitive: int = 0,
    case_change_action: str = "NONE",
    device: _Device = None,
) -> Array: ...
@overload
def StringNormalizer(
    X: _Operand,
    *,
    stopwords: Sequence[str] | None = None,
    locale: str | None = None,
    is_case_sensitive: int = 0,
    case_change_action: str = "NONE",
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def StringSplit(
    X: _Host, *, maxsplit: int | None = None, delimiter: str | None = None, device: _Device = None
) -> tuple[Array, Array]: ...
@overload
def StringSplit(
    X: _Operand,
    *,
    maxsplit: int | None = None,
    delimiter: str | None = None,
    device: _Device = None,
) -> tuple[DeviceTensor, DeviceTensor]: ...
@overload
def Sub(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Sub(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Sum(*data_0: _Host, device: _Device = None) -> Array: ...
@overload
def Sum(*data_0: _Operand, device: _Device = None) -> DeviceTensor: ...
@overload
def SwiGLU(A: _Host, B: _Host, *, alpha: float = 1.0, device: _Device = None) -> Array: ...
@overload
def SwiGLU(
    A: _Operand, B: _Operand, *, alpha: float = 1.0, device: _Device = None
) -> DeviceTensor: ...
@overload
def Swish(X: _Host, *, alpha: float = 1.0, device: _Device = None) -> Array: ...
@overload
def Swish(X: _Operand, *, alpha: float = 1.0, device: _Device = None) -> DeviceTensor: ...
@overload
def Tan(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Tan(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Tanh(input: _Host, *, device: _Device = None) -> Array: ...
@overload
def Tanh(input: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def TensorScatter(
    past_cache: _Host,
    update: _Host,
    write_indices: _Host | None = None,
    *,
    mode: str = "linear",
    axis: int = -2,
    device: _Device = None,
) -> Array: ...
@overload
def TensorScatter(
    past_cache: _Operand,
    update: _Operand,
    write_indices: _Operand | None = None,
    *,
    mode: str = "linear",
    axis: int = -2,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def TfIdfVectorizer(
    X: _Host,
    *,
    mode: str,
    ngram_indexes: Sequence[int],
    ngram_counts: Sequence[int],
    max_skip_count: int,
    min_gram_length: int,
    max_gram_length: int,
    weights: Sequence[float] | None = None,
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    device: _Device = None,
) -> Array: ...
@overload
def TfIdfVectorizer(
    X: _Operand,
    *,
    mode: str,
    ngram_indexes: Sequence[int],
    ngram_counts: Sequence[int],
    max_skip_count: int,
    min_gram_length: int,
    max_gram_length: int,
    weights: Sequence[float] | None = None,
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    device: _Device = None,
) -> DeviceTensor: ...
@overload
def ThresholdedRelu(X: _Host, *, alpha: float = 1.0, device: _Device = None) -> Array: ...
@overload
def ThresholdedRelu(X: _Operand, *, alpha: float = 1.0, device: _Device = None) -> DeviceTensor: ...
@overload
def Tile(input: _Host, repeats: _Host, *, device: _Device = None) -> Array: ...
@overload
def Tile(input: _Operand, repeats: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def TopK(
    X: _Host, K: _Host, *, sorted: int = 1, largest: int = 1, axis: int = -1, device: _Device = None
) -> tuple[Array, Array]: ...
@overload
def TopK(
    X: _Operand,
    K: _Operand,
    *,
    sorted: int = 1,
    largest: int = 1,
    axis: int = -1,
    device: _Device = None,
) -> tuple[DeviceTensor, DeviceTensor]: ...
@overload
def Transpose(
    data: _Host, *, perm: Sequence[int] | None = None, device: _Device = None
) -> Array: ...
@overload
def Transpose(
    data: _Operand, *, perm: Sequence[int] | None = None, device: _Device = None
) -> DeviceTensor: ...
@overload
def Trilu(
    input: _Host, k: _Host | None = None, *, upper: int = 1, device: _Device = None
) -> Array: ...
@overload
def Trilu(
    input: _Operand, k: _Operand | None = None, *, upper: int = 1, device: _Device = None
) -> DeviceTensor: ...
@overload
def Unique(
    X: _Host, *, axis: int | None = None, sorted: int = 1, device: _Device = None
) -> Array: ...
@overload
def Unique(
    X: _Operand, *, axis: int | None = None, sorted: int = 1, device: _Device = None
) -> DeviceTensor: ...
@overload
def Unique(
    X: _Operand, *, axis: int | None = None, sorted: int = 1, outputs: int, device: _Device = None
) -> Any: ...
@overload
def Unsqueeze(data: _Host, axes: _Host, *, device: _Device = None) -> Array: ...
@overload
def Unsqueeze(data: _Operand, axes: _Operand, *, device: _Device = None) -> DeviceTensor: ...
@overload
def Upsample(
    X: _Host, scales: _Host, *, mode: str = "nearest", device: _Device = None
) -> Array: ...
@overload
def Upsample(
    X: _Operand, scales: _Operand, *, mode: str = "nearest", device: _Device = None
) -> DeviceTensor: ...
@overload
def Where(condition: _Host, X: _Host, Y: _Host, *, device: _Device = None) -> Array: ...
@overload
def Where(
    condition: _Operand, X: _Operand, Y: _Operand, *, device: _Device = None
) -> DeviceTensor: ...
@overload
def Xor(A: _Host, B: _Host, *, device: _Device = None) -> Array: ...
@overload
def Xor(A: _Operand, B: _Operand, *, device: _Device = None) -> DeviceTensor: ...
