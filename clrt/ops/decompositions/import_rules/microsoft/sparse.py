"""SparseAttention of com.microsoft: block-sparse attention, with layouts shared by heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.attention import mask_of
from clrt.ops.decompositions.import_rules.microsoft.group_query_attention import (
    first_places,
    rotate,
    split_groups,
)


@register_import_decomposition("com.microsoft", "SparseAttention")
def _sparse_attention(body: ImportBuilder) -> None:
    """Decomposes SparseAttention: causal attention of blocks of queries to some blocks of keys.

    Inputs: queries; keys; values; caches of keys and of values, each `[batch, kv_heads, positions,
    head_size]`; two inputs that list the visible blocks (`_seen_blocks`); total length; length of
    each sequence; cosines and sines of rotary embeddings.
    """
    heads, block = body.count_of("num_heads"), body.numbers(int(body.attrs["sparse_block_size"]))
    q, k, v = split_groups(body)
    rows = body.dim_of(q, 2)
    lengths = body("Reshape", body.cast(body.inputs[8], DType.INT64), body.ints(-1))
    before = first_places(body, lengths, rows)
    places = body("Add", body("Unsqueeze", before, body.ints(1)), body.count_up(rows))
    q, k = rotate(body, (q, k), (body.optional(9), body.optional(10)), 9, places)
    caches = [
        body("TensorScatter", old, new, before, axis=-2)
        for old, new in zip(body.inputs[3:5], (k, v), strict=True)
    ]
    keys = body.count_up(body.dim_of(caches[0], 2))
    by_query = body("Gather", _seen_blocks(body), body("Div", places, block), axis=1)
    by_key = body("Gather", by_query, body("Div", keys, block), axis=3)
    # From [layouts, B, S, P]: heads use the layouts cyclically.
    layout_of_head = body.constant(np.arange(heads) % body.size_of(5, 0))
    seen = body("Gather", body("Transpose", by_key, perm=[1, 0, 2, 3]), layout_of_head, axis=1)
    causal = body("LessOrEqual", keys, body("Unsqueeze", places, body.ints(1, 3)))
    mask = mask_of(body, body("And", body.cast(seen, DType.BOOL), causal))
    scale = float(body.attrs.get("scale", 0.0))
    attrs: dict[str, Any] = {"scale": scale} if scale else {}
    body.outputs = [body.merge_heads(body("Attention", q, *caches, mask, **attrs)), *caches]


def _seen_blocks(body: ImportBuilder) -> Value:
    """Returns which blocks of keys (columns) each block of queries (row) sees: 1, or 0 for hidden.

    Several heads share one such matrix, a layout. It is stored in CSR form: input 5, `[layouts,
    blocks + 1]`, holds the start of each row in input 6, the column indices.

    Returns:
        uint8 `[layouts, blocks, blocks]`.
    """
    layouts = body.size_of(5, 0)
    ends = body.slice(body.inputs[5], 1, 1 << 31, 1)
    columns = body.cast(body.inputs[6], DType.INT64)
    one = body.ints(1)
    number = body("Unsqueeze", body.count_up(body.dim_of(columns, 1)), one)
    past = body("LessOrEqual", body("Unsqueeze", body.cast(ends, DType.INT64), one), number)
    # Padding of shorter lists goes to an additional last row, which is dropped.
    row = body("ReduceSum", body.cast(past, DType.INT64), body.ints(-1), keepdims=0)
    column = body("Max", columns, body.numbers(0))
    numbers = body("Unsqueeze", body.count_up(body.dim_of(columns, 0)), one)
    layout = body("Expand", numbers, body("Shape", columns))
    indices = [body("Unsqueeze", index, body.ints(-1)) for index in (layout, row, column)]
    count = body.dim_of(ends, 1)
    shape = body("Concat", body.ints(layouts), body("Add", count, one), count, axis=0)
    zero, yes = (body.constant(np.array(value, np.uint8)) for value in (0, 1))
    scattered = body(
        "ScatterND", body("Expand", zero, shape), body("Concat", *indices, axis=-1),
        body("Expand", yes, body("Shape", columns)),
    )  # fmt: skip
    return body("Slice", scattered, body.ints(0), count, one)
