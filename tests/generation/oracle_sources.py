"""The tiny encoder-decoders that are compared with transformers, and their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.generation.oracle_texts import VOCABULARY

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 80,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

#: model_type and settings, by the name of the case.
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    # Buckets so few that texts reach the last one of both directions.
    "t5": {
        "model_type": "t5",
        **_SMALL,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    },
    "t5_1_1": {
        "model_type": "t5",
        **_SMALL,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
    "mt5": {"model_type": "mt5", **_SMALL, "num_layers": 1, "feed_forward_proj": "gated-silu"},
    "umt5": {"model_type": "umt5", **_SMALL, "feed_forward_proj": "gated-gelu"},
}
#: Those with a head of their own, which transformers does not write unless a file has it.
WITH_HEAD = ("t5_1_1", "mt5", "umt5")

#: Tokens of the sources, of which two are shorter than a page and one has some pages.
SOURCES = (5, 31, 150)
#: Tokens of the texts whose logits are compared, and how many of these are given at once.
PLACES, GIVEN = 80, 16
#: Those of the logits that are committed.
COLUMNS = slice(0, None, 41)
#: Tokens of greedy texts, which are not to repeat themselves, and of those of three beams.
GREEDY, PENALTY, BEAM_TOKENS, BEAMS = 120, 1.5, 24, 3


def source(length: int) -> list[int]:
    """Tokens of a source; the last one is the end, as T5's tokenizer has it."""
    drawn = np.random.default_rng(1000 + length).integers(2, VOCABULARY, length)
    return [*drawn.tolist()[:-1], 1]


def text(length: int) -> list[int]:
    """Tokens that the decoder is given for a source."""
    drawn = np.random.default_rng(2000 + length).integers(2, VOCABULARY, PLACES)
    return [0, *drawn.tolist()[1:]]
