"""Builds the graph that pools token embeddings, of standard ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ops.op_builder import OpBuilder, floats, ints
from clrt.runtime.execution.signature import TensorSpec
from clrt.text.pooling import FIRST, LAST, MASK, PLACES, RESULT, TOKENS
from clrt.text.stages import VectorStage, unit

# Lower bound of the token count that sums are divided by; sentence-transformers' value.
_MIN_COUNT = 1e-9
# Pooling mode -> its mask input; all other modes read MASK.
_MASKS = {"cls": FIRST, "lasttoken": LAST, "weightedmean": PLACES}


def pooling_graph(
    modes: Sequence[str],
    tokens: TensorSpec,
    unit_before: bool,
    truncate_dim: int | None,
    unit_after: bool,
    stages: Sequence[VectorStage] = (),
) -> Graph:
    """Builds the graph that pools, applies stages, normalizes, truncates and normalizes again.

    Args:
        modes: Members of `POOLING_MODES`; their results are concatenated.
        tokens: Type of the token embeddings, [batch, sequence, hidden].
        unit_before: Whether vectors are L2-normalized before truncation.
        truncate_dim: Number of leading elements kept of each vector; None keeps all.
        unit_after: Whether vectors are L2-normalized after truncation.
        stages: Modules applied to pooled vectors before normalization.

    Returns:
        Graph with inputs `token_embeddings`, and int64 [batch, sequence] `first_token` (for cls),
        `last_token` (lasttoken), `token_places` (weightedmean) and `attention_mask` (for all other
        modes); output `sentence_embedding`, float32 [batch, width].

    Numerics: Sums are divided by at least 1e-9 tokens, vectors by a length of at least 1e-12.

    Source: sentence-transformers' Pooling and Normalize, torch.nn.functional.normalize.
    """
    build = OpBuilder()
    hidden = tokens.shape[-1] if tokens.shape else "hidden"
    width = hidden if isinstance(hidden, int) else "hidden"
    x = build.float_feed(TOKENS, tokens.dtype, "batch", "sequence", width)
    masks = {
        name: build.feed(name, DType.INT64, "batch", "sequence")
        for name in dict.fromkeys(_MASKS.get(mode, MASK) for mode in modes)
    }
    parts = []
    for mode in modes:
        name = _MASKS.get(mode, MASK)
        select = name in (FIRST, LAST)
        parts.append(_select(build, x, masks[name]) if select
                     else _pool(build, x, masks[name], mode))  # fmt: skip
    pooled = parts[0] if len(parts) == 1 else build("Concat", *parts, axis=-1)
    for stage in stages:
        pooled = stage.apply(build, pooled)
    if unit_before and (truncate_dim is not None or not unit_after):
        pooled = unit(build, pooled)
    if truncate_dim is not None:
        pooled = build.slice(pooled, 0, truncate_dim, 1)
    if unit_after:
        pooled = unit(build, pooled)
    return build.graph("pooling", build.inputs, [pooled], [RESULT])


def _select(build: OpBuilder, x: Value, first: Value) -> Value:
    """Adds ops that select one token of each text, even if other tokens are infinite or NaN.

    Args:
        build: Builder of the graph.
        x: Token embeddings, [batch, sequence, hidden].
        first: int64 [batch, sequence], 1 at the token to select. A row of zeros selects zeros.

    Returns:
        The selected embeddings, [batch, hidden].
    """
    chosen = build("Cast", build("Unsqueeze", first, ints(2)), to=DType.BOOL)
    return build("ReduceSum", build("Where", chosen, x, floats(0.0)), ints(1), keepdims=0)


def _pool(build: OpBuilder, x: Value, mask: Value, mode: str) -> Value:
    """Adds ops that pool the token vectors of each text to a graph.

    Args:
        build: Builder of the graph.
        x: Token embeddings, [batch, sequence, hidden].
        mask: int64 [batch, sequence]: weight of each token, 0 to leave it out.
        mode: "max", "sum" or "mean_sqrt_len"; any other mode computes the weighted mean.

    Returns:
        Vectors, [batch, hidden].
    """
    wide = build("Unsqueeze", mask, ints(2))
    if mode == "max":
        kept = build("Cast", wide, to=DType.BOOL)
        lowest = floats(-np.inf)
        return build("ReduceMax", build("Where", kept, x, lowest), ints(1), keepdims=0)
    weights = build("Cast", wide, to=DType.FLOAT32)
    total = build("ReduceSum", build("Mul", x, weights), ints(1), keepdims=0)
    if mode == "sum":
        return total
    count = build("Max", build("ReduceSum", weights, ints(1), keepdims=0), floats(_MIN_COUNT))
    return build("Div", total, build("Sqrt", count) if mode == "mean_sqrt_len" else count)
