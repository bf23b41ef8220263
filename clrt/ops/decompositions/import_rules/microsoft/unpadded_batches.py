"""Unpadded batches of com.microsoft: tokens of all sequences concatenated, without padding."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.microsoft.attention import attend, mask_of, project

_DOMAIN = "com.microsoft"


def _token_positions(body: ImportBuilder, tokens: Value, offsets: Value) -> Value:
    """Returns the positions of tokens in the flattened padded batch, int64 `[tokens]`.

    Args:
        body: Builder.
        tokens: Tokens of all sequences, concatenated, `[tokens, …]`.
        offsets: Positions in the flattened padded batch: first of all tokens, then of padding;
            `[batch, sequence]`, which is the shape of the padded batch.
    """
    flat = body("Reshape", offsets, body.ints(-1))
    flat_positions = body.slice(flat, 0, body.dim_of(tokens, 0), 0)
    return body.cast(flat_positions, DType.INT64)


def with_padding(body: ImportBuilder, tokens: Value, offsets: Value) -> Value:
    """Returns tokens scattered into a zero-padded batch, `[batch, sequence, width]`.

    Args:
        body: Builder.
        tokens: Tokens of all sequences, concatenated, `[tokens, width]`, of the dtype of input 0.
        offsets: Positions in the flattened padded batch: first of all tokens, then of padding;
            `[batch, sequence]`.
    """
    width = body.dim_of(tokens, 1)
    flat = body("Concat", body("Reshape", body("Size", offsets), body.ints(1)), width, axis=0)
    places = body("Unsqueeze", _token_positions(body, tokens, offsets), body.ints(1))
    rows = body("ScatterND", body("Expand", body.number(0.0), flat), places, tokens)
    return body("Reshape", rows, body("Concat", body("Shape", offsets), width, axis=0))


@register_import_decomposition(_DOMAIN, "RemovePadding")
def _remove_padding(body: ImportBuilder) -> None:
    """Decomposes RemovePadding: concatenates the tokens of all sequences without padding.

    Inputs: batch `[batch, sequence, width]`, padded at the end; number of tokens of each sequence.

    Outputs: tokens `[tokens, width]`; token offsets `[batch, sequence]`, which are positions in the
    flattened padded batch, first of all tokens, then of padding; cumulative sequence lengths
    `[batch + 1]`; maximum sequence length `[1]`.
    """
    x, counts = body.inputs[:2]
    counts = body.cast(counts, DType.INT64)
    places = body.count_up(body.dim_of(x, 1))
    real = body("Less", places, body("Unsqueeze", counts, body.ints(1)))
    flat = body("Reshape", real, body.ints(-1))
    tokens, padding = (
        body("Squeeze", body("NonZero", flags), body.ints(0)) for flags in (flat, body("Not", flat))
    )
    rows = body("Reshape", x, body("Concat", body.ints(-1), body("Shape", x, start=2), axis=0))
    offsets = body("Reshape", body("Concat", tokens, padding, axis=0), body("Shape", real))
    ends = body("Concat", body.ints(0), body("CumSum", counts, body.numbers(0)), axis=0)
    longest = body("ReduceMax", counts, keepdims=1)
    body.outputs = [
        body("Gather", rows, tokens),
        *(body.cast(value, DType.INT32) for value in (offsets, ends, longest)),
    ]


@register_import_decomposition(_DOMAIN, "RestorePadding")
def _restore_padding(body: ImportBuilder) -> None:
    body.outputs = [with_padding(body, *body.inputs[:2])]


def _attend_packed(body: ImportBuilder, operands: Sequence[Value], first: int) -> None:
    """Sets the output of an attention op on an unpadded batch, `[tokens, width]`.

    Tokens attend to the tokens of their own sequence.

    Args:
        body: Builder; its output is set.
        operands: Queries, keys and values, each `[tokens, width]` with the tokens of all sequences.
        first: Input index of the token offsets; the next inputs are the cumulative sequence lengths
            and the additive bias of the scores.
    """
    offsets, ends = body.inputs[first : first + 2]
    q, k, v = (with_padding(body, value, offsets) for value in operands)
    starts, ends = (body.slice(ends, a, b, 0) for a, b in ((0, -1), (1, 2**31)))
    counts = body(
        "Unsqueeze", body.cast(body("Sub", ends, starts), DType.INT64), body.ints(1, 2, 3)
    )
    seen = body("Less", body.count_up(body.dim_of(k, 1)), counts)
    mask = mask_of(body, seen)
    y = attend(body, q, k, v, int(body.attrs["num_heads"]), body.plus(mask, first + 2))[0]
    rows = body("Reshape", y, body("Concat", body.ints(-1), body.dim_of(y, 2), axis=0))
    body.outputs = [body("Gather", rows, _token_positions(body, operands[0], offsets))]


@register_import_decomposition(_DOMAIN, "PackedAttention")
def _packed_attention(body: ImportBuilder) -> None:
    """Decomposes PackedAttention: projection and self-attention on an unpadded batch.

    The projection computes queries, keys and values from x. Inputs: x `[tokens, …]`, weights, bias,
    token offsets, cumulative sequence lengths, additive bias of the scores.
    """
    _attend_packed(body, project(body), 3)


@register_import_decomposition(_DOMAIN, "PackedMultiHeadAttention")
def _packed_multi_head_attention(body: ImportBuilder) -> None:
    """Decomposes PackedMultiHeadAttention: attention on an unpadded batch.

    Inputs: queries, keys and values, each `[tokens, width]`, or all in input 0 as `[tokens, heads,
    3, head_size]`; their concatenated biases; token offsets; cumulative sequence lengths; additive
    bias of the scores.
    """
    if body.rank_of(0) == 4:
        parts = body.node("Split", [body.inputs[0]], 3, num_outputs=3, axis=2)
        operands = [body("Reshape", part, body.ints(0, -1)) for part in parts]
    else:
        operands = body.inputs[:3]
    if body.has(3):
        width = body.size_of(3, 0)
        each = body.size_of(0, 1) if body.rank_of(0) == 2 else width // 3
        sizes = body.ints(each, each, width - 2 * each)
        biases = body.node("Split", [body.inputs[3], sizes], 3, axis=0)
        operands = [body("Add", *pair) for pair in zip(operands, biases, strict=True)]
    _attend_packed(body, operands, 4)
