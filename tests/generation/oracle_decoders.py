"""The tiny decoders that are compared with transformers, by what their configurations say.

All have heads of 16 elements, so that they share kernels, and windows shorter than the texts.
"""

from __future__ import annotations

from typing import Any

VOCABULARY = 37
# Tokens of the two texts that are decoded together, and how many of each are given at once.
LENGTHS, GIVEN = (64, 37), (40, 13)

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
# Six heads of 16 that share two of K and V; together they are wider than the hidden size.
_GROUPED: dict[str, Any] = {
    **_SMALL,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def _rope(**values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **values}}


#: model_type and settings, by the name of the case.
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_GROUPED, "attention_bias": True, "mlp_bias": True},
    "llama_bf16": {"model_type": "llama", **_SMALL, "num_key_value_heads": 1, "dtype": "bfloat16"},
    "llama3": {
        "model_type": "llama",
        **_SMALL,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        **_rope(
            rope_type="llama3",
            factor=4.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    },
    "mistral": {"model_type": "mistral", **_GROUPED, "sliding_window": 19},
    "qwen2": {
        "model_type": "qwen2",
        **_SMALL,
        "num_key_value_heads": 1,
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 11,
        "max_window_layers": 1,
    },
    "qwen3": {
        "model_type": "qwen3",
        **_GROUPED,
        **_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
    },
}
