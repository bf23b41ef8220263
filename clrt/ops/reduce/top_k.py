"""TopK: the k largest or smallest elements along an axis, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from clrt.device import requires
from clrt.errors import ShapeError, counted
from clrt.ir.cl_code import Define
from clrt.ir.dims import Dim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import Buffer, KernelSpec, Launch, launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Accuracy, OnnxNode, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.gradients.shapes import filled_like
from clrt.ops.movement.common import elements, fresh_dim, num_elements
from clrt.ops.norm.softmax import around_axis
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


class TopKRuns(Thresholds):
    """Thresholds of the length of the runs that work-items sort before runs are merged."""

    few: int = tunable(
        64,
        "elements",
        "Maximum k for long runs: only k elements of a run are kept, so most are skipped.",
    )
    few_least: int = tunable(256, "elements", "Minimum length of a run if k is small.")
    few_ratio: int = tunable(
        16, "elements per k", "Length of a run if k is small, of which k are kept."
    )
    many: int = tunable(
        16, "elements", "Length of a run if k is large, which a work-item sorts by insertion."
    )

    group: ClassVar = "top_k_runs"

    def first(self, k: int) -> int:
        """Returns the number of elements that a work-item sorts as one run.

        Args:
            k: Number of elements that are kept of each run.
        """
        return max(self.few_least, self.few_ratio * k) if k <= self.few else self.many


def _sizes(node: Node) -> tuple[int, int, int, int]:
    """Returns the sizes of a TopK node's lines; a line has the elements along the axis.

    Returns:
        The number of lines, the elements per line, their stride in elements, and k.
    """
    x = node.arg(0)
    op = node.op_as(TopK)
    axis = normalize_axis(op.axis, len(x.dims), op)
    outer, n, inner = around_axis(x.dims, axis)
    return outer * inner, n, inner, node.output.dims[axis] if x.dims else 1


def _defines(node: Node) -> dict[str, Define]:
    """Returns the macros for the dtype and the direction of a TopK."""
    x = node.arg(0)
    return {
        "DATA_T": x.dtype.cl,
        "STORAGE": x.dtype.storage,
        "VALUE_T": x.dtype.compute,
        "IS_FLOAT": int(x.dtype.is_float),
        "LARGEST": int(bool(node.op_as(TopK).largest)),
    }


def _results(node: Node, ctx: Lowering) -> dict[str, Buffer]:
    """Returns the kernel arguments `values` and `indices`: outputs, or scratch if omitted."""
    values, *outputs = node.outputs
    indices = outputs[0] if outputs else ctx.scratch(num_elements(values.dims), DType.INT64)
    return {"values": values, "indices": indices}


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits the launch of TopK on CPUs.

    Each work-item handles one line of elements along the axis, and selects the best k in a heap.
    """
    lines, n, inner, k = _sizes(node)
    if not lines * k:
        return []
    heaps = ctx.scratch(lines * k, DType.INT32)
    kernel = KernelSpec.of("reduce/top_k.cl", "top_k_cpu", **_defines(node))
    args = dict(x=node.arg(0), list=heaps, n=n, inner=inner, k=k)
    return [launch(kernel, (lines,), (1,), **args, **_results(node, ctx))]


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    """Emits the launches of TopK by a merge sort that keeps the best k elements of each run."""
    x, defines = node.arg(0), _defines(node)
    lines, n, inner, k = _sizes(node)
    if not lines * k:
        return []
    run = ctx.thresholds(TopKRuns).first(k)
    capacity = ceil_div(n, run) * min(run, k)
    source, target = (ctx.scratch(lines * capacity, DType.INT32) for _ in range(2))
    args = dict(x=x, n=n, inner=inner, k=k, capacity=capacity)
    blocks = KernelSpec.of("reduce/top_k.cl", "top_k_blocks", **defines)
    merge = KernelSpec.of("reduce/top_k.cl", "top_k_merge", **defines)
    launches = [launch(blocks, (ceil_div(n, run), lines), list=source, run=run, **args)]
    while run < n:
        grid = (ceil_div(n, run) * min(run, k), lines)
        launches.append(launch(merge, grid, list=source, merged=target, run=run, **args))
        source, target, run = target, source, 2 * run
    take = KernelSpec.of("reduce/top_k.cl", "top_k_take", **defines)
    return [*launches, launch(take, (k, lines), list=source, **args, **_results(node, ctx))]


@register
@dataclass(frozen=True)
class TopK(Op):
    """The k largest (or smallest) elements along an axis and their int64 indices, sorted.

    Of equal elements the one with the lower index comes first; NaN counts as largest.

    Attributes:
        axis: Axis of the selection.
        largest: 1: the largest elements, in descending order; 0: the smallest, ascending.
        sorted: Ignored; the elements are always sorted.

    Source: ONNX TopK, opset 1 to 24.
    """

    axis: int = -1
    largest: int = 1
    sorted: int = 1

    supported_storages = None
    input_traits = InputTraits(plan_time=(1,))
    accuracy = Accuracy.EXACT
    variants = (
        Variant("heap", _emit_cpu, reject_float64, requires.CPU),
        Variant("merge", _emit, reject_float64, speed=PlainEfficiency),
    )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        if "k" in node.attrs:  # a number in old opsets; the input is a vector of one element
            node.set_input(1, np.array([node.attrs["k"]], np.int64))
        return super().from_onnx(node)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        need(inputs, 1, self)
        if x.shape is None:
            return [TensorType(x.dtype, None), TensorType(DType.INT64, None)]
        axis = normalize_axis(self.axis, len(x.shape), self)
        ks = elements(inputs, 1)
        if ks is not None and len(ks) != 1:
            raise ShapeError(f"TopK: k has {counted(len(ks), 'element')}; expected one.")
        k: Dim = ks[0] if ks else fresh_dim()
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :]) if x.shape else ()
        n = x.shape[axis] if x.shape else 1
        if isinstance(k, int) and (k < 0 or (isinstance(n, int) and k > n)):
            raise ShapeError(f"TopK: {k} of {n} elements along axis {axis} of {x}.")
        return [TensorType(x.dtype, shape), TensorType(DType.INT64, shape)]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        cotangent, _ = (*cotangents, None)[:2]
        if cotangent is None:
            return [None]
        places = node.outputs[1] if len(node.outputs) > 1 else b.add_all(self, *node.inputs)[1]
        zeros = filled_like(b, 0, node.arg(0))
        return [b("ScatterElements", zeros, places, cotangent, axis=self.axis, reduction="add")]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, k = inputs
        assert x is not None and k is not None
        if not x.ndim:
            return x, np.zeros((), np.int64)
        axis = normalize_axis(self.axis, x.ndim, self)
        keys = x if x.dtype.kind in "iuf" else x.astype(np.float32)
        if self.largest:  # flipped twice, so that equal elements stay in ascending order
            order = np.flip(np.argsort(np.flip(keys, axis), axis, kind="stable"), axis)
            order = x.shape[axis] - 1 - order
        else:
            order = np.argsort(keys, axis, kind="stable")
        order = np.take(order, np.arange(int(k.reshape(-1)[0])), axis)
        return np.take_along_axis(x, order, axis), order.astype(np.int64)
