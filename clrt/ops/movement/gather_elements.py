"""GatherElements: selects one element along an axis per index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.strided import axes, collapse, contiguous_strides, launch_places
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.shapes import filled_like
from clrt.ops.index_checks import check_indices, index_status
from clrt.ops.movement.common import index_t, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, indices, y = node.arg(0), node.arg(1), node.output
    op = node.op_as(GatherElements)
    if not num_elements(y.dims):
        return []
    axis = normalize_axis(op.axis, len(x.dims), op)
    n = x.dims[axis]
    if n == 0:
        raise UnsupportedError(f"axis {axis} of '{x.name}' has no elements to gather from.")
    strides = list(contiguous_strides(x.dims))
    step, strides[axis] = strides[axis], 0
    dims, (steps, _) = collapse(y.dims, strides, contiguous_strides(y.dims))
    status = index_status(node, 1, (n,), f"axis {axis} of '{x.name}'")
    args = dict(x=x, indices=indices, y=y, status=status, n=n, step=step)
    kernel = KernelSpec.of(
        "movement/gather_elements.cl",
        "gather_elements",
        DATA_T=x.dtype.cl_bits,
        INDEX_T=index_t(indices),
    )
    return [launch_places(kernel, dims, ctx, **args, **axes("s", steps, 0))]


@register
@dataclass(frozen=True)
class GatherElements(Op):
    """Selects elements: y[i][j][k] = x[i][indices[i][j][k]][k] (for axis 1).

    Source: ONNX GatherElements, opset 11 to 13.
    """

    axis: int = 0

    memory_traits = MemoryTraits(partially_read_input=0)
    accuracy = Accuracy.EXACT
    supported_storages = None
    input_traits = InputTraits(index=(1,))
    variants = (Variant("strided", _emit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, indices = need(inputs, 0, self), need(inputs, 1, self)
        if x.shape is not None and indices.shape is not None:
            if len(x.shape) != len(indices.shape):
                raise ShapeError(f"GatherElements: ranks of {x} and {indices} differ.")
            axis = normalize_axis(self.axis, len(x.shape), self)
            for i, (d, k) in enumerate(zip(x.shape, indices.shape, strict=True)):
                if i != axis and isinstance(d, int) and isinstance(k, int) and k > d:
                    raise ShapeError(f"GatherElements: axis {i} of {indices} exceeds that of {x}.")
        return [TensorType(x.dtype, indices.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        zeros = filled_like(b, 0, node.arg(0))
        scatter = dict(axis=self.axis, reduction="add")
        return [b("ScatterElements", zeros, node.arg(1), cotangent, **scatter)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, indices = inputs
        assert x is not None and indices is not None
        axis = normalize_axis(self.axis, x.ndim, self)
        places: list[Array] = list(np.indices(indices.shape, sparse=True))
        places[axis] = check_indices(indices, (x.shape[axis],), self.name)
        return (x[tuple(places)],)
