"""Pooling over windows (MaxPool, AveragePool, LpPool) and global pooling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError, counted
from clrt.ir.cl_code import Code, Define
from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import Dim, UndecidableDim, product
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.strided import axes, launch_grid
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import checked_sizes, need
from clrt.ops.conv.conv_gradients import Geometry, convolve, data_gradient
from clrt.ops.gradients.shapes import filled, known_shape, reshaped_like
from clrt.ops.movement.common import fresh_dim
from clrt.ops.reduce.reduce import ReduceMax, ReduceMean, integer_bound
from clrt.ops.registry import register
from clrt.ops.traits import OnnxTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

_AXES = 3
# Elements of a row that a CPU work-item processes together, in private memory.
_SPAN_ELEMS = 512
POOL_PLANAR = tuned("pool_planar", {"T_VW": (4, 8, 16)}, T_VW=8)
# Maximum position along an axis: kernels add two positions in 32 bits.
_MAX_POSITION = 1 << 30
_PADDING = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class PoolPartition(Thresholds):
    """Threshold of the partition of pooling into CPU work-items."""

    steps: int = tunable(
        65536, "additions or comparisons", "Target per work-item, to amortize its start."
    )

    group: ClassVar = "pool_shares"


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    if dtype in (DType.FLOAT64, DType.BOOL):
        return f"no kernel for {dtype}"
    count = len(node.arg(0).dims) - 2
    return f"{count} axes; the kernel walks up to {_AXES}" if count > _AXES else None


def _reject_rows(node: Node, caps: DeviceCaps) -> str | None:
    op = node.op_as(WindowPool)
    if len(node.outputs) > 1:
        return "it does not compute indices"
    if max(op.spans()[-1:], default=1) > _SPAN_ELEMS:
        return f"a window spans more than {_SPAN_ELEMS} elements of a row"
    return _reject(node, caps)


def _kernel(node: Node, entry: str, **defines: Define) -> tuple[KernelSpec, int, dict[str, Any]]:
    """Returns a pooling kernel for a node.

    Args:
        node: Node of a WindowPool op.
        entry: Entry point in vision/pooling.cl.
        defines: Extra macros.

    Returns:
        The kernel; its number of operations; the arguments that all pooling kernels share.
    """
    x, op = node.arg(0), node.op_as(WindowPool)
    lowest = Code("(-INFINITY)") if x.dtype.is_float else integer_bound(x.dtype, low=True)
    kernel = KernelSpec.of(
        "vision/pooling.cl",
        entry,
        DATA_T=x.dtype.cl,
        STORAGE=x.dtype.storage,
        VALUE_T=x.dtype.compute,
        LOWEST=lowest,
        **op.defines(),
        **defines,
    )
    size, out = x.dims[2:], node.output.dims[2:]
    before, after = op.padding(size)
    args: dict[str, Any] = dict(zip(("y", "indices"), node.outputs, strict=False))
    lists = (
        ("s", size, 1), ("o", out, 1), ("w", op.kernel_shape, 1), ("st", op.steps(op.strides), 1),
        ("dl", op.steps(op.dilations), 1), ("b", before, 0), ("e", after, 0),
    )  # fmt: skip
    for name, values, fill in lists:
        args |= axes(name, values, fill, _AXES)
    return kernel, prod(node.output.dims) * prod(op.kernel_shape), args | {"x": x}


def _emit_rows(node: Node, ctx: Lowering) -> list[Launch]:
    y, op = node.output, node.op_as(WindowPool)
    if 0 in y.dims:
        return []
    same = int(y.dtype.cl == y.dtype.compute)
    defines = {"CPU": 1, "SPAN": _SPAN_ELEMS, "SAME_T": same, **ctx.tunables(POOL_PLANAR)}
    kernel, work, args = _kernel(node, "pool_planar", **defines)
    rows = prod(y.dims[:2]) * prod(y.dims[2:-1])
    steps = y.dims[-1] * (prod(op.kernel_shape[:-1]) + prod(op.kernel_shape[-1:]))
    most = clamp(ctx.thresholds(PoolPartition).steps // steps, 1, rows)
    height = ctx.chunks_per_group(rows, most)
    size = (ceil_div(rows, height),)
    return [launch(kernel, size, (1,), work, rows=rows, height=height, **args)]


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    dims = node.output.dims
    if 0 in dims:
        return []
    kernel, work, args = _kernel(node, "pool")
    planes = dims[0] * dims[1]
    size = (dims[-1], prod(dims[2:-1]), planes)
    return [launch_grid(kernel, size, ctx.caps, work, planes=planes, **args)]


AutoPad: TypeAlias = Literal["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]


def check_windows(
    op: IrOp,
    size: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> None:
    """Checks that kernels support the window attributes of a pooling op or convolution.

    Args:
        op: Op, for messages.
        size: Sizes of the spatial axes.
        kernel: Window shape.
        strides: Strides; empty for ones.
        dilations: Dilations; empty for ones.
        pads: Pads before, then after each axis; empty for zeros.

    Raises:
        ShapeError: A list has the wrong length, a number is out of range, or positions would
            overflow.
    """
    rank = len(size)
    lists = (
        ("kernel_shape", kernel, rank, 0),
        ("strides", strides, rank, 1),
        ("dilations", dilations, rank, 1),
        ("pads", pads, 2 * rank, -_MAX_POSITION),
    )
    for name, values, count, least in lists:
        wrong = [v for v in values if isinstance(v, int) and not least <= v <= _MAX_POSITION]
        if wrong or (values and len(values) != count):
            raise ShapeError(
                f"{op.name}: {name} {list(values)} do not fit {rank} axes; expected {count} numbers"
                f"{f' from {least} on' if least >= 0 else ''}, at most {_MAX_POSITION}."
            )
    for axis, (extent, window) in enumerate(zip(size, kernel, strict=True)):
        step = dilations[axis] if dilations else 1
        around = abs(pads[axis]) + abs(pads[rank + axis]) if pads else 0
        known = extent if isinstance(extent, int) else 0
        if isinstance(window, int) and known + around + window * step > _MAX_POSITION:
            raise ShapeError(
                f"{op.name}: with a window of {window}, dilations {list(dilations)} and pads "
                f"{list(pads)} axis {axis} has positions past {_MAX_POSITION}."
            )


@dataclass(frozen=True)
class WindowPool(Op):
    """Base of pooling ops over `[N, C, spatial axes …]`, for N images of C channels.

    Attributes:
        kernel_shape: Window size along each spatial axis.
        strides: Distance of windows along each axis; empty for ones.
        dilations: Distance of elements in a window along each axis; empty for ones.
        pads: Elements added before each axis, then after each axis; empty for zeros.
        auto_pad: How to compute the pads; NOTSET to use `pads`.
        ceil_mode: Whether the output size is rounded up instead of down.
    """

    kernel_shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    auto_pad: AutoPad = "NOTSET"
    ceil_mode: bool = False

    variants: ClassVar[tuple[Variant, ...]] = (
        Variant("cpu", _emit_rows, _reject_rows, requires.CPU),
        Variant("any", _emit, _reject),
    )

    def check(self, size: Sequence[Dim], op: IrOp) -> None:
        """Checks that the attributes fit spatial axes of the sizes `size`.

        Args:
            size: Sizes of the spatial axes.
            op: Op, for messages.

        Raises:
            ShapeError: A list has the wrong length, a number is out of range, or `auto_pad` is
                unknown.
        """
        if self.auto_pad not in _PADDING:
            raise ShapeError(
                f"{op.name}: auto_pad '{self.auto_pad}'; expected {', '.join(_PADDING)}."
            )
        check_windows(op, size, self.kernel_shape, self.strides, self.dilations, self.pads)

    def steps(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Returns strides or dilations `values`; a 1 per spatial axis if `values` is empty."""
        return values or (1,) * len(self.kernel_shape)

    def spans(self) -> list[int]:
        """Returns the extent of the dilated window along each spatial axis, in elements."""
        pairs = zip(self.kernel_shape, self.steps(self.dilations), strict=True)
        return [(size - 1) * dilation + 1 for size, dilation in pairs]

    @property
    def is_padded(self) -> bool:
        """Whether the padding makes windows reach outside the input; `ceil_mode` is ignored.

        With SAME padding the result is True if windows reach outside inputs of some sizes.
        """
        if self.auto_pad.startswith("SAME"):
            return any(span > 1 for span in self.spans())
        return self.auto_pad == "NOTSET" and any(self.pads)

    @property
    def is_pointwise(self) -> bool:
        """Whether each window holds only the element at its own position, for any input size."""
        steps = (*self.kernel_shape, *self.steps(self.strides))
        return all(v == 1 for v in steps) and not self.is_padded

    def padding(self, size: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the padding before each spatial axis, and after each, for input sizes `size`."""
        rank = len(self.kernel_shape)
        if not self.auto_pad.startswith("SAME"):
            pads = self.pads if self.auto_pad == "NOTSET" and self.pads else (0,) * (2 * rank)
            return list(pads[:rank]), list(pads[rank:])
        totals = [
            max((-(-n // step) - 1) * step + span - n, 0)
            for n, step, span in zip(size, self.steps(self.strides), self.spans(), strict=True)
        ]
        small = [total // 2 for total in totals]
        large = [total - half for total, half in zip(totals, small, strict=True)]
        return (small, large) if self.auto_pad == "SAME_UPPER" else (large, small)

    def geometry(self, size: Sequence[int], out: Sequence[int]) -> dict[str, int]:
        """Returns the size arguments of pooling kernels, by name, extended to three spatial axes.

        Args:
            size: Sizes of the spatial axes of x.
            out: Sizes of the spatial axes of y.

        Returns:
            Sizes of x and y, window, strides, dilations, and padding before each axis.
        """
        return {
            **axes("in", size, 1, _AXES),
            **axes("out", out, 1, _AXES),
            **axes("kernel", self.kernel_shape, 1, _AXES),
            **axes("stride", self.steps(self.strides), 1, _AXES),
            **axes("dilation", self.steps(self.dilations), 1, _AXES),
            **axes("pad", self.padding(size)[0], 0, _AXES),
        }

    def out_dim(self, axis: int, size: Dim) -> Dim:
        """Returns the number of windows along a spatial axis; an unknown dim if undecidable.

        Args:
            axis: Index of the spatial axis.
            size: Size of the input along the axis.
        """
        step, span = self.steps(self.strides)[axis], self.spans()[axis]
        if self.auto_pad.startswith("SAME"):
            return floordiv(size + (step - 1), step)
        rank = len(self.kernel_shape)
        padded = self.auto_pad == "NOTSET" and self.pads
        before, after = (self.pads[axis], self.pads[rank + axis]) if padded else (0, 0)
        free = size + (before + after - span)
        if not self.ceil_mode:
            return floordiv(free, step) + 1
        windows = floordiv(free + (step - 1), step) + 1
        try:
            # The last window must start inside the input or the padding before it.
            return windows - 1 if (windows - 1) * step >= size + before else windows
        except UndecidableDim:
            return fresh_dim()

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        if len(x.shape) != len(self.kernel_shape) + 2:
            raise ShapeError(
                f"{self.name}: a window of {counted(len(self.kernel_shape), 'axis', 'axes')} "
                f"does not fit {x}; expected [N, C] and the same number of axes."
            )
        if min(self.kernel_shape, default=1) < 1:
            raise ShapeError(f"{self.name}: kernel_shape {self.kernel_shape}; expected 1 or more.")
        self.check(x.shape[2:], self)
        dims = checked_sizes(
            (self.out_dim(axis, size) for axis, size in enumerate(x.shape[2:])),
            lambda: f"{self.name}: the window {self.kernel_shape} is larger than {x}.",
        )
        return [TensorType(x.dtype, (*x.shape[:2], *dims))]

    def defines(self) -> dict[str, Define]:
        """Returns the macros that select the pooling operation in the kernel."""
        raise NotImplementedError(self.name)

    def windows(self, x: Array, fill: Any) -> tuple[Array, list[Array]]:
        """Returns the elements of all windows of x, and their coordinates.

        Args:
            x: Input `[N, C, spatial axes …]`, N images of C channels.
            fill: Element outside x.

        Returns:
            Elements `[N, C, out …, window]`; and, per spatial axis, the elements' coordinates
            `[out …, window]`, which may be outside x.
        """
        size = x.shape[2:]
        out = [int(self.out_dim(axis, n)) for axis, n in enumerate(size)]
        before, _ = self.padding(size)
        window = list(itertools.product(*(range(k) for k in self.kernel_shape)))
        steps, dilations = self.steps(self.strides), self.steps(self.dilations)
        starts = np.meshgrid(
            *(np.arange(n) * s - b for n, s, b in zip(out, steps, before, strict=True)),
            indexing="ij",
        )
        index = [
            starts[axis][..., None]
            + np.array([w[axis] * dilations[axis] for w in window], np.int64)
            for axis in range(len(size))
        ]
        inside = np.all([(i >= 0) & (i < n) for i, n in zip(index, size, strict=True)], axis=0)
        if 0 in size:
            return np.full((*x.shape[:2], *inside.shape), fill, x.dtype), index
        clipped: list[Any] = [np.clip(i, 0, n - 1) for i, n in zip(index, size, strict=True)]
        return np.where(inside, x[(slice(None), slice(None), *clipped)], fill), index


@register
@dataclass(frozen=True)
class MaxPool(WindowPool):
    """Returns the maximum of each window; NaN if any element is NaN.

    ONNX Runtime's result for NaN depends on the order of elements; ONNX's reference implementation
    treats NaN as padding.

    Attributes:
        storage_order: How positions are flattened to indices: 0 row-major, 1 column-major.
        indices: Whether the node has the output Indices, the flat index of the first maximum of
            each window.

    Source: ONNX MaxPool, opset 1 to 22.
    """

    storage_order: Literal[0, 1] = 0
    indices: bool = False

    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"indices"}))
    accuracy = Accuracy.EXACT

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        node.attrs["indices"] = any(node.outputs[1:])
        return super().from_onnx(node)

    def defines(self) -> dict[str, Define]:
        order = {"INDICES": int(self.indices), "COLUMN_MAJOR": self.storage_order}
        return {"MAX": 1, "PADDED": 0, **order}

    def infer(self, inputs: Types) -> list[TensorType]:
        (y,) = super().infer(inputs)
        return [y, TensorType(DType.INT64, y.shape)] if self.indices else [y]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        cotangent, x = cotangents[0], node.arg(0)
        if cotangent is None:
            return [None]
        _, places = b.add_all(replace(self, indices=True, storage_order=0), x)
        zeros = filled(b, 0, (product(known_shape(x)),), x.dtype)
        flat = (b("Reshape", v, b.ints(-1)) for v in (places, cotangent))
        total = b("ScatterElements", zeros, *flat, reduction="add")
        return [reshaped_like(b, total, x)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        values, index = self.windows(x, lowest)
        top, size = values.max(axis=-1, keepdims=True), x.shape[2:]
        y = top[..., 0].astype(x.dtype)
        if not self.indices:
            return (y,)
        inside = np.all([(i >= 0) & (i < n) for i, n in zip(index, size, strict=True)], axis=0)
        largest = inside & ((values == top) | np.isnan(values))
        best = np.argmax(largest, axis=-1)[..., None]
        order = index if self.storage_order == 0 else list(reversed(index))
        extent = size if self.storage_order == 0 else tuple(reversed(size))
        flat = np.zeros(index[0].shape, np.int64)
        for positions, n in zip(order, extent, strict=True):
            flat = flat * n + positions
        indices = np.take_along_axis(np.broadcast_to(flat, values.shape), best, axis=-1)[..., 0]
        planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(size))
        return y, indices + planes * prod(size)


@register
@dataclass(frozen=True)
class AveragePool(WindowPool):
    """Returns the mean of each window.

    Attributes:
        count_include_pad: Whether padding counts as zeros; else only elements of x count.

    Source: ONNX AveragePool, opset 1 to 22.
    """

    count_include_pad: bool = False

    accuracy = Accuracy.ELEMENTWISE

    def defines(self) -> dict[str, Define]:
        padded = int(self.count_include_pad)
        return {"MAX": 0, "PADDED": padded, "INDICES": 0, "COLUMN_MAJOR": 0}

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        batch, channels, *sizes = known_shape(node.arg(0))
        places, rank = known_shape(cotangent)[2:], len(self.kernel_shape)
        numbers = [d for d in sizes if isinstance(d, int)]
        static = len(numbers) == len(sizes)
        if not static and (self.ceil_mode or self.auto_pad.startswith("SAME")):
            raise UnsupportedError("its padding depends on the input; use fixed sizes")
        before, after = self.padding(numbers if static else [0] * rank)
        strides, dilations = self.steps(self.strides), self.steps(self.dilations)
        ends, spans = list(after), self.spans()
        if static:  # up to the end of the last window, which may be behind the padding
            ends = [
                (int(places[a]) - 1) * strides[a] + spans[a] - numbers[a] - before[a]
                for a in range(rank)
            ]
            ends = [max(e, p) for e, p in zip(ends, after, strict=True)]
        lone = Geometry(self.kernel_shape, strides, dilations, tuple(before), tuple(ends))
        window = filled(b, 1, (1, 1, *self.kernel_shape), cotangent.dtype)
        inside, begins = sizes, before
        if self.count_include_pad:
            inside = [s + p + e for s, p, e in zip(sizes, before, after, strict=True)]
            ends = [e - p for e, p in zip(ends, after, strict=True)]
            begins = [0] * rank
        counted = replace(lone, begins=tuple(begins), ends=tuple(ends))
        ones = filled(b, 1, (1, 1, *inside), cotangent.dtype)
        counts = convolve(b, ones, window, counted)
        images = b.reshaped(b("Div", cotangent, counts), batch * channels, 1, *places)
        by_x = data_gradient(b, images, window, sizes, lone)
        return [b.reshaped(by_x, batch, channels, *sizes)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        values, index = self.windows(x.astype(np.float64), 0.0)
        before, after = self.padding(x.shape[2:])
        if not self.count_include_pad:
            before, after = [0] * len(before), [0] * len(after)
        counted = np.all(
            [
                (i >= -b) & (i < n + a)
                for i, n, b, a in zip(index, x.shape[2:], before, after, strict=True)
            ],
            axis=0,
        )
        with np.errstate(all="ignore"):
            return ((values.sum(axis=-1) / counted.sum(axis=-1)).astype(x.dtype),)


_NORMS = {
    1: (Code("fabs(v)"), Code("(total)")),
    2: (Code("((v) * (v))"), Code("sqrt(total)")),
}
_ANY_NORM = (
    Code("pow(fabs(v), LIKE(v, {}.0f))"),
    Code("pow(total, LIKE(total, 1.0f / {}.0f))"),
)


@register
@dataclass(frozen=True)
class LpPool(WindowPool):
    """Returns the p-norm of each window.

    Attributes:
        p: Exponent of the norm, 1 or more.

    Source: ONNX LpPool, opset 2 to 22.
    """

    p: int = 2

    def infer(self, inputs: Types) -> list[TensorType]:
        if self.p < 1:
            raise ShapeError(f"LpPool: p {self.p}; expected 1 or more.")
        if not (x := need(inputs, 0, self)).dtype.is_float:
            raise ShapeError(f"LpPool: its input is {x}; expected floats.")
        return super().infer(inputs)

    def defines(self) -> dict[str, Define]:
        power, root = _NORMS.get(self.p, _ANY_NORM)
        norm = {"POWER(v)": power.substitute(self.p), "MEAN(total, count)": root.substitute(self.p)}
        return {"MAX": 0, "PADDED": 0, "INDICES": 0, "COLUMN_MAJOR": 0, **norm}

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        values, _ = self.windows(x.astype(np.float64), 0.0)
        total = (np.abs(values) ** self.p).sum(axis=-1)
        return ((total ** (1 / self.p)).astype(x.dtype),)


class GlobalPool:
    """Mixin that makes a reduction op reduce all spatial axes of `[images, channels, …]`.

    The reduced axes are kept, with size 1.
    """

    keepdims: bool
    integers: ClassVar[bool] = False
    selects: ClassVar[bool] = False

    def _axes(self, data: Array | None, rank: int) -> tuple[int, ...]:
        return tuple(range(2, rank))


@register
class GlobalAveragePool(GlobalPool, ReduceMean):
    """Returns the mean over the spatial axes. Source: ONNX GlobalAveragePool, opset 1 to 22."""

    name = "GlobalAveragePool"


@register
class GlobalMaxPool(GlobalPool, ReduceMax):
    """Returns the maximum over the spatial axes. Source: ONNX GlobalMaxPool, opset 1 to 22."""

    name = "GlobalMaxPool"
