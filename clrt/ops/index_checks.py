"""Range checks of indices and lengths in tensors: status words of kernels, checks of references."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from clrt.errors import NumberError
from clrt.ir.graph import Node
from clrt.ir.op import Array
from clrt.kernels.spec import KernelSpec, Launch, StatusWord, launch


def index_status(node: Node, operand: int, dims: Sequence[int], of: str) -> StatusWord:
    """Returns the status word into which a kernel writes an index out of range.

    Negative indices count from the end of their axis.

    Args:
        node: Node of the kernel.
        operand: Index of the node's input that holds the indices.
        dims: Sizes of the axes that are indexed.
        of: Name of the axes for the message.
    """
    return StatusWord(node, operand, "an index", tuple((-n, n - 1) for n in dims), of)


def length_status(node: Node, operand: int, most: int, what: str) -> StatusWord:
    """Returns the status word into which a kernel writes a length or count outside 0..`most`.

    Args:
        node: Node of the kernel.
        operand: Index of the node's input that holds the lengths.
        most: Maximum length.
        what: Name of a length for the message.
    """
    return StatusWord(node, operand, what, ((0, most),))


def check_launch(node: Node, operand: int, most: int, what: str) -> Launch:
    """Returns a launch that checks an input of lengths on the device.

    A length outside 0..`most` is written to a status word.

    Args:
        node: Node that has the input.
        operand: Index of the input.
        most: Maximum length.
        what: Name of a length for the message.
    """
    lengths = node.arg(operand)
    kernel = KernelSpec.of("attention/check_lengths.cl", "check_lengths", INDEX_T=lengths.dtype.cl)
    status = length_status(node, operand, most, what)
    elems = prod(lengths.dims)
    return launch(kernel, (elems,), lens=lengths, status=status, n=elems, most=most)


def check_indices(indices: Array, dims: Sequence[int], name: str, operand: int = 1) -> Array:
    """Returns indices as int64, with negative ones counted from the end.

    Args:
        indices: Indices into one axis; if `dims` has several, index tuples along the last axis.
        dims: Sizes of the axes.
        name: Name of the op for the message.
        operand: Index of the op's input that holds the indices, for the message.

    Raises:
        NumberError: An index is outside its axis.
    """
    limits = np.array(dims[0] if len(dims) == 1 else dims, np.int64)
    bad = (indices < -limits) | (indices >= limits)
    if bad.any():
        number = int(indices[bad][0])
        raise NumberError(name, operand, "an index", number, f"allowed are {_indices(dims)}")
    return np.where(indices < 0, indices + limits, indices).astype(np.int64)


def check_lengths(lengths: Array, most: int, name: str, operand: int, what: str) -> None:
    """Checks on the host that lengths are in 0..`most`.

    Args:
        lengths: Lengths.
        most: Maximum length.
        name: Name of the op for the message.
        operand: Index of the op's input that holds the lengths, for the message.
        what: Name of a length for the message.

    Raises:
        NumberError: A length is outside 0..`most`.
    """
    bad = (lengths < 0) | (lengths > most)
    if bad.any():
        raise NumberError(name, operand, what, int(lengths[bad][0]), f"allowed are 0..{most}")


def _indices(dims: Sequence[int]) -> str:
    return " and ".join(f"{-n}..{n - 1}" for n in dims)
