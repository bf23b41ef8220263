"""Ops of com.microsoft that optimised models have, as compositions of ONNX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from clrt.errors import UnsupportedError
from clrt.importer.expansions.body import Body, expands
from clrt.importer.expansions.layouts import channels_first, channels_last, merge_heads, split_heads
from clrt.importer.expansions.quantised import CONV_ATTRS
from clrt.ir.dims import same_shape
from clrt.ir.dtypes import DType

_DOMAIN = "com.microsoft"
_ACTIVATIONS = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "Elu": ("alpha",),
    "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"),
}  # fmt: skip


def _size(body: Body, index: int, axis: int) -> int:
    """A dim that must be a number.

    Raises:
        UnsupportedError: It is not known.
    """
    shape = body.shape_of(index)
    dim = shape[axis % len(shape)]
    if not isinstance(dim, int):
        raise UnsupportedError(f"axis {axis} of input {index} depends on the input")
    return dim


def _with(body: Body, value: str, index: int) -> str:
    """The value plus an optional input."""
    return body("Add", value, body.inputs[index]) if body.has(index) else value


@expands(_DOMAIN, "Gelu")
def _gelu(body: Body) -> None:
    body.outputs = [body("Gelu", body.inputs[0])]


@expands(_DOMAIN, "FastGelu")
def _fast_gelu(body: Body) -> None:
    body.outputs = [body("Gelu", _with(body, body.inputs[0], 1), approximate="tanh")]


@expands(_DOMAIN, "BiasGelu")
def _bias_gelu(body: Body) -> None:
    body.outputs = [body("Gelu", _with(body, body.inputs[0], 1))]


@expands(_DOMAIN, "QuickGelu")
def _quick_gelu(body: Body) -> None:
    x, alpha = body.inputs[0], body.attrs.get("alpha", 1.702)
    body.outputs = [body("Mul", x, body("Sigmoid", body("Mul", x, body.number(alpha))))]


@expands(_DOMAIN, "BiasSplitGelu")
def _bias_split_gelu(body: Body) -> None:
    halves = body.node("Split", [_with(body, body.inputs[0], 1)], 2, num_outputs=2, axis=-1)
    body.outputs = [body("Mul", halves[0], body("Gelu", halves[1]))]


@expands("", "SimplifiedLayerNormalization")
@expands(_DOMAIN, "SimplifiedLayerNormalization")
def _simplified_layer_normalization(body: Body) -> None:
    axis, epsilon = int(body.attrs.get("axis", -1)), body.attrs.get("epsilon", 1e-5)
    y = body("RMSNormalization", *body.inputs[:2], axis=axis, epsilon=epsilon)
    body.outputs = [y]


def _skip(body: Body, bias: int) -> str:
    """The input, the skipped one and the bias added up."""
    return _with(body, body("Add", *body.inputs[:2]), bias)


@expands(_DOMAIN, "SkipLayerNormalization")
def _skip_layer_normalization(body: Body) -> None:
    total = _skip(body, 4)
    inputs = [total, body.inputs[2], body.optional(3)]
    epsilon = body.attrs.get("epsilon", 1e-12)
    y = body("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
    # The statistics stand between; only training reads them.
    body.outputs = [y, y, y, total]


@expands(_DOMAIN, "SkipSimplifiedLayerNormalization")
def _skip_simplified_layer_normalization(body: Body) -> None:
    total = _skip(body, 3)
    epsilon = body.attrs.get("epsilon", 1e-12)
    y = body("RMSNormalization", total, body.inputs[2], axis=-1, epsilon=epsilon)
    body.outputs = [y, y, y, total]


@expands(_DOMAIN, "EmbedLayerNormalization")
def _embed_layer_normalization(body: Body) -> None:
    """Inputs: ids, segments, three tables, gamma, beta, mask, positions."""
    positions = body.optional(8) or positions_of(body)
    tables = body.inputs
    embed(body, lambda table, ids: body("Gather", tables[table], ids), positions, tables[5:7])


def positions_of(body: Body) -> str:
    """The places 0, 1, … of ids `[B, S]`."""
    return _range(body, _length(body, body.inputs[0], 1))


def embed(
    body: Body, look_up: Callable[[int, str], str], positions: str, affine: Sequence[str]
) -> None:
    """Rows of words, positions and segments, added up and normalised.

    Args:
        look_up: Gives the rows that ids name of the table that is an input.
        affine: Gamma and beta.
    """
    ids = body.inputs[0]
    total = body("Add", look_up(2, ids), look_up(3, positions))
    if body.has(1) and body.has(4):
        total = body("Add", total, look_up(4, body.inputs[1]))
    epsilon = body.attrs.get("epsilon", 1e-12)
    y = body("LayerNormalization", total, *affine, axis=-1, epsilon=epsilon)
    if body.has(7):
        count = body("ReduceSum", body.inputs[7], body.ints(1), keepdims=0)
        lengths = body("Cast", count, to=6)
    else:
        rows = body("Shape", ids, start=0, end=1)
        lengths = body("Expand", body.constant(np.array([0], np.int32)), rows)
    body.outputs = [y, lengths, total]


@expands(_DOMAIN, "FusedMatMul")
@expands(_DOMAIN, "TransposeMatMul")
def _fused_matmul(body: Body) -> None:
    a, b = (_turned(body, index, side) for index, side in enumerate("AB"))
    y, alpha = body("MatMul", a, b), body.attrs.get("alpha", 1.0)
    body.outputs = [y if alpha == 1 else body("Mul", y, body.number(alpha))]


def _turned(body: Body, index: int, side: str) -> str:
    """An operand with its first axis as its rows (transBatch), then rows and columns exchanged."""
    rank = body.rank_of(index)
    perm = list(range(rank))
    if body.attrs.get(f"transBatch{side}", 0) and rank > 2:
        perm.insert(rank - 2, perm.pop(0))
    if body.attrs.get(f"trans{side}", 0) and rank > 1:
        perm[-2:] = perm[:-3:-1]
    value = body.inputs[index]
    return value if perm == sorted(perm) else body("Transpose", value, perm=perm)


def _activated(body: Body, value: str, name: str, parameters: list[float]) -> str:
    """A value behind the activation that an attribute names."""
    if not name:
        return value
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"activation '{name}'")
    named: dict[str, Any] = dict(zip(_ACTIVATIONS[name], parameters, strict=False))
    if name == "Clip":
        bounds = [body.number(named[k]) if k in named else "" for k in ("min", "max")]
        return body("Clip", value, *bounds)
    return body(name, value, **named)


@expands(_DOMAIN, "FusedGemm")
def _fused_gemm(body: Body) -> None:
    attrs = {k: v for k, v in body.attrs.items() if k in ("alpha", "beta", "transA", "transB")}
    given = [
        body.attrs[f"activation_{k}"] for k in ("alpha", "beta") if f"activation_{k}" in body.attrs
    ]
    y = body("Gemm", *body.inputs[:3], **attrs)
    body.outputs = [_activated(body, y, body.attrs.get("activation", ""), given)]


def _conv(body: Body, *inputs: str) -> str:
    attrs = {k: v for k, v in body.attrs.items() if k in CONV_ATTRS}
    return body("Conv", *inputs, **attrs)


def _parameters(body: Body) -> list[float]:
    return [float(v) for v in body.attrs.get("activation_params", ())]


@expands(_DOMAIN, "FusedConv")
def _fused_conv(body: Body) -> None:
    y = _conv(body, *body.inputs[:3])
    y = _with(body, y, 3)
    body.outputs = [_activated(body, y, body.attrs.get("activation", ""), _parameters(body))]


@expands(_DOMAIN, "NhwcConv")
def _nhwc_conv(body: Body) -> None:
    rank = body.rank_of()
    x, w = (channels_first(body, v, rank) for v in body.inputs[:2])
    body.outputs = [channels_last(body, _conv(body, x, w, body.optional(2)), rank)]


@expands(_DOMAIN, "GroupNorm")
def _group_norm(body: Body) -> None:
    x, gamma, beta = body.inputs[:3]
    rank, nhwc = body.rank_of(), body.attrs.get("channels_last", 1)
    if nhwc:
        x = channels_first(body, x, rank)
    dtype = body.input_dtype()
    affine = [v if body.input_dtype(i) is dtype else body.cast(v, dtype)
              for i, v in enumerate((gamma, beta), 1)]  # fmt: skip
    groups, epsilon = int(body.attrs["groups"]), body.attrs.get("epsilon", 1e-5)
    y = body("GroupNormalization", x, *affine, num_groups=groups, epsilon=epsilon)
    if body.attrs.get("activation", 0):
        y = body("Mul", y, body("Sigmoid", y))
    body.outputs = [channels_last(body, y, rank) if nhwc else y]


@expands(_DOMAIN, "BiasSoftmax")
def _bias_softmax(body: Body) -> None:
    axis, rank = int(body.attrs.get("axis", 1)), body.rank_of(0)
    if axis % rank != rank - 1:
        raise UnsupportedError(f"axis {axis} of rank {rank}; clrt has the last one")
    body.outputs = [body("Softmax", body("Add", *body.inputs[:2]), axis=-1)]


def _length(body: Body, value: str, axis: int) -> str:
    return body("Shape", value, start=axis, end=axis + 1)


def _range(body: Body, count: str) -> str:
    """0, 1, … up to a number `[1]`."""
    return body("Range", body.scalar(0), body("Squeeze", count, body.ints(0)), body.scalar(1))


def _positions(body: Body, given: str, rank: int, like: str, axis: int) -> str:
    """Positions `[B, S]`; one number is the first of them."""
    if rank > 1:
        return given
    batch, length = (_length(body, like, a) for a in (0, axis))
    row = body("Add", _range(body, length), given)
    return body(
        "Expand", body("Unsqueeze", row, body.ints(0)), body("Concat", batch, length, axis=0)
    )


@expands(_DOMAIN, "RotaryEmbedding")
def _rotary_embedding(body: Body) -> None:
    """Inputs: x, positions, and the tables of cosines and sines."""
    if body.attrs.get("is_packed_batching", 0) or body.attrs.get("scale", 1.0) != 1:
        raise UnsupportedError("packed batching and scaled positions")
    x, given, cosines, sines = body.inputs[:4]
    rank = body.rank_of(0)
    positions = _positions(body, given, body.rank_of(1), x, rank - 2 if rank == 4 else 1)
    attrs: dict[str, Any] = {
        k: int(body.attrs.get(k, 0)) for k in ("interleaved", "num_heads", "rotary_embedding_dim")
    }
    if rank == 3 and not attrs["num_heads"]:
        attrs["num_heads"] = _size(body, 0, 2) // (2 * _size(body, 2, 1))
    body.outputs = [body("RotaryEmbedding", x, cosines, sines, positions, **attrs)]


def _kept_keys(body: Body, index: int, total: str) -> str:
    """Which of the scores `[B, H, S, T]` a mask keeps: an end for each row of the batch of input 0,
    or ends and starts, one after the other; or a mask `[B, T]` or `[B, S, T]`.

    Args:
        total: T, as `[1]`.

    Raises:
        UnsupportedError: The mask has another rank.
    """
    mask, rank = body.types[index], body.rank_of(index)
    if rank == 1:
        every = body.ints(1, 2, 3)
        limits, places = body.cast(body.inputs[index], DType.INT64), _range(body, total)
        batched = body.input_type().shape
        if same_shape(body.shape_of(index), batched and batched[:1]):
            return body("Less", places, body("Unsqueeze", limits, every))
        # Which of both forms it is may show in a run only: starts that are not there are 0.
        batch = _length(body, body.inputs[0], 0)
        limits = body("Concat", limits, body("Expand", body.ints(0), batch), axis=0)
        sides = ((body.ints(0), batch), (batch, body("Add", batch, batch)))
        ends, starts = (body("Unsqueeze", body("Slice", limits, *s), every) for s in sides)
        return body("And", body("Less", places, ends), body("GreaterOrEqual", places, starts))
    if rank not in (2, 3):
        raise UnsupportedError(f"a mask {mask}")
    axes = body.ints(1, 2) if rank == 2 else body.ints(1)
    return body.cast(body("Unsqueeze", body.inputs[index], axes), DType.BOOL)


def _mask(body: Body, index: int, total: str, added: str = "", like: int = 0) -> str:
    """What is added to scores `[B, H, S, T]`: of a padding mask, and `added`; "" for nothing.

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


