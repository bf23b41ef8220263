"""ReverseSequence: reverses the first elements of each sequence of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.strided import MovePartition, contiguous_strides, launch_grid
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.index_checks import check_lengths, length_status
from clrt.ops.movement.common import index_t, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

_SOURCE = "movement/reverse_sequence.cl"


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, lens, y = node.arg(0), node.arg(1), node.output
    op = node.op_as(ReverseSequence)
    if not num_elements(y.dims):
        return []
    batch, time = x.dims[op.batch_axis], x.dims[op.time_axis]
    strides = contiguous_strides(x.dims)
    inner = num_elements(x.dims[2:])
    macros = dict(DATA_T=x.dtype.cl_bits, INDEX_T=index_t(lens))
    status = length_status(node, 1, time, "a length")
    tensors = dict(x=x, lens=lens, y=y, status=status)
    steps = dict(time_step=strides[op.time_axis], batch_step=strides[op.batch_axis])
    sizes = dict(inner=inner, time=time, batch=batch)
    if ctx.caps.is_cpu:
        height = clamp(time, 1, ceil_div(ctx.thresholds(MovePartition).elems, inner))
        kernel = KernelSpec.of(_SOURCE, "reverse_sequence_rows", CPU=1, **macros)
        groups = (ceil_div(time, height), batch)
        return [launch(kernel, groups, (1, 1), **tensors, **sizes, **steps, height=height)]
    kernel = KernelSpec.of(_SOURCE, "reverse_sequence", **macros)
    return [launch_grid(kernel, (inner, time, batch), ctx.caps, **tensors, **sizes, **steps)]


@register
@dataclass(frozen=True)
class ReverseSequence(Op):
    """Reverses the first sequence_lens[b] elements of each batch entry b along `time_axis`.

    Later elements keep their place. Inputs: x, and sequence_lens, one length per batch entry.

    Attributes:
        batch_axis: Axis of the batch entries, 0 or 1.
        time_axis: Axis of the sequences: 1 if `batch_axis` is 0, else 0.

    Source: ONNX ReverseSequence, opset 10.
    """

    batch_axis: int = 1
    time_axis: int = 0

    accuracy = Accuracy.EXACT
    supported_storages = None
    input_traits = InputTraits(index=(1,))
    variants = (Variant("flat", _emit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, lens = need(inputs, 0, self), need(inputs, 1, self)
        if {self.batch_axis, self.time_axis} != {0, 1}:
            raise ShapeError(
                f"ReverseSequence: batch axis {self.batch_axis} and time axis {self.time_axis}; "
                "expected 0 and 1."
            )
        if x.shape is not None and len(x.shape) < 2:
            raise ShapeError(f"ReverseSequence: {x} has rank {len(x.shape)}; expected at least 2.")
        if x.is_static and lens.is_static and x.shape is not None:
            batch = x.shape[self.batch_axis]
            if lens.shape != (batch,):
                raise ShapeError(f"ReverseSequence: {lens} for {batch} sequences.")
        return [TensorType(x.dtype, x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        return [b(self, cotangent, *node.inputs[1:])]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, lens = inputs
        assert x is not None and lens is not None
        check_lengths(lens, x.shape[self.time_axis], self.name, 1, "a length")
        result = np.moveaxis(x, self.batch_axis, 0).copy()
        for sequence, length in zip(result, lens, strict=True):
            sequence[:length] = sequence[:length][::-1].copy()
        return (np.ascontiguousarray(np.moveaxis(result, 0, self.batch_axis)),)
