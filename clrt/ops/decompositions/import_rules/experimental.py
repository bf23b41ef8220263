"""Former experimental ops of ai.onnx, which some exporters wrote for opsets below 10."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError, counted
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.pointwise.cast import onnx_dtype


def _scaled(body: ImportBuilder, x: Value, factor: float) -> Value:
    """Returns x times `factor`; x itself if the factor is 1."""
    return x if factor == 1 else body("Mul", x, body.number(factor))


@register_import_decomposition("", "Affine")
def _affine(body: ImportBuilder) -> None:
    y = _scaled(body, body.inputs[0], body.attrs.get("alpha", 1.0))
    body.outputs = [body("Add", y, body.number(body.attrs.get("beta", 0.0)))]


@register_import_decomposition("", "Scale")
def _scale(body: ImportBuilder) -> None:
    factor = body.number(body.attrs.get("scale", 1.0))
    body.outputs = [body("Mul", body.inputs[0], factor)]


@register_import_decomposition("", "ImageScaler")
def _image_scaler(body: ImportBuilder) -> None:
    """Decomposes ImageScaler: image * `scale` + `bias`, with a bias per channel (axis 1)."""
    bias = body.number(body.attrs["bias"])
    y = _scaled(body, body.inputs[0], body.attrs.get("scale", 1.0))
    body.outputs = [body("Add", y, body("Unsqueeze", bias, body.ints(1, 2)))]


@register_import_decomposition("", "Crop")
def _crop(body: ImportBuilder) -> None:
    """Decomposes Crop, which removes a border of images `[batch, channels, height, width]`.

    `border` is the number of pixels to remove: (left, top, right, bottom). If `scale` is set, it is
    the output's (height, width), and right and bottom are ignored.
    """
    left, top, right, bottom = (int(v) for v in body.attrs["border"])
    x, axes, size = body.inputs[0], body.ints(2, 3), body.attrs.get("scale")
    if size:
        ends = body.ints(top + int(size[0]), left + int(size[1]))
        body.outputs = [body("Slice", x, body.ints(top, left), ends, axes)]
    else:
        body.outputs = [body("Pad", x, body.ints(-top, -left, -bottom, -right), None, axes)]


@register_import_decomposition("", "ParametricSoftplus")
def _parametric_softplus(body: ImportBuilder) -> None:
    y = body("Softplus", _scaled(body, body.inputs[0], body.attrs["beta"]))
    body.outputs = [body("Mul", y, body.number(body.attrs["alpha"]))]


@register_import_decomposition("", "ScaledTanh")
def _scaled_tanh(body: ImportBuilder) -> None:
    y = body("Tanh", _scaled(body, body.inputs[0], body.attrs["beta"]))
    body.outputs = [body("Mul", y, body.number(body.attrs["alpha"]))]


@register_import_decomposition("", "DynamicSlice")
def _dynamic_slice(body: ImportBuilder) -> None:
    if len(body.inputs) < 3:
        raise ModelError(f"it has {counted(len(body.inputs), 'input')}; expected 3 or 4.")
    body.outputs = [body("Slice", *body.inputs)]


@register_import_decomposition("", "ConstantFill")
def _constant_fill(body: ImportBuilder) -> None:
    """Decomposes ConstantFill: a tensor filled with the attribute `value`.

    The shape is the attribute `shape` if there is no input, the elements of the input if
    `input_as_shape` is set, else the shape of the input. `extra_shape` is appended to it. Source:
    ONNX, opset 1 to 8; PyTorch exported initial states of recurrent nets with it.
    """
    dtype = onnx_dtype(body.attrs.get("dtype", DType.FLOAT32.onnx), body.op_type)
    shape = body.ints(*body.attrs.get("shape", ()))
    if body.attrs.get("input_as_shape"):
        shape = body.cast(body.inputs[0], DType.INT64)
    elif body.inputs:
        shape = body("Shape", body.inputs[0])
    extra = body.attrs.get("extra_shape")
    if extra:
        shape = body("Concat", shape, body.ints(*extra), axis=0)
    value = np.array([body.attrs.get("value", 0.0)]).astype(dtype.numpy)
    body.outputs = [body("ConstantOfShape", shape, value=value)]