def _attend(
    body: Body,
    q: str,
    k: str,
    v: str,
    heads: int,
    mask: str = "",
    past: tuple[str, str] | None = None,
) -> list[str]:
    """ONNX's Attention on `[B, S, H * D]`: the result, and all keys and values by head."""
    scale, causal = float(body.attrs.get("scale", 0.0)), int(body.attrs.get("unidirectional", 0))
    attrs: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": causal}
    attrs |= {"scale": scale} if scale else {}
    if past is None:
        # One output: the kernel of its own has no more.
        y = body("Attention", q, k, v, mask, **attrs)
        return [y, split_heads(body, k, heads), split_heads(body, v, heads)]
    return body.node("Attention", [q, k, v, mask, *past], 3, **attrs)


def self_attention(
    body: Body, qkv: str, mask: int, past: int, added: str = "", like: int = 0
) -> None:
    """Attention on a projection, keys and values stacked behind those of the past.

    Args:
        qkv: Queries, keys and values side by side, `[B, S, W]`.
        mask: The input that is a padding mask.
        past: The input that has keys and values by head, `[2, B, H, P, D]`.
        added: What is added to the scores; "" for nothing.
        like: The input whose dtype qkv has.

    Raises:
        UnsupportedError: It rotates, or writes into its own input.
    """
    if body.attrs.get("do_rotary", 0) or body.attrs.get("past_present_share_buffer", 0):
        raise UnsupportedError("do_rotary and past_present_share_buffer")
    sizes, heads = body.attrs.get("qkv_hidden_sizes"), int(body.attrs["num_heads"])
    if sizes:
        q, k, v = body.node("Split", [qkv, body.ints(*sizes)], 3, axis=2)
    else:
        q, k, v = body.node("Split", [qkv], 3, num_outputs=3, axis=2)
    total, cache, first = _length(body, k, 1), None, body.ints(0)
    if body.has(past):
        old = body.node("Split", [body.inputs[past]], 2, num_outputs=2, axis=0)
        cache = (body("Squeeze", old[0], first), body("Squeeze", old[1], first))
        total = body("Add", total, _length(body, cache[0], 2))
    whole_mask = _mask(body, mask, total, added, like)
    y, keys, values = _attend(body, q, k, v, heads, whole_mask, cache)
    body.outputs = [y]
    if not sizes or sizes[1] == sizes[2]:
        both = [body("Unsqueeze", t, first) for t in (keys, values)]
        body.outputs.append(body("Concat", *both, axis=0))


