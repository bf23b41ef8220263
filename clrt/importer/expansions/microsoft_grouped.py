"""Attention of com.microsoft whose heads of queries share keys and values."""

from __future__ import annotations

from typing import Any

from clrt.errors import UnsupportedError
from clrt.importer.expansions.body import Body, expands
from clrt.importer.expansions.layouts import count_up, dim_of, merge_heads, padded, split_heads
from clrt.importer.expansions.microsoft_attention import mask_of

_DOMAIN = "com.microsoft"


@expands(_DOMAIN, "GroupQueryAttention")
def _group_query_attention(body: Body) -> None:
    """Inputs: q, k, v, past keys and values `[B, K, P, D]`, the last place of each row, how many
    places there are in all, and the tables of cosines and sines.

    A cache may have room for more places than there are; row b has `seqlens_k[b] + 1` of them, and
    its new ones come last.
    """
    if body.attrs.get("sliding_window_cache", 0) or body.has(12) or body.has(13):
        raise UnsupportedError("a cache of a window or in fewer bits")
    heads, kv_heads = int(body.attrs["num_heads"]), int(body.attrs["kv_num_heads"])
    q, k, v = body.inputs[:3]
    if not body.has(1):
        size = body.size_of(0, 2) // (heads + 2 * kv_heads)
        sizes = body.ints(heads * size, kv_heads * size, kv_heads * size)
        q, k, v = body.node("Split", [body.inputs[0], sizes], 3, axis=2)
    counts = (heads, kv_heads, kv_heads)
    q, k, v = (split_heads(body, t, n) for t, n in zip((q, k, v), counts, strict=True))
    if body.has(14):
        epsilon = body.attrs.get("qk_norm_epsilon", 1e-6)
        q, k = (
            body("RMSNormalization", t, body.inputs[i], axis=-1, epsilon=epsilon)
            for i, t in enumerate((q, k), 14)
        )
    rows = dim_of(body, q, 2)
    zero, one = (body.scalar(n) for n in (0, 1))
    lengths = body("Add", body("Reshape", body("Cast", body.inputs[5], to=7), body.ints(-1)), one)
    # In a first call a row may be shorter than the others; then its places still start at 0.
    before = body("Max", body("Sub", lengths, rows), zero)
    places = body("Add", body("Unsqueeze", before, body.ints(1)), count_up(body, rows))
    if body.attrs.get("do_rotary", 0):
        style: dict[str, Any] = {"interleaved": int(body.attrs.get("rotary_interleaved", 0))}
        table = body.input_type(7).shape
        if table is not None and isinstance(table[-1], int):
            # The first elements of each head turn, as many as the tables are made for.
            style["rotary_embedding_dim"] = 2 * table[-1]
        tables = (*body.inputs[7:9], body.optional(9) or places)
        q, k = (body("RotaryEmbedding", t, *tables, **style) for t in (q, k))
    if body.has(3):
        caches = []
        total = body("Reshape", body("Cast", body.inputs[6], to=7), body.ints(1))
        for old, new in zip(body.inputs[3:5], (k, v), strict=True):
            room = body("Max", body("Sub", total, dim_of(body, old, 2)), zero)
            grown = padded(body, old, 2, after=room)
            caches.append(body("TensorScatter", grown, new, before, axis=-2))
        k, v = caches
    count = dim_of(body, k, 2)
    keys = count_up(body, count)
    own = body("Unsqueeze", places, body.ints(1, 3))
    # Without an order a query sees all that its row has.
    last = body("Unsqueeze", body("Sub", lengths, one), body.ints(1, 2, 3))
    seen = body("LessOrEqual", keys, own if body.attrs.get("causal", 1) else last)
    window = int(body.attrs.get("local_window_size", -1))
    if window > 0:
        oldest = body("Sub", own, body.scalar(window))
        seen = body("And", seen, body("Greater", keys, oldest))
    mask = mask_of(body, seen)
    if body.has(10):
        # It ends with the places that there are; a cache may have room behind.
        room = body("Sub", count, dim_of(body, body.inputs[10], 3))
        mask = body("Add", mask, padded(body, body.inputs[10], 3, after=room))
    attrs: dict[str, Any] = {
        n: float(body.attrs[n]) for n in ("scale", "softcap") if body.attrs.get(n)
    }
    all_keys, all_values = k, v
    if body.has(11) or body.attrs.get("smooth_softmax", 0):
        # One more place, of no value, takes its share of the softmax.
        extra = body.ints(1)
        k, v = (padded(body, t, 2, after=extra) for t in (k, v))
        mask = padded(body, mask, 3, after=extra)
        if body.has(11):
            sinks = body("Unsqueeze", body.inputs[11], body.ints(0, 2, 3))
            mask = body("Add", mask, padded(body, sinks, 3, before=count))
    y = merge_heads(body, body("Attention", q, k, v, mask, **attrs))
    body.outputs = [y, all_keys, all_values]
