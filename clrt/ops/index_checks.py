"""Numbers in tensors that say where or how much: what of them is allowed, and who says so."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from clrt.errors import NumberError
from clrt.ir.graph import Node
from clrt.ir.op import Array
from clrt.kernels.spec import KernelSpec, Launch, StatusWord, launch


def index_status(node: Node, operand: int, dims: Sequence[int], of: str) -> StatusWord:
    """For a kernel that reads indices into axes of these sizes, each from its end if negative.

    Args:
        of: Names the axes, for the message.
    """
    return StatusWord(node, operand, "an index", tuple((-n, n - 1) for n in dims), of)


def length_status(node: Node, operand: int, most: int, what: str) -> StatusWord:
    """For a kernel that reads lengths, or numbers of images and the like, from 0 to `most`."""
    return StatusWord(node, operand, what, ((0, most),))


def check_launch(node: Node, operand: int, most: int, what: str) -> Launch:
    """The launch that reports lengths outside 0..most."""
    lengths = node.arg(operand)
    kernel = KernelSpec.of("attention/check_lengths.cl", "check_lengths", INDEX_T=lengths.dtype.cl)
    status = length_status(node, operand, most, what)
    elems = prod(lengths.dims)
    return launch(kernel, (elems,), lens=lengths, status=status, n=elems, most=most)


def check_indices(indices: Array, dims: Sequence[int], name: str, operand: int = 1) -> Array:
    """Indices with the negative ones counted from the end, as int64.

    Args:
        indices: Into one axis; where there are several, tuples along the last axis.

    Raises:
        NumberError: One is outside its axis.
    """
    limits = np.array(dims[0] if len(dims) == 1 else dims, np.int64)
    bad = (indices < -limits) | (indices >= limits)
    if bad.any():
        number = int(indices[bad][0])
        raise NumberError(name, operand, "an index", number, f"allowed are {_indices(dims)}")
    return np.where(indices < 0, indices + limits, indices).astype(np.int64)


def check_lengths(lengths: Array, most: int, name: str, operand: int, what: str) -> None:
    """The same of lengths from 0 to `most`.

    Raises:
        NumberError: One is outside.
    """
    bad = (lengths < 0) | (lengths > most)
    if bad.any():
        raise NumberError(name, operand, what, int(lengths[bad][0]), f"allowed are 0..{most}")


def _indices(dims: Sequence[int]) -> str:
    return " and ".join(f"{-n}..{n - 1}" for n in dims)
