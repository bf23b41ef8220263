"""QuantizedGather: gathers and dequantizes rows of a quantized matrix, such as embeddings."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.quantized_panels_cpu import in_half
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, RejectReason, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.index_checks import check_indices, index_status
from clrt.ops.matmul.gguf_format import GgufFormat, check_rows, quantised_type
from clrt.ops.movement.common import index_t
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div


def _table(op: QuantizedGather, raw: Value) -> GgufFormat:
    return GgufFormat(quantised_type(op.type, op), op.N, op.K, raw)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    op, indices, raw = node.op_as(QuantizedGather), node.arg(0), node.arg(1)
    weights, rows = _table(op, raw).panels(), prod(indices.dims)
    macros = {**weights.defines, "INDEX_T": index_t(indices)}
    kernel = KernelSpec.of("matmul/gather_levels.cl", "gather_levels", **macros)
    status = index_status(node, 0, (op.N,), f"rows of '{raw.name}'")
    tensors = dict(y=node.output, b=weights.packed, indices=indices, status=status)
    sizes = dict(N=op.N, K=op.K, blocks=weights.blocks)
    return [launch(kernel, (weights.blocks, rows), None, **tensors, **sizes)] if rows else []


def _emit_exact(node: Node, ctx: Lowering) -> list[Launch]:
    op, indices, raw = node.op_as(QuantizedGather), node.arg(0), node.arg(1)
    weights, rows = _table(op, raw).rows(), prod(indices.dims)
    macros = {**weights.defines, "INDEX_T": index_t(indices)}
    kernel = KernelSpec.of("matmul/gather_level_rows.cl", "gather_level_rows", **macros)
    status = index_status(node, 0, (op.N,), f"rows of '{raw.name}'")
    tensors = dict(y=node.output, indices=indices, status=status)
    args = {**weights.args(op.N), **tensors, "N": op.N, "K": op.K}
    return [launch(kernel, (ceil_div(op.K, 4), rows), None, **args)] if rows else []


def _rounds(wanted: bool) -> RejectReason:
    """Returns the reject function of a QuantizedGather variant.

    The function rejects nodes whose `exact` does not match the variant.

    Args:
        wanted: Whether the variant rounds scales and minima to float16, for nodes with `exact` 0.
    """

    def reject(node: Node, caps: DeviceCaps) -> str | None:
        op = node.op_as(QuantizedGather)
        return None if bool(op.exact) is not wanted else f"for exact={int(not wanted)}"

    return reject


@register
@dataclass(frozen=True)
class QuantizedGather(Op):
    """Gathers rows of a quantized matrix and dequantizes them.

    Inputs: integer indices `[…]`; a constant uint8 `[N, bytes of a row]` of GGUF blocks. Output:
    float32 `[…, K]`.

    Attributes:
        type: Name of the GGUF block type.
        K: Elements of a row.
        N: Number of rows.
        exact: 1: scales and minima are used as stored; 0: they are rounded to float16. Weights are
            packed as for QuantizedMatMul, so that both ops can share them.

    Source: llama.cpp's get_rows.
    """

    type: str = "Q8_0"
    K: int = 0
    N: int = 0
    exact: int = 0

    domain = "clrt"
    accuracy = Accuracy.ELEMENTWISE
    input_traits = InputTraits(index=(0,), plan_time=(1,))
    memory_traits = MemoryTraits(partially_read_input=1)
    variants = (
        Variant("records", _emit, _rounds(True)),
        Variant("rows", _emit_exact, _rounds(False)),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        indices, raw = need(inputs, 0, self), need(inputs, 1, self)
        check_rows(self, quantised_type(self.type, self), raw, self.N, self.K)
        if indices.dtype not in (DType.INT32, DType.INT64):
            raise ShapeError(f"{self.name}: indices {indices}; expected int32 or int64.")
        shape = None if indices.shape is None else (*indices.shape, self.K)
        return [TensorType(DType.FLOAT32, shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        indices, raw = inputs
        assert indices is not None and raw is not None
        row_numbers = check_indices(indices, (self.N,), self.name, 0)
        shape = (*indices.shape, self.K)
        if not row_numbers.size:
            return (np.zeros(shape, np.float32),)
        rows = np.ascontiguousarray(raw[row_numbers.reshape(-1)])
        block_type = quantised_type(self.type, self)
        values = block_type.dequantise(rows) if self.exact else in_half(block_type.levels(rows))
        return (values.reshape(shape),)
