"""Kernels as data: which source, which defines, which arguments, how many work-items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import NumberError, ShapeError
from clrt.ir.cl_code import Code, Define, render_define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import clamp, is_traced
from clrt.kernels.kernel_signature import Access, KernelSignature, Param, read_signature
from clrt.kernels.kernel_source import read_source

Scalar: TypeAlias = "np.int32 | np.uint32 | np.int64 | np.float32"

# Size limit of a buffer that kernels index: offsets of elements, which may be bytes, are int32.
INDEXED_BYTES = 1 << 31
_GROUPS_PER_UNIT = 8


@dataclass(frozen=True)
class KernelSpec:
    """One compiled entry point.

    Attributes:
        source: File under `kernels_cl/`.
        entry: Name of the `__kernel` function.
        defines: Macros in order, in front of the source: their values may be code (an epilogue).
        opencl_c: The language version; the variant's `requires` asks the device for it.
        options: Of the compiler, besides what all programs have.
    """

    source: str
    entry: str
    defines: tuple[tuple[str, Code], ...] = ()
    opencl_c: tuple[int, int] = (1, 2)
    options: tuple[Code, ...] = ()

    @classmethod
    def of(cls, source: str, entry: str, **defines: Define) -> KernelSpec:
        """A spec from keyword macros, sorted so that equal specs hash alike.

        Raises:
            TypeError: A value is neither a finite number nor `Code`.
        """
        return cls(source, entry, tuple(sorted((k, render_define(v)) for k, v in defines.items())))

    def compiled(self, opencl_c: tuple[int, int], *options: Code) -> KernelSpec:
        """The same in another language version, or with options of the compiler."""
        return replace(self, opencl_c=opencl_c, options=options)

    @property
    def build_options(self) -> tuple[str, ...]:
        """The compiler's options.

        Raises:
            TypeError: One is not clrt's own code.
        """
        major, minor = self.opencl_c
        return (f"-cl-std=CL{int(major)}.{int(minor)}", *map(render_define, self.options))

    def has(self, macro: str) -> bool:
        """Whether a macro is defined, other than as 0."""
        return dict(self.defines).get(macro, "0") != "0"

    @property
    def signature(self) -> KernelSignature:
        """The parameters that the source declares under the defines."""
        return _signature(self)

    @property
    def text(self) -> str:
        """The whole program.

        Defines go in front as text, not as -D options, because their values may be code.

        Raises:
            TypeError: A define is not clrt's own code.
        """
        defines = "".join(
            f"#define {name} {render_define(value)}\n" for name, value in self.defines
        )
        return defines + read_source(self.source)


@lru_cache(maxsize=4096)
def _signature(spec: KernelSpec) -> KernelSignature:
    return read_signature(spec.source, spec.entry, dict(spec.defines))


@dataclass(frozen=True, eq=False)
class Scratch:
    """Device memory that lives for one node only."""

    elems: int
    dtype: DType

    @property
    def nbytes(self) -> int:
        return self.elems * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class DevicePacking:
    """How a device packs the rows of a matrix, some of them at a time.

    Attributes:
        rows: Of the matrix.
        row_bytes: Of a row, as it lies.
        dtype: As which the kernel moves elements.
        row_multiple: Of how many rows each launch but the last one packs a multiple.
        emit: The launch for rows `first` to `end`: from a buffer of just these, into the packed
            array. It is the same as `PackedWeight.pack` makes.
    """

    rows: int
    row_bytes: int
    dtype: DType
    row_multiple: int
    emit: Callable[[Scratch, Scratch, int, int], Launch] = field(repr=False)


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight in the layout its kernel wants, made once per model.

    Attributes:
        value: The constant it is made from.
        layout: Names the layout with its parameters; (value, layout) is the identity.
        pack: Makes the packed array from the constant's elements.
        nbytes: Of the packed array, known before it is made.
        rows: How the device makes it; None where the host has to.
    """

    value: Value
    layout: str
    pack: Callable[[Array], Array] = field(repr=False)
    nbytes: int
    rows: DevicePacking | None = None