@expands(_DOMAIN, "Attention")
def _attention(body: Body) -> None:
    """Inputs: x, weights, bias, mask, past, and what is added to the scores."""
    qkv = _with(body, body("MatMul", *body.inputs[:2]), 2)
    self_attention(body, qkv, mask=3, past=4, added=body.optional(5))


@expands(_DOMAIN, "MultiHeadAttention")
def _multi_head_attention(body: Body) -> None:
    """Inputs: q, k, v, bias, padding mask, what is added to the scores, past keys and values."""
    heads = int(body.attrs["num_heads"])
    packed = 3 if body.rank_of(0) == 5 else 2 if body.has(1) and body.rank_of(1) == 5 else 0
    if packed:
        whole = body.inputs[3 - packed]
        parts = body.node("Split", [whole], packed, num_outputs=packed, axis=3)
        flat = [body("Reshape", part, body.ints(0, 0, -1)) for part in parts]
        q, k, v = flat if packed == 3 else [body.inputs[0], *flat]
    else:
        q, k, v = (
            merge_heads(body, t) if body.rank_of(i) == 4 else t
            for i, t in enumerate(body.inputs[:3])
        )
    if body.has(3):
        width = _size(body, 3, 0)
        each = _size(body, 0, 2) if body.rank_of(0) == 3 else width // 3
        sizes = [each, each, width - 2 * each]
        biases = body.node("Split", [body.inputs[3], body.ints(*sizes)], 3, axis=0)
        # Keys and values that come by head are a cache of another call, which has added its own.
        own = [packed or body.rank_of(i) == 3 for i in range(3)]
        q, k, v = (
            body("Add", t, b) if mine else t
            for t, b, mine in zip((q, k, v), biases, own, strict=True)
        )
    total, past = _length(body, k, 1), None
    if body.has(6) and body.has(7):
        past = (body.inputs[6], body.inputs[7])
        total = body("Add", total, _length(body, past[0], 2))
    body.outputs = _attend(body, q, k, v, heads, _mask(body, 4, total, body.optional(5)), past)


