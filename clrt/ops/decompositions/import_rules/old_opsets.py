"""Ops of ai.onnx that are gone, and forms that opsets before 7 had, as what they are today."""

from __future__ import annotations

from typing import Any

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import Body, expands


@expands(
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
def _broadcasting(body: Body) -> None:
    """`axis` is the one of a that the first one of b lies along, else the last ones agree."""
    a, b = body.inputs
    if body.attrs.get("broadcast") and "axis" in body.attrs:
        axis, rank = int(body.attrs["axis"]), body.rank_of(0)
        b = _followed(body, b, rank - (axis % rank) - body.rank_of(1))
    body.outputs = [body(body.op_type, a, b)]


@expands("", "PRelu", before=7)
def _prelu(body: Body) -> None:
    """Slopes are one for all, or one for each channel."""
    x, slope = body.inputs
    if not _has_one_element(body, 1):
        slope = _followed(body, slope, body.rank_of(0) - 1 - body.rank_of(1))
    body.outputs = [body("PRelu", x, slope)]


@expands("", "Selu", before=6)
def _selu(body: Body) -> None:
    """The defaults have fewer digits."""
    alpha, gamma = (
        float(body.attrs.get(name, default))
        for name, default in (("alpha", 1.6732), ("gamma", 1.0507))
    )
    body.outputs = [body("Selu", body.inputs[0], alpha=alpha, gamma=gamma)]


@expands("", "Cast", before=6)
def _cast(body: Body) -> None:
    """The dtype is a name."""
    name = str(body.attrs["to"]).lower()
    dtype = DType({"float": "float32", "double": "float64"}.get(name, name))
    body.outputs = [body.cast(body.inputs[0], dtype)]


@expands("", "Concat", before=4)
def _concat(body: Body) -> None:
    """The axis has a default."""
    body.outputs = [body("Concat", *body.inputs, axis=int(body.attrs.get("axis", 1)))]


@expands("", "Reshape", before=5)
def _reshape(body: Body) -> None:
    """The shape is an attribute."""
    shape = body.ints(*body.attrs["shape"])
    body.outputs = [body("Reshape", body.inputs[0], shape)]


@expands("", "Pad", before=2)
def _pad(body: Body) -> None:
    """The amounts are an attribute of another name."""
    pads = body.ints(*body.attrs["paddings"])
    number = body.number(body.attrs.get("value", 0.0))
    mode = body.attrs.get("mode", "constant")
    body.outputs = [body("Pad", body.inputs[0], pads, number, mode=mode)]


@expands("", "Tile", before=6)
def _tile(body: Body) -> None:
    """x is repeated along one axis."""
    x, tiles, axis = body.inputs
    tiles, axis = (
        body("Reshape", body.cast(value, DType.INT64), body.ints(1)) for value in (tiles, axis)
    )
    rank = body.ints(body.rank_of(0))
    counts = body("Concat", body.ints(1), tiles, axis=0)
    repeats = body("Reshape", body("OneHot", axis, rank, counts), body.ints(-1))
    body.outputs = [body("Tile", x, repeats)]


@expands("", "Split", before=2)
def _split(body: Body) -> None:
    """The lengths are an input of x's dtype, an attribute, or all the same."""
    inputs = body.inputs[:1]
    attrs: dict[str, Any] = {"axis": int(body.attrs.get("axis", 0))}
    if len(body.inputs) > 1:
        inputs.append(body.cast(body.inputs[1], DType.INT64))
    elif body.attrs.get("split"):
        inputs.append(body.ints(*body.attrs["split"]))
    else:
        attrs["num_outputs"] = body.output_count
    body.outputs = body.node("Split", inputs, body.output_count, **attrs)


@expands("", "Upsample")
def _upsample(body: Body) -> None:
    """Scales are an input, an attribute, or two for planes."""
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


@expands("", "Scatter")
def _scatter(body: Body) -> None:
    """The old name of ScatterElements."""
    body.outputs = [body("ScatterElements", *body.inputs, **body.attrs)]


@expands("", "LpPool", before=2)
def _lp_pool(body: Body) -> None:
    """The power is a float."""
    p = float(body.attrs.get("p", 2))
    if not p.is_integer():
        raise UnsupportedError(f"p={p:g} is no integer")
    body.outputs = [body("LpPool", body.inputs[0], **{**body.attrs, "p": int(p)})]


def _has_one_element(body: Body, index: int) -> bool:
    found = body.types[index]
    dims = None if found is None else found.shape
    return dims is not None and all(isinstance(d, int) and d == 1 for d in dims)


def _followed(body: Body, value: Value, count: int) -> Value:
    """A value with axes of one element behind its own."""
    if count <= 0:
        return value
    return body("Unsqueeze", value, body.ints(*range(-count, 0)))