@dataclass(frozen=True, eq=False)
class StatusWord:
    """An int64 of the plan, 0 until a kernel writes a number there that it may not follow.

    No such number is 0. Of several any is kept: each is one write of 64 bits to an aligned place,
    which no device that clrt knows takes apart.

    Attributes:
        node: The node that reads the number, as its input `operand`.
        what: What the number is there: "an index".
        allowed: The least and the largest number, of each axis that it may be for.
        of: Names these axes, for the message.
        real: The word has the bits of a float32.
        rule: What is allowed, as a clause, where ranges do not say it.
    """

    node: Node
    operand: int
    what: str
    allowed: tuple[tuple[int, int], ...]
    of: str = ""
    real: bool = False
    rule: str = ""

    def error(self, word: np.int64) -> NumberError:
        """What a word says that is not 0."""
        number = word.astype(np.int32).view(np.float32).item() if self.real else word.item()
        ranges = " and ".join(f"{least}..{most}" for least, most in self.allowed)
        allowed = self.rule or f"allowed are {ranges}{f' ({self.of})' if self.of else ''}"
        error = NumberError(repr(self.node), self.operand, self.what, number, allowed)
        return error.at(self.node)


@dataclass(frozen=True, eq=False)
class Counter(StatusWord):
    """An int64 of the plan in which a launch counts its work-groups.

    It is 0 before the launch, which leaves 0.

    Attributes:
        node: The node that is launched.
    """

    operand: int = 0
    what: str = "a count"
    allowed: tuple[tuple[int, int], ...] = ()


Buffer: TypeAlias = "Value | Scratch | PackedWeight | StatusWord"


VEC8 = 8
"""Elements that kernels for GPUs read at a time."""


@dataclass(frozen=True)
class RowPitchSupport:
    """That a launch goes through a tensor row by row, so that the rows may lie apart.

    Attributes:
        width: Elements of a row, which are neighbours. The offset of the argument lies in a row,
            and the launch reads or writes no further than to the end of that row.
        strides: The arguments that are counted in rows: each is a multiple of `panel_width`, which
            becomes one of the step from a row to the next.
        requires_vec8: Whether rows must begin at multiples of OCTET elements.
    """

    width: int
    strides: tuple[str, ...]
    requires_vec8: bool = False


@dataclass(frozen=True)
class BufferArg:
    """A buffer argument: passed to the kernel as the pair (`__global T*`, element offset).

    Attributes:
        offset: Elements past the start of the buffer's own place.
        elems: How many elements the launch reads or writes; None for all. With 0 the buffer stands
            in for one that the launch does not look at.
        rows: Where the tensor may lie in rows that are apart; None where it must lie as one.
    """

    buffer: Buffer
    offset: int = 0
    elems: int | None = None
    rows: RowPitchSupport | None = None


Arg: TypeAlias = "BufferArg | Scalar"


