"""Floats that are narrow in memory only: ops compute with them in float32."""

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


class WidenFloats(Pass):
    """Nodes on floats of 16 bits, or on others that their kernels do not read -> in float32.

    Casts stand around what is computed in float32, and none in between: a result is not rounded to
    16 bits where the model goes on computing with it. float32 is what the fast kernels compute in.
    Elementwise nodes and those that only move elements read every dtype; they are widened where
    their inputs are. Weights and caches stay as they lie where kernels read that (`narrow_inputs`).
    A product with weights keeps the dtype of its A in mind, to which kernels may round.
    """

    name = "widen_floats"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op
        assert isinstance(op, Op)
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        if op.host_driven or op.graphs or any(type(v.type) is not TensorType for v in values):
            return None
        stay = _stay(node, op)
        inputs = [v for v in node.inputs if v and v not in stay and _is_narrow(v, op)]
        if isinstance(op, Cast):
            source = node.arg(0).producer
            ours = bool(inputs) and source is not None and source.made_by == self.name
            return Match(view, node) if ours else None
        if op.supported_storages is None and not any(_wide_source(v) for v in inputs):
            return None
        narrow = inputs or [v for v in node.outputs if not stay and _is_narrow(v, op)]
        return Match(view, node) if narrow and _fits(node, op) else None

    def rewrite(self, match: Match) -> Patch:
        node, build = match.root, match.builder(self.name)
        op = node.op
        assert isinstance(op, Op)

        stay = _stay(node, op)

        def widened(value: Value | None) -> Value | None:
            if value is None or value in stay or not _is_narrow(value, op):
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
    """The op of a node; of a product with weights one that says what A was."""
    if type(op) is not MatMul or not node.arg(1).is_constant:
        return op
    dtype = node.arg(0).dtype
    return FusedMatMul(a_dtype=dtype) if dtype in HALVES and dtype is node.arg(1).dtype else op


def _stay(node: Node, op: Op) -> set[Value | None]:
    """Inputs that kernels read as they lie."""
    if not op.half_storage_inputs or node.arg(0).dtype is not DType.FLOAT32:
        return set()
    given = range(len(node.inputs))
    return {
        v
        for i in op.half_storage_inputs
        if i in given and (v := node.inputs[i]) and v.dtype in HALVES
    }


def _is_narrow(value: Value, op: Op) -> bool:
    if value.dtype in HALVES:
        return True
    unread = op.supported_storages is not None and value.dtype.storage not in op.supported_storages
    return value.dtype.is_float and unread


def _wide_source(value: Value) -> Value | None:
    """The float32 value that a value is the rounding of."""
    cast = value.producer
    if cast is None or not isinstance(cast.op, Cast) or value.dtype not in HALVES:
        return None
    return cast.arg(0) if cast.arg(0).dtype is DType.FLOAT32 else None


def _fits(node: Node, op: Op) -> bool:
    """Whether the node gives float32 for float32, and else what it gave."""
    types = [
        None if v is None else _widened(v.type) if _is_narrow(v, op) else v.type
        for v in node.inputs
    ]
    try:
        found: Sequence[TensorType] = op.infer_with_data(types)
    except ClrtError:
        return False
    return len(found) >= len(node.outputs) and all(
        new.dtype is old.dtype or (_is_narrow(old, op) and new.dtype is DType.FLOAT32)
        for old, new in zip(node.outputs, found, strict=False)
    )


def _widened(type_: TensorType) -> TensorType:
    numbers = type_.numbers if type_.has_numbers else None
    known = None if numbers is None else numbers.astype(np.float32)
    return TensorType(DType.FLOAT32, type_.shape, known)
