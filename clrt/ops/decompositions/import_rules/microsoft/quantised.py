"""Quantized ops of com.microsoft, composed of ONNX ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError, counted
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.attention import self_attention
from clrt.ops.decompositions.import_rules.microsoft.fusions import embed, positions_of
from clrt.ops.decompositions.import_rules.quantized import (
    as_product,
    column,
    qlinear_conv,
    quantise,
    requantise,
)

_DOMAIN = "com.microsoft"
_POOL_ATTRS = (
    "auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides",
)  # fmt: skip


def _dequantised(body: ImportBuilder, index: int) -> Value:
    """Dequantizes input `index`; the next two inputs are its scale and optional zero point."""
    return body("DequantizeLinear", *body.inputs[index : index + 2], body.optional(index + 2))


def _finish(body: ImportBuilder, y: Value, index: int, like: int = 0) -> None:
    """Quantizes the result of an op and sets it as output.

    Args:
        body: Builder; its output is set.
        y: Result, as floats.
        index: Input index of the output's scale; the next input is its optional zero point.
        like: Index of an input with the dtype of the output.
    """
    dtype = body.input_dtype(like)
    body.outputs = [quantise(body, y, body.inputs[index], body.optional(index + 1), dtype)]


def integer_product(
    body: ImportBuilder, *operands: Value | None, factor: Value, bias: Value | None = None
) -> Value:
    """Returns (A - zero point of A) @ (B - zero point of B) * factor + bias in float32.

    Args:
        body: Builder; its inputs 0 and 1 have the ranks of A and B.
        operands: A, B, zero point of A, zero point of B; None for a zero point of 0.
        factor: Scale of the product.
        bias: Bias; None for none.
    """
    sums = body("MatMulInteger", *operands)
    y = body("Mul", body.cast(sums, DType.FLOAT32), factor)
    y = as_product(body, y, sums, 0, 1)
    return body("Add", y, bias) if bias else y


@register_import_decomposition(_DOMAIN, "DequantizeLinear")
def _dequantize(body: ImportBuilder) -> None:
    axis = body.attrs.get("axis", 1)
    body.outputs = [body("DequantizeLinear", *body.inputs, axis=axis)]


@register_import_decomposition(_DOMAIN, "QuantizeLinear")
def _quantize(body: ImportBuilder) -> None:
    axis = body.attrs.get("axis", 1)
    x, scale = body.inputs[:2]
    body.outputs = [quantise(body, x, scale, body.optional(2), DType.UINT8, axis)]


@register_import_decomposition(_DOMAIN, "MatMulIntegerToFloat")
def _matmul_integer_to_float(body: ImportBuilder) -> None:
    a, b = body.inputs[:2]
    to = body.input_dtype(2)
    scales = body("Mul", column(body, 2), body.as_float32(3))
    bias = body.as_float32(6) if body.has(6) else None
    zeros = (body.optional(4), body.optional(5))
    y = integer_product(body, a, b, *zeros, factor=scales, bias=bias)
    body.outputs = [y if to is DType.FLOAT32 else body.cast(y, to)]


@register_import_decomposition(_DOMAIN, "DynamicQuantizeMatMul")
def _dynamic_quantize_matmul(body: ImportBuilder) -> None:
    x, b, b_scale = body.inputs[:3]
    a, a_scale, a_zero = body.node("DynamicQuantizeLinear", [x], 3)
    factor = body("Mul", a_scale, b_scale)
    zeros = (a_zero, body.optional(3))
    bias = body.optional(4)
    body.outputs = [integer_product(body, a, b, *zeros, factor=factor, bias=bias)]


@register_import_decomposition(_DOMAIN, "QGemm")
def _qgemm(body: ImportBuilder) -> None:
    """Decomposes QGemm: alpha * (A @ B + bias) of 8-bit matrices A and B and an int32 bias.

    Inputs: A, its scale and zero point; B, its scale and zero point; optional bias; optional scale
    and zero point of the output. The output is float32 if there is no output scale.
    """
    a, a_scale, a_zero, b, b_scale, b_zero = body.inputs[:6]
    if body.attrs.get("transA", 0):
        a = body("Transpose", a, perm=[1, 0])
    if body.attrs.get("transB", 0):
        b = body("Transpose", b, perm=[1, 0])
    sums = body("MatMulInteger", a, b, a_zero, b_zero)
    if body.has(6):
        sums = body("Add", sums, body.inputs[6])
    factor = body("Mul", body("Mul", a_scale, b_scale), body.floats(body.attrs.get("alpha", 1.0)))
    if not body.has(7):
        body.outputs = [body("Mul", body.cast(sums, DType.FLOAT32), factor)]
        return
    factor = body("Div", factor, body.inputs[7])
    zero = body.optional(8)
    to = body.input_dtype(8) if zero else body.input_dtype(0)
    body.outputs = [requantise(body, sums, factor, zero, to)]


@register_import_decomposition(_DOMAIN, "QLinearConv")
def _qlinear_conv(body: ImportBuilder) -> None:
    rank = body.rank_of(3)
    last = bool(body.attrs.get("channels_last", 0))
    x = body.inputs[0]
    y = qlinear_conv(body, body.channels_first(x, rank) if last else x, rank)
    body.outputs = [body.channels_last(y, rank) if last else y]


@register_import_decomposition(_DOMAIN, "QLinearAdd")
def _qlinear_add(body: ImportBuilder) -> None:
    _finish(body, body("Add", _dequantised(body, 0), _dequantised(body, 3)), 6)


@register_import_decomposition(_DOMAIN, "QLinearMul")
def _qlinear_mul(body: ImportBuilder) -> None:
    _finish(body, body("Mul", _dequantised(body, 0), _dequantised(body, 3)), 6)


@register_import_decomposition(_DOMAIN, "MulInteger")
def _mul_integer(body: ImportBuilder) -> None:
    """Decomposes MulInteger: the elementwise int32 product of two quantized tensors.

    Inputs: a, its optional zero point, b, its optional zero point. Zero points are subtracted from
    the tensors first.
    """
    factors = []
    for index in (0, 2):
        wide = body.cast(body.inputs[index], DType.INT32)
        if body.has(index + 1):
            wide = body("Sub", wide, body.cast(body.inputs[index + 1], DType.INT32))
        factors.append(wide)
    body.outputs = [body("Mul", *factors)]


@register_import_decomposition(_DOMAIN, "MatMulInteger16")
def _matmul_integer16(body: ImportBuilder) -> None:
    if any(body.input_dtype(i) is not DType.INT16 for i in range(2)):
        raise UnsupportedError("operands other than int16, of which the result may be uint32")
    operands = [body.cast(value, DType.INT32) for value in body.inputs[:2]]
    body.outputs = [body("MatMul", *operands)]


@register_import_decomposition(_DOMAIN, "QLinearReduceMean")
def _qlinear_reduce_mean(body: ImportBuilder) -> None:
    axes = [int(axis) for axis in body.attrs.get("axes", ())]
    keep = int(body.attrs.get("keepdims", 1))
    x = _dequantised(body, 0)
    _finish(body, body("ReduceMean", x, body.ints(*axes) if axes else None, keepdims=keep), 3)


@register_import_decomposition(_DOMAIN, "QLinearWhere")
def _qlinear_where(body: ImportBuilder) -> None:
    picked = body("Where", body.inputs[0], _dequantised(body, 1), _dequantised(body, 4))
    _finish(body, picked, 7, like=1)


@register_import_decomposition(_DOMAIN, "QLinearSigmoid")
def _qlinear_sigmoid(body: ImportBuilder) -> None:
    _finish(body, body("Sigmoid", _dequantised(body, 0)), 3)


@register_import_decomposition(_DOMAIN, "QLinearLeakyRelu")
def _qlinear_leaky_relu(body: ImportBuilder) -> None:
    alpha = float(body.attrs.get("alpha", 0.01))
    _finish(body, body("LeakyRelu", _dequantised(body, 0), alpha=alpha), 3)


@register_import_decomposition(_DOMAIN, "QLinearSoftmax")
def _qlinear_softmax(body: ImportBuilder) -> None:
    axis, x = int(body.attrs.get("axis", -1)), _dequantised(body, 0)
    if body.attrs["opset"] >= 13:
        y = body("Softmax", x, axis=axis)
    else:
        rows = body("Softmax", body("Flatten", x, axis=axis), axis=1)
        y = body("Reshape", rows, body("Shape", x), allowzero=1)
    _finish(body, y, 3)


@register_import_decomposition(_DOMAIN, "QLinearConcat")
def _qlinear_concat(body: ImportBuilder) -> None:
    count, rest = divmod(len(body.inputs) - 2, 3)
    if rest or count < 1:
        raise ModelError(
            f"it has {counted(len(body.inputs), 'input')}; expected 2 and a multiple of 3."
        )
    parts = [_dequantised(body, 2 + 3 * i) for i in range(count)]
    _finish(body, body("Concat", *parts, axis=int(body.attrs["axis"])), 0, like=1)


@register_import_decomposition(_DOMAIN, "NhwcMaxPool")
def _nhwc_max_pool(body: ImportBuilder) -> None:
    rank = body.rank_of()
    y = body("MaxPool", body.channels_first(body.inputs[0], rank), **_pool_attrs(body))
    body.outputs = [body.channels_last(y, rank)]


def _pool_attrs(body: ImportBuilder) -> dict[str, Any]:
    """Returns the pooling attributes that are set on the replaced node."""
    return {name: body.attrs[name] for name in _POOL_ATTRS if name in body.attrs}


def _pool(body: ImportBuilder, op: str) -> None:
    """Decomposes a quantized pooling op: dequantizes input 0, pools, and quantizes the result.

    Args:
        body: Builder; its output is set.
        op: Name of the ONNX pooling op to apply.
    """
    rank = body.rank_of(0)
    last = bool(body.attrs.get("channels_last", 0))
    x = _dequantised(body, 0)
    attrs = _pool_attrs(body)
    y = body(op, body.channels_first(x, rank) if last else x, **attrs)
    _finish(body, body.channels_last(y, rank) if last else y, 3)


@register_import_decomposition(_DOMAIN, "QLinearAveragePool")
def _qlinear_average_pool(body: ImportBuilder) -> None:
    _pool(body, "AveragePool")


@register_import_decomposition(_DOMAIN, "QLinearGlobalAveragePool")
def _qlinear_global_average_pool(body: ImportBuilder) -> None:
    _pool(body, "GlobalAveragePool")


@register_import_decomposition(_DOMAIN, "QEmbedLayerNormalization")
def _qembed_layer_normalization(body: ImportBuilder) -> None:
    """Decomposes QEmbedLayerNormalization: EmbedLayerNormalization of quantized operands.

    Inputs: token ids, segment ids, five quantized operands (tables of words, positions and
    segments; gamma; beta), mask, scales of the five operands, zero points of the five operands.
    """

    def dequantised(index: int, value: Value) -> Value:
        return body("DequantizeLinear", value, body.inputs[index + 6], body.optional(index + 11))

    def look_up(table: int, ids: Value) -> Value:
        return dequantised(table, body("Gather", body.inputs[table], ids))

    embed(body, look_up, positions_of(body), [dequantised(i, body.inputs[i]) for i in (5, 6)])


def unpacked(body: ImportBuilder, x: Value, bits: int) -> Value:
    """Unpacks bytes into elements of `bits` bits; the last axis becomes 8 / `bits` times as long.

    The low-order bits of a byte are its first element.

    Args:
        body: Builder.
        x: uint8 tensor.
        bits: Bits per element: 1, 2, 4 or 8.
    """
    if bits == 8:
        return x
    mask = body.constant(np.array((1 << bits) - 1, np.uint8))
    last = body.ints(-1)
    parts = []
    for shift in range(0, 8, bits):
        by = body.constant(np.array(shift, np.uint8))
        moved = body("BitShift", x, by, direction="RIGHT") if shift else x
        parts.append(body("Unsqueeze", body("BitwiseAnd", moved, mask), last))
    pairs = body("Concat", *parts, axis=-1)
    lead = body("Shape", x, end=-1)
    return body("Reshape", pairs, body("Concat", lead, last, axis=0))


@register_import_decomposition(_DOMAIN, "MatMulNBits")
def _matmul_nbits(body: ImportBuilder) -> None:
    """Decomposes MatMulNBits with input `g_idx`: dequantizes the weights, then multiplies.

    `g_idx` is, for each index of the summed axis, the index of the block whose scale and zero point
    it uses.
    """
    k, n, bits = (int(body.attrs[name]) for name in ("K", "N", "bits"))
    a, weights, scales, _, groups = body.inputs[:5]
    dtype = body.input_dtype()

    def spread(packed: Value, count: int) -> Value:
        levels = unpacked(body, body("Reshape", packed, body.ints(n, -1)), bits)
        used = body.slice(levels, 0, count, 1)
        return body.cast(used, dtype)

    # Groups may also cover the padding of the last block.
    groups = body.slice(groups, 0, k, 0)

    def by_place(blocks: Value) -> Value:
        return body("Gather", body("Reshape", blocks, body.ints(n, -1)), groups, axis=1)

    blocks = -(-k // int(body.attrs["block_size"]))
    if not body.has(3):
        zeros = body.number(1 << (bits - 1))
    else:
        zero, packed = body.inputs[3], body.input_dtype(3) is DType.UINT8
        zeros = by_place(spread(zero, blocks) if packed else zero)
    dequantized = body("Mul", body("Sub", spread(weights, k), zeros), by_place(scales))
    y = body("MatMul", a, body("Transpose", dequantized, perm=[1, 0]))
    body.outputs = [body("Add", y, body.inputs[5]) if body.has(5) else y]


@register_import_decomposition(_DOMAIN, "GatherBlockQuantized")
def _gather_block_quantized(body: ImportBuilder) -> None:
    data, indices, scales = body.inputs[:3]
    rank, dtype = body.rank_of(0), body.input_dtype(0)
    gather = int(body.attrs.get("gather_axis", 0)) % rank
    along = int(body.attrs.get("quantize_axis", 1)) % rank
    bits, block = int(body.attrs.get("bits", 4)), int(body.attrs.get("block_size", 128))
    if gather == along:
        raise UnsupportedError(f"it gathers and quantises along axis {gather}")
    axis = along + (body.rank_of(1) - 1 if along > gather else 0)
    rows = body("Gather", data, indices, axis=gather)
    scale = body("Gather", scales, indices, axis=gather)
    if dtype.is_float and not block:
        wide = body("Cast", rows, to=body.input_dtype(2).onnx)
        body.outputs = [body("Mul", wide, scale)]
        return
    zero = body("Gather", body.inputs[3], indices, axis=gather) if body.has(3) else None
    if dtype is DType.UINT8:
        rows = unpacked(body, rows, bits)
        shape = body("Shape", scale)
        if zero:
            # The last byte may be only partly used.
            size = body.slice(shape, -1, 1 << 62, 0)
            spread = unpacked(body, zero, bits)
            zero = body.slice(spread, 0, size, -1)
        else:
            middle = body.constant(np.array(1 << (bits - 1), np.uint8))
            zero = body("Expand", middle, shape)
    body.outputs = [body("DequantizeLinear", rows, scale, zero, axis=axis, block_size=block)]


@register_import_decomposition(_DOMAIN, "QAttention")
def _qattention(body: ImportBuilder) -> None:
    x, weight, bias, x_scale, weight_scale = body.inputs[:5]
    factor = body("Mul", x_scale, weight_scale)
    zeros = (body.optional(6), body.optional(7))
    qkv = integer_product(body, x, weight, *zeros, factor=factor, bias=bias)
    self_attention(body, qkv, mask=5, past=8, like=3)