@dataclass(frozen=True)
class Launch:
    """One enqueue: arguments are bound once per plan.

    Attributes:
        global_size: Work-items wanted. The first dimension may be rounded up, so the kernel checks
            its id there; the others are exact.
        local_size: None leaves the first dimension to the runtime; the others are 1.
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

    def accesses(self) -> list[tuple[BufferArg, Access]]:
        """The tensors that it looks at, and what the kernel does with each."""
        pairs = zip(self.args, self.kernel.signature.params, strict=True)
        used = ((a, p.access) for a, p in pairs if isinstance(a, BufferArg) and a.elems != 0)
        return [(arg, access) for arg, access in used if access]


def launch(
    kernel: KernelSpec,
    global_size: tuple[int, ...],
    local_size: tuple[int, ...] | None = None,
    flops: int = 0,
    /,
    **args: Any,
) -> Launch:
    """A launch whose arguments are given by the names that the kernel's source declares.

    Args:
        args: A Buffer or BufferArg for each tensor, a number for each number.

    Raises:
        TypeError: A name is missing or unknown, or a value does not fit what is declared: a bug.
        ShapeError: As `i32`.
    """
    signature = kernel.signature
    if args.keys() != signature.names:
        missing = ", ".join(sorted(signature.names - args.keys())) or "none"
        unknown = ", ".join(sorted(args.keys() - signature.names)) or "none"
        raise TypeError(
            f"{kernel.source}: arguments of {kernel.entry}: missing {missing}; unknown {unknown}"
        )
    try:
        bound = tuple([_argument(p, args[p.name]) for p in signature.params])
    except TypeError as error:
        raise TypeError(f"{kernel.source}: {kernel.entry}: {error}") from error
    return Launch(kernel, global_size, local_size, bound, flops)


def _argument(param: Param, value: Any) -> Arg:
    """A value as what a parameter declares."""
    if type(value) is int and param.type == "int" and param.access is None:  # most of them
        return i32(value)
    bound = _number(param.type, value) if param.access is None else _tensor(param, value)
    if bound is None:
        what = param.type if param.access is None else f"a tensor of {param.type}"
        raise TypeError(f"{param.name} is {what}, not {value!r}")
    return bound


def _number(type_: str, value: Any) -> Scalar | None:
    if isinstance(value, (int, np.integer)):
        return i32(value) if type_ == "int" else _INTEGERS.get(type_, lambda _: None)(value)
    return f32(value) if type_ == "float" and isinstance(value, (float, np.floating)) else None


def _tensor(param: Param, value: Any) -> BufferArg | None:
    arg = value if type(value) is BufferArg else BufferArg(value)
    buffer = arg.buffer
    if isinstance(buffer, (Value, Scratch)):
        fits = buffer.dtype.itemsize == param.itemsize or arg.elems == 0
    else:
        fits = isinstance(buffer, PackedWeight) or (
            isinstance(buffer, StatusWord) and param.type == "long"
        )
    return arg if fits else None


def i32(value: Any) -> np.int32:
    """An `int` kernel argument.

    Raises:
        ShapeError: It takes more than 32 bits, as no size of a tensor does.
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise ShapeError(f"A kernel would count to {value}, past 32 bits; use smaller inputs.")
    if type(value) is not int and is_traced(value):
        return cast(np.int32, value)
    return np.int32(value)


def f32(value: Any) -> np.float32:
    """A `float` kernel argument."""
    return np.float32(value)


_INTEGERS: dict[str, Callable[[Any], Scalar | None]] = {"uint": np.uint32, "long": np.int64}


def unread_arg(buffer: Buffer) -> BufferArg:
    """In place of a tensor that a launch does not look at, and that need not be alive."""
    return BufferArg(buffer, elems=0)


def pitched_args(name: str, buffer: Buffer, width: int) -> dict[str, Any]:
    """The arguments `name` and `name`_pitch for a tensor by rows of so many elements."""
    pitch = f"{name}_pitch"
    return {name: BufferArg(buffer, rows=RowPitchSupport(width, (pitch,))), pitch: width}


def optional(**args: Buffer | None) -> dict[str, Any]:
    """Arguments of tensors that may be left out, under macros that declare the others."""
    return {name: value for name, value in args.items() if value is not None}


def indexed_args(prefix: str, values: Iterable[Any], start: int = 0) -> dict[str, Any]:
    """Arguments by names with a number behind: s0, s1, …"""
    return {f"{prefix}{i}": v for i, v in enumerate(values, start)}


def number_inputs(count: int) -> Code:
    """How a kernel declares the numbers c0, c1, … behind its tensors."""
    return Code("").join(map(Code(", const float c{}").substitute, range(count)))


def chunks_per_group(pieces: int, most: int, caps: DeviceCaps) -> int:
    """How many pieces of work a work-group of a CPU does, since each costs 0.1 us to start.

    At most `most`, and fewer where a core would get less than eight work-groups: some cores would
    end long before others.
    """
    return clamp(pieces // (caps.compute_units * _GROUPS_PER_UNIT), 1, most)


def numbered_arguments(launch: Launch) -> Iterator[tuple[int, Arg]]:
    """Yields each argument of a launch with its index among the kernel's: a buffer takes two."""
    index = 0
    for arg in launch.args:
        yield index, arg
        index += 2 if isinstance(arg, BufferArg) else 1
