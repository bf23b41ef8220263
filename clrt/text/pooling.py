"""Pools token embeddings into sentence vectors on the device, by a graph of standard ops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np

from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.graph_recipe import GraphRecipe
from clrt.runtime.model.model import Model, load
from clrt.text.stages import VectorStage
from clrt.text.tokenize import IntArray

MASK = "attention_mask"
FIRST = "first_token"
LAST = "last_token"
PLACES = "token_places"
TOKENS = "token_embeddings"
LOGITS = "logits"
RESULT = "sentence_embedding"


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
                arguments = (self._modes, self._tokens, *key, self._stages)
                stages = [stage.stored() for stage in self._stages]
                recipe = GraphRecipe(
                    "clrt.text.pooling_graph:pooling_graph",
                    arguments,
                    json.dumps([*self._modes, str(self._tokens), *key, stages]),
                )
                self._models[key] = load(
                    recipe, device=self._device, strict=self._strict, cache_dir=self._cache_dir
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
