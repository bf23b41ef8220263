"""Gather of a constant table at sliced constant indices -> Slice of one constant."""

from __future__ import annotations

import numpy as np

from clrt.ir.graph import Node, Patch
from clrt.ir.op import IrOp
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.slice import Slice
from clrt.passes.driver import GraphView, Match, Miss, Pass
from clrt.passes.fold_constants import MAX_FOLDED_BYTES
from clrt.passes.matching import int_attribute, produced_by


class SinkSlice(Pass):
    """Gather(table, Slice(rows, …)) -> Slice(Gather(table, rows), …).

    `table` and `rows` are constant, so the Gather is then folded: position embeddings become a
    slice of one constant.
    """

    name = "sink_slice"
    required_op_classes = (Slice,)

    def may_match(self, op: type[IrOp]) -> bool:
        return issubclass(op, Gather)

    def match(self, view: GraphView, node: Node) -> Match | Miss | None:
        if int_attribute(node.op, "axis", 0) != 0:
            return None
        part = produced_by(node.arg(1), "Slice")
        table = node.arg(0).numbers if node.arg(0).is_constant else None
        rows = part.arg(0).numbers if part is not None and part.arg(0).is_constant else None
        if part is None or table is None or rows is None or table.ndim == 0:
            return None
        if rows.size and not -len(table) <= rows.min() <= rows.max() < len(table):
            return Miss("some indices are out of the table's range", node)
        if rows.size * table[:1].nbytes > max(MAX_FOLDED_BYTES, table.nbytes):
            return Miss("all rows together are larger than 16 MiB and than the table", node)
        axes = part.input(3)
        if axes is not None and (not axes.is_constant or axes.numbers is None):
            return Miss("the axes of the slice are not constant", node)
        return Match(view, node, traversed_nodes=[part])

    def rewrite(self, match: Match) -> Patch:
        build, node, (part,) = match.builder(self.name), match.root, match.traversed_nodes
        rows, axes = part.arg(0), part.input(3)
        looked_up = build.add(node.op, node.arg(0), rows)
        inputs = [looked_up, *part.inputs[1:]]
        if axes is not None and axes.numbers is not None:
            # Non-negative axes: the result has more axes than the indices.
            inputs[3] = build.constant(np.asarray(axes.numbers % len(rows.dims), np.int64))
        return build.patch({node.output: build.add(part.op, *inputs)})
