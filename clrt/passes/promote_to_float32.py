"""16-bit and narrower float arithmetic -> float32 arithmetic, with Casts around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.errors import ClrtError
from clrt.ir.dtypes import HALVES, DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ir.op import TensorType
from clrt.ops.base import Op
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.pointwise.cast import Cast
from clrt.passes.driver import GraphView, Match, Miss, Pass


class PromoteToFloat32(Pass):
    """Node on 16-bit floats, or floats that its kernels do not support -> the node in float32.

    The fast kernels compute in float32. Casts remain only where float32 nodes border on others, so
    intermediate results are not rounded to 16 bits. Elementwise and data movement nodes, which
    support every dtype, are promoted only if an input was cast from float32. Weights and caches
    stay in 16 bits if kernels read them directly (`InputTraits.half_storage`). A product with
    constant B records the original dtype of A (`a_dtype`), to which kernels may round A.
    """

    name = "widen_floats"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op_as(Op)
        types = [type(v.type) for v in (*node.inputs, *node.outputs) if v is not None]
        if op.host_traits.host_driven or op.graphs or types.count(TensorType) < len(types):
            return None
        direct = _direct_inputs(node, op)
        inputs = [v for v in node.inputs if v and v not in direct and _is_narrow(v, op)]
        if isinstance(op, Cast):
            source = node.arg(0).producer
            is_own_cast = bool(inputs) and source is not None and source.made_by == self.name
            return Match(view, node) if is_own_cast else None
        if op.supported_storages is None and not any(_wide_source(v) for v in inputs):
            return None
        narrow = inputs or [v for v in node.outputs if not direct and _is_narrow(v, op)]
        return Match(view, node) if narrow and _fits(node, op) else None

    def rewrite(self, match: Match) -> Patch:
        node, build = match.root, match.builder(self.name)
        op = node.op_as(Op)

        direct = _direct_inputs(node, op)

        def widened(value: Value | None) -> Value | None:
            if value is None or value in direct or not _is_narrow(value, op):
                return value
            source = _wide_source(value)
            if source is not None:
                return source
            if value.is_constant and value.numbers is not None:
                key = (self.name, value)
                memo = match.view.memo
                if key not in memo:
                    memo[key] = build.constant(value.numbers.astype(np.float32))
                constant = memo[key]
                assert isinstance(constant, Value)
                return constant
            return build.add(Cast(DType.FLOAT32), value)

        build.add(_with_dtype(op, node), *map(widened, node.inputs))
        replace: dict[Value, Value] = {}
        for old, new in zip(node.outputs, build.nodes[-1].outputs, strict=False):
            if new.dtype is old.dtype:
                replace[old] = new
            else:
                new.aliases += (old.name, *old.aliases)
                replace[old] = build.add(Cast(old.dtype), new)
        return build.patch(replace)


def _with_dtype(op: Op, node: Node) -> Op:
    """Returns the op of a promoted node, which records the original dtype of A if possible.

    Args:
        op: Op of the node.
        node: The node before promotion.

    Returns:
        For a 16-bit MatMul with constant B, a FusedMatMul with `a_dtype`; otherwise `op`.
    """
    if type(op) is not MatMul or not node.arg(1).is_constant:
        return op
    dtype = node.arg(0).dtype
    return FusedMatMul(a_dtype=dtype) if dtype in HALVES and dtype is node.arg(1).dtype else op


def _direct_inputs(node: Node, op: Op) -> set[Value | None]:
    """Returns the 16-bit inputs of a float32 node that its kernels read without promotion."""
    if not op.input_traits.half_storage or node.arg(0).dtype is not DType.FLOAT32:
        return set()
    indices = range(len(node.inputs))
    return {
        v
        for i in op.input_traits.half_storage
        if i in indices and (v := node.inputs[i]) and v.dtype in HALVES
    }


def _is_narrow(value: Value, op: Op) -> bool:
    """Whether a value is a 16-bit float, or a float that kernels of the op do not support."""
    if value.dtype in HALVES:
        return True
    read = op.supported_storages is None or value.dtype.storage in op.supported_storages
    return not read and value.dtype.is_float


def _wide_source(value: Value) -> Value | None:
    """Returns the float32 input of the Cast that produced a 16-bit value; None for other values."""
    cast = value.producer
    if cast is None or not isinstance(cast.op, Cast) or value.dtype not in HALVES:
        return None
    return cast.arg(0) if cast.arg(0).dtype is DType.FLOAT32 else None


def _fits(node: Node, op: Op) -> bool:
    """Whether a node of float32 inputs has float32 outputs in place of narrow ones.

    Narrow outputs are 16-bit floats, or floats that kernels of the op do not support. The dtypes of
    all other outputs must stay the same.
    """
    types = [
        None if v is None else _widened(v.type) if _is_narrow(v, op) else v.type
        for v in node.inputs
    ]
    try:
        inferred: Sequence[TensorType] = op.infer_with_data(types)
    except ClrtError:
        return False
    return len(inferred) >= len(node.outputs) and all(
        new.dtype is old.dtype or (_is_narrow(old, op) and new.dtype is DType.FLOAT32)
        for old, new in zip(node.outputs, inferred, strict=False)
    )


def _widened(type_: TensorType) -> TensorType:
    """Returns a tensor type with dtype float32, and with its known elements converted."""
    numbers = type_.numbers if type_.has_numbers else None
    known = None if numbers is None else numbers.astype(np.float32)
    return TensorType(DType.FLOAT32, type_.shape, known)
