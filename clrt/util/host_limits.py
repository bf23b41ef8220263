"""Upper bounds on the host memory, operations and iterations that a model may use.

A model file of a few bytes can request any amount.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import InputError, OutOfMemoryError
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# Maximum growth by constant folding, as a multiple of the bytes of a model's constants: it widens
# low-bit weights. CLRT_FOLD_LIMIT bytes are allowed beyond that.
_MAX_GROWTH_FACTOR = 4
# Maximum work of constant folding: number of operations, and bytes read as a multiple of the bytes
# of all constants.
_MAX_FOLD_OPERATIONS = 1 << 33
_MAX_CONSTANT_READS = 16


# Maximum input in bytes that loading passes to a reference that loops in Python: up to 1 s of work.
MAX_STEPWISE_BYTES = 256 << 10


# Maximum count in a file if each item costs Python time: nodes, or rows of a table.
MAX_COUNT = 1 << 20


@dataclass
class FoldBudget:
    """Remaining memory and work of constant folding in one graph.

    Attributes:
        nbytes: Bytes by which the constants of the graph may still grow.
        work: Remaining number of arithmetic operations plus bytes read.
    """

    nbytes: int
    work: int

    @classmethod
    def of(cls, constant_bytes: int) -> FoldBudget:
        """Returns the budget for constant folding in a graph with `constant_bytes` of constants."""
        growth = env_vars.FOLD_LIMIT.get() + _MAX_GROWTH_FACTOR * constant_bytes
        return cls(growth, _MAX_FOLD_OPERATIONS + _MAX_CONSTANT_READS * constant_bytes)

    def has(self, nbytes: int, work: int) -> bool:
        """Returns whether the budget covers folding a node.

        Args:
            nbytes: Bytes by which folding makes the constants grow.
            work: Arithmetic operations plus bytes read.
        """
        return nbytes <= self.nbytes and work <= self.work

    def take(self, nbytes: int, work: int) -> None:
        """Subtracts the cost of folding a node from the budget.

        Args:
            nbytes: Bytes by which the constants have grown; negative if the constants have shrunk.
            work: Arithmetic operations plus bytes read.
        """
        self.nbytes -= nbytes
        self.work -= work


def check_host_bytes(nbytes: int, what: str, share: int = 1) -> None:
    """Checks an allocation on the host against CLRT_HOST_LIMIT.

    Args:
        nbytes: Size of the allocation in bytes.
        what: Name of the allocated thing; the message begins with it.
        share: Divisor of the limit: the allocation may use 1 / `share` of it.

    Raises:
        OutOfMemoryError: `nbytes` exceeds this share of the limit.
    """
    limit = env_vars.HOST_LIMIT.get() // share
    if nbytes > limit:
        raise OutOfMemoryError(
            f"{what} would need {_readable(nbytes)} of the host's memory, but CLRT_HOST_LIMIT "
            f"allows {_readable(limit)}; raise the limit if the host has more memory.",
            nbytes,
            limit,
        )


def _readable(nbytes: int) -> str:
    unit, name = (2**30, "GiB") if nbytes >= 2**30 else (2**20, "MiB")
    return f"{nbytes / unit:,.1f} {name}"


def text_array(texts: Sequence[str], shape: Sequence[int] | None = None) -> Array:
    """Returns strings as a NumPy array of dtype str, which pads each string to the longest one.

    Args:
        texts: The strings.
        shape: Shape of the array; None for a vector.

    Raises:
        OutOfMemoryError: The array would exceed CLRT_HOST_LIMIT.
    """
    check_texts(len(texts), max(map(len, texts), default=0))
    array = np.array(texts, np.str_)
    return array if shape is None else array.reshape(shape)


def check_texts(count: int, longest: int, share: int = 1) -> None:
    """Checks the memory that a NumPy array of strings needs against CLRT_HOST_LIMIT.

    Args:
        count: Number of strings.
        longest: Length of the longest string in characters; each string is padded to it.
        share: Divisor of the limit: the array may use 1 / `share` of it.

    Raises:
        OutOfMemoryError: The array would exceed the limit.
    """
    # 4 bytes per character, and an 8-byte pointer per string: users get Python strings.
    check_host_bytes(
        count * (4 * longest + 8), f"{count} texts of up to {longest} characters", share
    )


def allows_iterations(iterations: int) -> bool:
    """Returns whether CLRT_ITERATION_LIMIT allows a number of loop iterations in one run."""
    return iterations <= env_vars.ITERATION_LIMIT.get()


def check_iterations(iterations: int, what: str) -> None:
    """Checks the iterations of loops in one run against CLRT_ITERATION_LIMIT.

    Args:
        iterations: Number of iterations.
        what: Name of the loop; the message begins with it.

    Raises:
        InputError: `iterations` exceeds the limit.
    """
    if not allows_iterations(iterations):
        limit = env_vars.ITERATION_LIMIT.get()
        raise InputError(
            f"{what} needs {iterations} iterations of its graph in one run, but "
            f"CLRT_ITERATION_LIMIT allows {limit}; raise the limit if the model needs them."
        )