@expands(_DOMAIN, "GroupQueryAttention")
def _group_query_attention(body: Body) -> None:
    """Inputs: q, k, v, past keys and values `[B, K, P, D]`, the last place of each row, how many
    places there are in all, and the tables of cosines and sines.

    A cache may have room for more places than there are; row b has `seqlens_k[b] + 1` of them, and
    its new ones come last.
    """
    if body.attrs.get("smooth_softmax", 0) or body.has(11):
        raise UnsupportedError("a smooth softmax")
    heads, kv_heads = int(body.attrs["num_heads"]), int(body.attrs["kv_num_heads"])
    q, k, v = body.inputs[:3]
    if not body.has(1):
        size = _size(body, 0, 2) // (heads + 2 * kv_heads)
        sizes = body.ints(heads * size, kv_heads * size, kv_heads * size)
        q, k, v = body.node("Split", [body.inputs[0], sizes], 3, axis=2)
    counts = (heads, kv_heads, kv_heads)
    q, k, v = (split_heads(body, t, n) for t, n in zip((q, k, v), counts, strict=True))
    rows = _length(body, q, 2)
    zero, one = (body.scalar(n) for n in (0, 1))
    lengths = body("Add", body("Reshape", body("Cast", body.inputs[5], to=7), body.ints(-1)), one)
    # In a first call a row may be shorter than the others; then its places still start at 0.
    before = body("Max", body("Sub", lengths, rows), zero)
    places = body("Add", body("Unsqueeze", before, body.ints(1)), _range(body, rows))
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
            room = body("Max", body("Sub", total, _length(body, old, 2)), zero)
            pads = body("Concat", body.ints(0), room, axis=0)
            grown = body("Pad", old, pads, "", body.ints(2))
            caches.append(body("TensorScatter", grown, new, before, axis=-2))
        k, v = caches
    keys = _range(body, _length(body, k, 2))
    own = body("Unsqueeze", places, body.ints(1, 3))
    seen = body("LessOrEqual", keys, own)
    window = int(body.attrs.get("local_window_size", -1))
    if window > 0:
        oldest = body("Sub", own, body.scalar(window))
        seen = body("And", seen, body("Greater", keys, oldest))
    lowest = body.number(float(ml_dtypes.finfo(body.input_dtype().numpy).min))
    mask = body("Where", seen, body.number(0.0), lowest)
    mask = _with(body, mask, 10)
    attrs: dict[str, Any] = {
        n: float(body.attrs[n]) for n in ("scale", "softcap") if body.attrs.get(n)
    }
    body.outputs = [merge_heads(body, body("Attention", q, k, v, mask, **attrs)), k, v]
