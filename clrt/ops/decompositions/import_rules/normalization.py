"""BatchNormalization in training mode, or per element (`spatial=0`)."""

from __future__ import annotations

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("", "BatchNormalization")
def _batch_normalization(body: ImportBuilder) -> None:
    """Decomposes BatchNormalization in training mode, or with attribute `spatial` 0 (old opsets).

    In training mode, x is normalized by mean and variance of the batch, and running mean and
    variance are updated.
    """
    if not body.attrs.get("spatial", 1):
        return _by_element(body)
    rank = body.rank_of()
    if rank < 2:
        raise UnsupportedError(f"its input has rank {rank}")
    data, scale, bias, mean_before, variance_before = body.inputs
    statistics, data_dtype = body.input_dtype(3), body.input_dtype()
    wide = data if statistics is data_dtype else body.cast(data, statistics)
    axes = body.ints(*(axis for axis in range(rank) if axis != 1))
    mean = body("ReduceMean", wide, axes)
    centred = body("Sub", wide, mean)
    variance = body("ReduceMean", body("Mul", centred, centred), axes)
    channels = body.ints(-1)
    flat = [body("Reshape", value, channels) for value in (mean, variance)]
    epsilon = float(body.attrs.get("epsilon", 1e-5))
    y = body("BatchNormalization", data, scale, bias, *flat, epsilon=epsilon)
    momentum = float(body.attrs.get("momentum", 0.9))
    old, new = (body.constant(np.array(v, statistics.numpy)) for v in (momentum, 1 - momentum))
    running = [
        body("Add", body("Mul", before, old), body("Mul", after, new))
        for before, after in zip((mean_before, variance_before), flat, strict=True)
    ]
    body.outputs = [y, *running, *(flat if body.opset < 14 else ())]


def _by_element(body: ImportBuilder) -> None:
    """Decomposes BatchNormalization with `spatial` 0, for inference.

    Mean, variance, scale and bias then have a number per element of a sample, not per channel.

    Raises:
        UnsupportedError: The node has several outputs, as in training.
    """
    if body.output_count > 1:
        raise UnsupportedError("it trains with spatial=0")
    x, scale, bias, mean, variance = body.inputs
    epsilon = body.number(body.attrs.get("epsilon", 1e-5))
    deviation = body("Sqrt", body("Add", variance, epsilon))
    unit = body("Div", body("Sub", x, mean), deviation)
    body.outputs = [body("Add", body("Mul", unit, scale), bias)]
