"""Gather of a constant table at sliced constant indices -> Slice of one constant."""

from __future__ import annotations

import numpy as np

from clrt.ir.graph import Patch
from clrt.ir.pattern import Captures, Verdict, constant, op
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.slice import Slice
from clrt.passes.driver import Match
from clrt.passes.fold_constants import MAX_FOLDED_BYTES
from clrt.passes.pattern_pass import PatternPass


def _is_foldable(found: Captures) -> Verdict:
    """Returns True if a Gather may read all `rows`, to slice its result; else False or a reason."""
    table, rows = found["table"].numbers, found["rows"].numbers
    if table is None or rows is None or table.ndim == 0:
        return False
    if rows.size and not -len(table) <= rows.min() <= rows.max() < len(table):
        return "some indices are out of the table's range"
    if rows.size * table[:1].nbytes > max(MAX_FOLDED_BYTES, table.nbytes):
        return "all rows together are larger than 16 MiB and than the table"
    axes = found.node("part").input(3)
    if axes is not None and (not axes.is_constant or axes.numbers is None):
        return "the axes of the slice are not constant"
    return True


class SinkSlice(PatternPass):
    """Gather(table, Slice(rows, …)) -> Slice(Gather(table, rows), …).

    `table` and `rows` are constant, so the Gather is then folded: position embeddings become a
    slice of one constant.
    """

    name = "sink_slice"
    required_op_classes = (Slice,)
    replaces_root_only = True
    pattern = op(
        Gather, constant("table"), op(Slice, constant("rows"), ..., name="part"), axis=0
    ).where(_is_foldable)

    def rewrite(self, match: Match) -> Patch:
        build, node, part = match.builder(self.name), match.root, match.payload.node("part")
        rows, axes = part.arg(0), part.input(3)
        looked_up = build.add(node.op, node.arg(0), rows)
        inputs = [looked_up, *part.inputs[1:]]
        if axes is not None and axes.numbers is not None:
            # Non-negative axes: the result has more axes than the indices.
            inputs[3] = build.constant(np.asarray(axes.numbers % len(rows.dims), np.int64))
        return build.patch({node.output: build.add(part.op, *inputs)})
