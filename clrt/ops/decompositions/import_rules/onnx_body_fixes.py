"""Replaces function bodies of ONNX that are wrong or incomplete for some inputs."""

from __future__ import annotations

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.base import Decompose
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("", "Shrink")
def _shrink(body: ImportBuilder) -> None:
    """Decomposes Shrink: x + bias below -lambd, x - bias above lambd, else 0.

    ONNX's function body negates lambd in the dtype of x, which is wrong for unsigned integers.
    """
    x, dtype = body.inputs[0], body.input_dtype()
    lambd, bias = (float(body.attrs.get(*pair)) for pair in (("lambd", 0.5), ("bias", 0.0)))
    low, high, step, zero = (
        body.constant(np.array(v).astype(dtype.numpy)) for v in (-lambd, lambd, bias, 0)
    )
    y = body("Where", body("Greater", x, high), body("Sub", x, step), zero)
    if np.dtype(dtype.numpy).kind != "u" or lambd < 0:
        y = body("Where", body("Less", x, low), body("Add", x, step), y)
    body.outputs = [y]


@register_import_decomposition("", "MeanVarianceNormalization")
def _mean_variance_normalization(body: ImportBuilder) -> None:
    """Decomposes MeanVarianceNormalization: (x - mean) / standard deviation along `axes`.

    ONNX's function body has float32 constants, whatever the dtype of x, and computes the variance
    as a difference of squares, which cancels.
    """
    x = body.inputs[0]
    axes = body.ints(*body.attrs.get("axes", (0, 2, 3)))
    centred = body("Sub", x, body("ReduceMean", x, axes))
    body.outputs = [_of_unit_variance(body, centred, axes)]


@register_import_decomposition("", "MeanVarianceNormalization", before=9)
def _experimental_mean_variance_normalization(body: ImportBuilder) -> None:
    """Decomposes MeanVarianceNormalization before opset 9, which has other attributes.

    Mean and variance are those of a channel, or of the whole tensor with `across_channels`; with
    `normalize_variance` 0, x is only centred.
    """
    x = body.inputs[0]
    axes = None if body.attrs.get("across_channels") else body.ints(0, 2, 3)
    centred = body("Sub", x, body("ReduceMean", x, axes))
    if body.attrs.get("normalize_variance", 1):
        centred = _of_unit_variance(body, centred, axes)
    body.outputs = [centred]


def _of_unit_variance(body: ImportBuilder, centred: Value, axes: Value | None) -> Value:
    """Returns values divided by their standard deviation.

    Args:
        body: Builder.
        centred: Values with mean 0 along `axes`.
        axes: Axes over which the variance is computed; None for all.
    """
    variance = body("ReduceMean", body("Mul", centred, centred), axes)
    return body("Div", centred, body("Add", body("Sqrt", variance), body.number(1e-9)))


@register_import_decomposition("", "CenterCropPad")
def _center_crop_pad(body: ImportBuilder) -> None:
    """Decomposes CenterCropPad with an int32 shape, by a cast to int64.

    ONNX's function body rejects int32; nodes with an int64 shape use the function body.
    """
    if body.input_dtype(1) is DType.INT64:
        raise Decompose
    x, shape = body.inputs
    body.outputs = [body("CenterCropPad", x, body.cast(shape, DType.INT64), **body.attrs)]


@register_import_decomposition("", "AffineGrid")
def _affine_grid(body: ImportBuilder) -> None:
    """Decomposes AffineGrid: sampling coordinates of an affine transform of images.

    ONNX's function body wrongly drops a batch axis of size 1, and divides by 0 for spatial dims
    of 1. The function body is used only if the number of spatial axes is unknown.
    """
    theta, size = body.inputs
    matrices, counts = (body.input_type(i).shape for i in (0, 1))
    ranks = [*(matrices or ())[1:2], *(d - 2 for d in counts or ())]
    rank = next((d for d in ranks if isinstance(d, int)), None)
    if rank is None:
        raise Decompose
    ints, scalar, real, dtype = body.ints, body.numbers, body.number, body.input_dtype()

    spatial = body("Slice", size, ints(2), ints(rank + 2))
    shape = body("Concat", spatial, ints(1), axis=0)
    parts = [body("Expand", real(1), shape)]
    for axis in range(rank):  # x is the last axis
        count, zero, one = body("Gather", spatial, scalar(axis)), scalar(0), scalar(1)
        places = body.cast(body("Range", zero, count, one), dtype)
        if body.attrs.get("align_corners", 0):
            gaps = body.cast(body("Max", body("Sub", count, one), one), dtype)
            along = body("Sub", body("Mul", places, body("Div", real(2), gaps)), real(1))
        else:
            centres = body("Add", body("Mul", places, real(2)), real(1))
            along = body("Sub", body("Div", centres, body.cast(count, dtype)), real(1))
        view = [1] * (rank + 1)
        view[axis] = -1
        parts.insert(0, body("Expand", body("Reshape", along, ints(*view)), shape))
    grid = body("Reshape", body("Concat", *parts, axis=-1), ints(-1, rank + 1))
    grid = body("MatMul", grid, body("Transpose", theta, perm=[0, 2, 1]))
    whole = body("Concat", body("Slice", size, ints(0), ints(1)), spatial, ints(rank), axis=0)
    body.outputs = [body("Reshape", grid, whole)]


@register_import_decomposition("", "CastLike")
def _cast_like(body: ImportBuilder) -> None:
    """Decomposes CastLike into Cast; ONNX's function body drops the rounding mode."""
    body.outputs = [body("Cast", body.inputs[0], to=body.input_dtype(1).onnx, **body.attrs)]
