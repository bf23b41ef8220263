"""Checks of stored templates: numbers are in range, and kernels are from clrt's own sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import TypeVar

from clrt.ir.graph import Value
from clrt.ir.symbolic_trace import untraced
from clrt.kernels.spec import Buffer, BufferArg, KernelSpec, Launch, PackedWeight, Scratch
from clrt.plan.template import PlanTemplate

_T = TypeVar("_T")
_SOURCE = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.cl")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\([A-Za-z0-9_, ]*\))?")
_MAX_DIMS = 3


def at_index(items: Sequence[_T], index: int) -> _T:
    """Returns an item; unlike `items[index]`, refuses negative indices.

    Raises:
        IndexError, TypeError: The index is out of range, or no number.
    """
    if index < 0:
        raise IndexError("a negative index")
    return items[index]


def check_template(template: PlanTemplate) -> None:
    """Checks the numbers of a stored template at the sizes with which it was traced.

    Raises:
        ValueError: A number is out of range.
    """
    plan, buffers = template.plan, template.buffers
    elems: dict[Buffer, int | None] = {}
    for launch in template.launches:
        _check_sizes(launch)
        for arg in launch.args:
            if isinstance(arg, BufferArg):
                if arg.buffer not in elems:
                    elems[arg.buffer] = _elems(arg.buffer)
                most = elems[arg.buffer]
                offset = untraced(arg.offset)
                _require(offset >= 0 and (most is None or offset <= most), "an offset")
    for value, root in plan.roots.items():
        _require(0 <= _nbytes(value) <= _nbytes(root), "a view")
    count, layout = len(buffers.owners), buffers.layout
    _require(len(buffers.spans) == count, "a lifetime")
    _require(all(-1 <= first <= last for first, last in buffers.spans), "a lifetime")
    _require(sorted(layout.order) == list(range(count)), "an order")
    _require(len(layout.supports) == len(layout.slabs) == count, "a layout")
    _require(all(0 <= i < count for each in layout.supports for i in each), "a support")
    _require(all(0 <= slab < max(count, 1) for slab in layout.slabs), "a slab")


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(f"{what} out of range")


def check_kernel(kernel: KernelSpec) -> None:
    """Checks that a stored kernel is from a source file of clrt, and that its names are valid.

    Its names are those of its entry point and of its macros.

    Raises:
        ValueError: The source or a name is invalid.
    """
    _require(_is_own(kernel.source), "a kernel's source")
    names = (kernel.entry, *(name for name, _ in kernel.defines))
    _require(all(_NAME.fullmatch(name) for name in names), "a name")


@cache
def _is_own(source: str) -> bool:
    """Returns whether clrt has a kernel source file with this path below `kernels_cl`."""
    is_name = _SOURCE.fullmatch(source) is not None
    return is_name and files("kernels_cl").joinpath(source).is_file()


def _check_sizes(launch: Launch) -> None:
    sizes = [untraced(n) for n in launch.global_size]
    _require(1 <= len(sizes) <= _MAX_DIMS and all(0 < n < 1 << 32 for n in sizes), "a grid")
    if launch.local_size is not None:
        _require(len(launch.local_size) == len(sizes), "a work-group")
        _require(all(0 < n < 1 << 16 for n in launch.local_size), "a work-group")


def _elems(buffer: Buffer) -> int | None:
    """Returns the maximum offset into a buffer: its number of elements, 1 for a status word.

    For a packed weight, its number of bytes.
    """
    if isinstance(buffer, Value):
        dims = [untraced(d) for d in buffer.dims]
        _require(all(d >= 0 for d in dims), "a dim")
        return prod(dims)
    if isinstance(buffer, Scratch):
        elems = untraced(buffer.elems)
        _require(elems >= 0, "a scratch size")
        return elems
    return buffer.nbytes if isinstance(buffer, PackedWeight) else 1


def _nbytes(value: Value) -> int:
    return prod(untraced(d) for d in value.dims) * value.dtype.itemsize
