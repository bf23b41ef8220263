"""Base class of the reductions: axes, shapes, and kernels parametrized by expressions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import UnsupportedError
from clrt.ir.cl_code import Code, Define
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp, is_traced
from clrt.kernels.cooperative_rows import launch_rows, of_groups
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.strided import axes, collapse, contiguous_strides, pad_rank
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32, reject_float64
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.expression import Expression
from clrt.ops.gradients.shapes import expanded_like, known_shape, share_of
from clrt.ops.movement.common import data_of, fresh_dims, has_input, length
from clrt.ops.traits import InputTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

ROWS = tuned("reduce_rows", {"T_VW": (4, 8, 16)}, T_VW=8, T_ROWS=8)
COLUMNS = tuned("reduce_columns", {"T_VW": (4, 8, 16)}, T_VW=8, T_NV=32)
PIECES = tuned("reduce_pieces", {"T_VW": (4, 8, 16)}, T_VW=8)
GROUP = of_groups("reduce_group")
PARTS = of_groups("reduce_parts")
JOINED = of_groups("reduce_joined")
_SOURCE = "reduce/reduce.cl"
# Maximum number of kept axes, and of reduced axes, that kernels index after axes are merged.
_MAX_AXES = 3
# Substitutions that turn expressions of floats into those of integers.
_INTEGER_CODE = (
    (Code("c_max"), Code("i_max")),
    (Code("c_min"), Code("i_min")),
    (Code("c_abs(x)"), Code("(x < 0 ? -x : x)")),
    (Code("((a) / (n))"), Code("i_div(a, n)")),
)


class ReducePartition(Thresholds):
    """Thresholds of the choice and partition of reduction kernels."""

    split_elems: int = tunable(
        16,
        "elements",
        "Minimum per work-item if several work-groups split the elements of an output.",
    )
    groups: int = tunable(
        4,
        "work-groups per core",
        "Target of a split of the elements of an output, so that every core has work.",
    )
    piece: int = tunable(
        16,
        "elements per output",
        "Maximum for the kernel that computes a vector of outputs at a time: with more, others are "
        "faster.",
    )
    outputs: int = tunable(
        2048,
        "outputs",
        "Computed by a work-item of the kernel that computes a vector of outputs at a time.",
    )

    group: ClassVar = "reduce_shares"


def _integer_code(expression: Code) -> Code:
    """Turns an OpenCL C expression of floats into one of integers (c_max to i_max, and so on)."""
    for old, new in _INTEGER_CODE:
        expression = expression.renamed(old, new)
    return expression


@dataclass(frozen=True)
class ReducedAxes:
    """Kept and reduced axes of a reduction's input, with axes merged if one stride spans them.

    Attributes:
        kept: Sizes of the kept axes.
        kept_steps: Strides of the kept axes, in elements.
        reduced: Sizes of the reduced axes.
        reduced_steps: Strides of the reduced axes, in elements.
    """

    kept: tuple[int, ...]
    kept_steps: tuple[int, ...]
    reduced: tuple[int, ...]
    reduced_steps: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether kernels support the number of axes: at most three kept and three reduced ones."""
        return max(len(self.kept), len(self.reduced)) <= _MAX_AXES

    @property
    def places(self) -> tuple[int, ...]:
        """Sizes of the kept axes, padded with leading 1s to three."""
        return pad_rank(self.kept, 1, _MAX_AXES)

    def args(self) -> dict[str, int]:
        """Returns the kernel arguments of sizes and strides, which the macro SIZES declares."""
        return {
            **axes("d", self.kept, 1, _MAX_AXES),
            **axes("r", self.reduced, 1, _MAX_AXES),
            **axes("s", self.kept_steps, 0, _MAX_AXES),
            **axes("t", self.reduced_steps, 0, _MAX_AXES),
        }


def reduced_axes(node: Node, kind: str) -> ReducedAxes:
    """Returns the kept and reduced axes of a Reduce node, merged for a kind of kernel.

    Args:
        node: Reduce node.
        kind: Kind of kernel. "columns" requires stride 1 of the last kept axis, "rows" of the last
            reduced axis, "any" of neither. If that axis is missing or has another stride, an axis
            of size 1 and stride 1 is appended to the kept or reduced axes.
    """
    x, op = node.arg(0), node.op_as(Reduce)
    axes = op.axes_of(node.input_types, len(x.dims))
    steps = contiguous_strides(x.dims)
    kept = [a for a in range(len(x.dims)) if a not in axes]
    d, (s,) = collapse([x.dims[a] for a in kept], [steps[a] for a in kept])
    r, (t,) = collapse([x.dims[a] for a in axes], [steps[a] for a in axes])
    if kind == "columns" and (not s or s[-1] != 1):
        d, s = (*d, 1), (*s, 1)
    if kind == "rows" and (not t or t[-1] != 1):
        r, t = (*r, 1), (*t, 1)
    return ReducedAxes(d, s, r, t)


