"""Kernels as data: which source, which defines, which arguments, how many work-items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import NumberError, ShapeError
from clrt.ir.code import Code, Define, spelled
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.ir.traced import is_traced

Scalar: TypeAlias = "np.int32 | np.int64 | np.float32"

# Of where a tensor starts: one cache line pair; vector loads through pointer casts rely on it.
ALIGNMENT_BYTES = 128
_GROUPS_PER_UNIT = 8


@dataclass(frozen=True)
class KernelSpec:
    """One compiled entry point.

    Attributes:
        source: File under `kernels_cl/`.
        entry: Name of the `__kernel` function.
        defines: Macros in order, in front of the source: their values may be code (an epilogue).
    """

    source: str
    entry: str
    defines: tuple[tuple[str, Code], ...] = ()

    @classmethod
    def of(cls, source: str, entry: str, **defines: Define) -> KernelSpec:
        """A spec from keyword macros, sorted so that equal specs hash alike.

        Raises:
            TypeError: A value is neither a finite number nor `Code`.
        """
        return cls(source, entry, tuple(sorted((k, spelled(v)) for k, v in defines.items())))

    def has(self, macro: str) -> bool:
        """Whether a macro is defined, other than as 0."""
        return dict(self.defines).get(macro, "0") != "0"


@dataclass(frozen=True, eq=False)
class Scratch:
    """Device memory that lives for one node only."""

    elems: int
    dtype: DType

    @property
    def nbytes(self) -> int:
        return self.elems * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight in the layout its kernel wants, made once per model.

    Attributes:
        value: The constant it is made from.
        layout: Names the layout with its parameters; (value, layout) is the identity.
        pack: Makes the packed array from the constant's elements.
        nbytes: Of the packed array, known before it is made.
    """

    value: Value
    layout: str
    pack: Callable[[Array], Array] = field(repr=False)
    nbytes: int


@dataclass(frozen=True, eq=False)
class Status:
    """An int64 of the plan, 0 until a kernel writes a number there that it may not follow.

    No such number is 0. Of several any is kept: each is one write of 64 bits to an aligned place,
    which no device that clrt knows takes apart.

    Attributes:
        node: The node that reads the number, as its input `operand`.
        what: What the number is there: "an index".
        allowed: The least and the largest number, of each axis that it may be for.
        of: Names these axes, for the message.
        real: The word has the bits of a float32.
    """

    node: Node
    operand: int
    what: str
    allowed: tuple[tuple[int, int], ...]
    of: str = ""
    real: bool = False

    def error(self, word: np.int64) -> NumberError:
        """What a word says that is not 0."""
        number = word.astype(np.int32).view(np.float32).item() if self.real else word.item()
        ranges = " and ".join(f"{least}..{most}" for least, most in self.allowed)
        allowed = f"allowed are {ranges}{f' ({self.of})' if self.of else ''}"
        error = NumberError(repr(self.node), self.operand, self.what, number, allowed)
        return error.at(self.node)


Buffer: TypeAlias = "Value | Scratch | Packed | Status"


@dataclass(frozen=True)
class BufferArg:
    """A buffer argument: passed to the kernel as the pair (`__global T*`, element offset).

    Attributes:
        offset: Elements past the start of the buffer's own place.
        elems: How many elements the launch reads or writes, for the profile; None for all.
    """

    buffer: Buffer
    offset: int = 0
    elems: int | None = None


Arg: TypeAlias = "BufferArg | Scalar"


@dataclass(frozen=True)
class Launch:
    """One enqueue: arguments are bound once per plan.

    Attributes:
        global_size: Work-items wanted. The first dimension may be rounded up, so the kernel checks
            its id there; the others are exact.
        local_size: None leaves the first dimension to the executor; the others are 1.
        flops: Floating-point operations, for the profile.
        copy: (from, to) where it only copies one tensor to another; left out of plans in which
            both lie in the same place.
    """

    kernel: KernelSpec
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    args: tuple[Arg, ...]
    flops: int = 0
    copy: tuple[Value, Value] | None = None

    @property
    def buffers(self) -> list[Buffer]:
        """What it reads and writes, each once."""
        return list(dict.fromkeys(a.buffer for a in self.args if isinstance(a, BufferArg)))


def i32(value: Any) -> np.int32:
    """An `int` kernel argument.

    Raises:
        ShapeError: It takes more than 32 bits, as no size of a tensor does.
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise ShapeError(f"A kernel would count to {value}, past 32 bits; use smaller inputs.")
    return cast(np.int32, value) if is_traced(value) else np.int32(value)


def f32(value: Any) -> np.float32:
    """A `float` kernel argument."""
    return np.float32(value)


def pieces_per_group(pieces: int, most: int, caps: DeviceCaps) -> int:
    """How many pieces of work a work-group of a CPU does, since each costs 0.1 us to start.

    At most `most`, and fewer where a core would get less than eight work-groups: some cores would
    end long before others.
    """
    return max(1, min(most, pieces // (caps.compute_units * _GROUPS_PER_UNIT)))


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The least multiple of b that is at least a."""
    return ceil_div(a, b) * b
