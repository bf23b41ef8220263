"""Pools token embeddings into sentence vectors on the device, by a graph of standard ops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ops.op_builder import OpBuilder, floats, ints
from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.model import Model, load
from clrt.text.stages import VectorStage, unit
from clrt.text.tokenize import IntArray

MASK = "attention_mask"
FIRST = "first_token"
LAST = "last_token"
PLACES = "token_places"
TOKENS = "token_embeddings"
RESULT = "sentence_embedding"

# Lower bound of the token count that sums are divided by; sentence-transformers' value.
_MIN_COUNT = 1e-9
# Pooling mode -> its mask input; all other modes read MASK.
_MASKS = {"cls": FIRST, "lasttoken": LAST, "weightedmean": PLACES}


class Pooling:
    """Pooling models of one encoder, one for each way to normalize and truncate vectors.

    Args:
        modes: Pooling modes; their results are concatenated.
        tokens: Type of the transformer's output to pool, [batch, sequence, hidden].
        device: Index of the transformer's device.
        strict: As in `clrt.load`.
        cache_dir: As in `clrt.load`.
        stages: Modules applied to pooled vectors before normalization and truncation.
    """

    def __init__(
        self,
        modes: Sequence[str],
        tokens: TensorSpec,
        device: int,
        strict: bool | None,
        cache_dir: str | Path | None = None,
        stages: Sequence[VectorStage] = (),
    ) -> None:
        self._modes = tuple(modes)
        self._stages = stages
        self._tokens = tokens
        self._device = device
        self._strict = strict
        self._cache_dir = cache_dir
        self._models: dict[tuple[bool, int | None, bool], Model] = {}
        self._lock = Lock()

    def model(self, unit_before: bool, truncate_dim: int | None, unit_after: bool) -> Model:
        """Returns the pooling model for one way to normalize and truncate; loads it on first use.

        Args:
            unit_before: Whether vectors are L2-normalized before truncation.
            truncate_dim: Number of leading elements kept of each vector; None keeps all.
            unit_after: Whether vectors are L2-normalized after truncation.
        """
        key = (unit_before, truncate_dim, unit_after)
        with self._lock:
            if key not in self._models:
                graph = pooling_graph(self._modes, self._tokens, *key, self._stages)
                self._models[key] = load(
                    graph, device=self._device, strict=self._strict, cache_dir=self._cache_dir
                )
            return self._models[key]

    def close(self) -> None:
        """Releases the device memory."""
        with self._lock:
            for model in self._models.values():
                model.close()
            self._models.clear()


def pooling_masks(modes: Sequence[str], mask: IntArray, skipped: int) -> dict[str, IntArray]:
    """Returns the mask inputs of `pooling_graph` by name, int64 [batch, sequence] each.

    Args:
        modes: Pooling modes, which determine the inputs of the graph.
        mask: Attention mask, int64 [batch, sequence]: 1 at tokens, 0 at padding on either side.
        skipped: Number of leading tokens to leave out of pooling (the prompt).
    """
    places = np.arange(mask.shape[1]) - mask.argmax(axis=1)[:, None]
    pooled = np.where(places < skipped, 0, mask) if skipped else mask.copy()
    masks: dict[str, IntArray] = {}
    rows = np.arange(len(mask))
    if "cls" in modes:
        # As in sentence-transformers, a row without pooled tokens uses position 0.
        masks[FIRST] = np.zeros_like(mask)
        masks[FIRST][rows, pooled.argmax(axis=1)] = 1
    if "lasttoken" in modes:  # A row without pooled tokens gets a zero vector.
        last = mask.shape[1] - 1 - pooled[:, ::-1].argmax(axis=1)
        masks[LAST] = np.zeros_like(mask)
        masks[LAST][rows, last] = pooled[rows, last]
    if "weightedmean" in modes:
        masks[PLACES] = pooled * (places + 1)
    if set(modes) - {"cls", "lasttoken", "weightedmean"}:
        masks[MASK] = pooled
    return masks


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
