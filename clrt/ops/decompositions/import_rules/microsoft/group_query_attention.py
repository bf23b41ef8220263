"""GroupQueryAttention of com.microsoft: query heads share keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.attention import mask_of
from clrt.ops.decompositions.import_rules.microsoft.quantised import unpacked

_DOMAIN = "com.microsoft"


def split_groups(body: ImportBuilder) -> list[Value]:
    """Returns queries, keys and values, each `[batch, heads, tokens, head_size]`.

    Inputs 0, 1 and 2 hold them; if input 1 is omitted, input 0 holds all three, concatenated.
    """
    heads, kv_heads = int(body.attrs["num_heads"]), int(body.attrs["kv_num_heads"])
    operands = body.inputs[:3]
    if not body.has(1):
        size = body.size_of(0, 2) // (heads + 2 * kv_heads)
        sizes = body.ints(heads * size, kv_heads * size, kv_heads * size)
        operands = body.node("Split", [body.inputs[0], sizes], 3, axis=2)
    counts = (heads, kv_heads, kv_heads)
    return [body.split_heads(t, n) for t, n in zip(operands, counts, strict=True)]


def first_places(body: ImportBuilder, lengths: Value, rows: Value) -> Value:
    """Returns the position of the first new token of each sequence, `[batch]`.

    In a first call, a sequence may be shorter than the number of tokens (padding follows); its
    position is then 0.

    Args:
        body: Builder.
        lengths: Length of each sequence including the new tokens, `[batch]`.
        rows: Number of new tokens per sequence, `[1]`.
    """
    return body("Max", body("Sub", lengths, rows), body.numbers(0))


def rotate(
    body: ImportBuilder,
    operands: Sequence[Value],
    tables: tuple[Value | None, Value | None],
    table: int,
    places: Value,
) -> list[Value]:
    """Applies rotary embeddings to queries and keys; unchanged if `do_rotary` is not set.

    Args:
        body: Builder.
        operands: Queries and keys, each `[batch, heads, tokens, head_size]`.
        tables: Cosines and sines by position; None if omitted.
        table: Input index of the cosines; the columns of this input determine how many elements
            of a head are rotated.
        places: Positions of the tokens, `[batch, tokens]`.
    """
    if not body.attrs.get("do_rotary", 0):
        return list(operands)
    style: dict[str, Any] = {"interleaved": int(body.attrs.get("rotary_interleaved", 0))}
    shape = body.input_type(table).shape
    if shape is not None and isinstance(shape[-1], int):
        # Only the first elements of each head rotate, as many as the tables cover.
        style["rotary_embedding_dim"] = 2 * shape[-1]
    return [body("RotaryEmbedding", t, *tables, places, **style) for t in operands]


def _quantize_rows(body: ImportBuilder, rows: Value, scale: int) -> Value:
    """Quantizes new keys or values to the 8 or 4 bits of the cache.

    Returns them unchanged if the cache is not quantized. In 4 bits, two elements share a byte.

    Args:
        body: Builder.
        rows: Keys or values, `[batch, heads, tokens, head_size]`.
        scale: Input index of the scale; without this input the cache is not quantized.
    """
    if not body.has(scale):
        return rows
    bits = _bits(body)
    low, high = (body.floats(value) for value in (-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
    wide = body.cast(rows, DType.FLOAT32)
    levels = body("Clip", body("Round", body("Div", wide, body.inputs[scale])), low, high)
    if bits == 8:
        return body.cast(levels, DType.INT8)
    pairs = body("Reshape", body("Add", levels, body.floats(8.0)), body.ints(0, 0, 0, -1, 2))
    both = body("Mul", pairs, body.floats([1.0, 16.0]))
    return body.cast(body("ReduceSum", both, body.ints(-1), keepdims=0), DType.UINT8)


def _dequantize_cache(body: ImportBuilder, cache: Value, scale: int) -> Value:
    """Dequantizes a cache of 8 or 4 bits per element to the dtype of input 0.

    Args:
        body: Builder.
        cache: Keys or values, `[batch, heads, positions, …]`.
        scale: Input index of the scale; without this input the cache is not quantized, and is
            returned unchanged.
    """
    if not body.has(scale):
        return cache
    if _bits(body) == 4:
        wide = body.cast(unpacked(body, cache, 4), DType.FLOAT32)
        levels = body("Sub", wide, body.floats(8.0))
    else:
        levels = body.cast(cache, DType.FLOAT32)
    y, dtype = body("Mul", levels, body.inputs[scale]), body.input_dtype()
    return y if dtype is DType.FLOAT32 else body.cast(y, dtype)


def _bits(body: ImportBuilder) -> int:
    """Returns the bits per element of a quantized cache, from attribute `kv_cache_bit_width`.

    Raises:
        UnsupportedError: The cache is neither int8 with 8 bits nor uint8 with 4 bits.
    """
    bits = int(body.attrs.get("kv_cache_bit_width", 0))
    wanted = {8: DType.INT8, 4: DType.UINT8}.get(bits)
    if body.has(3) and body.input_dtype(3) is not wanted:
        raise UnsupportedError(f"a cache of {body.input_dtype(3)} in {bits} bits")
    return bits


def grown(body: ImportBuilder, cache: Value, rows: Value, first: Value, total: Value) -> Value:
    """Returns a cache with new rows written to it, padded to at least `total` positions.

    Args:
        body: Builder.
        cache: Keys or values, `[batch, kv_heads, positions, head_size]`.
        rows: New rows, `[batch, kv_heads, tokens, head_size]`.
        first: Position of the first new row of each sequence, `[batch]`.
        total: Minimum number of positions of the result, `[1]`.
    """
    return body("UpdateCache", cache, rows, first, total, domain="clrt")


def _cached_count(body: ImportBuilder, lengths: Value, size: Value) -> Value:
    """Returns the number of positions of each sequence in a sliding-window cache, `[batch]`.

    Each time the cache would overflow, its oldest size - window + 1 positions are evicted.

    Args:
        body: Builder; attribute `local_window_size` is the window.
        lengths: Number of positions of each sequence, evicted ones included, `[batch]`.
        size: Capacity of the cache in positions, `[1]`.
    """
    window = body.numbers(int(body.attrs["local_window_size"]) - 1)
    step = body("Sub", size, window)
    excess = body("Max", body("Sub", lengths, size), body.numbers(0))
    steps = body("Div", body("Sub", body("Add", excess, step), body.numbers(1)), step)
    return body("Sub", lengths, body("Mul", step, steps))


def _slice_rows(body: ImportBuilder, cache: Value, first: Value, size: Value) -> Value:
    """Returns `size` consecutive rows of each sequence in a cache.

    Args:
        body: Builder.
        cache: Keys or values, `[batch, kv_heads, positions, head_size]`.
        first: Position of the first returned row of each sequence, `[batch]`.
        size: Number of rows, `[1]`.

    Returns:
        `[batch, kv_heads, size, head_size]`; rows past the end of the cache repeat its last row.
    """
    positions = body("Add", body("Unsqueeze", first, body.ints(1)), body.count_up(size))
    last = body("Sub", body.dim_of(cache, 2), body.numbers(1))
    positions = body("Unsqueeze", body("Min", positions, last), body.ints(1, 3))
    shape = body("Shape", cache)
    lead, width = (body.slice(shape, a, b, 0) for a, b in ((0, 2), (3, 4)))
    positions = body("Expand", positions, body("Concat", lead, size, width, axis=0))
    return body("GatherElements", cache, positions, axis=2)


def _update_window(
    body: ImportBuilder, new: Sequence[Value], before: Value, lengths: Value, rows: Value
) -> tuple[list[Value], list[Value], Value]:
    """Appends new keys and values to the sliding-window caches in inputs 3 and 4.

    Args:
        body: Builder.
        new: New keys and values, each `[batch, kv_heads, tokens, head_size]`.
        before: Length of each sequence without the new tokens, `[batch]`.
        lengths: Length of each sequence including the new tokens, `[batch]`.
        rows: Number of new tokens per sequence, `[1]`.

    Returns:
        Caches of keys and values with old and new rows, for attention; the same caches after
        eviction, cut to their capacity, as outputs; and for each sequence the position of the first
        row in the caches for attention, `[batch]`.
    """
    body.input_type(3)
    size = body.dim_of(body.inputs[3], 2)
    cached = _cached_count(body, before, size)
    first, capacity = body("Sub", before, cached), body("Add", size, rows)
    caches = [
        grown(body, old, added, cached, capacity)
        for old, added in zip(body.inputs[3:5], new, strict=True)
    ]
    evicted = body("Sub", body("Sub", lengths, _cached_count(body, lengths, size)), first)
    return caches, [_slice_rows(body, cache, evicted, size) for cache in caches], first


def _bias_of_keys(
    body: ImportBuilder, bias: Value, keys: Value, count: Value, by_row: bool
) -> Value:
    """Returns the columns of an additive bias of scores for the given key positions.

    Args:
        body: Builder.
        bias: Bias, `[batch or 1, heads or 1, queries, positions]`.
        keys: Key positions: 0, 1, 2, … `[keys]`, or of each sequence `[batch, 1, 1, keys]`.
        count: Number of keys, shape `[1]`.
        by_row: Whether each sequence has its own positions in `keys`.
    """
    if not by_row:
        # The bias covers filled positions only; the cache may have spare capacity.
        return body.padded(bias, 3, after=body("Sub", count, body.dim_of(bias, 3)))
    batch, lead = body.dim_of(keys, 0), body("Shape", bias, start=1, end=3)
    one = body.ints(1)
    whole = body("Expand", bias, body("Concat", batch, body.ints(1, 1, 1), axis=0))
    positions = body("Min", keys, body("Sub", body.dim_of(bias, 3), one))
    positions = body("Expand", positions, body("Concat", batch, lead, one, axis=0))
    return body("GatherElements", whole, positions, axis=3)


def _scores_kind(body: ImportBuilder) -> int:
    """Returns the content of output 3: 0 for none, 1 for scores before softmax, 2 for after."""
    kind = int(body.attrs.get("qk_output", 0))
    return kind if body.output_count > 3 and kind in (1, 2) else 0


def _in_order(body: ImportBuilder) -> bool:
    """Returns whether ONNX's Attention computes the node without a mask.

    It does if the keys that a query sees depend only on the query's position and the sequence
    length, the softmax is plain, and the node does not output scores.
    """
    window = int(body.attrs.get("local_window_size", -1))
    causal, more = body.attrs.get("causal", 1), body.attrs.get("smooth_softmax", 0)
    return not (
        body.has(10) or body.has(11) or more or _scores_kind(body) or (window > 0 and not causal)
    )


def _attend_in_order(
    body: ImportBuilder,
    operands: tuple[Value, Value, Value],
    lengths: Value,
    rows: Value,
    attrs: Mapping[str, Any],
) -> Value:
    """Adds attention of each query to keys of its sequence, without a mask.

    A query sees all keys; if attention is causal, only keys up to its own position, in the window.

    Args:
        body: Builder.
        operands: Queries, keys and values, each `[batch, heads, tokens, head_size]`.
        lengths: Length of each sequence, `[batch]`.
        rows: Number of new tokens per sequence, `[1]`.
        attrs: Attributes of Attention (scale, softcap).
    """
    window = int(body.attrs.get("local_window_size", -1))
    causal: dict[str, Any] = {}
    if body.attrs.get("causal", 1):
        # In the first call, padding follows sequences that are shorter than others. Queries of the
        # padding see keys of the padding, so lengths are at least `rows` and positions start at 0.
        lengths = body("Max", lengths, rows)
        causal = {"is_causal": 1, **({"left_window_size": window - 1} if window > 0 else {})}
    return body("Attention", *operands, None, None, None, lengths, **causal, **attrs)


def _with_sink(
    body: ImportBuilder, k: Value, v: Value, mask: Value, count: Value
) -> tuple[Value, Value, Value]:
    """Appends an attention sink: a position with key and value 0 that takes part in the softmax.

    Its score is input 11, a number per head, or 0.

    Args:
        body: Builder.
        k: Keys, `[batch, heads, positions, head_size]`.
        v: Values, in the same form.
        mask: Additive mask of scores.
        count: Number of positions of `k`, `[1]`.

    Returns:
        Keys, values and mask with the additional position.
    """
    extra = body.ints(1)
    k, v = (body.padded(t, 2, after=extra) for t in (k, v))
    mask = body.padded(mask, 3, after=extra)
    if body.has(11):
        sinks = body("Unsqueeze", body.inputs[11], body.ints(0, 2, 3))
        mask = body("Add", mask, body.padded(sinks, 3, before=count))
    return k, v, mask


@register_import_decomposition(_DOMAIN, "GroupQueryAttention")
def _group_query_attention(body: ImportBuilder) -> None:
    """Decomposes GroupQueryAttention: groups of query heads share keys and values, in a cache.

    Inputs: queries; keys; values; caches of past keys and of past values, each `[batch, kv_heads,
    positions, head_size]`; sequence lengths minus 1; total length; cosines and sines of rotary
    embeddings; …

    Caches may have spare capacity. The new tokens are the last ones of a sequence. A sliding-window
    cache holds only the last positions (`_cached_count`).
    """
    windowed, window = (
        int(body.attrs.get(name, default))
        for name, default in (("sliding_window_cache", 0), ("local_window_size", -1))
    )
    if windowed and window < 1:
        raise ModelError(
            f"its window has {window} positions; expected 1 or more for a windowed cache."
        )
    q, k, v = split_groups(body)
    if body.has(14):
        epsilon = body.attrs.get("qk_norm_epsilon", 1e-6)
        q, k = (
            body("RMSNormalization", t, body.inputs[i], axis=-1, epsilon=epsilon)
            for i, t in enumerate((q, k), 14)
        )
    rows, one = body.dim_of(q, 2), body.numbers(1)
    lengths = body("Add", body("Reshape", body("Cast", body.inputs[5], to=7), body.ints(-1)), one)
    before = first_places(body, lengths, rows)
    places = body("Add", body("Unsqueeze", before, body.ints(1)), body.count_up(rows))
    tables = (body.optional(7), body.optional(8))
    q, k = rotate(body, (q, k), tables, 7, body.optional(9) or places)
    caches = [_quantize_rows(body, t, scale) for scale, t in ((12, k), (13, v))]
    total = body("Reshape", body("Cast", body.inputs[6], to=7), body.ints(1))
    first, presents = None, caches
    if windowed:
        caches, presents, first = _update_window(body, caches, before, lengths, rows)
    elif body.has(3):
        presents = caches = [
            grown(body, old, new, before, total)
            for old, new in zip(body.inputs[3:5], caches, strict=True)
        ]
    k, v = (
        _dequantize_cache(body, cache, scale) for scale, cache in zip((12, 13), caches, strict=True)
    )
    attrs: dict[str, Any] = {
        n: float(body.attrs[n]) for n in ("scale", "softcap") if body.attrs.get(n)
    }
    if not windowed and _in_order(body):
        y = _attend_in_order(body, (q, k, v), lengths, rows, attrs)
        body.outputs = [body.merge_heads(y), *presents]
        return
    count = body.dim_of(k, 2)
    keys = body.count_up(count)
    if windowed:
        keys = body("Add", body("Unsqueeze", first, body.ints(1, 2, 3)), keys)
    query_positions = body("Unsqueeze", places, body.ints(1, 3))
    # Without causality a query sees all keys of its sequence.
    last = body("Unsqueeze", body("Sub", lengths, one), body.ints(1, 2, 3))
    seen = body("LessOrEqual", keys, query_positions if body.attrs.get("causal", 1) else last)
    if window > 0:
        oldest = body("Sub", query_positions, body.numbers(window))
        seen = body("And", seen, body("Greater", keys, oldest))
    if windowed:
        # Positions past the end are uninitialized and may hold NaN.
        filled = body("Transpose", body("LessOrEqual", keys, last), perm=[0, 1, 3, 2])
        k, v = (body("Where", filled, t, body.number(0.0)) for t in (k, v))
    mask = mask_of(body, seen)
    if body.has(10):
        mask = body("Add", mask, _bias_of_keys(body, body.inputs[10], keys, count, bool(windowed)))
    if body.has(11) or body.attrs.get("smooth_softmax", 0):
        k, v, mask = _with_sink(body, k, v, mask, count)
    kind = _scores_kind(body)
    if windowed or not kind:
        y = body("Attention", q, k, v, mask, **attrs)
        body.outputs = [body.merge_heads(y), *presents]
        return
    y, _, _, scores = body.node(
        "Attention", [q, k, v, mask], 4, qk_matmul_output_mode=kind + 1, **attrs
    )
    scores, seen = (body.slice(t, 0, total, 3) for t in (scores, seen))
    if kind == 1:
        scores = body("Where", seen, scores, body.number(0.0))
    body.outputs = [body.merge_heads(y), *presents, scores]
