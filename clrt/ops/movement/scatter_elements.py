"""ScatterElements: writes or reduces one element along an axis per index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch
from clrt.kernels.strided import (
    axes,
    collapse,
    contiguous_strides,
    copy_launches,
    launch_places,
)
from clrt.kernels.variant import Lowering, Variant, lacks_float64
from clrt.ops.base import Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.shapes import filled_like
from clrt.ops.index_checks import check_indices, index_status
from clrt.ops.movement.common import index_t, num_elements
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

# Reduction -> value of REDUCTION in common/scatter.clh.
Reduction: TypeAlias = Literal["none", "add", "mul", "max", "min"]
REDUCTIONS: dict[Reduction, int] = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}
UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def reject_reduce(reduction: Reduction, dtype: DType, caps: DeviceCaps) -> str | None:
    """Returns why the device cannot scatter with a reduction; None if it can.

    Args:
        reduction: Reduction of the op; "none" is always supported.
        dtype: Dtype of the elements.
        caps: Capabilities of the device.
    """
    if reduction == "none":
        return None
    if dtype in (DType.BOOL, DType.FLOAT16):
        return f"no kernel reduces {dtype}"
    return lacks_float64((dtype,), caps)


def data_t(reduction: Reduction, dtype: DType) -> Code:
    """Returns the C element type of scatter kernels.

    For reduction "none" the type is an integer of the size of `dtype`, because elements are only
    moved.
    """
    return dtype.cl_bits if reduction == "none" else dtype.cl


def copy_of(node: Node, ctx: Lowering) -> list[Launch]:
    """Returns launches that copy input 0 of a node to its output.

    The planner drops these launches if the output is in place.
    """
    x, y = node.arg(0), node.output
    strides = contiguous_strides(x.dims)
    launches = copy_launches(ctx, BufferArg(x), BufferArg(y), x.dtype, x.dims, strides, strides)
    return [replace(launch, copy=(x, y)) for launch in launches]


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    return reject_reduce(node.op_as(ScatterElements).reduction, node.output.dtype, caps)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    indices, updates, y = node.arg(1), node.arg(2), node.output
    op = node.op_as(ScatterElements)
    if not num_elements(y.dims):
        return []
    launches = copy_of(node, ctx)
    if not num_elements(indices.dims):
        return launches
    axis = normalize_axis(op.axis, len(y.dims), op)
    strides, update_strides = (
        list(contiguous_strides(y.dims)),
        list(contiguous_strides(indices.dims)),
    )
    dims = list(indices.dims)
    n, step, length, walk = y.dims[axis], strides[axis], dims[axis], update_strides[axis]
    dims[axis], strides[axis], update_strides[axis] = 1, 0, 0
    merged, (at, read) = collapse(dims, strides, update_strides)
    status = index_status(node, 1, (n,), f"axis {axis} of '{y.name}'")
    tensors = dict(indices=indices, updates=updates, y=y, status=status)
    steps = dict(n=n, step=step, length=length, walk=walk, **axes("s", at, 0), **axes("u", read, 0))
    kernel = KernelSpec.of(
        "movement/scatter_elements.cl",
        "scatter_elements",
        DATA_T=data_t(op.reduction, y.dtype),
        INDEX_T=index_t(indices),
        REDUCTION=REDUCTIONS[op.reduction],
    )
    # Elements accessed per index. Lines along the last axis are processed one after another; along
    # other axes, element k of all lines comes before element k + 1.
    work = length if walk == 1 else 1
    return [*launches, launch_places(kernel, merged, ctx, work, **tensors, **steps)]


def scattered_over(op: Op, reduction: str, b: OpBuilder, node: Node, cotangent: Value) -> Value:
    """Returns the cotangent of x in a scatter: that of y, but 0 where updates replace elements.

    Args:
        op: The scatter op.
        reduction: Its reduction.
        node: The scatter, whose inputs are x, indices and updates.
        cotangent: Cotangent of its output y.

    Raises:
        UnsupportedError: The reduction is neither "none" nor "add".
    """
    if reduction == "add":
        return cotangent
    if reduction != "none":
        raise UnsupportedError(f"its attribute 'reduction' is {reduction!r}")
    return b(op, cotangent, node.arg(1), filled_like(b, 0, node.arg(2)))


@register
@dataclass(frozen=True)
class ScatterElements(Op):
    """Writes or reduces elements into a copy of x: y[i][indices[i][j]] = updates[i][j] (axis 1).

    Attributes:
        axis: Axis that the indices refer to.
        reduction: How an update is combined with the element; "none" overwrites it.

    Numerics: updates of one element are applied in index order by one work-item.

    Source: ONNX ScatterElements, opset 11 to 18.
    """

    axis: int = 0
    reduction: Reduction = "none"

    input_traits = InputTraits(index=(1,), same_dtype=((0, 2),))
    memory_traits = MemoryTraits(inplace_inputs=(0,))
    variants = (Variant("lines", _emit, _reject),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, indices, updates = (need(inputs, i, self) for i in range(3))
        if x.shape is None or indices.shape is None:
            return [TensorType(x.dtype, x.shape)]
        if len(x.shape) != len(indices.shape):
            raise ShapeError(f"{self.name}: ranks of {x} and {indices} differ.")
        axis = normalize_axis(self.axis, len(x.shape), self)
        for i, (d, k) in enumerate(zip(x.shape, indices.shape, strict=True)):
            if i != axis and isinstance(d, int) and isinstance(k, int) and k > d:
                raise ShapeError(f"{self.name}: axis {i} of {indices} exceeds that of {x}.")
        if updates.is_static and indices.is_static and updates.shape != indices.shape:
            raise ShapeError(f"{self.name}: shapes of {indices} and {updates} differ.")
        return [TensorType(x.dtype, x.shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        assert cotangent is not None
        by_x = scattered_over(self, self.reduction, b, node, cotangent)
        return [by_x, None, b("GatherElements", cotangent, node.arg(1), axis=self.axis)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, indices, updates = inputs
        assert x is not None and indices is not None and updates is not None
        axis = normalize_axis(self.axis, x.ndim, self)
        places: list[Array] = list(np.indices(indices.shape))
        places[axis] = check_indices(indices, (x.shape[axis],), self.name)
        result = x.copy()
        if self.reduction == "none":
            result[tuple(places)] = updates
        else:
            UFUNCS[self.reduction].at(result, tuple(places), updates)  # type: ignore[attr-defined]
        return (result,)
