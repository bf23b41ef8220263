"""The tiny decoders that are compared with transformers, by their configurations.

All have heads of 16 elements, so that they share kernels, and windows shorter than the texts.
"""

from __future__ import annotations

from typing import Any

VOCABULARY = 37
# Tokens of the two texts that are decoded together, and how many of each are given at once.
LENGTHS, GIVEN = (64, 37), (40, 13)
# Those of the logits that are committed.
COLUMNS = slice(0, None, 2)

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
    "smollm3": {
        "model_type": "smollm3",
        **_SMALL,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 12,
    },
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
    "gemma": {"model_type": "gemma", **_GROUPED, "num_key_value_heads": 1},
    "gemma2": {
        "model_type": "gemma2",
        **_GROUPED,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        **_GROUPED,
        "num_hidden_layers": 4,
        "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING],
        "sliding_window": 13,
        "query_pre_attn_scalar": 16,
        "tie_word_embeddings": True,
        "rope_parameters": {
            _FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "phi": {"model_type": "phi", **_SMALL, "num_key_value_heads": 3},
    "phi3": {
        "model_type": "phi3",
        **_SMALL,
        "num_key_value_heads": 1,
        "sliding_window": 21,
    },
    "phi3_long": {
        "model_type": "phi3",
        **_SMALL,
        "original_max_position_embeddings": 32,
        **_rope(
            rope_type="longrope",
            partial_rotary_factor=0.75,
            short_factor=[1.0] * 6,
            long_factor=[1.0, 1.1, 1.5, 2.5, 5.0, 9.0],
        ),
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 96,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        **_SMALL,
        **_rope(rope_type="default", partial_rotary_factor=0.25),
    },
    "gpt_neox_serial": {"model_type": "gpt_neox", **_SMALL, "use_parallel_residual": False},
    "bloom": {
        "model_type": "bloom",
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "n_layer": 2,
        "n_head": 3,
    },
    "falcon": {"model_type": "falcon", **_SMALL, "ffn_hidden_size": 96},
    "falcon_new": {
        "model_type": "falcon",
        **_SMALL,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
    },
    # transformers' eager attention adds its slopes twice. A power of two of heads: it rounds slopes
    # to bfloat16.
    "falcon_alibi": {
        "model_type": "falcon",
        **_SMALL,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "alibi": True,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
        "attention": "sdpa",
    },
    "mpt": {
        "model_type": "mpt",
        "vocab_size": VOCABULARY,
        "d_model": 48,
        "n_layers": 2,
        "n_heads": 3,
        "max_seq_len": 128,
        "attn_config": {"clip_qkv": 1.0},
    },
    "olmo": {"model_type": "olmo", **_SMALL, "num_key_value_heads": 1, "clip_qkv": 1.0},
    "olmo2": {"model_type": "olmo2", **_SMALL, "num_key_value_heads": 1},
    "granite": {
        "model_type": "granite",
        **_SMALL,
        "num_key_value_heads": 1,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.5,
    },
    "stablelm": {"model_type": "stablelm", **_SMALL, "num_key_value_heads": 1},
    "stablelm_parallel": {
        "model_type": "stablelm",
        **_SMALL,
        "num_key_value_heads": 1,
        "use_parallel_residual": True,
        "qk_layernorm": True,
        "use_qkv_bias": True,
    },
    "starcoder2": {
        "model_type": "starcoder2",
        **_SMALL,
        "num_key_value_heads": 1,
        "sliding_window": 17,
    },
    "cohere": {
        "model_type": "cohere",
        **_SMALL,
        "num_key_value_heads": 1,
        "use_qk_norm": True,
        "logit_scale": 0.5,
    },
    "mixtral": {
        "model_type": "mixtral",
        **_SMALL,
        "num_key_value_heads": 1,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 23,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **_SMALL,
        "num_key_value_heads": 1,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
        "mlp_only_layers": [0],
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_GROUPED,
        "num_experts": 9,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "dtype": "bfloat16",
    },
    "olmo3": {
        "model_type": "olmo3",
        **_SMALL,
        "num_key_value_heads": 1,
        "sliding_window": 15,
        "layer_types": [_SLIDING, _FULL],
        "rope_parameters": {
            _FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
            _SLIDING: {"rope_type": "default", "rope_theta": 5e5},
        },
    },
    "olmoe": {
        "model_type": "olmoe",
        **_SMALL,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "clip_qkv": 1.0,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        **_SMALL,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "num_local_experts": 4,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.3,
        "logits_scaling": 2.5,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **_GROUPED,
        "intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 14,
        "swiglu_limit": 1.0,
    },
    "helium": {"model_type": "helium", **_SMALL, "num_key_value_heads": 1, "head_dim": 16},
    "ministral": {
        "model_type": "ministral",
        **_GROUPED,
        "layer_types": [_SLIDING, _FULL],
        "sliding_window": 17,
    },
    "seed_oss": {"model_type": "seed_oss", **_GROUPED},
    "glm": {"model_type": "glm", **_GROUPED},
    "glm4": {"model_type": "glm4", **_GROUPED, "attention_bias": True},
    "ernie4_5": {"model_type": "ernie4_5", **_GROUPED, "use_bias": True},
    "exaone4": {
        "model_type": "exaone4",
        **_SMALL,
        "num_key_value_heads": 1,
        "layer_types": [_SLIDING, _FULL],
        "sliding_window": 16,
    },
    "arcee": {"model_type": "arcee", **_SMALL, "num_key_value_heads": 1},
    "nemotron": {"model_type": "nemotron", **_SMALL, "num_key_value_heads": 1},
    "cohere2": {
        "model_type": "cohere2",
        **_SMALL,
        "num_key_value_heads": 1,
        "layer_types": [_SLIDING, _FULL],
        "sliding_window": 18,
        "logit_scale": 0.5,
    },
    "gpt_bigcode": {
        "model_type": "gpt_bigcode",
        "vocab_size": VOCABULARY,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 96,
    },
    "gptj": {
        "model_type": "gptj",
        "vocab_size": VOCABULARY,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 96,
        "rotary_dim": 8,
    },
    "opt": {
        "model_type": "opt",
        **_SMALL,
        "ffn_dim": 80,
        "word_embed_proj_dim": 48,
        "tie_word_embeddings": True,
    },
}

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}

#: `rope_parameters` by name; with the places asked for.
ROTARIES: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({"rope_type": "default", "rope_theta": 10000.0}, 2048),
    "partial": (
        {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.375},
        2048,
    ),
    "linear": ({"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}, 2048),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 2048),
    "dynamic_longer": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 8192),
    "llama3": ({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, **_LLAMA3}, 2048),
    "yarn": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        2048,
    ),
    "yarn_deepseek": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 40.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "truncate": False,
        },
        2048,
    ),
    "longrope_short": (
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 512,
            "short_factor": [1 + k / 16 for k in range(32)],
            "long_factor": [1 + k for k in range(32)],
        },
        512,
    ),
    "longrope_long": (
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 512,
            "short_factor": [1 + k / 16 for k in range(32)],
            "long_factor": [1 + k for k in range(32)],
            "attention_factor": 1.25,
        },
        513,
    ),
    "proportional": (
        {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        2048,
    ),
}
# Elements of a head, and places by config.json.
ROTARY_HEAD, ROTARY_PLACES = 64, 2048
