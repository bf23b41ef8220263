"""Position ops of com.microsoft: relative position biases and rotary embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clrt.errors import ModelError
from clrt.ir.op import Array
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.unpadded_batches import with_padding
from clrt.util.host_limits import MAX_COUNT

_DOMAIN = "com.microsoft"


@register_import_decomposition(_DOMAIN, "RelativePositionBias")
def _relative_position_bias(body: ImportBuilder) -> None:
    """Decomposes RelativePositionBias: T5's bias of scores, `[1, heads, queries, keys]`.

    The bias is read from a table with a number per head and bucket of distances. The table is
    declared `[buckets, heads]` but stored column by column.
    """
    buckets, heads = body.size_of(0, 0), body.size_of(0, 1)
    queries, keys = (
        body.count_up(body("Reshape", length, body.ints(1))) for length in body.inputs[1:3]
    )
    ahead, none = body("Sub", keys, body("Unsqueeze", queries, body.ints(1))), body.numbers(0)
    bidirectional = bool(body.attrs.get("is_bidirectional", 0))
    bucket_table = _bucket_of_each(
        buckets // 2 if bidirectional else buckets, body.count_of("max_distance")
    )
    distance = body("Abs", ahead) if bidirectional else body("Max", body("Neg", ahead), none)
    bucket = body(
        "Gather",
        body.constant(bucket_table),
        body("Min", distance, body.numbers(len(bucket_table) - 1)),
    )
    if bidirectional:
        later = body("Where", body("Greater", ahead, none), body.numbers(buckets // 2), none)
        bucket = body("Add", bucket, later)
    table = body("Reshape", body.inputs[0], body.ints(heads, -1))
    body.outputs = [body("Unsqueeze", body("Gather", table, bucket, axis=1), body.ints(0))]


def _bucket_of_each(count: int, limit: int) -> Array:
    """Returns the bucket of each distance from 0 to `limit`, int64 `[limit + 1]`.

    Buckets of the first half hold one distance each; buckets of the second half hold ranges of
    logarithmically growing width. Numerics: float32 as in T5, because some distances are exactly at
    the edge of a bucket.

    Args:
        count: Number of buckets.
        limit: Maximum distance.
    """
    exact, distances = count // 2, np.arange(limit + 1)
    ratio = np.maximum(distances, exact).astype(np.float32) / np.float32(exact)
    share = np.log(ratio) / np.float32(math.log(limit / exact))
    far = exact + (share * np.float32(count - exact)).astype(np.int64)
    return np.where(distances < exact, distances, np.minimum(far, count - 1))


@register_import_decomposition(_DOMAIN, "GatedRelativePositionBias")
def _gated_relative_position_bias(body: ImportBuilder) -> None:
    """Decomposes GatedRelativePositionBias: a position bias of scores, gated per query and head.

    The gate is computed from the query: u * (r * scale - 1) + 2, with two sigmoids u and r. Inputs:
    queries `[batch, tokens, heads * head_size]`, bias of queries, position bias, weights and bias
    of u and r, scale per head, optional token offsets of an unpadded batch.
    """
    queries, own_bias, positions, weights, bias, scale = body.inputs[:6]
    if body.has(6):
        queries = with_padding(body, queries, body.inputs[6])
    q = body.split_heads(body("Add", queries, own_bias), int(body.attrs["num_heads"]))
    gates = body("Add", body("MatMul", q, weights), bias)
    halves = body("Reshape", gates, body.ints(0, 0, 0, 2, -1))
    both = body("Sigmoid", body("ReduceSum", halves, body.ints(-1), keepdims=0))
    u, r = body.node("Split", [both], 2, num_outputs=2, axis=-1)
    one, two = (body.number(value) for value in (1.0, 2.0))
    gate = body("Add", body("Mul", u, body("Sub", body("Mul", r, scale), one)), two)
    body.outputs = [body("Mul", gate, positions)]


@register_import_decomposition(_DOMAIN, "GemmaRotaryEmbedding")
def _gemma_rotary_embedding(body: ImportBuilder) -> None:
    """Decomposes GemmaRotaryEmbedding: x * cos(angle) + rotated * sin(angle).

    x are the queries or the keys, `rotated` the same with the halves of each head swapped. Inputs:
    angles `[batch, tokens, head_size]`, queries, rotated queries, keys, rotated keys.
    """
    sine, cosine = (
        body.cast(body("Unsqueeze", body(op, body.inputs[0]), body.ints(1)), body.input_dtype(1))
        for op in ("Sin", "Cos")
    )
    body.outputs = [
        body("Add", body("Mul", x, cosine), body("Mul", rotated, sine))
        for x, rotated in (body.inputs[1:3], body.inputs[3:5])
    ]


@register_import_decomposition(_DOMAIN, "MRotaryEmbedding")
def _mrotary_embedding(body: ImportBuilder) -> None:
    """Decomposes MRotaryEmbedding: rotary embeddings by positions in time, height and width.

    Inputs: x, positions `[3, batch, tokens]`, cosine table, sine table.

    `mrope_section` says which of the three positions each column of the tables uses.
    `is_packed_batching` is ignored, as in ONNX Runtime.
    """
    sections = [int(v) for v in body.attrs["mrope_section"]]
    half, scale = sum(sections), body.attrs.get("scale", 1.0)
    if len(sections) != 3 or min(sections) < 0 or half > MAX_COUNT:
        raise ModelError(f"its mrope_section is {sections}; expected three counts.")
    if body.attrs.get("mrope_layout", 0):
        streams = np.zeros(half, np.int64)
        for stream in (1, 2):
            streams[stream : 3 * sections[stream] : 3] = stream
    else:
        streams = np.repeat(np.arange(3), sections)
    each = body.node("Split", [body.inputs[1]], 3, num_outputs=3, axis=0)
    positions = [body("Squeeze", value, body.ints(0)) for value in each]
    tables = []
    for table in body.inputs[2:4]:
        rows = [body("Gather", table, value) for value in positions]
        mixed = rows[0]
        for stream in (1, 2):
            is_stream = body.constant(streams == stream)
            mixed = body("Where", is_stream, rows[stream], mixed)
        tables.append(mixed if scale == 1 else body("Mul", mixed, body.number(scale)))
    names = ("interleaved", "num_heads", "rotary_embedding_dim")
    attrs: dict[str, Any] = {name: int(body.attrs.get(name, 0)) for name in names}
    body.outputs = [body("RotaryEmbedding", body.inputs[0], *tables, **attrs)]