def _kind(node: Node) -> str:
    """Returns the kind of CPU kernel of a Reduce node: "rows" or "columns".

    The kind is "rows" if the node reduces the last axis of x.
    """
    rank = len(node.arg(0).dims)
    return "rows" if rank - 1 in node.op_as(Reduce).axes_of(node.input_types, rank) else "columns"


def _reject_cpu(node: Node, caps: DeviceCaps) -> str | None:
    reason = reject_but_float32(node, caps)
    if reason is None and not reduced_axes(node, _kind(node)).fits:
        return "more than 3 axes remain after merging"
    return reason


def _reject_any(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    if not node.op_as(Reduce).reduces(dtype):
        return f"no kernel for {dtype}"
    if not reduced_axes(node, "any").fits:
        return "more than 3 axes remain after merging"
    return reject_float64(node, caps)


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    if piece := _piece(node, ctx.thresholds(ReducePartition).piece):
        return _emit_pieces(node, ctx, piece)
    kind = _kind(node)
    view = reduced_axes(node, kind)
    d0, d1, d2 = view.places
    if kind == "rows":
        tunables = ctx.tunables(ROWS)
        size: tuple[int, ...] = (ceil_div(d0 * d1 * d2, tunables["T_ROWS"]),)
    else:
        tunables = ctx.tunables(COLUMNS)
        size = (ceil_div(d2, tunables["T_VW"] * tunables["T_NV"]), d1, d0)
    return _launch(node, view, f"reduce_{kind}", size, (1,) * len(size), **tunables)


def _piece(node: Node, most: int) -> int:
    """Returns the elements per output of a Reduce node if kernel reduce_pieces applies, else 0.

    The kernel needs that the reduced axes are the last ones and have static sizes, at most `most`
    elements per output, and a reduction that does not first subtract the maximum (`shift`).
    """
    x, op = node.arg(0), node.op_as(Reduce)
    rank = len(x.dims)
    axes = op.axes_of(node.input_types, rank)
    sizes = (x.symbolic_shape or x.dims)[rank - len(axes) :]
    numbers = [d for d in sizes if isinstance(d, int) and not is_traced(d)]
    if op.shift or axes != tuple(range(rank - len(axes), rank)) or len(numbers) < len(sizes):
        return 0
    return prod(numbers) if prod(numbers) <= most else 0


def _emit_pieces(node: Node, ctx: Lowering, piece: int) -> list[Launch]:
    x, y, op = node.arg(0), node.output, node.op_as(Reduce)
    outputs = prod(y.dims)
    if not outputs:
        return []
    defines = ctx.tunables(PIECES) | reduction_expressions(op, x.dtype) | {"S_N": piece}
    kernel = KernelSpec.of(_SOURCE, "reduce_pieces", **defines)
    item = ctx.thresholds(ReducePartition).outputs
    size = (ceil_div(outputs, item),)
    args = {"y": y, "x": x, "outputs": outputs, "item": item}
    return [launch(kernel, size, (1,), piece * outputs, **args)]


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    view, types = reduced_axes(node, "any"), reduction_types(node.arg(0).dtype)
    d0, d1, d2 = view.places
    return _launch(node, view, "reduce_strided", (d2, d1, d0), None, VW=1, **types)


def _reject_group(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the kernel with a work-group per output does not apply; None if it does.

    The last axis of x must be reduced, so that the work-items of a group read adjacent elements.
    """
    if _kind(node) != "rows":
        return "the last axis stays"
    if not reduced_axes(node, "rows").fits:
        return "more than 3 axes remain after merging"
    return _reject_any(node, caps)


def _emit_group(node: Node, ctx: Lowering) -> list[Launch]:
    view, x, y = reduced_axes(node, "rows"), node.arg(0), node.output
    op = node.op_as(Reduce)
    outputs, n, elements = prod(view.kept), prod(view.reduced), prod(x.dims)
    if not outputs:
        return []
    defines = reduction_types(x.dtype) | reduction_expressions(op, x.dtype)
    args = {"x": x, **view.args()}
    items, shares = ctx.tunables(PARTS)["T_ITEMS"], ctx.thresholds(ReducePartition)
    # Few outputs with many elements would leave most of a device idle: split their elements.
    wanted = ceil_div(ctx.caps.cores * shares.groups, outputs)
    parts = 1 if op.shift else clamp(n // (items * shares.split_elems), 1, wanted)
    whole, split = (outputs, 0) if parts == 1 else (0, outputs)
    launches = launch_rows(GROUP, _SOURCE, whole, n, elements, ctx, {"y": y, **args}, **defines)
    axes = op.axes_of(node.input_types, len(x.dims))
    fixed = all(isinstance(x.symbolic_shape[a], int) for a in axes) if x.symbolic_shape else True
    if op.shift or (fixed and n < 2 * items * shares.split_elems):
        return launches  # never split
    # The path that is not used is launched with no work-groups, so that other sizes can use it
    # without compiling.
    sums = ctx.scratch(split * parts, _accumulator(x.dtype))
    args |= {"sums": sums, "parts": parts}
    last = {"y": y, "sums": sums, "count": n}
    share, flops = ceil_div(n, parts), outputs * parts
    launches += launch_rows(PARTS, _SOURCE, split * parts, share, elements, ctx, args, **defines)
    return launches + launch_rows(JOINED, _SOURCE, split, parts, flops, ctx, last, **defines)


def _accumulator(dtype: DType) -> DType:
    """Returns the dtype in which kernels reduce elements of `dtype` and store partial results.

    Floats: float64 for float64, else float32. Others: uint64 for uint64, else int64. So the sum of
    a mean does not wrap in a narrower dtype; only the stored result does.
    """
    if dtype.is_float:
        return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    return DType.UINT64 if dtype is DType.UINT64 else DType.INT64


def reduction_types(dtype: DType) -> dict[str, Define]:
    """Returns the dtype macros of the reduction kernels that support any dtype."""
    accumulator = _accumulator(dtype).cl
    types: dict[str, Define] = {"DATA_T": dtype.cl, "STORAGE": dtype.storage}
    return types | {"ACC_T": accumulator, "DATA_N": accumulator}


def _launch(
    node: Node,
    view: ReducedAxes,
    entry: str,
    size: tuple[int, ...],
    local: tuple[int, ...] | None,
    **defines: Define,
) -> list[Launch]:
    op, x = node.op_as(Reduce), node.arg(0)
    if 0 in node.output.dims:
        return []
    kernel = KernelSpec.of(_SOURCE, entry, **reduction_expressions(op, x.dtype), **defines)
    return [launch(kernel, size, local, prod(x.dims), y=node.output, x=x, **view.args())]


def reduction_expressions(op: Reduce, dtype: DType) -> dict[str, Define]:
    """Returns the macros of a reduction's OpenCL C expressions for elements of `dtype`."""
    init = op.init if dtype.is_float else op.int_init(dtype)
    step, join, finish = op.accumulate, op.join, op.finish
    if not dtype.is_float:
        step, join, finish = (_integer_code(e) for e in (step, join, finish))
    elif dtype is DType.FLOAT64:
        step, join, finish = (e.renamed(Code("c_"), Code("d_")) for e in (step, join, finish))
    return {
        "INIT": init,
        "SHIFT": int(op.shift),
        "STEP(a, x)": step,
        "JOIN(a, b)": join,
        "FINISH(a, n)": finish,
    }


@dataclass(frozen=True)
class ReducedGroup:
    """The elements of a result of a reduction, for its derivative.

    Attributes:
        build: Builder of the nodes.
        axes: Reduced axes, int64.
        share: 1 / number of elements per result.
    """

    build: OpBuilder
    axes: Value
    share: Expression

    def total(self, x: Expression) -> Expression:
        """Returns the sum of x over the reduced axes, which stay with size 1."""
        return self._reduced("ReduceSum", x)

    def product(self, x: Expression) -> Expression:
        """Returns the product of x over the reduced axes, which stay with size 1."""
        return self._reduced("ReduceProd", x)

    def _reduced(self, op: str, x: Expression) -> Expression:
        return x.apply(op, Expression(self.build, self.axes), keepdims=1, noop_with_empty_axes=1)


@dataclass(frozen=True)
class Reduce(Op):
    """Base class of the reductions over the axes in input 1 (default: all axes).

    Attributes:
        keepdims: Whether reduced axes stay, with size 1.
        noop_with_empty_axes: Whether no axis is reduced if input 1 is omitted or empty, instead of
            all axes.

    Class attributes:
        init: OpenCL C expression of the initial accumulator `a`.
        accumulate: Expression of the accumulator after an element `x`.
        join: Expression of two partial results `a` and `b` combined.
        finish: Expression of the result from `a` and the number of elements `n`.
        shift: Whether the kernel reduces x - max(x), and adds the maximum to the result.
        integers: Whether kernels support integers.
        selects: Whether the result is one of the elements; then kernels support bool, too.

    Numerics: float32 accumulators (float64 for float64), one per vector lane and run of the
    innermost reduced axis; integers wrap.
    """

    keepdims: bool = True
    noop_with_empty_axes: bool = False

    init: ClassVar[Code] = Code("0")
    accumulate: ClassVar[Code] = Code("(a + x)")
    join: ClassVar[Code] = Code("(a + b)")
    finish: ClassVar[Code] = Code("(a)")
    shift: ClassVar[bool] = False
    integers: ClassVar[bool] = True
    selects: ClassVar[bool] = False
    onnx_traits = OnnxTraits(attribute_to_input={"axes": (1, np.int64)})
    input_traits = InputTraits(plan_time=(1,))
    accuracy = Accuracy.ACCUMULATED
    variants = (
        Variant("cpu", _emit_cpu, _reject_cpu, requires.CPU),
        Variant("group", _emit_group, _reject_group, requires.GPU),
        Variant("any", _emit_any, _reject_any, speed=PlainEfficiency),
    )

    def reduces(self, dtype: DType) -> bool:
        """Returns whether kernels support elements of `dtype`."""
        return dtype.is_float or (self.integers and (self.selects or dtype is not DType.BOOL))

    def int_init(self, dtype: DType) -> Code:
        """Returns the OpenCL C expression of the initial accumulator for an integer dtype."""
        return self.init

    def evaluate(self, x: Array, axes: tuple[int, ...]) -> Any:
        """Reduces x by NumPy; the caller reshapes and casts the result.

        Args:
            x: float64, int64, uint64, bool, or an object array of dims.
            axes: Axes to reduce.
        """
        raise NotImplementedError(self.name)

    def axes_of(self, inputs: Types, rank: int) -> tuple[int, ...]:
        """Returns the reduced axes in ascending order, counted from the front.

        If input 1 is omitted or empty, these are all axes, or () with `noop_with_empty_axes`.

        Args:
            inputs: Types of the node's inputs; the elements of input 1 must be known.
            rank: Rank of x.
        """
        data = data_of(inputs, 1)
        return self._axes(None if data is None else np.asarray(data), rank)

    def _axes(self, data: Array | None, rank: int) -> tuple[int, ...]:
        if data is None or not data.size:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        axes = {normalize_axis(int(a), rank, self) for a in data.reshape(-1)}
        return tuple(sorted(axes)) if rank else ()

    def derivative(self, x: Expression, y: Expression, group: ReducedGroup) -> Any:
        """Returns the derivative of the result by x: an `Expression` that broadcasts to x, or 1.

        Args:
            x: Elements that are reduced.
            y: The result, with reduced axes of size 1.
            group: The elements of one result.
        """
        raise NotImplementedError(self.name)

    @classmethod
    def has_gradient(cls) -> bool:
        return cls.derivative is not Reduce.derivative

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        x = node.arg(0)
        shape = known_shape(x)
        if node.input(1) is not None and data_of(node.input_types, 1) is None:
            raise UnsupportedError("its axes depend on run-time data, which gradients need")
        axes = self.axes_of(node.input_types, len(shape))
        assert cotangent is not None
        kept = [1 if i in axes else d for i, d in enumerate(shape)]
        y, given = (Expression(b, b.reshaped(v, *kept)) for v in (node.output, cotangent))
        reduced = tuple(shape[i] for i in axes)
        group = ReducedGroup(b, b.ints(*axes), Expression(b, share_of(b, reduced, x.dtype)))
        part = self.derivative(Expression(b, x), y, group)
        product = given if isinstance(part, int) and part == 1 else given * part
        return [expanded_like(b, product.value, x)]

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        rank = len(x.shape)
        if has_input(inputs, 1) and data_of(inputs, 1) is None:
            count = length(inputs, 1)
            if self.keepdims:
                return [TensorType(x.dtype, fresh_dims(rank))]
            return [TensorType(x.dtype, None if not count else fresh_dims(rank - count))]
        axes = self.axes_of(inputs, rank)
        dims: list[Dim] = []
        for axis, dim in enumerate(x.shape):
            if axis not in axes:
                dims.append(dim)
            elif self.keepdims:
                dims.append(1)
        return [TensorType(x.dtype, tuple(dims))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = inputs[0]
        assert x is not None
        axes = self._axes(inputs[1] if len(inputs) > 1 else None, x.ndim)
        shape = [
            1 if a in axes else d for a, d in enumerate(x.shape) if self.keepdims or a not in axes
        ]
        with np.errstate(all="ignore"):
            y = np.asarray(self.evaluate(_widen(x), axes)).reshape(shape)
            if x.dtype == object:
                return (y,)
            return (np.trunc(y).astype(x.dtype) if x.dtype.kind in "iu" else y.astype(x.dtype),)


def _widen(x: Array) -> Array:
    """Casts numbers to the 64-bit dtype of their kind; returns bools and dims unchanged."""
    if x.dtype == object or x.dtype == bool:
        return x
    return x.astype({"f": np.float64, "i": np.int64, "u": np.uint64}[x.dtype.kind])
