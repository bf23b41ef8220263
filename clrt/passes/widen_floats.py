"""Floats that are narrow in memory only: ops compute with them in float32."""

from __future__ import annotations

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Patch, Value
from clrt.ops.base import Op
from clrt.ops.cast import Cast
from clrt.passes.driver import GraphView, Match, Miss, Pass, Rewriter


class WidenFloats(Pass):
    """Node on floats that its kernels do not read (bfloat16) -> Casts, the node in float32, Casts.

    Elementwise nodes and those that only move elements read every dtype, and take the casts in.
    """

    name = "widen_floats"

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        op = node.op
        assert isinstance(op, Op)
        if op.storages is None or op.driven:
            return None
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        narrow = {v.dtype for v in values if v.dtype.storage not in op.storages}
        if not narrow or not all(d.is_float for d in narrow):
            return None
        return Match(view, node)

    def rewrite(self, match: Match) -> Patch:
        node, rewriter = match.root, Rewriter(match, self.name)
        storages = node.op.storages if isinstance(node.op, Op) else None

        def widened(value: Value | None) -> Value | None:
            if value is None or storages is None or value.dtype.storage in storages:
                return value
            return rewriter.add(Cast(DType.FLOAT32), value)

        rewriter.add(node.op, *map(widened, node.inputs))
        wide = rewriter.nodes[-1].outputs
        pairs = zip(node.outputs, wide, strict=False)
        replace = {
            old: new if new.dtype is old.dtype else rewriter.add(Cast(old.dtype), new)
            for old, new in pairs
        }
        return rewriter.patch(replace)
