"""Bounds on what a model may ask of the host. A file of a few bytes can ask for anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import InputError, OutOfMemoryError
from clrt.util import env_vars

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# Folding may enlarge a model by this factor of its constants, since it widens what is stored in
# fewer bits, and by CLRT_FOLD_LIMIT beyond that.
_WIDENED = 4
# Operations that folding may spend, and how often it may read all constants.
_FOLDED_WORK = 1 << 33
_READS = 16


# The largest input that loading gives to a step-by-step reference: up to a second of work.
MAX_STEPWISE_BYTES = 256 << 10


# The largest number in a file that something is made of one by one: nodes, or rows of a table.
MAX_COUNT = 1 << 20


@dataclass
class FoldBudget:
    """What folding may still spend.

    Attributes:
        nbytes: Bytes by which the constants may still grow.
        work: Arithmetic operations and bytes read that may still be spent.
    """

    nbytes: int
    work: int

    @classmethod
    def of(cls, constant_bytes: int) -> FoldBudget:
        """The budget of a graph with so many bytes of constants."""
        grown = env_vars.FOLD_LIMIT.get() + _WIDENED * constant_bytes
        return cls(grown, _FOLDED_WORK + _READS * constant_bytes)

    def has(self, nbytes: int, work: int) -> bool:
        """Whether that much is left."""
        return nbytes <= self.nbytes and work <= self.work

    def take(self, nbytes: int, work: int) -> None:
        """Spends that much. Negative bytes are given back."""
        self.nbytes -= nbytes
        self.work -= work


def check_host_bytes(nbytes: int, what: str, share: int = 1) -> None:
    """Refuses what would take more host memory than a model may have.

    Args:
        what: What takes it: the start of the message.
        share: Number of parts that the limit is divided into; this may take one.

    Raises:
        OutOfMemoryError: It is more than CLRT_HOST_LIMIT.
    """
    limit = env_vars.HOST_LIMIT.get() // share
    if nbytes > limit:
        raise OutOfMemoryError(
            f"{what} would take {_readable(nbytes)} of the host's memory, and CLRT_HOST_LIMIT "
            f"allows it {_readable(limit)}; raise it where there is more.",
            nbytes,
            limit,
        )


def _readable(nbytes: int) -> str:
    unit, name = (2**30, "GiB") if nbytes >= 2**30 else (2**20, "MiB")
    return f"{nbytes / unit:,.1f} {name}"


def text_array(texts: Sequence[str], shape: Sequence[int] | None = None) -> Array:
    """Texts as an array. Each takes the memory of the longest.

    Args:
        shape: [number of texts] by default.

    Raises:
        OutOfMemoryError: Together they take more than CLRT_HOST_LIMIT.
    """
    check_texts(len(texts), max(map(len, texts), default=0))
    made = np.array(texts, np.str_)
    return made if shape is None else made.reshape(shape)


def check_texts(count: int, longest: int, share: int = 1) -> None:
    """Refuses texts that take more than CLRT_HOST_LIMIT.

    Args:
        longest: Characters of the longest text; each takes memory for as many.
        share: As `check_host_bytes`.

    Raises:
        OutOfMemoryError: They do.
    """
    # Users get Python strings, which take a pointer each besides.
    check_host_bytes(
        count * (4 * longest + 8), f"{count} texts of up to {longest} characters", share
    )


def allows_iterations(iterations: int) -> bool:
    """Whether a run may make so many iterations of the graphs that its nodes hold."""
    return iterations <= env_vars.ITERATION_LIMIT.get()


def check_iterations(iterations: int, what: str) -> None:
    """Refuses loops with more iterations than anybody waits for.

    Args:
        what: What asks for the iterations: the start of the message.

    Raises:
        InputError: They are more than CLRT_ITERATION_LIMIT.
    """
    if not allows_iterations(iterations):
        limit = env_vars.ITERATION_LIMIT.get()
        raise InputError(
            f"{what} asks for {iterations} iterations of its graph in one run, and "
            f"CLRT_ITERATION_LIMIT allows {limit}; raise it where they are meant."
        )
