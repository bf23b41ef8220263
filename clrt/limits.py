"""Bounds on what a model may ask of the host; a file of a few bytes can ask for anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from clrt import knobs
from clrt.errors import InputError, OutOfMemoryError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

# Folding may make a model so many times as large as its file, since it widens what is stored in
# fewer bits, and by CLRT_FOLD_LIMIT larger.
_WIDENED = 4
# Arithmetic that loading does once instead of each run, and how often it reads all constants.
_FOLDED_WORK = 1 << 33
_READS = 16


# What a reference that goes step by step takes in while loading, which is up to a second.
MAX_STEPWISE_BYTES = 256 << 10


@dataclass
class FoldBudget:
    """What is left for the results of folded nodes.

    Attributes:
        nbytes: By which the constants may still grow.
        work: What may still be spent on them: arithmetic operations, and bytes that are read.
    """

    nbytes: int
    work: int

    @classmethod
    def of(cls, constant_bytes: int) -> FoldBudget:
        """The budget of a graph whose constants have so many bytes."""
        grown = knobs.FOLD_LIMIT.get() + _WIDENED * constant_bytes
        return cls(grown, _FOLDED_WORK + _READS * constant_bytes)

    def has(self, nbytes: int, work: int) -> bool:
        """Whether there is so much left."""
        return nbytes <= self.nbytes and work <= self.work

    def take(self, nbytes: int, work: int) -> None:
        """Spends it; bytes below 0 come back."""
        self.nbytes -= nbytes
        self.work -= work


def check_host(nbytes: int, what: str, share: int = 1) -> None:
    """Refuses what would take more of the host's memory than a model may have there.

    Args:
        what: What takes it, as the message starts.
        share: Into how many parts the limit goes, of which this may take one.

    Raises:
        OutOfMemoryError: It is more than CLRT_HOST_LIMIT.
    """
    limit = knobs.HOST_LIMIT.get() // share
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
    """Texts as an array, in which each takes the room of the longest.

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
        longest: The characters of the longest, as many as each takes room for.
        share: As `check_host`.

    Raises:
        OutOfMemoryError: They do.
    """
    # Users get them as Python's, which takes a pointer each besides.
    check_host(count * (4 * longest + 8), f"{count} texts of up to {longest} characters", share)


def check_turns(turns: int, what: str) -> None:
    """Refuses loops without an end that anybody waits for.

    Args:
        what: Who asks for so many turns, as the message starts.

    Raises:
        InputError: They are more than CLRT_TURN_LIMIT.
    """
    limit = knobs.TURN_LIMIT.get()
    if turns > limit:
        raise InputError(
            f"{what} asks for {turns} turns of its graph in one run, and CLRT_TURN_LIMIT allows "
            f"{limit}; raise it where they are meant."
        )
