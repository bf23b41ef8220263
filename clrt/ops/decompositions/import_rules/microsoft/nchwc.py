"""com.microsoft.nchwc: blocked layouts that ONNX Runtime writes when saving a model for one CPU.

A tensor declared `[batch, channels, height, width]` is stored as `[batch, channels / block, height,
width, block]`, with channels padded to whole blocks. Ops of other domains may read it in its
declared shape. So each decomposition here converts its inputs to the declared layout, and its
output back. Passes remove pairs of conversions between adjacent nodes.
"""

from __future__ import annotations

from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.fusions import conv_and_activation

NCHWC = "com.microsoft.nchwc"


def _plain(body: ImportBuilder, value: Value) -> Value:
    """Converts a tensor with blocked channels to the plain layout of the same shape.

    The shape is `[batch, channels, height, width]`; the memory of a tensor with blocked channels is
    `[batch, channels / block, height, width, block]`.
    """
    blocks = body("Reshape", value, body.ints(0, -1, 0, 0, body.attrs["block"]))
    moved = body("Transpose", blocks, perm=[0, 1, 4, 2, 3])
    return body("Reshape", moved, body("Shape", value))


def _blocked(body: ImportBuilder, value: Value) -> Value:
    """Converts a tensor from the plain layout to blocked channels; the shape stays the same.

    The shape is `[batch, channels, height, width]`; the memory of the result is `[batch, channels /
    block, height, width, block]`.
    """
    count, size = body("Shape", value, end=1), body("Shape", value, start=2)
    parts = body("Concat", count, body.ints(-1, body.attrs["block"]), size, axis=0)
    moved = body("Transpose", body("Reshape", value, parts), perm=[0, 1, 3, 4, 2])
    return body("Reshape", moved, body("Shape", value))


@register_import_decomposition(NCHWC, "ReorderInput")
def _reorder_input(body: ImportBuilder) -> None:
    x = body.inputs[0]
    last = bool(body.attrs.get("channels_last", 0))
    extra = -body.size_of(0, 3 if last else 1) % body.attrs["block"]
    x = body.channels_first(x, 4) if last else x
    body.outputs = [_blocked(body, body.padded(x, 1, after=body.ints(extra)))]


@register_import_decomposition(NCHWC, "ReorderOutput")
def _reorder_output(body: ImportBuilder) -> None:
    ends = (body.ints(0), body.ints(int(body.attrs["channels"])), body.ints(1))
    y = body("Slice", _plain(body, body.inputs[0]), *ends)
    body.outputs = [body.channels_last(y, 4) if body.attrs.get("channels_last", 0) else y]


@register_import_decomposition(NCHWC, "Conv")
def _conv(body: ImportBuilder) -> None:
    """Decomposes Conv on tensors with blocked channels, plus an activation.

    Inputs: x, weights, bias, and a tensor added before the activation.

    Weights with fewer input channels than a block have only their output channels blocked; x is
    then plain, except for depthwise convolutions.
    """
    block = body.attrs["block"]
    outputs, inputs, *window = (body.size_of(1, axis) for axis in range(4))
    deep, x, w = inputs >= block, body.inputs[0], body.inputs[1]
    if deep:
        shape = body.ints(outputs // block, inputs // block, *window, block, block)
        w = body("Transpose", body("Reshape", w, shape), perm=[0, 5, 1, 4, 2, 3])
    else:
        shape = body.ints(outputs // block, inputs, *window, block)
        w = body("Transpose", body("Reshape", w, shape), perm=[0, 4, 1, 2, 3])
    w = body("Reshape", w, body.ints(outputs, inputs, *window))
    depthwise = inputs == 1 and int(body.attrs.get("group", 1)) == outputs
    x = _plain(body, x) if deep or depthwise else x
    added = _plain(body, body.inputs[3]) if body.has(3) else None
    y = conv_and_activation(body, x, w, body.optional(2), added)
    body.outputs = [_blocked(body, y)]


@register_import_decomposition(
    NCHWC, "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"
)
def _pool(body: ImportBuilder) -> None:
    attrs = {name: value for name, value in body.attrs.items() if name != "block"}
    y = body(body.op_type, _plain(body, body.inputs[0]), **attrs)
    body.outputs = [_blocked(body, y)]


@register_import_decomposition(NCHWC, "Upsample")
def _upsample(body: ImportBuilder) -> None:
    """Decomposes Upsample of a tensor with blocked channels, by Resize with `scales`."""
    y = body(
        "Resize",
        _plain(body, body.inputs[0]),
        None,
        body.floats(body.attrs["scales"]),
        mode=body.attrs.get("mode", "nearest"),
        coordinate_transformation_mode=body.attrs.get(
            "coordinate_transformation_mode", "asymmetric"
        ),
        nearest_mode="floor",
    )
    body.outputs = [_blocked(body, y)]
