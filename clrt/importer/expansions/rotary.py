"""RotaryEmbedding in the form that the pass which has a kernel for it (`fuse_rotary`) looks for."""

from __future__ import annotations

import numpy as np

from clrt.importer.expansions.body import Body, expands
from clrt.importer.expansions.quantised import has, rank_of
from clrt.ops.base import Expand


@expands("", "RotaryEmbedding")
def _rotary_embedding(body: Body) -> None:
    """Halves of whole heads as pairs; other forms are what ONNX's function body says."""
    rank, heads = rank_of(body, 0), int(body.attrs.get("num_heads", 0))
    if body.attrs.get("interleaved", 0) or body.attrs.get("rotary_embedding_dim", 0):
        raise Expand
    if rank not in (3, 4) or (rank == 3 and not heads):
        raise Expand
    x = body.inputs[0]
    if rank == 3:
        split = body("Reshape", x, body.constant(np.array([0, 0, heads, -1])))
        x = body("Transpose", split, perm=[0, 2, 1, 3])
    tables = []
    for table in body.inputs[1:3]:
        rows = body("Gather", table, body.inputs[3], axis=0) if has(body, 3) else table
        whole = body("Concat", rows, rows, axis=-1)
        tables.append(body("Unsqueeze", whole, body.constant(np.array([1]))))
    first, second = body.node("Split", [x], 2, num_outputs=2, axis=-1)
    turned = body("Concat", body("Neg", second), first, axis=-1)
    y = body("Add", body("Mul", x, tables[0]), body("Mul", turned, tables[1]))
    if rank == 3:
        together = body("Transpose", y, perm=[0, 2, 1, 3])
        y = body("Reshape", together, body.constant(np.array([0, 0, -1])))
    body.outputs = [y]
