"""QLinearMatMul and QLinearConv: integer products, rescaled and rounded."""

from __future__ import annotations

from clrt.errors import UnsupportedError
from clrt.ir.dims import same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

CONV_ATTRS = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def is_list(body: ImportBuilder, index: int) -> bool:
    """Returns whether a scale or zero point has several elements; False if its shape is unknown.

    Args:
        body: Builder.
        index: Input index of the scale or zero point.
    """
    type_ = body.types[index] if index < len(body.types) else None
    if type_ is None or type_.shape is None:
        return False
    return not (same_shape(type_.shape, ()) or same_shape(type_.shape, (1,)))


def column(body: ImportBuilder, index: int) -> Value:
    """Returns a scale as float32; a scale per row, `[rows]`, becomes `[rows, 1]`.

    Args:
        body: Builder.
        index: Input index of the scale, of a whole tensor or of each row.
    """
    value = body.as_float32(index)
    if not is_list(body, index) or body.rank_of(index) > 1:
        return value
    return body("Unsqueeze", value, body.ints(-1))


def as_product(body: ImportBuilder, y: Value, sums: Value, a: int, b: int) -> Value:
    """Returns a rescaled matrix product in the shape of the product.

    If a factor of the product is a vector, scales of shape `[1]` have added an axis, so `y` is
    reshaped; else it is returned unchanged.

    Args:
        body: Builder.
        y: The rescaled product.
        sums: The product before it was rescaled.
        a: Input index of the first factor.
        b: Input index of the second factor.
    """
    if all((body.input_type(index).rank or 0) > 1 for index in (a, b)):
        return y
    return body("Reshape", y, body("Shape", sums), allowzero=1)


def per_channel(body: ImportBuilder, value: Value, rank: int) -> Value:
    """Reshapes `[channels]` to `[1, channels, 1, …]` with `rank` axes, to broadcast along axis 1.

    Args:
        body: Builder.
        value: `[channels]`.
        rank: Rank of the result.
    """
    return body("Reshape", value, body.ints(1, -1, *[1] * (rank - 2)))


def requantise(
    body: ImportBuilder, sums: Value, factor: Value, zero: Value | None, to: DType
) -> Value:
    """Returns sums * factor, rounded, plus the zero point, saturated to dtype `to`.

    Args:
        body: Builder.
        sums: Integer sums of products.
        factor: Scale of the sums / scale of the result.
        zero: Zero point of the result, of dtype `to`; None for 0.
        to: Output dtype.
    """
    scaled = body("Mul", body.cast(sums, DType.FLOAT32), factor)
    return quantise(body, scaled, body.floats(1.0), zero, to)


def quantise(
    body: ImportBuilder, x: Value, scale: Value, zero: Value | None, to: DType, axis: int = 1
) -> Value:
    """Adds QuantizeLinear and returns its output.

    Args:
        body: Builder.
        x: Floats.
        scale: One scale, or a scale for each index of an axis.
        zero: Zero point; None for 0.
        to: Output dtype if `zero` is None; else the output has the dtype of `zero`.
        axis: Axis of x that several scales belong to.
    """
    if zero:
        return body("QuantizeLinear", x, scale, zero, axis=axis)
    return body("QuantizeLinear", x, scale, axis=axis, output_dtype=to.onnx)


@register_import_decomposition("", "QLinearMatMul")
def _qlinear_matmul(body: ImportBuilder) -> None:
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
        y = requantise(body, sums, factor, y_zero, to)
    elif body.rank_of(7) > 1:
        raise UnsupportedError(f"zero points {body.types[7]} of the result")
    else:
        scaled = body("Mul", body.cast(sums, DType.FLOAT32), factor)
        y = quantise(body, scaled, body.as_float32(6), y_zero, to, axis=-2)
    body.outputs = [as_product(body, y, sums, 0, 3)]


def qlinear_conv(body: ImportBuilder, x: Value, rank: int) -> Value:
    """Returns the quantized convolution of x, by the inputs and attributes of a QLinearConv node.

    Args:
        body: Builder of the replaced QLinearConv node.
        x: Input 0, with channels moved to axis 1 if needed.
        rank: Rank of x.
    """
    _, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = body.inputs[:8]
    attrs = {name: body.attrs[name] for name in CONV_ATTRS if name in body.attrs}
    sums = body("ConvInteger", x, w, x_zero, w_zero, **attrs)
    if body.has(8):
        sums = body("Add", sums, per_channel(body, body.inputs[8], rank))
    scales = per_channel(body, w_scale, rank) if is_list(body, 4) else w_scale
    factor = body("Div", body("Mul", x_scale, scales), y_scale)
    return requantise(body, sums, factor, y_zero, body.input_dtype(7))


@register_import_decomposition("", "QLinearConv")
def _qlinear_conv(body: ImportBuilder) -> None:
    body.outputs = [qlinear_conv(body, body.inputs[0], body.rank_of(3))]
