"""QLinearMatMul and QLinearConv: integer products whose sums are scaled and rounded."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.importer.expansions.body import Body, expands
from clrt.ir.dtypes import DType

CONV_ATTRS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def rank_of(body: Body, index: int) -> int:
    """The rank of an input.

    Raises:
        ModelError, UnsupportedError: It is left out, or its rank is not known.
    """
    found = body.types[index] if index < len(body.types) else None
    if found is None:
        raise ModelError(f"it lacks its input {index}; the model is not valid ONNX.")
    if found.shape is None:
        raise UnsupportedError(f"its input {index} has no known rank")
    return len(found.shape)


def has(body: Body, index: int) -> bool:
    """Whether an optional input is there."""
    return index < len(body.types) and body.types[index] is not None


def places_of(body: Body, keys: str) -> str:
    """0, 1, … up to a number of keys."""
    zero, one = (body.constant(np.array(v, np.int64)) for v in (0, 1))
    return body("Range", zero, keys, one)


def kept_keys(body: Body, index: int, keys: str) -> str:
    """Which of the scores `[B, H, S, T]` a mask keeps: an end for each row of the batch of input 0,
    or ends and starts, one after the other; or a mask `[B, T]` or `[B, S, T]`.

    Args:
        keys: T.

    Raises:
        UnsupportedError: The mask has another rank.
    """
    x, mask, rank = body.types[0], body.types[index], rank_of(body, index)
    if rank == 1:
        every = body.constant(np.array([1, 2, 3], np.int64))
        limits, places = body.cast(body.inputs[index], DType.INT64), places_of(body, keys)
        sizes = [str(t.shape[0]) for t in (x, mask) if t is not None and t.shape]
        pair = len(sizes) == 2 and sizes[0] != sizes[1]
        parts = body.node("Split", [limits], 2, num_outputs=2, axis=0) if pair else [limits]
        ends, *starts = (body("Unsqueeze", p, every) for p in parts)
        kept = body("Less", places, ends)
        for start in starts:
            kept = body("And", kept, body("GreaterOrEqual", places, start))
        return kept
    if rank not in (2, 3):
        raise UnsupportedError(f"a mask {mask}")
    axes = body.constant(np.array((1, 2) if rank == 2 else (1,), np.int64))
    return body.cast(body("Unsqueeze", body.inputs[index], axes), DType.BOOL)


def optional(body: Body, index: int) -> str:
    """The name of an optional input, "" where it is left out."""
    return body.inputs[index] if has(body, index) else ""


def is_list(body: Body, index: int) -> bool:
    """Whether a parameter has an element per place of an axis, rather than one element."""
    found = body.types[index] if index < len(body.types) else None
    return found is not None and found.shape is not None and found.shape not in ((), (1,))


def column(body: Body, index: int) -> str:
    """A parameter of the rows as float32: `[M]` becomes `[M, 1]`."""
    value = body.as_float32(index)
    if not is_list(body, index) or rank_of(body, index) > 1:
        return value
    return body("Unsqueeze", value, body.constant(np.array([-1])))


def per_channel(body: Body, value: str, rank: int) -> str:
    """`[C]` in a shape that broadcasts along axis 1 of `[N, C, …]`."""
    return body("Reshape", value, body.constant(np.array([1, -1] + [1] * (rank - 2))))


def requantise(body: Body, sums: str, factor: str, zero: str, to: DType) -> str:
    """sums * factor, rounded, plus the zero point, as `to`."""
    scaled = body("Mul", body.cast(sums, DType.FLOAT32), factor)
    return quantise(body, scaled, body.floats(1.0), zero, to)


def quantise(body: Body, x: str, scale: str, zero: str, to: DType, axis: int = 1) -> str:
    """QuantizeLinear; the zero point may be ""."""
    if zero:
        return body("QuantizeLinear", x, scale, zero, axis=axis)
    return body("QuantizeLinear", x, scale, axis=axis, output_dtype=to.onnx)


@expands("", "QLinearMatMul")
def _qlinear_matmul(body: Body) -> None:
    a, _, a_zero, b, _, b_zero, _, y_zero = body.inputs
    to = body.input_dtype(7)
    if to.is_float or body.input_dtype(0).is_float:
        left = body("DequantizeLinear", a, body.as_float32(1), a_zero)
        right = body("DequantizeLinear", b, body.as_float32(4), b_zero)
        product = body("MatMul", left, right)
        body.outputs = [quantise(body, product, body.as_float32(6), y_zero, to)]
        return
    sums = body("MatMulInteger", a, b, a_zero, b_zero)
    factor = body("Mul", column(body, 1), body.as_float32(4))
    if not is_list(body, 7):
        factor = body("Div", factor, column(body, 6))
        body.outputs = [requantise(body, sums, factor, y_zero, to)]
        return
    if rank_of(body, 7) > 1:
        raise UnsupportedError(f"zero points {body.types[7]} of the result")
    scaled = body("Mul", body.cast(sums, DType.FLOAT32), factor)
    body.outputs = [quantise(body, scaled, body.as_float32(6), y_zero, to, axis=-2)]


def qlinear_conv(body: Body, x: str, rank: int) -> str:
    """QLinearConv of x `[N, C, …]`, of which the body's input 0 is a view."""
    _, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = body.inputs[:8]
    attrs = {name: body.attrs[name] for name in CONV_ATTRS if name in body.attrs}
    sums = body("ConvInteger", x, w, x_zero, w_zero, **attrs)
    if has(body, 8):
        sums = body("Add", sums, per_channel(body, body.inputs[8], rank))
    scales = per_channel(body, w_scale, rank) if is_list(body, 4) else w_scale
    factor = body("Div", body("Mul", x_scale, scales), y_scale)
    return requantise(body, sums, factor, y_zero, body.input_dtype(7))


@expands("", "QLinearConv")
def _qlinear_conv(body: Body) -> None:
    body.outputs = [qlinear_conv(body, body.inputs[0], rank_of(body, 3))]
