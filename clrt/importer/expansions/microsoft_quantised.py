"""The quantised ops of com.microsoft that are compositions of ONNX's."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.importer.expansions.body import Body, expands
from clrt.importer.expansions.quantised import (
    column,
    has,
    kept_keys,
    optional,
    places_of,
    qlinear_conv,
    quantise,
    rank_of,
    requantise,
)
from clrt.ir.dtypes import DType

_DOMAIN = "com.microsoft"
_POOL_ATTRS = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _ints(body: Body, *values: int) -> str:
    return body.constant(np.array(values, np.int64))


def _dequantised(body: Body, index: int) -> str:
    """The tensor whose scale and zero point are the two inputs behind it."""
    zero = optional(body, index + 2)
    return body("DequantizeLinear", *body.inputs[index : index + 2], *([zero] if zero else []))


def _finish(body: Body, y: str, index: int, like: int = 0) -> None:
    """Quantises the result with the scale at `index` and the zero point behind it."""
    dtype = body.input_dtype(like)
    body.outputs = [quantise(body, y, body.inputs[index], optional(body, index + 1), dtype)]


def integer_product(body: Body, *names: str, factor: str, bias: str = "") -> str:
    """A B * factor + bias in float32; names are A, B and their zero points."""
    sums = body("MatMulInteger", *names)
    y = body("Mul", body.cast(sums, DType.FLOAT32), factor)
    return body("Add", y, bias) if bias else y


@expands(_DOMAIN, "DequantizeLinear")
def _dequantize(body: Body) -> None:
    axis = body.attrs.get("axis", 1)
    body.outputs = [body("DequantizeLinear", *filter(None, body.inputs), axis=axis)]


@expands(_DOMAIN, "QuantizeLinear")
def _quantize(body: Body) -> None:
    axis = body.attrs.get("axis", 1)
    x, scale = body.inputs[:2]
    body.outputs = [quantise(body, x, scale, optional(body, 2), DType.UINT8, axis)]


@expands(_DOMAIN, "MatMulIntegerToFloat")
def _matmul_integer_to_float(body: Body) -> None:
    a, b = body.inputs[:2]
    to = body.input_dtype(2)
    scales = body("Mul", column(body, 2), body.as_float32(3))
    bias = body.as_float32(6) if has(body, 6) else ""
    zeros = (optional(body, 4), optional(body, 5))
    y = integer_product(body, a, b, *zeros, factor=scales, bias=bias)
    body.outputs = [y if to is DType.FLOAT32 else body.cast(y, to)]


@expands(_DOMAIN, "DynamicQuantizeMatMul")
def _dynamic_quantize_matmul(body: Body) -> None:
    x, b, b_scale = body.inputs[:3]
    a, a_scale, a_zero = body.node("DynamicQuantizeLinear", [x], 3)
    factor = body("Mul", a_scale, b_scale)
    zeros = (a_zero, optional(body, 3))
    bias = optional(body, 4)
    body.outputs = [integer_product(body, a, b, *zeros, factor=factor, bias=bias)]


@expands(_DOMAIN, "QGemm")
def _qgemm(body: Body) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero = body.inputs[:6]
    if body.attrs.get("transA", 0):
        a = body("Transpose", a, perm=[1, 0])
    if body.attrs.get("transB", 0):
        b = body("Transpose", b, perm=[1, 0])
    sums = body("MatMulInteger", a, b, a_zero, b_zero)
    if has(body, 6):
        sums = body("Add", sums, body.inputs[6])
    factor = body("Mul", body("Mul", a_scale, b_scale), body.floats(body.attrs.get("alpha", 1.0)))
    if not has(body, 7):
        body.outputs = [body("Mul", body.cast(sums, DType.FLOAT32), factor)]
        return
    factor = body("Div", factor, body.inputs[7])
    zero = optional(body, 8)
    to = body.input_dtype(8) if zero else body.input_dtype(0)
    body.outputs = [requantise(body, sums, factor, zero, to)]


def _channels_first(body: Body, x: str, rank: int) -> str:
    return body("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def _channels_last(body: Body, y: str, rank: int) -> str:
    return body("Transpose", y, perm=[0, *range(2, rank), 1])


@expands(_DOMAIN, "QLinearConv")
def _qlinear_conv(body: Body) -> None:
    rank = rank_of(body, 3)
    last = bool(body.attrs.get("channels_last", 0))
    x = body.inputs[0]
    y = qlinear_conv(body, _channels_first(body, x, rank) if last else x, rank)
    body.outputs = [_channels_last(body, y, rank) if last else y]


@expands(_DOMAIN, "QLinearAdd")
def _qlinear_add(body: Body) -> None:
    _finish(body, body("Add", _dequantised(body, 0), _dequantised(body, 3)), 6)


@expands(_DOMAIN, "QLinearMul")
def _qlinear_mul(body: Body) -> None:
    _finish(body, body("Mul", _dequantised(body, 0), _dequantised(body, 3)), 6)


@expands(_DOMAIN, "QLinearWhere")
def _qlinear_where(body: Body) -> None:
    picked = body("Where", body.inputs[0], _dequantised(body, 1), _dequantised(body, 4))
    _finish(body, picked, 7, like=1)


@expands(_DOMAIN, "QLinearSigmoid")
def _qlinear_sigmoid(body: Body) -> None:
    _finish(body, body("Sigmoid", _dequantised(body, 0)), 3)


@expands(_DOMAIN, "QLinearLeakyRelu")
def _qlinear_leaky_relu(body: Body) -> None:
    alpha = float(body.attrs.get("alpha", 0.01))
    _finish(body, body("LeakyRelu", _dequantised(body, 0), alpha=alpha), 3)


@expands(_DOMAIN, "QLinearSoftmax")
def _qlinear_softmax(body: Body) -> None:
    axis, x = int(body.attrs.get("axis", -1)), _dequantised(body, 0)
    if body.attrs["opset"] >= 13:
        y = body("Softmax", x, axis=axis)
    else:
        rows = body("Softmax", body("Flatten", x, axis=axis), axis=1)
        y = body("Reshape", rows, body("Shape", x), allowzero=1)
    _finish(body, y, 3)


@expands(_DOMAIN, "QLinearConcat")
def _qlinear_concat(body: Body) -> None:
    count, rest = divmod(len(body.inputs) - 2, 3)
    if rest or count < 1:
        raise ModelError(f"it has {len(body.inputs)} inputs; expected 2 and a multiple of 3.")
    parts = [_dequantised(body, 2 + 3 * i) for i in range(count)]
    _finish(body, body("Concat", *parts, axis=int(body.attrs["axis"])), 0, like=1)


def _pool(body: Body, op: str) -> None:
    rank = rank_of(body, 0)
    last = bool(body.attrs.get("channels_last", 0))
    x = _dequantised(body, 0)
    attrs = {name: body.attrs[name] for name in _POOL_ATTRS if name in body.attrs}
    y = body(op, _channels_first(body, x, rank) if last else x, **attrs)
    _finish(body, _channels_last(body, y, rank) if last else y, 3)


@expands(_DOMAIN, "QLinearAveragePool")
def _qlinear_average_pool(body: Body) -> None:
    _pool(body, "AveragePool")


@expands(_DOMAIN, "QLinearGlobalAveragePool")
def _qlinear_global_average_pool(body: Body) -> None:
    _pool(body, "GlobalAveragePool")


def unpacked(body: Body, x: str, bits: int) -> str:
    """Bytes as elements of `bits` bits along the last axis, low-order bits first."""
    if bits == 8:
        return x
    mask = body.constant(np.array((1 << bits) - 1, np.uint8))
    last = _ints(body, -1)
    parts = []
    for shift in range(0, 8, bits):
        by = body.constant(np.array(shift, np.uint8))
        moved = body("BitShift", x, by, direction="RIGHT") if shift else x
        parts.append(body("Unsqueeze", body("BitwiseAnd", moved, mask), last))
    pairs = body("Concat", *parts, axis=-1)
    lead = body("Shape", x, end=-1)
    return body("Reshape", pairs, body("Concat", lead, last, axis=0))


@expands(_DOMAIN, "MatMulNBits")
def _matmul_nbits(body: Body) -> None:
    """With a block for each place of K: its weights in floats, and a product of those."""
    k, n, bits = (int(body.attrs[name]) for name in ("K", "N", "bits"))
    a, weights, scales, zero, groups = body.inputs[:5]
    dtype = body.input_dtype()

    def spread(packed: str, count: int) -> str:
        levels = unpacked(body, body("Reshape", packed, _ints(body, n, -1)), bits)
        cut = body("Slice", levels, _ints(body, 0), _ints(body, count), _ints(body, 1))
        return body.cast(cut, dtype)

    def by_place(blocks: str) -> str:
        return body("Gather", body("Reshape", blocks, _ints(body, n, -1)), groups, axis=1)

    blocks = -(-k // int(body.attrs["block_size"]))
    if not zero:
        zeros = body.cast(body.constant(np.array(1 << (bits - 1))), dtype)
    else:
        packed = body.input_dtype(3) is DType.UINT8
        zeros = by_place(spread(zero, blocks) if packed else zero)
    moved = body("Mul", body("Sub", spread(weights, k), zeros), by_place(scales))
    y = body("MatMul", a, body("Transpose", moved, perm=[1, 0]))
    body.outputs = [body("Add", y, body.inputs[5]) if has(body, 5) else y]


@expands(_DOMAIN, "GatherBlockQuantized")
def _gather_block_quantized(body: Body) -> None:
    data, indices, scales = body.inputs[:3]
    rank, dtype = rank_of(body, 0), body.input_dtype(0)
    gather = int(body.attrs.get("gather_axis", 0)) % rank
    along = int(body.attrs.get("quantize_axis", 1)) % rank
    bits, block = int(body.attrs.get("bits", 4)), int(body.attrs.get("block_size", 128))
    if gather == along:
        raise UnsupportedError(f"it gathers and quantises along axis {gather}")
    axis = along + (rank_of(body, 1) - 1 if along > gather else 0)
    found = body("Gather", data, indices, axis=gather)
    scale = body("Gather", scales, indices, axis=gather)
    if dtype.is_float and not block:
        wide = body("Cast", found, to=body.input_dtype(2).onnx)
        body.outputs = [body("Mul", wide, scale)]
        return
    zero = body("Gather", body.inputs[3], indices, axis=gather) if has(body, 3) else ""
    if dtype is DType.UINT8:
        found = unpacked(body, found, bits)
        shape = body("Shape", scale)
        if zero:
            # A last byte may hold fewer zero points than fit.
            size = body("Slice", shape, _ints(body, -1), _ints(body, 1 << 62))
            spread = unpacked(body, zero, bits)
            zero = body("Slice", spread, _ints(body, 0), size, _ints(body, -1))
        else:
            middle = body.constant(np.array(1 << (bits - 1), np.uint8))
            zero = body("Expand", middle, shape)
    inputs = [found, scale, *([zero] if zero else [])]
    body.outputs = [body("DequantizeLinear", *inputs, axis=axis, block_size=block)]


def _attention_mask(body: Body, scores: str) -> str:
    """What QAttention adds to the scores `[B, heads, S, T]`; "" for nothing."""
    large = body.floats(body.attrs.get("mask_filter_value", -10000.0))
    none = body.floats(0.0)
    shape = body("Shape", scores)
    rows, keys = (body("Gather", shape, body.constant(np.array(axis, np.int64))) for axis in (2, 3))
    kept = [kept_keys(body, 5, keys)] if has(body, 5) else []
    if body.attrs.get("unidirectional", 0):
        own = body("Unsqueeze", places_of(body, rows), _ints(body, 1))
        newest = body("Add", own, body("Sub", keys, rows))
        kept.append(body("LessOrEqual", places_of(body, keys), newest))
    if not kept:
        return ""
    whole = kept[0]
    for other in kept[1:]:
        whole = body("And", whole, other)
    return body("Where", whole, none, large)


@expands(_DOMAIN, "QAttention")
def _qattention(body: Body) -> None:
    if body.attrs.get("do_rotary", 0) or body.attrs.get("past_present_share_buffer", 0):
        raise UnsupportedError("do_rotary and past_present_share_buffer")
    x, weight, bias, x_scale, weight_scale = body.inputs[:5]
    heads = int(body.attrs["num_heads"])
    factor = body("Mul", x_scale, weight_scale)
    zeros = (optional(body, 6), optional(body, 7))
    qkv = integer_product(body, x, weight, *zeros, factor=factor, bias=bias)
    split = _ints(body, 0, 0, heads, -1)
    q, k, v = (
        body("Transpose", body("Reshape", part, split), perm=[0, 2, 1, 3])
        for part in body.node("Split", [qkv], 3, num_outputs=3, axis=2)
    )
    first = _ints(body, 0)
    if has(body, 8):
        past = body.node("Split", [body.inputs[8]], 2, num_outputs=2, axis=0)
        k, v = (
            body("Concat", body("Squeeze", old, first), new, axis=2)
            for old, new in zip(past, (k, v), strict=True)
        )
    present = body("Concat", body("Unsqueeze", k, first), body("Unsqueeze", v, first), axis=0)
    scores = body("MatMul", q, body("Transpose", k, perm=[0, 1, 3, 2]))
    scale = body.attrs.get("scale", 0.0)
    if scale:
        scores = body("Mul", scores, body.floats(scale))
    else:
        size = body("Slice", body("Shape", q), _ints(body, 3), _ints(body, 4))
        scores = body("Div", scores, body("Sqrt", body.cast(size, DType.FLOAT32)))
    mask = _attention_mask(body, scores)
    weights = body("Softmax", body("Add", scores, mask) if mask else scores, axis=-1)
    merged = body("Transpose", body("MatMul", weights, v), perm=[0, 2, 1, 3])
    body.outputs = [body("Reshape", merged, _ints(body, 0, 0, -1)), present]
