"""Checks of stored templates: numbers are in range, and kernels are from clrt's own sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import TypeVar

from clrt.errors import ModelError
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, is_traced, untraced
from clrt.kernels.spec import (
    Buffer,
    BufferArg,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
)
from clrt.plan.plan import Plan
from clrt.plan.template import PlanTemplate

_T = TypeVar("_T")
_SOURCE = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.cl")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\([A-Za-z0-9_, ]*\))?")
_VALUE = re.compile(r"[^\n\r\\]*")
_OPTION = re.compile(r"-cl(-[A-Za-z0-9]+)+")
_OPENCL_C = ((1, 2), (2, 0), (3, 0))
_MAX_DIMS = 3
# Exceptions that reading or evaluating a damaged record may raise.
DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


def at_index(items: Sequence[_T], index: int) -> _T:
    """Returns an item; unlike `items[index]`, refuses negative indices.

    Raises:
        IndexError, TypeError: The index is out of range, or no number.
    """
    if index < 0:
        raise IndexError("a negative index")
    return items[index]


def check_template(template: PlanTemplate, graph: Graph) -> None:
    """Checks a stored template at its traced sizes: ranges, memory of buffers, inputs and outputs.

    Args:
        graph: The graph whose plan the template is.

    Raises:
        ValueError: A number is out of range, or the graph has other inputs or outputs.
    """
    plan = template.plan
    _check_arena(template)
    _check_interface(plan.graph, graph, template.trace)
    placed = {*template.buffers.owners, *plan.external, *plan.status_words}
    elems: dict[Buffer, int | None] = {}
    for launch in template.launches:
        _check_sizes(launch)
        for arg in launch.args:
            if isinstance(arg, BufferArg):
                if arg.buffer not in elems:
                    elems[arg.buffer] = _elems(arg.buffer)
                    _require(_is_placed(arg.buffer, plan, placed), "a buffer")
                most = elems[arg.buffer]
                offset = untraced(arg.offset)
                _require(offset >= 0 and (most is None or offset <= most), "an offset")
    _require(all(_is_placed(v, plan, placed) for v in plan.graph.outputs), "an output")
    for value, root in plan.roots.items():
        _require(root not in plan.roots and 0 <= _nbytes(value) <= _nbytes(root), "a view")
    _require(len(template.costs or ()) in (0, len(template.launches)), "a cost")


def _is_placed(buffer: Buffer, plan: Plan, placed: Collection[Buffer]) -> bool:
    """Returns whether a buffer has memory: that of a constant, or one of `placed`."""
    root = plan.root(buffer) if isinstance(buffer, Value) else buffer
    is_constant = isinstance(root, Value) and root.is_constant
    return root in placed or is_constant or isinstance(root, PackedWeight)


def _check_arena(template: PlanTemplate) -> None:
    """Checks the buffers in the arena.

    Raises:
        ValueError: An owner is neither scratch nor a computed root value, or occurs twice; or a
            lifetime or the layout is out of range.
    """
    buffers, roots = template.buffers, template.plan.roots
    for owner in buffers.owners:
        is_own = isinstance(owner, Value) and not owner.is_constant and owner not in roots
        _require(is_own or isinstance(owner, Scratch), "an owner of memory")
    count, layout = len(buffers.owners), buffers.layout
    _require(len({*buffers.owners}) == count, "an owner of memory")
    _require(len(buffers.spans) == count, "a lifetime")
    _require(all(-1 <= first <= last for first, last in buffers.spans), "a lifetime")
    _require(sorted(layout.order) == list(range(count)), "an order")
    _require(len(layout.supports) == len(layout.slabs) == count, "a layout")
    _require(all(0 <= i < count for each in layout.supports for i in each), "a support")
    _require(all(0 <= slab < max(count, 1) for slab in layout.slabs), "a slab")


def _check_interface(plan: Graph, graph: Graph, trace: ShapeTrace) -> None:
    """Checks that a plan's inputs and outputs have the names, dtypes and shapes of a graph's.

    Raises:
        ValueError: A name, dtype, dim or count of the plan differs from the graph's.
    """
    _require(plan.output_names == graph.output_names, "an output")
    _require([v.name for v in plan.inputs] == [v.name for v in graph.inputs], "an input")
    inputs = [*zip(plan.inputs, graph.inputs, strict=True)]
    for found, declared in (*inputs, *zip(plan.outputs, graph.outputs, strict=True)):
        _require(found.dtype is declared.dtype, "a dtype")
        dims = declared.type.bind(trace.sizes).shape
        if dims is not None:
            sizes = zip(dims, map(untraced, found.dims), strict=True)
            _require(all(a == b for a, b in sizes if isinstance(a, int)), "a dim")
    for found, declared in inputs:
        _require(declared.shape is not None, "an input")
        for dim, symbol in zip(found.dims, declared.shape or (), strict=True):
            if isinstance(symbol, int):
                _require(not is_traced(dim), "a dim")
            elif str(symbol) in trace.symbols:
                index = trace.symbols.index(str(symbol))
                is_symbol = is_traced(dim) and trace.formula(dim) == index
                _require(is_symbol or (not is_traced(dim) and trace.is_pinned(index)), "a dim")


def checked(
    read: Callable[[Evaluation], Array], dims: Sequence[int]
) -> Callable[[Evaluation], Array]:
    """Returns `read` with checks of its result, for a constant that is computed from sizes.

    Args:
        read: Computes the elements of the constant.
        dims: Formulas of the constant's dims.

    Returns:
        A function that raises ModelError if `read` fails, or returns another shape.
    """

    def read_checked(at: Evaluation) -> Array:
        try:
            array = read(at)
            _require(array.shape == tuple([at.numbers[i] for i in dims]), "a dim")
        except DAMAGED as error:
            raise ModelError(
                "The stored plan of a model is damaged; delete the folder 'executables' in the "
                "cache folder of clrt."
            ) from error
        return array

    return read_checked


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(f"{what} out of range")


def check_kernel(kernel: KernelSpec) -> None:
    """Checks that a stored kernel is from a source file of clrt, with valid names and options.

    Its names are those of its entry point and of its macros, whose values are single lines.

    Raises:
        ValueError: The source, a name, a value, the OpenCL C version or an option is invalid.
    """
    _require(_is_own(kernel.source), "a kernel's source")
    names = (kernel.entry, *(name for name, _ in kernel.defines))
    _require(all(_NAME.fullmatch(name) for name in names), "a name")
    _require(all(_VALUE.fullmatch(value) for _, value in kernel.defines), "a macro")
    _require(all(_OPTION.fullmatch(option) for option in kernel.options), "an option")
    _require(kernel.opencl_c in _OPENCL_C, "a version of OpenCL C")


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
