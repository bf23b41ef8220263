"""Kernels and launches as data: source, macros, arguments and work sizes, without OpenCL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from clrt.errors import NumberError, ShapeError
from clrt.ir.cl_code import Code, Define, render_define
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import is_traced
from clrt.kernels.kernel_signature import Access, KernelSignature, Param, read_signature
from clrt.kernels.kernel_source import read_source
from clrt.util.fast_dataclass import dataclass

Scalar: TypeAlias = "np.int32 | np.uint32 | np.int64 | np.float32"

# Maximum size in bytes of a buffer that kernels index: offsets of elements, which may be single
# bytes, are int32.
INDEXED_BYTES = 1 << 31


@dataclass(frozen=True)
class KernelSpec:
    """One kernel entry point with its macros; equal specs share one compiled kernel.

    Attributes:
        source: File under `kernels_cl/`.
        entry: Name of the `__kernel` function.
        defines: Macros placed in front of the source, sorted by name; values may be code, such as
            an epilogue.
        opencl_c: (major, minor) of the OpenCL C version to compile for; `Variant.requires` checks
            that the device supports the version.
        options: Extra compiler options for this kernel.
        is_optional: Whether the kernel only saves time: if it is missing, others do its work.
    """

    is_optional: ClassVar[bool] = False

    source: str
    entry: str
    defines: tuple[tuple[str, Code], ...] = ()
    opencl_c: tuple[int, int] = (1, 2)
    options: tuple[Code, ...] = ()

    @classmethod
    def of(cls, source: str, entry: str, **defines: Define) -> KernelSpec:
        """Returns a kernel spec with its macros sorted, so that equal specs hash alike.

        Args:
            source: File under `kernels_cl/`.
            entry: Name of the `__kernel` function.
            defines: Values of macros by name.

        Raises:
            TypeError: A value is neither a finite number nor `Code`.
        """
        return cls(source, entry, tuple(sorted((k, render_define(v)) for k, v in defines.items())))

    def compiled(self, opencl_c: tuple[int, int], *options: Code) -> KernelSpec:
        """Returns this spec with another OpenCL C version and other extra compiler options."""
        return replace(self, opencl_c=opencl_c, options=options)

    @property
    def build_options(self) -> tuple[str, ...]:
        """All compiler options with which the kernel's program is built.

        Raises:
            TypeError: An option is not `Code`.
        """
        major, minor = self.opencl_c
        return (f"-cl-std=CL{int(major)}.{int(minor)}", *map(render_define, self.options))

    def has(self, macro: str) -> bool:
        """Returns whether a macro of this spec is defined with a value other than 0."""
        return dict(self.defines).get(macro, "0") != "0"

    @property
    def signature(self) -> KernelSignature:
        """Signature of the kernel: the parameters that its source declares under these macros."""
        return _signature(self)

    @property
    def text(self) -> str:
        """Program source: macros, then the file with includes expanded.

        Macros are text and not -D options, because their values may be code.

        Raises:
            TypeError: A macro's value is neither a number nor `Code`.
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
    """A temporary device buffer that lives during one node's launches.

    Attributes:
        elems: Number of elements.
        dtype: Element type.
    """

    elems: int
    dtype: DType

    @property
    def nbytes(self) -> int:
        return self.elems * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class DevicePacking:
    """Recipe by which the device packs a weight matrix, a block of rows per launch.

    Attributes:
        rows: Number of rows of the matrix.
        row_bytes: Bytes per unpacked row.
        dtype: Dtype that the packing kernel copies elements as.
        row_multiple: Row count of every launch except the last is a multiple of this.
        emit: Returns the launch that packs rows `first` to `end` (exclusive):
            emit(rows, packed, first, end). `rows` is a buffer of only these rows, `packed` the
            buffer of the whole packed array. The result equals that of `PackedWeight.pack`.
    """

    rows: int
    row_bytes: int
    dtype: DType
    row_multiple: int
    emit: Callable[[Scratch, Scratch, int, int], Launch] = field(repr=False)


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A constant in its kernel's layout, packed once per model.

    Attributes:
        value: The constant to pack.
        layout: Name of the layout with its parameters; (value, layout) identifies a packed weight.
        pack: Packs the constant's elements on the host.
        nbytes: Packed size in bytes, known before packing.
        rows: Device packing recipe; None if only the host can pack.
    """

    value: Value
    layout: str
    pack: Callable[[Array], Array] = field(repr=False)
    nbytes: int
    rows: DevicePacking | None = None


@dataclass(frozen=True, eq=False)
class StatusWord:
    """An int64 in which a kernel reports an out-of-range number; 0 if there is none.

    Out-of-range numbers are never 0. If kernels report several numbers, any one of them is kept:
    each report is one aligned 64-bit write, which is atomic on all devices known to clrt.

    Attributes:
        node: The node that reads the number.
        operand: Index of the node's input that contains the out-of-range number.
        what: Meaning of the number, for the message, such as "an index".
        allowed: Smallest and largest allowed number for each axis that the number may index.
        of: Names of the indexed axes, for the message; "" to name none.
        real: Whether the number is a float32, stored as its bits.
        rule: Allowed values as a clause, if ranges cannot express them; else "".
    """

    node: Node
    operand: int
    what: str
    allowed: tuple[tuple[int, int], ...]
    of: str = ""
    real: bool = False
    rule: str = ""

    def error(self, word: np.int64) -> NumberError:
        """Returns the error for the out-of-range number in a status word.

        Args:
            word: The word as a kernel wrote it, not 0.
        """
        number = word.astype(np.int32).view(np.float32).item() if self.real else word.item()
        ranges = " and ".join(f"{low}..{high}" for low, high in self.allowed)
        allowed = self.rule or f"allowed are {ranges}{f' ({self.of})' if self.of else ''}"
        error = NumberError(repr(self.node), self.operand, self.what, number, allowed)
        return error.at(self.node)


@dataclass(frozen=True, eq=False)
class Counter(StatusWord):
    """An int64 in which a launch counts its finished work-groups; 0 before and after the launch.

    Attributes:
        node: The launched node.
    """

    operand: int = 0
    what: str = "a count"
    allowed: tuple[tuple[int, int], ...] = ()


Buffer: TypeAlias = "Value | Scratch | PackedWeight | StatusWord"


VEC8 = 8
"""Elements per vector load of GPU kernels."""


@dataclass(frozen=True)
class RowPitchSupport:
    """Declares that a launch accesses a tensor by rows, which may then have a pitch.

    Attributes:
        width: Row width in elements; elements of a row are contiguous. The access starts at the
            argument's offset within a row and does not pass that row's end.
        strides: Names of the stride arguments that step from row to row. Their values are multiples
            of `width`; planning replaces them by the same multiples of the pitch.
        requires_vec8: Whether rows must start at multiples of VEC8 elements.
    """

    width: int
    strides: tuple[str, ...]
    requires_vec8: bool = False


@dataclass(frozen=True)
class BufferArg:
    """A buffer argument: passed to the kernel as the pair (`__global T*`, element offset).

    Attributes:
        buffer: The buffer.
        offset: Offset in elements from the start of the buffer.
        elems: Number of elements that the launch accesses; None for all. 0 marks a placeholder that
            the launch never accesses.
        rows: Support for a row pitch; None if the tensor must be contiguous.
    """

    buffer: Buffer
    offset: int = 0
    elems: int | None = None
    rows: RowPitchSupport | None = None


Arg: TypeAlias = "BufferArg | Scalar"


@dataclass(frozen=True)
class Launch:
    """One enqueue of a kernel; its arguments are bound once per plan.

    Attributes:
        kernel: The kernel.
        global_size: Number of work-items per dimension. The number in the first dimension may be
            rounded up, so the kernel checks the id there; other dimensions are exact.
        local_size: Work-group size per dimension. None lets the runtime choose the size in the
            first dimension; the size is 1 in the other dimensions.
        args: Arguments in the order of the kernel's parameters.
        flops: Floating-point operations, for the profile.
        copy: (source, destination) if the launch only copies one tensor to another; plans drop it
            if both share memory. Else None.
    """

    kernel: KernelSpec
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    args: tuple[Arg, ...]
    flops: int = 0
    copy: tuple[Value, Value] | None = None

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers among the launch's arguments, each once."""
        return list(dict.fromkeys(a.buffer for a in self.args if isinstance(a, BufferArg)))

    def accesses(self) -> list[tuple[BufferArg, Access]]:
        """Returns the tensor arguments that the launch accesses, each with its kind of access.

        Placeholders are left out.
        """
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
    """Returns a launch with arguments by name, checked against the kernel's signature.

    Args:
        kernel: The kernel.
        global_size: Number of work-items per dimension.
        local_size: Work-group size; None lets the runtime choose.
        flops: Floating-point operations, for the profile.
        args: A Buffer or BufferArg for each tensor parameter, a number for each other parameter.

    Raises:
        TypeError: A name is missing or unknown, or a value has the wrong type: a bug of clrt.
        ShapeError: A number exceeds 32 bits.
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
    """Converts a value to the type of a kernel parameter.

    Raises:
        TypeError: The value does not fit the parameter: a bug of clrt.
        ShapeError: A number exceeds 32 bits.
    """
    if type(value) is int and param.type == "int" and param.access is None:  # the common case
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
    """Converts a buffer to the argument of a tensor parameter; None if its dtype does not fit."""
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
    """Converts a number to an `int` kernel argument.

    Raises:
        ShapeError: The number exceeds 32 bits, which kernels do not support for tensor sizes.
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise ShapeError(f"Kernel argument {value} exceeds 32 bits; use smaller inputs.")
    if type(value) is not int and is_traced(value):
        return cast(np.int32, value)
    return np.int32(value)


