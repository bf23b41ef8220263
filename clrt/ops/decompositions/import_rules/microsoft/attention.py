"""Attention ops of com.microsoft, composed of ONNX ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_DOMAIN = "com.microsoft"


def _unmasked_keys(body: ImportBuilder, index: int, total: Value) -> Value:
    """Returns which attention scores a padding mask keeps.

    The mask is `[batch, keys]` or `[batch, queries, keys]`, or 1-D: per batch row, the index after
    its last key, optionally followed by the indices of first keys. (Instead of first keys, offsets
    for unpadded batches may follow, which have no effect.)

    Args:
        body: Builder.
        index: Input index of the mask.
        total: Number of keys, shape `[1]`.

    Returns:
        bool that broadcasts to `[batch, heads, queries, keys]`; false for masked scores.

    Raises:
        UnsupportedError: The mask has another rank.
    """
    rank = body.rank_of(index)
    if rank == 1:
        limits, positions = body.cast(body.inputs[index], DType.INT64), body.count_up(total)
        rows, num_limits = body.dim_of(body.inputs[0], 0), body.dim_of(limits, 0)
        first, last = (body.ints(0), rows), (body("Sub", num_limits, rows), num_limits)
        ends, starts = (body("Slice", limits, *part, body.ints(0)) for part in (first, last))
        has_starts = body("Equal", num_limits, body("Add", rows, rows))
        starts = body("Where", has_starts, starts, body.numbers(0))
        ends, starts = (body("Unsqueeze", t, body.ints(1, 2, 3)) for t in (ends, starts))
        return body("And", body("Less", positions, ends), body("GreaterOrEqual", positions, starts))
    if rank not in (2, 3):
        raise UnsupportedError(f"a mask {body.types[index]}")
    axes = body.ints(1, 2) if rank == 2 else body.ints(1)
    return body.cast(body("Unsqueeze", body.inputs[index], axes), DType.BOOL)


def _mask(
    body: ImportBuilder, index: int, total: Value, added: Value | None = None, like: int = 0
) -> Value | None:
    """Returns the padding mask as an additive mask of attention scores, plus `added`.

    Args:
        body: Builder.
        index: Input index of the padding mask.
        total: Number of keys, shape `[1]`.
        added: Additive bias of the scores; None for none.
        like: Index of an input with the dtype of the scores.

    Returns:
        Numbers that broadcast to `[batch, heads, queries, keys]`; only `added` if the node has no
        padding mask.
    """
    if not body.has(index):
        return added
    unmasked = _unmasked_keys(body, index, total)
    low = body.number(body.attrs.get("mask_filter_value", -10000.0), like)
    bias = body("Where", unmasked, body.number(0.0, like), low)
    return body("Add", bias, added) if added else bias


def mask_of(body: ImportBuilder, seen: Value) -> Value:
    """Converts a bool mask to an additive mask with the dtype of input 0.

    The result is 0 for true, and the lowest finite number for false.

    Args:
        body: Builder.
        seen: Mask, true for scores that are kept.
    """
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
    """Adds ONNX's Attention with the attributes of the replaced node.

    Args:
        body: Builder.
        q: Queries, `[batch, tokens, heads * head_size]`.
        k: Keys, in the same form.
        v: Values, in the same form.
        heads: Number of heads.
        mask: Additive mask of scores; None for none.
        past: Cached keys and values, each `[batch, heads, past, head_size]`; None for none.

    Returns:
        The result `[batch, tokens, heads * head_size]`; keys and values, past ones included,
        `[batch, heads, past + tokens, head_size]`; and the masked scores if the replaced node has
        four outputs.
    """
    causal = int(body.attrs.get("unidirectional", 0))
    attrs = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": causal, **_scale(body)}
    if body.output_count > 3:
        inputs = [q, k, v, mask, *(past or ())]
        return body.node("Attention", inputs, 4, qk_matmul_output_mode=2, **attrs)
    if past is None:
        # One output only, because the fused kernel has no more.
        y = body("Attention", q, k, v, mask, **attrs)
        return [y, body.split_heads(k, heads), body.split_heads(v, heads)]
    return body.node("Attention", [q, k, v, mask, *past], 3, **attrs)


def _scale(body: ImportBuilder) -> dict[str, Any]:
    """Returns the `scale` attribute for ONNX's Attention.

    {} for the default scale, which com.microsoft writes as 0.
    """
    scale = float(body.attrs.get("scale", 0.0))
    return {"scale": scale} if scale else {}


def _attend_with_capacity(
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
    """Adds ONNX's Attention with caches of keys and values that have spare capacity.

    Args:
        body: Builder.
        q: New queries, `[batch, tokens, heads * head_size]`.
        k: New keys, in the same form.
        v: New values, in the same form.
        heads: Number of heads.
        mask: Additive mask of scores; None for none.
        past: Caches of keys and of values, each `[batch, heads, positions, head_size]`; the first
            `count` positions are filled.
        count: Number of filled positions, one element.
        beams: For beam search, `[batch / beams, beams, positions]`: index of the beam in whose
            cache a batch row reads each position. None if each row reads its own cache.

    Returns:
        The result `[batch, tokens, heads * head_size]`; the caches with the new keys and values;
        and the masked scores if the replaced node has more than three outputs.
    """
    q, k, v = (body.split_heads(t, heads) for t in (q, k, v))
    count = body.cast(body("Reshape", count, body.ints(1)), DType.INT64)
    batch, rows = (body.dim_of(q, axis) for axis in (0, 2))
    first = body("Expand", count, batch)
    cache = [
        body("TensorScatter", old, new, first, axis=-2)
        for old, new in zip(past, (k, v), strict=True)
    ]
    size, total = body.dim_of(cache[0], 2), body("Add", count, rows)
    if mask is None and beams is None and body.output_count <= 3:
        causal = int(body.attrs.get("unidirectional", 0))
        operands, lengths = [q, *cache, None, None, None], body("Expand", total, batch)
        y = body("Attention", *operands, lengths, is_causal=causal, **_scale(body))
        return [body.merge_heads(y), *cache]
    positions, ends = body.count_up(size), body("Unsqueeze", total, body.ints(0))
    if body.attrs.get("unidirectional", 0):
        own_rows = body("Unsqueeze", body.count_up(rows), body.ints(1))
        ends = body("Add", own_rows, body("Add", count, body.ints(1)))
    hidden = mask_of(body, body("Less", positions, ends))
    if mask:
        missing = body("Sub", size, body.dim_of(mask, 3))
        hidden = body("Add", body.padded(mask, 3, after=missing), hidden)
    operands = [q, *cache, hidden]
    if beams:
        own_rows = body("Unsqueeze", body.count_up(batch), body.ints(1))
        width = body.dim_of(beams, 1)
        beam_rows = body(
            "Reshape", body.cast(beams, DType.INT64), body("Concat", batch, size, axis=0)
        )
        origin = body("Add", body("Sub", own_rows, body("Mod", own_rows, width)), beam_rows)
        # Beam indices past the filled positions are undefined.
        origin = body("Where", body("Less", positions, count), origin, own_rows)
        for n, t in enumerate(cache, 1):
            operands[n] = _gather_beams(body, t, origin, positions)
    if body.output_count <= 3:
        return [body.merge_heads(body("Attention", *operands, **_scale(body))), *cache]
    y, _, _, scores = body.node("Attention", operands, 4, qk_matmul_output_mode=2, **_scale(body))
    seen = body.slice(scores, 0, total, 3)
    return [body.merge_heads(y), *cache, seen]


def _gather_beams(body: ImportBuilder, value: Value, rows: Value, positions: Value) -> Value:
    """Returns a cache in which position p of batch row b is copied from batch row `rows[b, p]`.

    Args:
        body: Builder.
        value: Cache of keys or values, `[batch, heads, positions, head_size]`.
        rows: Batch row to copy from, `[batch, positions]`.
        positions: All positions of the cache: 0, 1, 2, …
    """
    indices = [
        body("Unsqueeze", t, body.ints(2))
        for t in (rows, body("Expand", positions, body("Shape", rows)))
    ]
    rows_of_positions = body(
        "GatherND", body("Transpose", value, perm=[0, 2, 1, 3]), body("Concat", *indices, axis=2)
    )
    return body("Transpose", rows_of_positions, perm=[0, 2, 1, 3])


def _projection(body: ImportBuilder) -> Value:
    """Returns input 0 @ input 1 (weights) + input 2 (bias).

    The result holds queries, keys and values, concatenated along the last axis.
    """
    return body.plus(body("MatMul", *body.inputs[:2]), 2)


def _split_qkv(body: ImportBuilder, qkv: Value) -> list[Value]:
    """Splits the last axis of `qkv` into queries, keys and values.

    Their widths are in attribute `qkv_hidden_sizes`; without it they are equal.
    """
    sizes = body.attrs.get("qkv_hidden_sizes")
    if sizes:
        return body.node("Split", [qkv, body.ints(*sizes)], 3, axis=-1)
    return body.node("Split", [qkv], 3, num_outputs=3, axis=-1)


def project(body: ImportBuilder) -> list[Value]:
    """Returns queries, keys and values: input 0 @ input 1 (weights) + input 2 (bias), split."""
    return _split_qkv(body, _projection(body))


def self_attention(
    body: ImportBuilder, qkv: Value, mask: int, past: int, added: Value | None = None, like: int = 0
) -> None:
    """Sets the outputs of a self-attention node: the result, then all keys and values.

    The second output is left out if keys and values have different widths.

    Args:
        body: Builder; its outputs are set.
        qkv: Queries, keys and values of the new tokens, `[batch, tokens, width]`, concatenated
            along the last axis.
        mask: Input index of the padding mask.
        past: Input index of past keys and values, `[2, batch, heads, past, head_size]`.
        added: Additive bias of the scores; None for none.
        like: Index of an input with the dtype of `qkv`.

    Raises:
        UnsupportedError: The node rotates queries and keys, or writes into its own input.
    """
    if body.attrs.get("do_rotary", 0) or body.attrs.get("past_present_share_buffer", 0):
        raise UnsupportedError("do_rotary and past_present_share_buffer")
    sizes, heads = body.attrs.get("qkv_hidden_sizes"), int(body.attrs["num_heads"])
    q, k, v = _split_qkv(body, qkv)
    total, cache, first = body.dim_of(k, 1), None, body.ints(0)
    if body.has(past):
        old = body.node("Split", [body.inputs[past]], 2, num_outputs=2, axis=0)
        cache = (body("Squeeze", old[0], first), body("Squeeze", old[1], first))
        total = body("Add", total, body.dim_of(cache[0], 2))
    whole_mask = _mask(body, mask, total, added, like)
    y, keys, values = attend(body, q, k, v, heads, whole_mask, cache)
    body.outputs = [y]
    if not sizes or sizes[1] == sizes[2]:
        both = [body("Unsqueeze", t, first) for t in (keys, values)]
        body.outputs.append(body("Concat", *both, axis=0))


@register_import_decomposition(_DOMAIN, "Attention")
def _attention(body: ImportBuilder) -> None:
    """Decomposes com.microsoft's Attention: a projection of x, then self-attention.

    The projection computes queries, keys and values. Inputs: x, weights, bias, padding mask, past
    keys and values, additive bias of the scores.
    """
    self_attention(body, _projection(body), mask=3, past=4, added=body.optional(5))


def _operands(body: ImportBuilder, bias: int) -> tuple[Value, ...]:
    """Returns queries, keys and values plus bias, each `[batch, tokens, heads * head_size]`.

    The node's first three inputs hold them in one of these forms: three inputs in the form above;
    all packed in input 0, `[batch, tokens, heads, 3, head_size]`; keys and values packed in input
    1, `[batch, tokens, heads, 2, head_size]`; or keys and values cached by another call, `[batch,
    heads, tokens, head_size]`, with the bias added already.

    Args:
        body: Builder.
        bias: Input index of the concatenated biases of queries, keys and values.
    """
    packed = 3 if body.rank_of(0) == 5 else 2 if body.has(1) and body.rank_of(1) == 5 else 0
    if packed:
        whole = body.inputs[3 - packed]
        parts = body.node("Split", [whole], packed, num_outputs=packed, axis=3)
        flat = [body("Reshape", part, body.ints(0, 0, -1)) for part in parts]
        operands = flat if packed == 3 else [body.inputs[0], *flat]
    else:
        operands = [
            body.merge_heads(t) if body.rank_of(i) == 4 else t
            for i, t in enumerate(body.inputs[:3])
        ]
    if body.has(bias):
        width = body.size_of(bias, 0)
        each = body.size_of(0, 2) if body.rank_of(0) == 3 else width // 3
        sizes = [each, each, width - 2 * each]
        biases = body.node("Split", [body.inputs[bias], body.ints(*sizes)], 3, axis=0)
        # Keys and values by head are a cache of another call, which has added the bias already.
        needs_bias = [packed or body.rank_of(i) == 3 for i in range(3)]
        operands = [
            body("Add", t, b) if added else t
            for t, b, added in zip(operands, biases, needs_bias, strict=True)
        ]
    return tuple(operands)


def _multi_head(
    body: ImportBuilder, bias: int, mask: int, past: int, count: int, beams: int
) -> None:
    """Decomposes multi-head attention ops of com.microsoft, which differ in their input indices.

    Args:
        body: Builder; its outputs are set.
        bias: Input index of the concatenated biases of queries, keys and values.
        mask: Input index of the padding mask; the next one is the additive bias of the scores.
        past: Input index of past keys; the next one is past values.
        count: Input index of the number of filled cache positions.
        beams: Input index of the beam that each position is read from (beam search).
    """
    heads, (q, k, v) = int(body.attrs["num_heads"]), _operands(body, bias)
    total, cache = body.dim_of(k, 1), None
    if body.has(past) and body.has(past + 1):
        cache = (body.inputs[past], body.inputs[past + 1])
        total = body("Add", total, body.dim_of(cache[0], 2))
    added = _mask(body, mask, total, body.optional(mask + 1))
    if cache is not None and body.has(count):
        body.outputs = _attend_with_capacity(
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
    """Decomposes DecoderMaskedSelfAttention: attention of one new token to a cache.

    The cache of keys and values is `[2, batch, heads, positions, head_size]`. If it has spare
    capacity (`past_present_share_buffer`), keys are stored as `[batch, heads, head_size / n,
    positions, n]`, with n elements in 16 bytes.
    """
    if not body.attrs.get("past_present_share_buffer", 0):
        self_attention(body, _projection(body), mask=3, past=4, added=body.optional(5))
        return
    if body.attrs.get("do_rotary", 0):
        raise UnsupportedError("do_rotary")
    heads, (q, k, v) = int(body.attrs["num_heads"]), project(body)
    keys, values = body.node("Split", [body.inputs[4]], 2, num_outputs=2, axis=0)
    first, shape = body.ints(0), body("Shape", body.inputs[4], start=1)
    lead, size = body("Shape", body.inputs[4], start=1, end=3), body.dim_of(body.inputs[4], 3)
    run = body.ints(16 // body.input_dtype().numpy.itemsize)
    packed = body("Concat", lead, body.ints(-1), size, run, axis=0)
    keys = body("Transpose", body("Reshape", keys, packed), perm=[0, 1, 3, 2, 4])
    cache = (body("Reshape", keys, shape), body("Squeeze", values, first))
    mask = _mask(body, 3, size, body.optional(5))
    y, keys, values = _attend_with_capacity(
        body, q, k, v, heads, mask, cache, body.inputs[6], body.optional(8)
    )
    runs = body("Concat", lead, size, body.ints(-1), run, axis=0)
    keys = body("Transpose", body("Reshape", keys, runs), perm=[0, 1, 3, 2, 4])
    both = [body("Unsqueeze", t, first) for t in (body("Reshape", keys, shape), values)]
    body.outputs = [y, body("Concat", *both, axis=0)]
