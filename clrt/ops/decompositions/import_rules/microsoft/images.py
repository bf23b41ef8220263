"""Image ops of com.microsoft, composed of ONNX ops."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_DOMAIN = "com.microsoft"


@register_import_decomposition(_DOMAIN, "ConvTransposeWithDynamicPads")
def _conv_transpose_with_dynamic_pads(body: ImportBuilder) -> None:
    """Decomposes ConvTransposeWithDynamicPads: ConvTranspose without pads, cropped by the pads.

    Inputs: x, weights, pads, bias.
    """
    y = body("ConvTranspose", *body.inputs[:2], body.optional(3), **body.attrs)
    if body.has(2) and body.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        axes = body.ints(*range(2, body.rank_of()))
        y = body("Pad", y, body("Neg", body.inputs[2]), None, axes)
    body.outputs = [y]


@register_import_decomposition(_DOMAIN, "MaxpoolWithMask")
def _maxpool_with_mask(body: ImportBuilder) -> None:
    """Decomposes MaxpoolWithMask: MaxPool that ignores elements where the mask is 0.

    ONNX Runtime differs: it also ignores all elements after a masked one in a row of the window.
    """
    x, mask = body.inputs
    lowest = body.floats(np.finfo(np.float32).min)
    counted = body("Where", body.cast(mask, DType.BOOL), x, lowest)
    body.outputs = [body("MaxPool", counted, **body.attrs)]


@register_import_decomposition(_DOMAIN, "CropAndResize")
def _crop_and_resize(body: ImportBuilder) -> None:
    """Decomposes CropAndResize: resizes regions of images to one output size.

    Inputs: images `[batch, channels, height, width]`; regions `[regions, 4]`; index of the image
    that each region is in, `[regions]`; output size (height, width).

    A region is (top, left, bottom, right), with 0 at the first and 1 at the last pixel of an axis.
    """
    x, _, images, size = body.inputs
    mode = body.attrs.get("mode", "bilinear")
    if mode not in ("bilinear", "nearest"):
        raise ModelError(f"its mode is '{mode}'; expected bilinear or nearest.")
    images = body("Cast", images, to=7)
    shape = body("Concat", body("Shape", images), body("Cast", size, to=7), axis=0)
    image = body("Expand", body("Unsqueeze", images, body.ints(1, 2)), shape)
    (row, on_rows), (column, on_columns) = (_coordinates(body, axis, shape) for axis in (0, 1))
    pixels = body.channels_last(x, 4)

    def look_up(row: Value, column: Value) -> Value:
        places = [body("Expand", body("Cast", v, to=7), shape) for v in (row, column)]
        indices = [body("Unsqueeze", v, body.ints(3)) for v in (image, *places)]
        return body("GatherND", pixels, body("Concat", *indices, axis=3))

    def between(first: Value, second: Value, rate: Value) -> Value:
        step = body("Mul", body("Sub", second, first), body("Unsqueeze", rate, body.ints(3)))
        return body("Add", first, step)

    if mode == "nearest":
        y = look_up(*(body("Floor", body("Add", v, body.number(0.5))) for v in (row, column)))
    else:
        (top, bottom), (left, right) = ([body(op, v) for op in ("Floor", "Ceil")]
                                        for v in (row, column))  # fmt: skip
        across, down = body("Sub", column, left), body("Sub", row, top)
        upper = between(look_up(top, left), look_up(top, right), across)
        lower = between(look_up(bottom, left), look_up(bottom, right), across)
        y = between(upper, lower, down)
    inside = body("Unsqueeze", body("And", on_rows, on_columns), body.ints(3))
    outside = body.number(body.attrs.get("extrapolation_value", 0.0))
    body.outputs = [body.channels_first(body("Where", inside, y, outside), 4)]


def _coordinates(body: ImportBuilder, axis: int, shape: Value) -> tuple[Value, Value]:
    """Returns the rows or columns at which CropAndResize samples the images, as fractions.

    Args:
        body: Builder.
        axis: 0 for rows, 1 for columns.
        shape: (number of regions, rows, columns of the output).

    Returns:
        Coordinates in pixels, 0 if outside of the image; and a bool, true if inside. Both broadcast
        to `shape`.
    """
    start, end = (
        body("Gather", body.inputs[1], body.ints(column), axis=1) for column in (axis, axis + 2)
    )
    extent = body("Sub", body.dim_of(body.inputs[0], 2 + axis), body.ints(1))
    extent = body.cast(extent, body.input_dtype())
    count = body("Gather", shape, body.ints(1 + axis))
    last = body("Sub", count, body.ints(1))
    steps = body.cast(body("Max", last, body.ints(1)), body.input_dtype())
    step = body("Div", body("Mul", body("Sub", end, start), extent), steps)
    number = body.count_up(count)
    at = body(
        "Add", body("Mul", start, extent), body("Mul", body.cast(number, body.input_dtype()), step)
    )
    # The last coordinate is exact, so that the image's edge counts as inside.
    at = body("Where", body("Equal", number, last), body("Mul", end, extent), at)
    middle = body("Mul", body("Mul", body.number(0.5), body("Add", start, end)), extent)
    at = body("Where", body("Equal", count, body.ints(1)), middle, at)
    zero = body.number(0)
    inside = body("And", body("GreaterOrEqual", at, zero), body("LessOrEqual", at, extent))
    new = body.ints(2 - axis)
    at = body("Where", inside, at, zero)
    return body("Unsqueeze", at, new), body("Unsqueeze", inside, new)