def f32(value: Any) -> np.float32:
    """Converts a number to a `float` kernel argument."""
    return np.float32(value)


_INTEGERS: dict[str, Callable[[Any], Scalar | None]] = {"uint": np.uint32, "long": np.int64}


def unread_arg(buffer: Buffer) -> BufferArg:
    """Returns a placeholder argument for a tensor that the launch never accesses."""
    return BufferArg(buffer, elems=0)


def pitched_args(name: str, buffer: Buffer, width: int) -> dict[str, Any]:
    """Returns two kernel arguments for a tensor that may have a row pitch: `name` and `name`_pitch.

    Args:
        name: Name of the tensor parameter.
        buffer: The tensor.
        width: Elements per row.
    """
    pitch = f"{name}_pitch"
    return {name: BufferArg(buffer, rows=RowPitchSupport(width, (pitch,))), pitch: width}


def optional(**args: Buffer | None) -> dict[str, Any]:
    """Returns the tensor arguments that are not None, by name.

    This suits kernels that declare a parameter, by macros, only if the optional tensor is present.
    """
    return {name: value for name, value in args.items() if value is not None}


def indexed_args(prefix: str, values: Iterable[Any], start: int = 0) -> dict[str, Any]:
    """Returns kernel arguments named `prefix` plus index: s0, s1, …

    Args:
        values: The arguments in order.
        start: Index of the first argument.
    """
    return {f"{prefix}{i}": v for i, v in enumerate(values, start)}


def number_inputs(count: int) -> Code:
    """Returns OpenCL C declarations of float parameters c0, c1, …, each preceded by a comma.

    Args:
        count: Number of parameters.
    """
    return Code("").join(map(Code(", const float c{}").substitute, range(count)))


def numbered_arguments(launch: Launch) -> Iterator[tuple[int, Arg]]:
    """Yields each argument of a launch with its OpenCL argument index.

    A buffer occupies two indices: pointer and offset.
    """
    index = 0
    for arg in launch.args:
        yield index, arg
        index += 2 if isinstance(arg, BufferArg) else 1
