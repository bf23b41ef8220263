"""Removed ops of ai.onnx, and forms of ops in opsets before 7, expressed in today's opset."""

from __future__ import annotations

from typing import Any

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition(
    "",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "And",
    "Or",
    "Xor",
    "Equal",
    "Less",
    "Greater",
    before=7,
)
def _broadcasting(body: ImportBuilder) -> None:
    """Decomposes binary ops before opset 7, which broadcast by attributes.

    Attribute `axis` is the axis of input 0 that the first axis of input 1 aligns with; by default
    the last axes align.
    """
    a, b = body.inputs
    if body.attrs.get("broadcast") and "axis" in body.attrs:
        axis, rank = int(body.attrs["axis"]), body.rank_of(0)
        b = _append_axes(body, b, rank - (axis % rank) - body.rank_of(1))
    body.outputs = [body(body.op_type, a, b)]


@register_import_decomposition("", "PRelu", before=7)
def _prelu(body: ImportBuilder) -> None:
    """Decomposes PRelu before opset 7, whose slope has one element, or one per channel."""
    x, slope = body.inputs
    if not _has_one_element(body, 1):
        slope = _append_axes(body, slope, body.rank_of(0) - 1 - body.rank_of(1))
    body.outputs = [body("PRelu", x, slope)]


@register_import_decomposition("", "Selu", before=6)
def _selu(body: ImportBuilder) -> None:
    """Decomposes Selu before opset 6, whose default attributes have fewer digits."""
    alpha, gamma = (
        float(body.attrs.get(name, default))
        for name, default in (("alpha", 1.6732), ("gamma", 1.0507))
    )
    body.outputs = [body("Selu", body.inputs[0], alpha=alpha, gamma=gamma)]


@register_import_decomposition("", "Cast", before=6)
def _cast(body: ImportBuilder) -> None:
    """Decomposes Cast before opset 6, whose attribute `to` is the name of a dtype."""
    name = str(body.attrs["to"]).lower()
    dtype = DType({"float": "float32", "double": "float64"}.get(name, name))
    body.outputs = [body.cast(body.inputs[0], dtype)]


@register_import_decomposition("", "Concat", before=4)
def _concat(body: ImportBuilder) -> None:
    """Decomposes Concat before opset 4, whose attribute `axis` has a default."""
    body.outputs = [body("Concat", *body.inputs, axis=int(body.attrs.get("axis", 1)))]


@register_import_decomposition("", "Reshape", before=5)
def _reshape(body: ImportBuilder) -> None:
    """Decomposes Reshape before opset 5, whose shape is an attribute."""
    shape = body.ints(*body.attrs["shape"])
    body.outputs = [body("Reshape", body.inputs[0], shape)]


@register_import_decomposition("", "Pad", before=2)
def _pad(body: ImportBuilder) -> None:
    """Decomposes Pad before opset 2, whose pads are the attribute `paddings`."""
    pads = body.ints(*body.attrs["paddings"])
    number = body.number(body.attrs.get("value", 0.0))
    mode = body.attrs.get("mode", "constant")
    body.outputs = [body("Pad", body.inputs[0], pads, number, mode=mode)]


@register_import_decomposition("", "Tile", before=6)
def _tile(body: ImportBuilder) -> None:
    """Decomposes Tile before opset 6, which repeats x along one axis.

    Inputs: x, number of repetitions, axis.
    """
    x, tiles, axis = body.inputs
    tiles, axis = (
        body("Reshape", body.cast(value, DType.INT64), body.ints(1)) for value in (tiles, axis)
    )
    rank = body.ints(body.rank_of(0))
    counts = body("Concat", body.ints(1), tiles, axis=0)
    repeats = body("Reshape", body("OneHot", axis, rank, counts), body.ints(-1))
    body.outputs = [body("Tile", x, repeats)]


@register_import_decomposition("", "Split", before=2)
def _split(body: ImportBuilder) -> None:
    """Decomposes Split before opset 2, whose sizes are an attribute, or an input of x's dtype.

    Without sizes, the outputs have equal sizes.
    """
    inputs = body.inputs[:1]
    attrs: dict[str, Any] = {"axis": int(body.attrs.get("axis", 0))}
    if len(body.inputs) > 1:
        inputs.append(body.cast(body.inputs[1], DType.INT64))
    elif body.attrs.get("split"):
        inputs.append(body.ints(*body.attrs["split"]))
    else:
        attrs["num_outputs"] = body.output_count
    body.outputs = body.node("Split", inputs, body.output_count, **attrs)


@register_import_decomposition("", "Upsample")
def _upsample(body: ImportBuilder) -> None:
    """Decomposes Upsample into Resize.

    Depending on the opset, its scales are an input, an attribute, or two attributes for height and
    width.
    """
    attrs = body.attrs
    if "height_scale" in attrs:
        scales = body.floats([1, 1, attrs["height_scale"], attrs["width_scale"]])
    else:
        scales = body.floats(attrs["scales"]) if "scales" in attrs else body.inputs[1]
    mode = attrs.get("mode", "nearest")
    body.outputs = [
        body(
            "Resize",
            body.inputs[0],
            None,
            scales,
            mode="linear" if mode == "bilinear" else mode,
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
    ]


@register_import_decomposition("", "Scatter")
def _scatter(body: ImportBuilder) -> None:
    """Decomposes Scatter into ScatterElements, its new name."""
    body.outputs = [body("ScatterElements", *body.inputs, **body.attrs)]


@register_import_decomposition("", "LpPool", before=2)
def _lp_pool(body: ImportBuilder) -> None:
    """Decomposes LpPool before opset 2, whose attribute `p` is a float.

    Raises:
        UnsupportedError: p is not an integer.
    """
    p = float(body.attrs.get("p", 2))
    if not p.is_integer():
        raise UnsupportedError(f"p={p:g} is not an integer")
    body.outputs = [body("LpPool", body.inputs[0], **{**body.attrs, "p": int(p)})]


def _has_one_element(body: ImportBuilder, index: int) -> bool:
    """Returns whether input `index` is known to have exactly one element."""
    type_ = body.types[index]
    dims = None if type_ is None else type_.shape
    return dims is not None and all(isinstance(d, int) and d == 1 for d in dims)


def _append_axes(body: ImportBuilder, value: Value, count: int) -> Value:
    """Appends `count` axes of size 1 to a value; returns the value itself if `count` <= 0."""
    if count <= 0:
        return value
    return body("Unsqueeze", value, body.ints(*range(-count, 0)))
