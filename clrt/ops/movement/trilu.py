"""Trilu: keeps the upper or lower triangle of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.strided import MovePartition, launch_grid
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import check_scalar, need
from clrt.ops.movement.common import host_ints, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    if not num_elements(y.dims):
        return []
    k = (host_ints(node, 1) or (0,))[0]
    rows, columns = y.dims[-2:]
    k = max(-rows, min(k, columns))
    sizes = dict(rows=rows, columns=columns, k=k)
    macros: dict[str, Define] = dict(
        DATA_T=x.dtype.cl_bits, UPPER=int(bool(node.op_as(Trilu).upper))
    )
    if ctx.caps.is_cpu:
        every = num_elements(y.dims[:-1])
        height = clamp(every, 1, ceil_div(ctx.thresholds(MovePartition).elems, columns))
        kernel = KernelSpec.of("movement/trilu.cl", "trilu_rows", CPU=1, **macros)
        sizes |= {"all": every, "height": height}
        return [launch(kernel, (ceil_div(every, height),), (1,), x=x, y=y, **sizes)]
    kernel = KernelSpec.of("movement/trilu.cl", "trilu", **macros)
    grid = (columns, rows, num_elements(y.dims[:-2]))
    return [launch_grid(kernel, grid, ctx.caps, x=x, y=y, matrices=grid[2], **sizes)]


@register
@dataclass(frozen=True)
class Trilu(Op):
    """Sets elements of matrices below the k-th diagonal to 0, or above it if `upper` is 0.

    Inputs: x, a stack of matrices, and optionally the number k (default: 0, the main diagonal).

    Source: ONNX Trilu, opset 14.
    """

    upper: int = 1

    input_traits = InputTraits(plan_time=(1,))
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    accuracy = Accuracy.EXACT
    supported_storages = None
    variants = (Variant("flat", _emit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        check_scalar(inputs, 1, self, "k")
        if x.shape is not None and len(x.shape) < 2:
            raise ShapeError(f"Trilu: {x} has rank {len(x.shape)}; expected at least 2.")
        return [TensorType(x.dtype, x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        return [b(self, cotangent, *node.inputs[1:])]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, k = inputs[0], inputs[1] if len(inputs) > 1 else None
        assert x is not None
        diagonal = 0 if k is None else int(k.reshape(-1)[0])
        rows, columns = x.shape[-2:]
        distance = np.arange(columns) - np.arange(rows)[:, None]
        keep = distance >= diagonal if self.upper else distance <= diagonal
        return (np.where(keep, x, np.zeros((), x.dtype)),)
