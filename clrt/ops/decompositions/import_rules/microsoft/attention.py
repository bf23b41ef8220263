"""Attention of com.microsoft, as compositions of ONNX's."""

from __future__ import annotations

from typing import Any

import ml_dtypes

from clrt.errors import UnsupportedError
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

_DOMAIN = "com.microsoft"


def _kept_keys(body: ImportBuilder, index: int, total: Value) -> Value:
    """Which of the scores `[B, H, S, T]` a mask keeps: an end for each row of the batch of input 0,
    and behind them nothing, starts, or where rows begin once padding is gone (which has no effect
    where it is not); or a mask `[B, T]` or `[B, S, T]`.

    Args:
        total: T, as `[1]`.

    Raises:
        UnsupportedError: The mask has another rank.
    """
    rank = body.rank_of(index)
    if rank == 1:
        limits, places = body.cast(body.inputs[index], DType.INT64), count_up(body, total)
        rows, given = dim_of(body, body.inputs[0], 0), dim_of(body, limits, 0)
        first, last = (body.ints(0), rows), (body("Sub", given, rows), given)
        ends, starts = (body("Slice", limits, *part, body.ints(0)) for part in (first, last))
        pair = body("Equal", given, body("Add", rows, rows))
        starts = body("Where", pair, starts, body.scalar(0))
        ends, starts = (body("Unsqueeze", t, body.ints(1, 2, 3)) for t in (ends, starts))
        return body("And", body("Less", places, ends), body("GreaterOrEqual", places, starts))
    if rank not in (2, 3):
        raise UnsupportedError(f"a mask {body.types[index]}")
    axes = body.ints(1, 2) if rank == 2 else body.ints(1)
    return body.cast(body("Unsqueeze", body.inputs[index], axes), DType.BOOL)


def _mask(
    body: ImportBuilder, index: int, total: Value, added: Value | None = None, like: int = 0
) -> Value | None:
    """What is added to scores `[B, H, S, T]`: of a padding mask, and `added`; None for nothing.

    Args:
        total: T, as `[1]`.
        like: The input whose dtype the scores have.
    """
    if not body.has(index):
        return added
    kept = _kept_keys(body, index, total)
    low = body.number(body.attrs.get("mask_filter_value", -10000.0), like)
    found = body("Where", kept, body.number(0.0, like), low)
    return body("Add", found, added) if added else found


def mask_of(body: ImportBuilder, seen: Value) -> Value:
    """What is added to scores: nothing where a key is seen, the lowest number elsewhere."""
    lowest = body.number(float(ml_dtypes.finfo(body.input_dtype().numpy).min))
    return body("Where", seen, body.number(0.0), lowest)


def attend(
    body: ImportBuilder,
    q: Value,
    k: Value,
    v: Value,
    heads: int,
    mask: Value | None = None,
    past: tuple[Value, Value] | None = None,
) -> list[Value]:
    """ONNX's Attention on `[B, S, H * D]`: the result, all keys and values by head, and the scores
    with what is added to them.
    """
    causal = int(body.attrs.get("unidirectional", 0))
    attrs = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": causal, **_scale(body)}
    if body.output_count > 3:
        whole = [q, k, v, mask, *(past or ())]
        return body.node("Attention", whole, 4, qk_matmul_output_mode=2, **attrs)
    if past is None:
        # One output: the kernel of its own has no more.
        y = body("Attention", q, k, v, mask, **attrs)
        return [y, split_heads(body, k, heads), split_heads(body, v, heads)]
    return body.node("Attention", [q, k, v, mask, *past], 3, **attrs)


def _scale(body: ImportBuilder) -> dict[str, Any]:
    """The attribute of Attention; 0 is the default of com.microsoft."""
    scale = float(body.attrs.get("scale", 0.0))
    return {"scale": scale} if scale else {}


