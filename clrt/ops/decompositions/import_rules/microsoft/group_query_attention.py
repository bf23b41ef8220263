"""Attention of com.microsoft whose heads of queries share keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.axis_helpers import (
    count_up,
    dim_of,
    merge_heads,
    padded,
    split_heads,
)
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.attention import mask_of
from clrt.ops.decompositions.import_rules.microsoft.quantised import unpacked

_DOMAIN = "com.microsoft"


def split_groups(body: ImportBuilder) -> list[Value]:
    """Queries, keys and values by head, of the first three inputs or of all of them in one."""
    heads, kv_heads = int(body.attrs["num_heads"]), int(body.attrs["kv_num_heads"])
    operands = body.inputs[:3]
    if not body.has(1):
        size = body.size_of(0, 2) // (heads + 2 * kv_heads)
        sizes = body.ints(heads * size, kv_heads * size, kv_heads * size)
        operands = body.node("Split", [body.inputs[0], sizes], 3, axis=2)
    counts = (heads, kv_heads, kv_heads)
    return [split_heads(body, t, n) for t, n in zip(operands, counts, strict=True)]


def first_places(body: ImportBuilder, lengths: Value, rows: Value) -> Value:
    """The place of the first of the new rows of each sequence, `[B]`, of their lengths with them.

    In a first call a row may be shorter than the others; then its places still start at 0.
    """
    return body("Max", body("Sub", lengths, rows), body.scalar(0))


def rotate(
    body: ImportBuilder,
    operands: Sequence[Value],
    tables: tuple[Value | None, Value | None],
    table: int,
    places: Value,
) -> list[Value]:
    """Queries and keys turned by their places `[B, S]`, where the node says so.

    Args:
        tables: Cosines and sines.
        table: The input that the first of them is.
    """
    if not body.attrs.get("do_rotary", 0):
        return list(operands)
    style: dict[str, Any] = {"interleaved": int(body.attrs.get("rotary_interleaved", 0))}
    shape = body.input_type(table).shape
    if shape is not None and isinstance(shape[-1], int):
        # The first elements of each head turn, as many as the tables are made for.
        style["rotary_embedding_dim"] = 2 * shape[-1]
    return [body("RotaryEmbedding", t, *tables, places, **style) for t in operands]


def _stored(body: ImportBuilder, rows: Value, scale: int) -> Value:
    """Rows as a cache holds them: as they are, or in 8 or 4 bits where an input has the scale."""
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


def _restored(body: ImportBuilder, cache: Value, scale: int) -> Value:
    """The floats of a cache that `_stored` made."""
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
    """How many bits an element of a cache has.

    Raises:
        UnsupportedError: As many as ONNX Runtime has on GPUs only.
    """
    bits = int(body.attrs.get("kv_cache_bit_width", 0))
    wanted = {8: DType.INT8, 4: DType.UINT8}.get(bits)
    if body.has(3) and body.input_dtype(3) is not wanted:
        raise UnsupportedError(f"a cache of {body.input_dtype(3)} in {bits} bits")
    return bits


def grown(body: ImportBuilder, cache: Value, rows: Value, first: Value, total: Value) -> Value:
    """A cache `[B, K, P, D]` with rows from the place `first` on, `[B]`, and room for `total`."""
    return body("UpdateCache", cache, rows, first, total, domain="clrt")


def _kept(body: ImportBuilder, lengths: Value, size: Value) -> Value:
    """How many of the places so far a window's cache of that size `[1]` holds, `[B]`.

    Once it is full, as many go as it is larger than the window, and one.
    """
    window = body.scalar(int(body.attrs["local_window_size"]) - 1)
    step = body("Sub", size, window)
    excess = body("Max", body("Sub", lengths, size), body.scalar(0))
    steps = body("Div", body("Sub", body("Add", excess, step), body.scalar(1)), step)
    return body("Sub", lengths, body("Mul", step, steps))


def _from_place(body: ImportBuilder, cache: Value, first: Value, size: Value) -> Value:
    """As many rows `size`, `[1]`, of a cache `[B, K, P, D]`, from the place `first` on, `[B]`."""
    places = body("Add", body("Unsqueeze", first, body.ints(1)), count_up(body, size))
    last = body("Sub", dim_of(body, cache, 2), body.scalar(1))
    places = body("Unsqueeze", body("Min", places, last), body.ints(1, 3))
    shape = body("Shape", cache)
    lead, width = (body("Slice", shape, body.ints(a), body.ints(b)) for a, b in ((0, 2), (3, 4)))
    places = body("Expand", places, body("Concat", lead, size, width, axis=0))
    return body("GatherElements", cache, places, axis=2)


def _in_window(
    body: ImportBuilder, new: Sequence[Value], before: Value, lengths: Value, rows: Value
) -> tuple[list[Value], list[Value], Value]:
    """The caches of a window with new rows: all that queries may see, and what comes of the caches.

    Args:
        before: How many places each row had, `[B]`.
        lengths: How many it has now.
        rows: How many are new, `[1]`.

    Returns:
        Both, and the place of the first that queries may see, `[B]`.
    """
    body.input_type(3)
    size = dim_of(body, body.inputs[3], 2)
    kept = _kept(body, before, size)
    first, room = body("Sub", before, kept), body("Add", size, rows)
    caches = [
        grown(body, old, added, kept, room)
        for old, added in zip(body.inputs[3:5], new, strict=True)
    ]
    gone = body("Sub", body("Sub", lengths, _kept(body, lengths, size)), first)
    return caches, [_from_place(body, cache, gone, size) for cache in caches], first


def _added(body: ImportBuilder, bias: Value, keys: Value, count: Value, by_row: bool) -> Value:
    """What is added to the scores of keys, of an input that has it by place.

    Args:
        keys: The places of the keys: `[P]` from 0 on, or by row `[B, 1, 1, P]`.
        count: P, as `[1]`.
    """
    if not by_row:
        # It ends with the places that there are; a cache may have room behind.
        return padded(body, bias, 3, after=body("Sub", count, dim_of(body, bias, 3)))
    batch, lead = dim_of(body, keys, 0), body("Shape", bias, start=1, end=3)
    one = body.ints(1)
    whole = body("Expand", bias, body("Concat", batch, body.ints(1, 1, 1), axis=0))
    places = body("Min", keys, body("Sub", dim_of(body, bias, 3), one))
    places = body("Expand", places, body("Concat", batch, lead, one, axis=0))
    return body("GatherElements", whole, places, axis=3)


def _scores_kind(body: ImportBuilder) -> int:
    """What the fourth output has of the scores: 0 nothing, 1 before the softmax, 2 behind."""
    kind = int(body.attrs.get("qk_output", 0))
    return kind if body.output_count > 3 and kind in (1, 2) else 0


def _in_order(body: ImportBuilder) -> bool:
    """Whether which keys a query sees is said by its place and its row's length alone."""
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
    """Attention of all keys that each row has, or of those up to the place of each query."""
    window = int(body.attrs.get("local_window_size", -1))
    causal: dict[str, Any] = {}
    if body.attrs.get("causal", 1):
        # Behind a row of a first call that is shorter than the others are keys of padding, which
        # the queries there see: so places start at 0.
        lengths = body("Max", lengths, rows)
        causal = {"is_causal": 1, **({"left_window_size": window - 1} if window > 0 else {})}
    return body("Attention", *operands, None, None, None, lengths, **causal, **attrs)


