"""Sample inputs of a model: random arrays, or arrays of an .npz file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from zipfile import is_zipfile

import numpy as np

from clrt.errors import InputError, reworded
from clrt.ir.dtypes import DType, native
from clrt.ir.graph import Node
from clrt.ir.op import Array
from clrt.kernels.index_range import MAX_ELEMS
from clrt.ops.base import Op
from clrt.ops.movement.gather import Gather
from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.model import Model

# Upper bound of random integers: smaller than any text vocabulary.
_MAX_ID = 100


def sample_inputs(
    model: Model, shapes: Mapping[str, tuple[int, ...]], seed: int = 0
) -> dict[str, Array]:
    """Returns random inputs by name that suit most models, chosen by dtype and name.

    Masks and bools are ones, token types zeros, positions 0, 1, …; strings are "text". int8 and
    uint8 cover their range. Other integers are in [0, 100), and valid indices if they index
    constant tables. Floats are normally distributed.

    Args:
        model: The model.
        shapes: Shape of each input by name.
        seed: Seed of the random numbers.

    Raises:
        InputError: An input is a sequence, an optional or a map, or is too large for a tensor.
    """
    rng = np.random.default_rng(seed)
    rows = _table_rows(model)
    return {
        spec.name: _sample(spec, shapes[spec.name], rows.get(spec.name, _MAX_ID), rng)
        for spec in model.inputs
    }


def _table_rows(model: Model) -> dict[str, int]:
    """Returns, by name, an upper bound of random indices for inputs that index constant tables.

    The bound is the number of rows of the smallest table, but at most `_MAX_ID`.
    """
    rows: dict[str, int] = {}
    for node in model.graph.nodes:
        if not isinstance(node.op, Gather) or node.op.axis or not node.arg(0).is_constant:
            continue
        value = node.arg(1)
        while value.producer is not None and _moves(value.producer):
            value = value.producer.arg(0)
        count = (node.arg(0).shape or (_MAX_ID,))[0]
        if isinstance(count, int):
            rows[value.name] = max(min(rows.get(value.name, _MAX_ID), count), 1)
    return rows


def _moves(node: Node) -> bool:
    return isinstance(node.op, Op) and node.op.memory_traits.is_data_movement


def read_feeds(path: Path) -> dict[str, Array]:
    """Reads the arrays of an .npz file, by name.

    Raises:
        InputError: The file is not a readable .npz file of arrays.
    """
    try:
        if path.is_file() and not is_zipfile(path):
            raise ValueError("it is damaged, or another kind of file")
        with np.load(path, allow_pickle=False) as archive:
            return {name: native(archive[name]) for name in archive.files}
    except Exception as error:  # NumPy, zipfile and zlib raise many classes.
        raise InputError(
            f"'{path}' cannot be read as an .npz of arrays ({error}); write it with "
            "numpy.savez(path, input_ids=…)."
        ) from error


@contextmanager
def note_sampled(sampled: bool = True) -> Iterator[None]:
    """Adds a note to an InputError within the context: that clrt chose the inputs.

    Args:
        sampled: Whether clrt chose the inputs; if False, errors are unchanged.
    """
    try:
        yield
    except InputError as error:
        if not sampled:
            raise
        raise reworded(
            error, f"{error} clrt chose the inputs; another --shape may suit the model."
        ) from error


def _sample(spec: TensorSpec, shape: tuple[int, ...], ids: int, rng: np.random.Generator) -> Array:
    """Returns a random tensor for an input; its name and dtype decide the distribution.

    Args:
        spec: The input.
        shape: Shape of the tensor.
        ids: Upper bound of random integers, exclusive.
        rng: Generator of random numbers.

    Raises:
        InputError: The input is not a tensor, or `shape` has too many elements.
    """
    if spec.kind != "tensor":
        raise InputError(
            f"Input '{spec.name}' is a {spec.kind}, which cannot be sampled; "
            "run the model from Python with inputs of your own."
        )
    if prod(shape) > MAX_ELEMS:
        raise InputError(
            f"Input '{spec.name}' would have {prod(shape)} elements, more than a tensor may have "
            f"({MAX_ELEMS}); give a smaller --shape."
        )
    name, dtype = spec.name.lower(), spec.dtype.numpy
    if spec.dtype is DType.STRING:
        return np.full(shape, "text")
    if "mask" in name or spec.dtype is DType.BOOL:
        return np.ones(shape, dtype)
    if spec.dtype.is_float:
        return rng.standard_normal(shape, np.float32).astype(dtype)
    if "type" in name:
        return np.zeros(shape, dtype)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
    if spec.dtype in (DType.UINT8, DType.INT8):
        low = 0 if spec.dtype is DType.UINT8 else -128
        return rng.integers(low, low + 256, shape).astype(dtype)
    return rng.integers(0, ids, shape).astype(dtype)