def _attend_in_room(
    body: ImportBuilder,
    q: Value,
    k: Value,
    v: Value,
    heads: int,
    mask: Value | None,
    past: tuple[Value, Value],
    count: Value,
    beams: Value | None,
) -> list[Value]:
    """As `attend`, on a cache `[B, H, P, D]` that has room: the new places come behind the first
    `count`, `[1]`.

    Args:
        beams: `[B / W, W, P]`, for each place the row that it is read from, among the W that row b
            is one of; None: each from its own.
    """
    q, k, v = (split_heads(body, t, heads) for t in (q, k, v))
    count = body.cast(body("Reshape", count, body.ints(1)), DType.INT64)
    batch, rows = (dim_of(body, q, axis) for axis in (0, 2))
    first = body("Expand", count, batch)
    cache = [
        body("TensorScatter", old, new, first, axis=-2)
        for old, new in zip(past, (k, v), strict=True)
    ]
    size, total = dim_of(body, cache[0], 2), body("Add", count, rows)
    if mask is None and beams is None and body.output_count <= 3:
        causal = int(body.attrs.get("unidirectional", 0))
        operands, lengths = [q, *cache, None, None, None], body("Expand", total, batch)
        y = body("Attention", *operands, lengths, is_causal=causal, **_scale(body))
        return [merge_heads(body, y), *cache]
    places, ends = count_up(body, size), body("Unsqueeze", total, body.ints(0))
    if body.attrs.get("unidirectional", 0):
        own = body("Unsqueeze", count_up(body, rows), body.ints(1))
        ends = body("Add", own, body("Add", count, body.ints(1)))
    hidden = mask_of(body, body("Less", places, ends))
    if mask:
        room = body("Sub", size, dim_of(body, mask, 3))
        hidden = body("Add", padded(body, mask, 3, after=room), hidden)
    operands = [q, *cache, hidden]
    if beams:
        own = body("Unsqueeze", count_up(body, batch), body.ints(1))
        width = dim_of(body, beams, 1)
        among = body("Reshape", body.cast(beams, DType.INT64), body("Concat", batch, size, axis=0))
        origin = body("Add", body("Sub", own, body("Mod", own, width)), among)
        # What lies behind the first places says nothing.
        origin = body("Where", body("Less", places, count), origin, own)
        for n, t in enumerate(cache, 1):
            operands[n] = _from_rows(body, t, origin, places)
    if body.output_count <= 3:
        return [merge_heads(body, body("Attention", *operands, **_scale(body))), *cache]
    y, _, _, scores = body.node("Attention", operands, 4, qk_matmul_output_mode=2, **_scale(body))
    seen = body("Slice", scores, body.ints(0), total, body.ints(3))
    return [merge_heads(body, y), *cache, seen]


def _from_rows(body: ImportBuilder, value: Value, rows: Value, places: Value) -> Value:
    """A value `[B, H, P, D]`, each place p of row b from row `rows[b, p]`."""
    where = [
        body("Unsqueeze", t, body.ints(2))
        for t in (rows, body("Expand", places, body("Shape", rows)))
    ]
    found = body(
        "GatherND", body("Transpose", value, perm=[0, 2, 1, 3]), body("Concat", *where, axis=2)
    )
    return body("Transpose", found, perm=[0, 2, 1, 3])


def _projection(body: ImportBuilder) -> Value:
    """Queries, keys and values side by side, of x, weights and a bias."""
    return body.plus(body("MatMul", *body.inputs[:2]), 2)


def _thirds(body: ImportBuilder, qkv: Value) -> list[Value]:
    """Queries, keys and values of a projection."""
    sizes = body.attrs.get("qkv_hidden_sizes")
    if sizes:
        return body.node("Split", [qkv, body.ints(*sizes)], 3, axis=-1)
    return body.node("Split", [qkv], 3, num_outputs=3, axis=-1)


def project(body: ImportBuilder) -> list[Value]:
    """Queries, keys and values of x, weights and a bias."""
    return _thirds(body, _projection(body))


def self_attention(
    body: ImportBuilder, qkv: Value, mask: int, past: int, added: Value | None = None, like: int = 0
) -> None:
    """Attention on a projection, keys and values stacked behind those of the past.

    Args:
        qkv: Queries, keys and values side by side, `[B, S, W]`.
        mask: The input that is a padding mask.
        past: The input that has keys and values by head, `[2, B, H, P, D]`.
        added: What is added to the scores; None for nothing.
        like: The input whose dtype qkv has.

    Raises:
        UnsupportedError: It rotates, or writes into its own input.
    """
    if body.attrs.get("do_rotary", 0) or body.attrs.get("past_present_share_buffer", 0):
        raise UnsupportedError("do_rotary and past_present_share_buffer")
    sizes, heads = body.attrs.get("qkv_hidden_sizes"), int(body.attrs["num_heads"])
    q, k, v = _thirds(body, qkv)
    total, cache, first = dim_of(body, k, 1), None, body.ints(0)
    if body.has(past):
        old = body.node("Split", [body.inputs[past]], 2, num_outputs=2, axis=0)
        cache = (body("Squeeze", old[0], first), body("Squeeze", old[1], first))
        total = body("Add", total, dim_of(body, cache[0], 2))
    whole_mask = _mask(body, mask, total, added, like)
    y, keys, values = attend(body, q, k, v, heads, whole_mask, cache)
    body.outputs = [y]
    if not sizes or sizes[1] == sizes[2]:
        both = [body("Unsqueeze", t, first) for t in (keys, values)]
        body.outputs.append(body("Concat", *both, axis=0))


@register_import_decomposition(_DOMAIN, "Attention")
def _attention(body: ImportBuilder) -> None:
    """Inputs: x, weights, bias, mask, past, and what is added to the scores."""
    self_attention(body, _projection(body), mask=3, past=4, added=body.optional(5))


