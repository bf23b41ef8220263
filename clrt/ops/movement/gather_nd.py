"""GatherND and ScatterND: access by index tuples into the leading axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dims import provably_different, provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.spec import KernelSpec, Launch, indexed_args, launch
from clrt.kernels.strided import MAX_RANK, contiguous_strides, launch_grid
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.gradients.shapes import filled_like, known_shape
from clrt.ops.index_checks import check_indices, index_status
from clrt.ops.movement.common import index_t, num_elements
from clrt.ops.movement.scatter_elements import (
    REDUCTIONS,
    UFUNCS,
    Reduction,
    copy_of,
    data_t,
    reject_reduce,
    scattered_over,
)
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


class ScatterPartition(Thresholds):
    """Threshold of the partition of ScatterND into CPU work-groups."""

    span: int = tunable(
        1024, "elements", "Minimum of a slice per work-group, to amortize its start."
    )

    group: ClassVar = "scatter_nd_shares"


def _tuple_args(node: Node, data: Value, dims: Sequence[int], inner: int) -> dict[str, Any]:
    """Returns the kernel arguments that locate index tuples, with the status word.

    The arguments are the TUPLE_PARAMS of common/tuple.clh.

    Args:
        node: Node whose input 1 holds the tuples.
        data: Indexed tensor.
        dims: Sizes of the indexed axes of `data`.
        inner: Number of elements that a tuple refers to.

    Raises:
        UnsupportedError: There are too many indexed axes, or one has no elements.
    """
    if len(dims) > MAX_RANK:
        raise UnsupportedError(f"{node}: tuples of {len(dims)} indices; kernels take {MAX_RANK}.")
    if 0 in dims:
        raise UnsupportedError(f"{node}: an indexed axis has no elements.")
    strides = [s * inner for s in contiguous_strides(dims)]
    rest = MAX_RANK - len(dims)
    sizes, steps = (*dims, *[1] * rest), (*strides, *[0] * rest)
    status = index_status(node, 1, dims, f"the axes of '{data.name}' that it is for")
    args = indexed_args("n", sizes) | indexed_args("s", steps)
    return {"status": status, "width": len(dims), **args}


def _emit_gather(node: Node, ctx: Lowering) -> list[Launch]:
    x, indices, y = node.arg(0), node.arg(1), node.output
    if not num_elements(y.dims):
        return []
    b, width = node.op_as(GatherND).batch_dims, indices.dims[-1]
    inner = num_elements(x.dims[b + width :])
    per_batch = num_elements(indices.dims[b:-1])
    tuples = num_elements(indices.dims[:-1])
    dims = x.dims[b : b + width]
    kernel = KernelSpec.of(
        "movement/gather_nd.cl", "gather_nd", DATA_T=x.dtype.cl_bits, INDEX_T=index_t(indices)
    )
    tensors = dict(x=x, indices=indices, y=y)
    sizes = dict(inner=inner, tuples=tuples, per_batch=per_batch, batch=num_elements(x.dims[b:]))
    tuple_args = _tuple_args(node, x, dims, inner)
    return [launch_grid(kernel, (inner, tuples), ctx.caps, **tensors, **sizes, **tuple_args)]


@register
@dataclass(frozen=True)
class GatherND(Op):
    """Selects slices of x: y[b, t] = x[b, i], with the index tuple i = indices[b, t, :].

    b stands for positions on the first `batch_dims` axes of x and indices. t stands for positions
    on the other axes of indices, except its last axis, which holds the tuples.

    Source: ONNX GatherND, opset 11 to 13.
    """

    batch_dims: int = 0

    memory_traits = MemoryTraits(partially_read_input=0)
    accuracy = Accuracy.EXACT
    supported_storages = None
    input_traits = InputTraits(index=(1,))
    variants = (Variant("tuples", _emit_gather),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, indices = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is None or indices.shape is None:
            return [TensorType(x.dtype, None)]
        if not indices.shape:
            raise ShapeError("GatherND: the indices are a scalar; expected a rank of at least 1.")
        width = indices.shape[-1]
        if not isinstance(width, int):
            return [TensorType(x.dtype, None)]
        b = self.batch_dims
        if not 0 <= b < len(indices.shape) or b + width > len(x.shape):
            raise ShapeError(
                f"GatherND: tuples of {width} indices after {b} batch axes (batch_dims) do not "
                f"match {x}."
            )
        if any(map(provably_different, x.shape[:b], indices.shape[:b])):
            raise ShapeError(f"GatherND: the first {b} axes of {x} and {indices} differ.")
        return [TensorType(x.dtype, indices.shape[:-1] + x.shape[b + width :])]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        if self.batch_dims:
            raise UnsupportedError("its attribute 'batch_dims' is not 0, for which it has none")
        *axes, width = known_shape(node.arg(1))
        if provably_equal(width, 0):  # each index selects the whole of x
            return [b("ReduceSum", cotangent, b.ints(*range(len(axes))), keepdims=0)]
        zeros = filled_like(b, 0, node.arg(0))
        return [b("ScatterND", zeros, node.arg(1), cotangent, reduction="add")]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, indices = inputs
        assert x is not None and indices is not None
        b, width = self.batch_dims, indices.shape[-1]
        places = check_indices(indices, x.shape[b : b + width], self.name)
        batch = tuple(
            p.reshape(p.shape + (1,) * (indices.ndim - 1 - b))
            for p in np.indices(indices.shape[:b])
        )
        result = x[(*batch, *np.moveaxis(places, -1, 0))]
        shape = indices.shape[:-1] + x.shape[b + width :]
        return (np.broadcast_to(result, shape).copy(),)


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return reject_reduce(node.op_as(ScatterND).reduction, node.output.dtype, caps)


def _emit_scatter(node: Node, ctx: Lowering, cpu: bool = False) -> list[Launch]:
    indices, updates, y = node.arg(1), node.arg(2), node.output
    op = node.op_as(ScatterND)
    if not num_elements(y.dims):
        return []
    launches = copy_of(node, ctx)
    if not num_elements(updates.dims):
        return launches
    width = indices.dims[-1]
    dims, inner = y.dims[:width], num_elements(y.dims[width:])
    tuples = num_elements(indices.dims[:-1])
    kernel = KernelSpec.of(
        "movement/scatter_nd.cl",
        "scatter_nd_cpu" if cpu else "scatter_nd",
        DATA_T=data_t(op.reduction, y.dtype),
        INDEX_T=index_t(indices),
        REDUCTION=REDUCTIONS[op.reduction],
    )
    args = dict(indices=indices, updates=updates, y=y, inner=inner, tuples=tuples)
    args |= _tuple_args(node, y, dims, inner)
    if not cpu:
        return [*launches, launch(kernel, (inner,), **args)]
    # Long slices are split over work-groups. If slices are short, each work-group reads all tuples
    # and updates its own range of y.
    pieces = clamp(inner // ctx.thresholds(ScatterPartition).span, 1, ctx.caps.compute_units)
    span = ceil_div(inner, pieces)
    parts = clamp(ctx.caps.compute_units // pieces, 1, num_elements(dims))
    share = ceil_div(num_elements(dims), parts) * inner
    split = {"pieces": ceil_div(inner, span), "span": span, "share": share}
    groups = (split["pieces"] * ceil_div(num_elements(y.dims), share),)
    return [*launches, launch(kernel, groups, (1,), **args, **split)]


def _emit_scatter_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    return _emit_scatter(node, ctx, cpu=True)


@register
@dataclass(frozen=True)
class ScatterND(Op):
    """Writes or reduces slices into a copy of x: y[indices[t]] = updates[t].

    indices has index tuples on its last axis; t stands for its other axes.

    Attributes:
        reduction: How an update is combined with the element; "none" overwrites it.

    Numerics: updates of one element are applied in tuple order by one work-item.

    Source: ONNX ScatterND, opset 11 to 18.
    """

    reduction: Reduction = "none"

    input_traits = InputTraits(index=(1,), same_dtype=((0, 2),))
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    variants = (
        Variant("cpu", _emit_scatter_cpu, _reject, requires.CPU),
        Variant("columns", _emit_scatter, _reject),
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        return super().from_onnx(node)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, indices, updates = (need(inputs, i, self) for i in range(3))
        shape, tuples = x.static_shape, indices.static_shape
        if shape is not None and tuples is not None and updates.is_static:
            fits = tuples and tuples[-1] <= len(shape)
            if not fits or updates.shape != tuples[:-1] + shape[tuples[-1] :]:
                raise ShapeError(f"ScatterND: {indices} and {updates} do not match {x}.")
        return [TensorType(x.dtype, x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        by_x = scattered_over(self, self.reduction, b, node, cotangent)
        return [by_x, None, b(GatherND(), cotangent, node.arg(1))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, indices, updates = inputs
        assert x is not None and indices is not None and updates is not None
        result = x.copy()
        places = check_indices(indices, x.shape[: indices.shape[-1]], self.name)
        index = tuple(np.moveaxis(places, -1, 0))
        if self.reduction == "none":
            result[index] = updates
        else:
            UFUNCS[self.reduction].at(result, index, updates)  # type: ignore[attr-defined]
        return (result,)
