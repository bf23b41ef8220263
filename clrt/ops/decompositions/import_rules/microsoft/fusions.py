"""Ops of com.microsoft in models optimized by ONNX Runtime, composed of ONNX ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.import_rules.quantized import CONV_ATTRS

_DOMAIN = "com.microsoft"
_ACTIVATIONS = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "Elu": ("alpha",),
    "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"),
    "Selu": ("alpha", "gamma"), "ThresholdedRelu": ("alpha",), "Softmax": ("axis",),
    "LogSoftmax": ("axis",), "HardSwish": (),
}  # fmt: skip


@register_import_decomposition(_DOMAIN, "Gelu")
def _gelu(body: ImportBuilder) -> None:
    body.outputs = [body("Gelu", body.inputs[0])]


@register_import_decomposition(_DOMAIN, "FastGelu")
def _fast_gelu(body: ImportBuilder) -> None:
    body.outputs = [body("Gelu", body.plus(body.inputs[0], 1), approximate="tanh")]


@register_import_decomposition(_DOMAIN, "BiasGelu")
def _bias_gelu(body: ImportBuilder) -> None:
    body.outputs = [body("Gelu", body.plus(body.inputs[0], 1))]


@register_import_decomposition(_DOMAIN, "GemmFastGelu")
def _gemm_fast_gelu(body: ImportBuilder) -> None:
    y = body.plus(body("MatMul", *body.inputs[:2]), 2)
    body.outputs = [body("Gelu", y, approximate="tanh")]


@register_import_decomposition(_DOMAIN, "QuickGelu")
def _quick_gelu(body: ImportBuilder) -> None:
    x, alpha = body.inputs[0], body.attrs.get("alpha", 1.702)
    body.outputs = [body("Mul", x, body("Sigmoid", body("Mul", x, body.number(alpha))))]


@register_import_decomposition(_DOMAIN, "BiasSplitGelu")
def _bias_split_gelu(body: ImportBuilder) -> None:
    halves = body.node("Split", [body.plus(body.inputs[0], 1)], 2, num_outputs=2, axis=-1)
    body.outputs = [body("Mul", halves[0], body("Gelu", halves[1]))]


@register_import_decomposition(_DOMAIN, "BiasAdd")
def _bias_add(body: ImportBuilder) -> None:
    body.outputs = [body.plus(body.plus(body.inputs[0], 1), 2)]


@register_import_decomposition(_DOMAIN, "BiasDropout")
def _bias_dropout(body: ImportBuilder) -> None:
    """Decomposes BiasDropout: dropout(x + bias) + residual.

    Inputs: x, bias, residual, ratio, training flag; only x is required.
    """
    seed: dict[str, Any] = {k: v for k, v in body.attrs.items() if k == "seed"}
    inputs = [body.plus(body.inputs[0], 1), body.optional(3), body.optional(4)]
    y, mask = body.node("Dropout", inputs, 2, **seed)
    body.outputs = [body.plus(y, 2), mask]


@register_import_decomposition(_DOMAIN, "TorchEmbedding")
def _torch_embedding(body: ImportBuilder) -> None:
    # Inputs after the indices concern only training.
    body.outputs = [body("Gather", *body.inputs[:2])]


@register_import_decomposition(_DOMAIN, "IsAllFinite")
def _is_all_finite(body: ImportBuilder) -> None:
    tests: list[Value] = []
    for x in body.inputs:
        if not body.attrs.get("isinf_only", 0):
            tests.append(body("IsNaN", x))
        if not body.attrs.get("isnan_only", 0):
            tests.append(body("IsInf", x))
    flags = [body("ReduceMax", body.cast(t, DType.UINT8), keepdims=0) for t in tests]
    odd = body("Max", *flags) if len(flags) > 1 else flags[0]
    body.outputs = [body("Not", body.cast(odd, DType.BOOL))]


@register_import_decomposition("", "SimplifiedLayerNormalization")
@register_import_decomposition(_DOMAIN, "SimplifiedLayerNormalization")
def _simplified_layer_normalization(body: ImportBuilder) -> None:
    axis, epsilon = int(body.attrs.get("axis", -1)), body.attrs.get("epsilon", 1e-5)
    y = body("RMSNormalization", *body.inputs[:2], axis=axis, epsilon=epsilon)
    body.outputs = [y]


def _skip(body: ImportBuilder, bias: int) -> Value:
    """Returns input 0 + input 1 (skip) + optional input `bias`."""
    return body.plus(body("Add", *body.inputs[:2]), bias)


@register_import_decomposition(_DOMAIN, "SkipLayerNormalization")
def _skip_layer_normalization(body: ImportBuilder) -> None:
    total = _skip(body, 4)
    inputs = [total, body.inputs[2], body.optional(3)]
    epsilon = body.attrs.get("epsilon", 1e-12)
    y = body("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
    # Outputs 1 and 2 are statistics, which only training reads.
    body.outputs = [y, None, None, total]


@register_import_decomposition(_DOMAIN, "SkipSimplifiedLayerNormalization")
def _skip_simplified_layer_normalization(body: ImportBuilder) -> None:
    total = _skip(body, 3)
    epsilon = body.attrs.get("epsilon", 1e-12)
    y = body("RMSNormalization", total, body.inputs[2], axis=-1, epsilon=epsilon)
    body.outputs = [y, None, None, total]


@register_import_decomposition(_DOMAIN, "EmbedLayerNormalization")
def _embed_layer_normalization(body: ImportBuilder) -> None:
    """Decomposes EmbedLayerNormalization: LayerNorm of word + position + segment embeddings.

    Inputs: token ids; segment ids; the three tables of embeddings; gamma and beta, the norm's scale
    and bias; mask; positions.
    """
    positions = body.optional(8) or positions_of(body)
    tables = body.inputs
    embed(body, lambda table, ids: body("Gather", tables[table], ids), positions, tables[5:7])


def positions_of(body: ImportBuilder) -> Value:
    """Returns positions 0, 1, 2, … of the tokens in input 0, `[batch, tokens]`: `[tokens]`."""
    return body.count_up(body.dim_of(body.inputs[0], 1))


def embed(
    body: ImportBuilder,
    look_up: Callable[[int, Value], Value],
    positions: Value,
    affine: Sequence[Value],
) -> None:
    """Sets the outputs of an embedding op: LayerNorm of word + position + segment embeddings.

    Args:
        body: Builder; its outputs are set: normalized embeddings; number of unmasked tokens per
            sequence (0 without a mask in input 7); sums before the norm.
        look_up: Returns rows of a table, from (the table's input index, ids of the rows).
        positions: Position ids of the tokens.
        affine: Scale and bias of the norm.
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
        rows = body.dim_of(ids, 0)
        lengths = body("Expand", body.constant(np.array([0], np.int32)), rows)
    body.outputs = [y, lengths, total]


@register_import_decomposition(_DOMAIN, "FusedMatMul")
@register_import_decomposition(_DOMAIN, "TransposeMatMul")
def _fused_matmul(body: ImportBuilder) -> None:
    body.outputs = [_product(body)]


@register_import_decomposition(_DOMAIN, "FusedMatMulActivation")
def _fused_matmul_activation(body: ImportBuilder) -> None:
    body.outputs = [_activated(body, _product(body), _named_parameters(body))]


def _product(body: ImportBuilder) -> Value:
    """Returns the matrix product of FusedMatMul, multiplied by `alpha`."""
    a, b = (_transposed_operand(body, index, side) for index, side in enumerate("AB"))
    y, alpha = body("MatMul", a, b), body.attrs.get("alpha", 1.0)
    return y if alpha == 1 else body("Mul", y, body.number(alpha))


def _transposed_operand(body: ImportBuilder, index: int, side: str) -> Value:
    """Returns an operand of FusedMatMul, transposed as the node's attributes say.

    First `transBatchA` or `transBatchB` moves axis 0 to the place of the rows; then `transA` or
    `transB` swaps rows and columns.

    Args:
        body: Builder.
        index: Input index of the operand.
        side: "A" for the left operand, "B" for the right one.
    """
    rank = body.rank_of(index)
    perm = list(range(rank))
    if body.attrs.get(f"transBatch{side}", 0) and rank > 2:
        perm.insert(rank - 2, perm.pop(0))
    if body.attrs.get(f"trans{side}", 0) and rank > 1:
        perm[-2:] = perm[:-3:-1]
    value = body.inputs[index]
    return value if perm == sorted(perm) else body("Transpose", value, perm=perm)


def _parameter_names(body: ImportBuilder) -> tuple[str, ...]:
    """Returns the names of the parameters that the node's activation has; () without activation.

    Raises:
        UnsupportedError: clrt lacks the activation.
    """
    name = body.attrs.get("activation", "")
    if name and name not in _ACTIVATIONS:
        raise UnsupportedError(f"activation '{name}'")
    return _ACTIVATIONS.get(name, ())


def _named_parameters(body: ImportBuilder) -> dict[str, Any]:
    """Returns the activation's parameters by name, from the attributes `activation_…`."""
    attributes = ((name, f"activation_{name}") for name in _parameter_names(body))
    return {name: body.attrs[attr] for name, attr in attributes if attr in body.attrs}


def _listed_parameters(body: ImportBuilder) -> dict[str, Any]:
    """Returns the activation's parameters by name, from the list `activation_params`."""
    values = [float(v) for v in body.attrs.get("activation_params", ())]
    return dict(zip(_parameter_names(body), values, strict=False))


def _activated(body: ImportBuilder, value: Value, parameters: dict[str, Any]) -> Value:
    """Applies the activation in the node's attribute `activation` to `value`.

    Returns `value` itself if the attribute is not set.

    Args:
        body: Builder.
        value: Tensor.
        parameters: Parameters of the activation by name: alpha, min, …
    """
    name = body.attrs.get("activation", "")
    if name == "Clip":
        bounds = [body.number(parameters[k]) if k in parameters else None for k in ("min", "max")]
        return body("Clip", value, *bounds)
    return body(name, value, **parameters) if name else value


@register_import_decomposition(_DOMAIN, "FusedGemm")
def _fused_gemm(body: ImportBuilder) -> None:
    attrs = {k: v for k, v in body.attrs.items() if k in ("alpha", "beta", "transA", "transB")}
    y = body("Gemm", *body.inputs[:3], **attrs)
    body.outputs = [_activated(body, y, _named_parameters(body))]


def _conv(body: ImportBuilder, *inputs: Value | None) -> Value:
    """Adds a Conv of `inputs` (x, weights, bias) with the attributes of the replaced node."""
    attrs = {k: v for k, v in body.attrs.items() if k in CONV_ATTRS}
    return body("Conv", *inputs, **attrs)


def conv_and_activation(
    body: ImportBuilder, x: Value, weights: Value, bias: Value | None, added: Value | None
) -> Value:
    """Returns activation(Conv(x) + added), with the attributes of the replaced node.

    Args:
        body: Builder.
        x: Input of Conv.
        weights: Weights of Conv.
        bias: Bias of Conv; None for none.
        added: Tensor to add before the activation; None for none.
    """
    y = _conv(body, x, weights, bias)
    return _activated(body, body("Add", y, added) if added else y, _listed_parameters(body))


@register_import_decomposition(_DOMAIN, "FusedConv")
def _fused_conv(body: ImportBuilder) -> None:
    x, weights = body.inputs[:2]
    body.outputs = [conv_and_activation(body, x, weights, body.optional(2), body.optional(3))]


@register_import_decomposition(_DOMAIN, "NhwcConv")
def _nhwc_conv(body: ImportBuilder) -> None:
    rank = body.rank_of()
    x, w = (body.channels_first(v, rank) for v in body.inputs[:2])
    body.outputs = [body.channels_last(_conv(body, x, w, body.optional(2)), rank)]


@register_import_decomposition(_DOMAIN, "NhwcFusedConv")
def _nhwc_fused_conv(body: ImportBuilder) -> None:
    """Decomposes NhwcFusedConv: FusedConv with channels on the last axis of input and output.

    The weights have their channels on axis 1.
    """
    rank = body.rank_of()
    y = _conv(body, body.channels_first(body.inputs[0], rank), body.inputs[1], body.optional(2))
    total = body.plus(body.channels_last(y, rank), 3)
    body.outputs = [_activated(body, total, _listed_parameters(body))]


@register_import_decomposition(_DOMAIN, "CausalConvWithState")
def _causal_conv_with_state(body: ImportBuilder) -> None:
    """Decomposes CausalConvWithState: a depthwise convolution over each position and earlier ones.

    Inputs: x `[batch, channels, length]`; weights `[channels, 1, kernel]`; optional bias; optional
    state `[batch, channels, (kernel - 1) * dilation]`, the positions before x (else 0). Output 1 is
    the new state: the last (kernel - 1) * dilation positions of the old state followed by x.

    With `channels_last`, x and the states are `[batch, length, …]`, with channels on all later
    axes.
    """
    forms = {"ndim": 1, "state_window": 0}
    if odd := [name for name, form in forms.items() if body.attrs.get(name, form) != form]:
        raise UnsupportedError(f"{odd[0]} {body.attrs[odd[0]]}")
    last, dilation = body.attrs.get("channels_last", 0), int(body.attrs.get("dilation", 1))
    x = _one_axis_of_channels(body, body.inputs[0]) if last else body.inputs[0]
    if not body.has(3):
        before = body.ints((body.size_of(1, 2) - 1) * dilation)
        whole = body.padded(x, 2, before=before)
    else:
        past = _one_axis_of_channels(body, body.inputs[3]) if last else body.inputs[3]
        whole = body("Concat", past, x, axis=2)
    attrs: dict[str, Any] = {"group": body.size_of(1, 0), "dilations": [dilation]}
    y = body("Conv", whole, body.inputs[1], body.optional(2), **attrs)
    match body.attrs.get("activation", "none"):
        case "silu" | "swish":
            y = body("Swish", y)
        case "none":
            pass
        case other:
            raise UnsupportedError(f"activation '{other}'")
    state = body.slice(whole, body.dim_of(x, 2), body.dim_of(whole, 2), 2)
    body.outputs = [y, state]
    if last:
        channels = body("Shape", body.inputs[0], start=2)
        body.outputs = [
            body("Reshape", t, body("Concat", body("Shape", t, end=2), channels, axis=0))
            for t in (body.channels_last(value, 3) for value in (y, state))
        ]


def _one_axis_of_channels(body: ImportBuilder, value: Value) -> Value:
    """Merges all axes after `[batch, length]` to channels: `[batch, channels, length]`."""
    return body.channels_first(body("Reshape", value, body.ints(0, 0, -1)), 3)


@register_import_decomposition(_DOMAIN, "GroupNorm")
def _group_norm(body: ImportBuilder) -> None:
    body.outputs = [_normalised_groups(body, body.inputs[0])]


@register_import_decomposition(_DOMAIN, "SkipGroupNorm")
def _skip_group_norm(body: ImportBuilder) -> None:
    """Decomposes SkipGroupNorm: outputs GroupNorm(x + skip + bias) and x + skip + bias.

    Inputs: x `[batch, height, width, channels]`; gamma and beta, the norm's scale and bias; skip,
    per element or per channel; optional bias.
    """
    if not body.attrs.get("channels_last", 1):
        raise UnsupportedError("channels_last 0")
    skip = body.inputs[3]
    if body.rank_of(3) == 2:
        skip = body("Unsqueeze", skip, body.ints(*range(1, body.rank_of() - 1)))
    total = body.plus(body("Add", body.inputs[0], skip), 4)
    body.outputs = [_normalised_groups(body, total), total]


def _normalised_groups(body: ImportBuilder, x: Value) -> Value:
    """Returns GroupNorm of x with the attributes, scale and bias of the replaced node.

    Args:
        body: Builder; inputs 1 and 2 are the norm's scale and bias.
        x: Tensor with the shape and dtype of input 0.
    """
    rank, nhwc = body.rank_of(), body.attrs.get("channels_last", 1)
    if nhwc:
        x = body.channels_first(x, rank)
    dtype = body.input_dtype()
    affine = [v if body.input_dtype(i) is dtype else body.cast(v, dtype)
              for i, v in enumerate(body.inputs[1:3], 1)]  # fmt: skip
    groups, epsilon = int(body.attrs["groups"]), body.attrs.get("epsilon", 1e-5)
    y = body("GroupNormalization", x, *affine, num_groups=groups, epsilon=epsilon)
    if body.attrs.get("activation", 0):
        y = body("Mul", y, body("Sigmoid", y))
    return body.channels_last(y, rank) if nhwc else y


@register_import_decomposition(_DOMAIN, "BiasSoftmax")
def _bias_softmax(body: ImportBuilder) -> None:
    axis, rank = int(body.attrs.get("axis", 1)), body.rank_of(0)
    if axis % rank != rank - 1:
        raise UnsupportedError(f"axis {axis} of rank {rank}; clrt has the last one")
    body.outputs = [body("Softmax", body("Add", *body.inputs[:2]), axis=-1)]


def _positions(body: ImportBuilder, given: Value, rank: int, like: Value, axis: int) -> Value:
    """Returns the token positions that RotaryEmbedding uses, `[batch, tokens]`.

    Args:
        body: Builder.
        given: Positions `[batch, tokens]`, or one number: the position of every first token.
        rank: Rank of `given`.
        like: Tensor whose axis 0 has the batch size.
        axis: Axis of `like` with the number of tokens.
    """
    if rank > 1:
        return given
    batch, length = (body.dim_of(like, a) for a in (0, axis))
    row = body("Add", body.count_up(length), given)
    return body(
        "Expand", body("Unsqueeze", row, body.ints(0)), body("Concat", batch, length, axis=0)
    )


@register_import_decomposition(_DOMAIN, "RotaryEmbedding")
def _rotary_embedding(body: ImportBuilder) -> None:
    """Decomposes com.microsoft's RotaryEmbedding into ONNX's RotaryEmbedding.

    Inputs: x, positions, cosine table, sine table.

    `scale` and `is_packed_batching` are ignored, as in ONNX Runtime: the tables are scaled already,
    and positions cover packed rows.
    """
    x, position_ids, cosines, sines = body.inputs[:4]
    rank = body.rank_of(0)
    positions = _positions(body, position_ids, body.rank_of(1), x, rank - 2 if rank == 4 else 1)
    attrs: dict[str, Any] = {
        k: int(body.attrs.get(k, 0)) for k in ("interleaved", "num_heads", "rotary_embedding_dim")
    }
    if rank == 3 and not attrs["num_heads"]:
        attrs["num_heads"] = body.size_of(0, 2) // (2 * body.size_of(2, 1))
    body.outputs = [body("RotaryEmbedding", x, cosines, sines, positions, **attrs)]
