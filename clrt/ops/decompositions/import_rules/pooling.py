"""LRN, GlobalLpPool and MaxUnpool, composed of other ops."""

from __future__ import annotations

import numpy as np

from clrt.errors import ModelError
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("", "LRN")
def _lrn(body: ImportBuilder) -> None:
    """Decomposes LRN: x / (bias + alpha * mean) ** beta.

    The mean is over the squares of `size` neighbouring channels; channels out of range are 0.
    """
    x, size = body.input_type(), int(body.attrs["size"])
    alpha, beta, bias = (
        body.number(body.attrs.get(name, default))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    data, planes = body.inputs[0], body.ints(1)
    if x.rank is not None and x.rank <= 4:
        flat, rest = data, [1] * (x.rank - 2)
    else:  # AveragePool does not support this rank
        flat, rest = body("Reshape", data, body.ints(0, 0, -1)), [1]
    squares = body("Unsqueeze", body("Mul", flat, flat), planes)
    before, after = (size - 1) // 2, size // 2
    # Mean over `size` channels; channels out of range count as 0.
    mean = body(
        "AveragePool",
        squares,
        kernel_shape=[size, *rest],
        pads=[before, *([0] * len(rest)), after, *([0] * len(rest))],
        count_include_pad=1,
    )
    scale = body("Add", body("Mul", body("Squeeze", mean, planes), alpha), bias)
    if flat != data:
        scale = body("Reshape", scale, body("Shape", data))
    body.outputs = [body("Div", data, body("Pow", scale, beta))]


@register_import_decomposition("", "GlobalLpPool")
def _global_lp_pool(body: ImportBuilder) -> None:
    """Decomposes GlobalLpPool: the p-norm over the spatial axes, which stay as axes of size 1."""
    p = float(body.attrs.get("p", 2))
    rank = body("Size", body("Shape", body.inputs[0]))
    axes = body("Range", body.numbers(2), rank, body.numbers(1))
    if p in (1, 2):
        body.outputs = [body(f"ReduceL{int(p)}", body.inputs[0], axes)]
        return
    power, root = (body.number(v) for v in (p, 1 / p))
    total = body("ReduceSum", body("Pow", body("Abs", body.inputs[0]), power), axes)
    body.outputs = [body("Pow", total, root)]


@register_import_decomposition("", "MaxUnpool")
def _max_unpool(body: ImportBuilder) -> None:
    """Decomposes MaxUnpool: writes elements of x to the positions that MaxPool read them from.

    Other elements of the result are 0.
    """
    kernel = [int(k) for k in body.attrs.get("kernel_shape", ())]
    if body.input_type().rank not in (None, len(kernel) + 2):
        raise ModelError("the rank of kernel_shape does not match the input.")
    strides = body.attrs.get("strides") or [1] * len(kernel)
    pads = body.attrs.get("pads") or [0] * (2 * len(kernel))
    data, indices = body.inputs[:2]
    sizes = body.slice(body("Shape", data), 2, 99, 0)
    steps, extents = body.ints(*strides), body.ints(*kernel)
    removed = body.ints(*(pads[a] + pads[len(kernel) + a] for a in range(len(kernel))))
    last = body("Mul", body("Sub", sizes, body.ints(1)), steps)
    spatial = body("Sub", body("Add", last, extents), removed)
    planes = body.slice(body("Shape", data), 0, 2, 0)
    shape = body("Concat", planes, spatial, axis=0)
    count = body("ReduceProd", shape, keepdims=1)
    zero = np.zeros(1, body.input_dtype().numpy)
    zeros = body("ConstantOfShape", count, value=zero)
    flat, positions = (body("Reshape", v, body.ints(-1)) for v in (data, indices))
    full = body("Reshape", body("ScatterElements", zeros, positions, flat, axis=0), shape)
    if len(body.inputs) > 2:
        missing = body("Sub", body.inputs[2], shape)
        no_pads = body("Mul", missing, body.ints(0))
        full = body("Pad", full, body("Concat", no_pads, missing, axis=0))
    body.outputs = [full]
