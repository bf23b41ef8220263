"""BatchNormalization in training mode: it takes the statistics from the batch."""

from __future__ import annotations

import numpy as np

from clrt.errors import UnsupportedError
from clrt.importer.expansions.body import Body, expands


@expands("", "BatchNormalization")
def _batch_normalization(body: Body) -> None:
    """Outputs are y and the running mean and variance, each moved towards those of the batch."""
    x = body.types[0]
    if x is None or x.rank is None or x.rank < 2:
        raise UnsupportedError("its input has no known rank")
    data, scale, bias, mean_before, variance_before = body.inputs
    statistics, data_dtype = body.input_dtype(3), body.input_dtype()
    wide = data if statistics is data_dtype else body.cast(data, statistics)
    axes = body.constant(np.array([axis for axis in range(x.rank) if axis != 1]))
    mean = body("ReduceMean", wide, axes)
    centred = body("Sub", wide, mean)
    variance = body("ReduceMean", body("Mul", centred, centred), axes)
    channels = body.constant(np.array([-1]))
    flat = [body("Reshape", value, channels) for value in (mean, variance)]
    epsilon = float(body.attrs.get("epsilon", 1e-5))
    y = body("BatchNormalization", data, scale, bias, *flat, epsilon=epsilon)
    momentum = float(body.attrs.get("momentum", 0.9))
    old, new = (body.constant(np.array(v, statistics.numpy)) for v in (momentum, 1 - momentum))
    running = [
        body("Add", body("Mul", before, old), body("Mul", after, new))
        for before, after in zip((mean_before, variance_before), flat, strict=True)
    ]
    body.outputs = [y, *running]