def _with_sink(
    body: ImportBuilder, k: Value, v: Value, mask: Value, count: Value
) -> tuple[Value, Value, Value]:
    """Keys, values and mask with one more place, of no value, that takes its share of the softmax.

    Args:
        count: The places so far, as `[1]`.
    """
    extra = body.ints(1)
    k, v = (padded(body, t, 2, after=extra) for t in (k, v))
    mask = padded(body, mask, 3, after=extra)
    if body.has(11):
        sinks = body("Unsqueeze", body.inputs[11], body.ints(0, 2, 3))
        mask = body("Add", mask, padded(body, sinks, 3, before=count))
    return k, v, mask


@register_import_decomposition(_DOMAIN, "GroupQueryAttention")
def _group_query_attention(body: ImportBuilder) -> None:
    """Inputs: q, k, v, past keys and values `[B, K, P, D]`, the last place of each row, how many
    places there are in all, and the tables of cosines and sines.

    A cache may have room for more places than there are; row b has `seqlens_k[b] + 1` of them, and
    its new ones come last. That of a window holds the last ones only (`_kept`).
    """
    windowed, window = (
        int(body.attrs.get(name, default))
        for name, default in (("sliding_window_cache", 0), ("local_window_size", -1))
    )
    if windowed and window < 1:
        raise ModelError(f"its window has {window} places; a cache of a window needs some.")
    q, k, v = split_groups(body)
    if body.has(14):
        epsilon = body.attrs.get("qk_norm_epsilon", 1e-6)
        q, k = (
            body("RMSNormalization", t, body.inputs[i], axis=-1, epsilon=epsilon)
            for i, t in enumerate((q, k), 14)
        )
    rows, one = dim_of(body, q, 2), body.scalar(1)
    lengths = body("Add", body("Reshape", body("Cast", body.inputs[5], to=7), body.ints(-1)), one)
    before = first_places(body, lengths, rows)
    places = body("Add", body("Unsqueeze", before, body.ints(1)), count_up(body, rows))
    tables = (body.optional(7), body.optional(8))
    q, k = rotate(body, (q, k), tables, 7, body.optional(9) or places)
    caches = [_stored(body, t, scale) for scale, t in ((12, k), (13, v))]
    total = body("Reshape", body("Cast", body.inputs[6], to=7), body.ints(1))
    first, presents = None, caches
    if windowed:
        caches, presents, first = _in_window(body, caches, before, lengths, rows)
    elif body.has(3):
        presents = caches = [
            grown(body, old, new, before, total)
            for old, new in zip(body.inputs[3:5], caches, strict=True)
        ]
    k, v = (_restored(body, cache, scale) for scale, cache in zip((12, 13), caches, strict=True))
    attrs: dict[str, Any] = {
        n: float(body.attrs[n]) for n in ("scale", "softcap") if body.attrs.get(n)
    }
    if not windowed and _in_order(body):
        y = _attend_in_order(body, (q, k, v), lengths, rows, attrs)
        body.outputs = [merge_heads(body, y), *presents]
        return
    count = dim_of(body, k, 2)
    keys = count_up(body, count)
    if windowed:
        keys = body("Add", body("Unsqueeze", first, body.ints(1, 2, 3)), keys)
    own = body("Unsqueeze", places, body.ints(1, 3))
    # Without an order a query sees all that its row has.
    last = body("Unsqueeze", body("Sub", lengths, one), body.ints(1, 2, 3))
    seen = body("LessOrEqual", keys, own if body.attrs.get("causal", 1) else last)
    if window > 0:
        oldest = body("Sub", own, body.scalar(window))
        seen = body("And", seen, body("Greater", keys, oldest))
    if windowed:
        # What lies behind the last places is nobody's, and may be no number.
        held = body("Transpose", body("LessOrEqual", keys, last), perm=[0, 1, 3, 2])
        k, v = (body("Where", held, t, body.number(0.0)) for t in (k, v))
    mask = mask_of(body, seen)
    if body.has(10):
        mask = body("Add", mask, _added(body, body.inputs[10], keys, count, bool(windowed)))
    if body.has(11) or body.attrs.get("smooth_softmax", 0):
        k, v, mask = _with_sink(body, k, v, mask, count)
    kind = _scores_kind(body)
    if windowed or not kind:
        y = body("Attention", q, k, v, mask, **attrs)
        body.outputs = [merge_heads(body, y), *presents]
        return
    y, _, _, scores = body.node(
        "Attention", [q, k, v, mask], 4, qk_matmul_output_mode=kind + 1, **attrs
    )
    scores, seen = (body("Slice", t, body.ints(0), total, body.ints(3)) for t in (scores, seen))
    if kind == 1:
        scores = body("Where", seen, scores, body.number(0.0))
    body.outputs = [merge_heads(body, y), *presents, scores]
