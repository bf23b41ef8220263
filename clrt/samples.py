"""Inputs made up for a model, to try it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.model import Model, TensorSpec

# Below the size of any vocabulary.
_LARGEST_INT = 16
_BATCH, _LENGTH, _SIDE = 2, 16, 64


def sample_inputs(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], seed: int = 0
) -> dict[str, Array]:
    """Plausible values by dtype and name, the same for the same seed.

    Masks are ones, positions count up, token types are zeros, other integers are small; floats
    are standard normal.

    Raises:
        InputError: An input is no tensor.
    """
    rng = np.random.default_rng(seed)
    return {s.name: _sample(s, tuple(shapes[s.name]), rng) for s in specs}


def _sample(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if spec.kind != "tensor":
        raise InputError(f"Input '{spec.name}' is {spec.kind}; give inputs of your own.")
    name, dtype = spec.name.lower(), spec.dtype
    if dtype is DType.STRING:
        return np.full(shape, "text", object)
    if "mask" in name or dtype is DType.BOOL:
        return np.ones(shape, dtype.numpy)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    if "position" in name:
        counted = np.arange(shape[-1] if shape else 1)
        return np.broadcast_to(counted, shape).astype(dtype.numpy)
    high = 1 if "type" in name or "segment" in name else _LARGEST_INT
    return rng.integers(0, high, shape).astype(dtype.numpy)


def sample_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Small input shapes; an axis that may have any size gets one that suits its place.

    Raises:
        InputError: An input has no known rank.
    """
    sizes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in model.inputs:
        if spec.shape is None:
            raise InputError(f"Input '{spec.name}' has no known rank; give its shape.")
        image = len(spec.shape) >= 4
        dims = []
        for axis, dim in enumerate(spec.shape):
            guess = _BATCH if axis == 0 else _SIDE if image and axis >= 2 else _LENGTH
            dims.append(dim if isinstance(dim, int) else sizes.setdefault(dim, guess))
        shapes[spec.name] = tuple(dims)
    return shapes
