"""RotaryEmbedding in the form that the pass `fuse_rotary` matches."""

from __future__ import annotations

from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import provably_equal
from clrt.ops.base import Decompose
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)


@register_import_decomposition("", "RotaryEmbedding")
def _rotary_embedding(body: ImportBuilder) -> None:
    """Decomposes RotaryEmbedding into the nodes that the pass `fuse_rotary` matches.

    The rule applies if whole heads are rotated, and element i of a head is paired with element i +
    size / 2. ONNX's function body is used for other forms.
    """
    shape, heads = body.shape_of(), int(body.attrs.get("num_heads", 0))
    if len(shape) not in (3, 4) or (len(shape) == 3 and not heads):
        raise Decompose
    size = shape[3] if len(shape) == 4 else floordiv(shape[2], heads)
    part = int(body.attrs.get("rotary_embedding_dim", 0))
    if body.attrs.get("interleaved", 0) or (part and not provably_equal(size, part)):
        raise Decompose
    x = body.inputs[0]
    if len(shape) == 3:
        x = body.split_heads(x, heads)
    tables = []
    for table in body.inputs[1:3]:
        rows = body("Gather", table, body.inputs[3], axis=0) if body.has(3) else table
        tables.append(body("Unsqueeze", body("Concat", rows, rows, axis=-1), body.ints(1)))
    halves = body.node("Split", [x], 2, num_outputs=2, axis=-1)
    y = body.rotated(x, halves, *tables)
    body.outputs = [body.merge_heads(y) if len(shape) == 3 else y]
