"""Gather: selects slices along any axis by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.cl_code import Code, Define
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import Buffer, KernelSpec, Launch, launch
from clrt.kernels.subview import Subview
from clrt.kernels.thresholds import Tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.shapes import known_shape, scattered
from clrt.ops.index_checks import check_indices, index_status
from clrt.ops.movement.common import index_t, num_elements
from clrt.ops.pointwise.fused import symbolic_shape
from clrt.ops.registry import register
from clrt.ops.traits import HostTraits, InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

# Size in bytes of the vectors in which kernels copy rows.
VECTOR_BYTES = 16
CPU = tuned(
    "gather_cpu",
    T_BYTES=Tunable(16384, "bytes", "Bytes that a work-group copies: amortizes its start."),
)


@dataclass(frozen=True)
class _GatheredRows:
    """Launch parameters of y[o, i, :] = x[o, indices[i], :].

    Attributes:
        outer: Product of the dims before the gathered axis.
        n: Size of the gathered axis.
        rows: Number of indices.
        inner: Product of the dims after the gathered axis: elements per row.
        buffers: Kernel arguments that are buffers, by name.
        defines: Macros of the dtypes.
    """

    outer: int
    n: int
    rows: int
    inner: int
    buffers: dict[str, Buffer]
    defines: dict[str, Define]


def _view(node: Node) -> _GatheredRows:
    """Returns the launch parameters of a Gather node.

    Raises:
        UnsupportedError: The gathered axis has no elements.
    """
    x, indices, y = node.arg(0), node.arg(1), node.output
    op = node.op_as(Gather)
    axis = normalize_axis(op.axis, len(x.dims), op)
    n = x.dims[axis]
    if n == 0:
        raise UnsupportedError(f"axis {axis} of '{x.name}' has no elements to gather from.")
    status = index_status(node, 1, (n,), f"axis {axis} of '{x.name}'")
    return _GatheredRows(
        num_elements(x.dims[:axis]),
        n,
        num_elements(indices.dims),
        num_elements(x.dims[axis + 1 :]),
        {"x": x, "indices": indices, "y": y, "status": status},
        {"DATA_T": x.dtype.cl_bits, "INDEX_T": index_t(indices)},
    )


def _reject_cpu(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the CPU kernel does not apply: rows are shorter than a vector.

    The kernel copies rows vector by vector. Returns None for longer rows and rows of unknown
    length.
    """
    x, op = node.arg(0), node.op_as(Gather)
    shape = symbolic_shape(x)
    inner = shape[normalize_axis(op.axis, len(shape), op) + 1 :]
    known = [d for d in inner if isinstance(d, int)]
    row_bytes = math.prod(known) * x.dtype.itemsize
    short = len(known) == len(inner) and row_bytes < VECTOR_BYTES
    return f"rows of {row_bytes} bytes are shorter than a vector" if short else None


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    total = num_elements(node.output.dims)
    if not total or 0 in ctx.aliased_subviews_of(node):
        return []
    view, tunables = _view(node), ctx.tunables(CPU)
    kernel = KernelSpec.of("movement/gather.cl", "gather_cpu", **view.defines, **tunables)
    groups = ceil_div(total * node.output.dtype.itemsize, tunables["T_BYTES"])
    sizes = dict(n=view.n, rows=view.rows, units=view.inner, total=total)
    return [launch(kernel, (groups,), (1,), **view.buffers, **sizes)]


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    if not num_elements(node.output.dims) or 0 in ctx.aliased_subviews_of(node):
        return []
    view, x = _view(node), node.arg(0)
    lanes = VECTOR_BYTES // x.dtype.itemsize
    vector = view.inner % lanes == 0
    units = view.inner // lanes if vector else view.inner
    kernel = KernelSpec.of(
        "movement/gather.cl",
        "gather",
        COPY_T=Code("uint4") if vector else x.dtype.cl_bits,
        ROWS_FIRST=int(units == 1),
        **view.defines,
    )
    size = (view.rows, units, view.outer) if units == 1 else (units, view.rows, view.outer)
    return [launch(kernel, size, n=view.n, rows=view.rows, units=units, **view.buffers)]


@register
@dataclass(frozen=True)
class Gather(Op):
    """Selects slices: y[o, i, r] = x[o, indices[i], r].

    o stands for the axes before `axis`, r for the axes after it. Negative indices count from the
    end. An index out of range makes the run fail with an error.

    Source: ONNX Gather, opset 1 to 13.
    """

    axis: int = 0

    memory_traits = MemoryTraits(partially_read_input=0)
    accuracy = Accuracy.EXACT
    supported_storages = None
    host_traits = HostTraits(evaluates_dims=True)
    input_traits = InputTraits(index=(1,))
    variants = (
        Variant("cpu", _emit_cpu, _reject_cpu, requires.CPU),
        Variant("any", _emit_any, speed=PlainEfficiency),
    )

    def subviews(self, node: Node) -> list[Subview]:
        x, indices = node.arg(0).dims, node.arg(1).type.known_elements
        # Indices that the host computes from sizes would restrict the plan to these sizes.
        if (
            not isinstance(indices, np.ndarray)
            or indices.size != 1
            or not num_elements(node.output.dims)
        ):
            return []
        axis, index = normalize_axis(self.axis, len(x), self), int(indices.reshape(())[()])
        n, width = x[axis], num_elements(x[axis + 1 :])
        if not -n <= index < n:
            return []  # out of range: the run reports it
        return [Subview(node.output, node.arg(0), index % n * width, width, n * width)]

    def infer(self, inputs: Types) -> list[TensorType]:
        x, indices = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is None or indices.shape is None:
            return [TensorType(x.dtype, None)]
        if not x.shape:
            raise ShapeError("Gather: the data is a scalar; expected a rank of at least 1.")
        axis = normalize_axis(self.axis, len(x.shape), self)
        return [TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :])]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        shape = known_shape(node.arg(0))
        axis = normalize_axis(self.axis, len(shape), self)
        return [scattered(b, cotangent, node.arg(1), axis, shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, indices = inputs
        assert x is not None and indices is not None
        if indices.dtype != object:
            check_indices(indices, (x.shape[self.axis],), self.name)
        return (np.asarray(np.take(x, indices, self.axis), x.dtype),)