def _operands(body: ImportBuilder, bias: int) -> tuple[Value, ...]:
    """Queries, keys and values `[B, S, H * D]` of inputs that may be packed or by head, with the
    bias that an input has for all three, one behind the other.
    """
    packed = 3 if body.rank_of(0) == 5 else 2 if body.has(1) and body.rank_of(1) == 5 else 0
    if packed:
        whole = body.inputs[3 - packed]
        parts = body.node("Split", [whole], packed, num_outputs=packed, axis=3)
        flat = [body("Reshape", part, body.ints(0, 0, -1)) for part in parts]
        operands = flat if packed == 3 else [body.inputs[0], *flat]
    else:
        operands = [
            merge_heads(body, t) if body.rank_of(i) == 4 else t
            for i, t in enumerate(body.inputs[:3])
        ]
    if body.has(bias):
        width = body.size_of(bias, 0)
        each = body.size_of(0, 2) if body.rank_of(0) == 3 else width // 3
        sizes = [each, each, width - 2 * each]
        biases = body.node("Split", [body.inputs[bias], body.ints(*sizes)], 3, axis=0)
        # Keys and values that come by head are a cache of another call, which has added its own.
        own = [packed or body.rank_of(i) == 3 for i in range(3)]
        operands = [
            body("Add", t, b) if mine else t
            for t, b, mine in zip(operands, biases, own, strict=True)
        ]
    return tuple(operands)


def _multi_head(
    body: ImportBuilder, bias: int, mask: int, past: int, count: int, beams: int
) -> None:
    """Attention on queries, keys and values by the places of its other inputs: the padding mask is
    followed by what is added to the scores, the past keys by the values.
    """
    heads, (q, k, v) = int(body.attrs["num_heads"]), _operands(body, bias)
    total, cache = dim_of(body, k, 1), None
    if body.has(past) and body.has(past + 1):
        cache = (body.inputs[past], body.inputs[past + 1])
        total = body("Add", total, dim_of(body, cache[0], 2))
    added = _mask(body, mask, total, body.optional(mask + 1))
    if cache is not None and body.has(count):
        body.outputs = _attend_in_room(
            body, q, k, v, heads, added, cache, body.inputs[count], body.optional(beams)
        )
    else:
        body.outputs = attend(body, q, k, v, heads, added, cache)


@register_import_decomposition(_DOMAIN, "MultiHeadAttention")
def _multi_head_attention(body: ImportBuilder) -> None:
    _multi_head(body, bias=3, mask=4, past=6, count=8, beams=9)


@register_import_decomposition(_DOMAIN, "DecoderMaskedMultiHeadAttention")
def _decoder_masked_multi_head_attention(body: ImportBuilder) -> None:
    _multi_head(body, bias=10, mask=3, past=5, count=7, beams=9)


@register_import_decomposition(_DOMAIN, "DecoderMaskedSelfAttention")
def _decoder_masked_self_attention(body: ImportBuilder) -> None:
    """Attention of one new place on a cache `[2, B, H, P, D]` that has room, where that is said.

    Its keys lie in memory as `[B, H, D / n, P, n]`, 16 bytes in a row.
    """
    if not body.attrs.get("past_present_share_buffer", 0):
        self_attention(body, _projection(body), mask=3, past=4, added=body.optional(5))
        return
    if body.attrs.get("do_rotary", 0):
        raise UnsupportedError("do_rotary")
    heads, (q, k, v) = int(body.attrs["num_heads"]), project(body)
    keys, values = body.node("Split", [body.inputs[4]], 2, num_outputs=2, axis=0)
    first, shape = body.ints(0), body("Shape", body.inputs[4], start=1)
    lead, size = body("Shape", body.inputs[4], start=1, end=3), dim_of(body, body.inputs[4], 3)
    run = body.ints(16 // body.input_dtype().numpy.itemsize)
    packed = body("Concat", lead, body.ints(-1), size, run, axis=0)
    keys = body("Transpose", body("Reshape", keys, packed), perm=[0, 1, 3, 2, 4])
    cache = (body("Reshape", keys, shape), body("Squeeze", values, first))
    mask = _mask(body, 3, size, body.optional(5))
    y, keys, values = _attend_in_room(
        body, q, k, v, heads, mask, cache, body.inputs[6], body.optional(8)
    )
    runs = body("Concat", lead, size, body.ints(-1), run, axis=0)
    keys = body("Transpose", body("Reshape", keys, runs), perm=[0, 1, 3, 2, 4])
    both = [body("Unsqueeze", t, first) for t in (body("Reshape", keys, shape), values)]
    body.outputs = [y, body("Concat", *both, axis=0)]
