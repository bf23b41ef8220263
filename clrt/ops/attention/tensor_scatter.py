"""TensorScatter: writes an update into a cache, at one position per batch sample."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import Buffer, KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import agree, need, normalize_axis
from clrt.ops.index_checks import check_lengths, length_status
from clrt.ops.movement.common import index_t, num_elements
from clrt.ops.movement.scatter_elements import copy_of
from clrt.ops.norm.softmax import around_axis
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass


class TensorScatterPartition(Thresholds):
    """Threshold of the partition of TensorScatter into CPU work-groups."""

    row: int = tunable(
        16,
        "elements",
        "Minimum after the axis for a work-group per row, not a work-item per element: starting a "
        "work-group costs about as much as ten work-items.",
    )

    group: ClassVar = "tensor_scatter_shares"


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    update, indices, y = node.arg(1), node.input(2), node.output
    op = node.op_as(TensorScatter)
    axis = op.place(len(y.dims))
    outer, length, inner = around_axis(update.dims, axis)
    size = y.dims[axis]
    if not num_elements(y.dims):
        return []
    launches = copy_of(node, ctx)
    if not num_elements(update.dims):
        return launches
    kernel = KernelSpec.of(
        "attention/tensor_scatter.cl",
        "tensor_scatter",
        DATA_T=y.dtype.cl_bits,
        CIRCULAR=int(op.mode == "circular"),
        F_INDICES=int(indices is not None),
        INDEX_T=index_t(indices) if indices is not None else DType.INT64.cl,
    )
    status = length_status(node, 2, size - length, "a write index")
    tensors: dict[str, Buffer] = dict(update=update, y=y)
    if indices is not None:
        tensors |= dict(indices=indices, status=status)
    sizes = dict(inner=inner, size=size, length=length, middle=num_elements(y.dims[1:axis]))
    rows = ctx.caps.is_cpu and inner >= ctx.thresholds(TensorScatterPartition).row
    items, local = ((1, length, outer), (1, 1, 1)) if rows else ((inner, length, outer), None)
    return [*launches, launch(kernel, items, local, **tensors, **sizes)]


_Mode: TypeAlias = Literal["linear", "circular"]


@register
@dataclass(frozen=True)
class TensorScatter(Op):
    """Writes `update` to a KV cache along `axis`, from position write_indices[b] on in sequence b.

    Inputs: the cache, `update`, of the cache's shape except along `axis`, and optionally
    write_indices `[batch]` (default: 0). Output: the cache after the write.

    Attributes:
        axis: Axis of the positions, not 0 (the batch).
        mode: "circular" wraps positions modulo the size of the cache; "linear" rejects positions
            outside the cache.

    Source: ONNX TensorScatter, opset 24.
    """

    axis: int = -2
    mode: _Mode = "linear"

    supported_storages = None
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.EXACT
    input_traits = InputTraits(index=(2,))
    variants = (Variant("rows", _emit),)

    def place(self, rank: int) -> int:
        """Returns `axis` counted from the front, for a cache of rank `rank`.

        Raises:
            ShapeError: The axis is outside the rank, or is axis 0, the batch.
        """
        axis = normalize_axis(self.axis, rank, self)
        if not axis:
            raise ShapeError("TensorScatter: the axis must not be 0, the batch axis.")
        return axis

    def infer(self, inputs: Types) -> list[TensorType]:
        cache, update = need(inputs, 0, self), need(inputs, 1, self)
        if cache.dtype is not update.dtype:
            raise ShapeError(
                f"TensorScatter: the update {update} does not match the cache {cache}."
            )
        if cache.shape is not None and update.shape is not None:
            axis = self.place(len(cache.shape))
            if len(cache.shape) != len(update.shape):
                raise ShapeError(
                    f"TensorScatter: the update {update} does not match the cache {cache}."
                )
            for k, (old, new) in enumerate(zip(cache.shape, update.shape, strict=True)):
                if (
                    isinstance(old, int)
                    and isinstance(new, int)
                    and (new > old or (k != axis and new != old))
                ):
                    raise ShapeError(
                        f"TensorScatter: the update {update} does not match the cache {cache}."
                    )
            starts = inputs[2] if len(inputs) > 2 else None
            if starts is not None and not agree(starts, cache.shape[:1]):
                raise ShapeError(
                    f"TensorScatter: write indices {starts} do not match the cache {cache}."
                )
        return [TensorType(cache.dtype, cache.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        cache, update, indices = (*inputs, None)[:3]
        assert cache is not None and update is not None
        axis = self.place(cache.ndim)
        size, length = cache.shape[axis], update.shape[axis]
        starts = np.zeros(len(cache), np.int64) if indices is None else indices
        if self.mode != "circular":
            check_lengths(starts, size - length, self.name, 2, "a write index")
        y = np.moveaxis(cache, axis, 1).copy()
        new = np.moveaxis(update, axis, 1)
        for sample, values, start in zip(y, new, starts, strict=True):
            positions = (int(start) % max(size, 1) + np.arange(length)) % max(size, 1)
            sample[positions] = values
        return (np.ascontiguousarray(np.moveaxis(y, 1, axis)),)
