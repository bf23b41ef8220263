"""Decoder families with RMS norms and gated feed-forward networks (Llama)."""

from __future__ import annotations

from dataclasses import replace

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder_family import DecoderFamily

# Touvron et al., LLaMA (2023); also SmolLM, Yi, Vicuna and many others.
_LLAMA = DecoderFamily(defaults={"max_position_embeddings": 2048})

# Jiang et al., Mistral 7B (2023): all layers have a window of `sliding_window` tokens.
_MISTRAL = DecoderFamily(
    windows="all", defaults={"sliding_window": 4096, "max_position_embeddings": 131072}
)

# Hugging Face (2025): some layers have no rotary embedding (`no_rope_layers`).
_SMOLLM3 = DecoderFamily(
    windows="kinds",
    kinds=by.windows_without_rope,
    rope_layers=by.rope_in_some_layers,
    defaults={"rope_theta": 2e6, "max_position_embeddings": 32768},
)

# Yang et al., Qwen2 (2024): Q, K and V have biases; also Qwen 2.5.
_QWEN2 = DecoderFamily(
    windows="kinds",
    kinds=by.upper_windows,
    defaults={"sliding_window": 4096, "max_position_embeddings": 32768},
)

# Yang et al., Qwen3 (2025): norms of Q and K heads instead of biases.
_QWEN3 = replace(_QWEN2, defaults={**_QWEN2.defaults, "head_dim": 128}, fields={"qk_norm": "head"})

# Gemma Team (2024): scales of norms are stored minus 1.
_GEMMA = DecoderFamily(
    differences=by.gemma,
    fields={"norm_shift": 1.0},
    defaults={"head_dim": 256, "max_position_embeddings": 8192},
)

# Gemma Team, Gemma 2 (2024): windows in every other layer, soft limits of scores and logits.
_GEMMA2 = DecoderFamily(
    names=tensor_names.GEMMA2,
    keys={"hidden_act": "hidden_activation"},
    differences=by.gemma2,
    fields={"norm_shift": 1.0, "norms": "both"},
    windows="kinds",
    kinds=by.windows_of_period,
    defaults={
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)

# Gemma Team, Gemma 3 (2025): norms of Q and K heads instead of soft limits, and two rotary
# embeddings. Files of the larger models omit most values of the text model.
_GEMMA3 = replace(
    _GEMMA2,
    fields={"norm_shift": 1.0, "norms": "both", "qk_norm": "head"},
    defaults={
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
)

# Abdin et al., Phi-3 (2024); also Phi-3.5, Phi-4 and Phi-4-mini.
_PHI3 = DecoderFamily(
    names=tensor_names.PHI3,
    windows="all",
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
    },
)

# OLMo Team, 2 OLMo 2 Furious (2024): norms after attention and network, and of whole rows of Q and
# K.
_OLMO2 = DecoderFamily(
    names=tensor_names.OLMO2,
    fields={"norms": "after", "qk_norm": "row"},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
)

# IBM (2024): multipliers of embeddings, scores, residuals and logits, as in Yang et al., muP
# (2022).
_GRANITE = DecoderFamily(differences=by.granite, defaults={"max_position_embeddings": 2048})

# Jiang et al., Mixtral of Experts (2024).
_MIXTRAL = DecoderFamily(
    names=tensor_names.MIXTRAL,
    keys={"num_experts": "num_local_experts"},
    differences=by.mixtral,
    windows="all",
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
)

# Qwen1.5-MoE (2024): a shared expert for all tokens.
_QWEN2_MOE = replace(
    _QWEN2,
    names=tensor_names.QWEN_MOE,
    keys={"num_experts": "num_local_experts"},
    differences=by.qwen_moe,
    kinds=by.lower_windows,
    defaults={**_QWEN2.defaults, "shared_expert_intermediate_size": 5632},
)

# Yang et al., Qwen3 (2025).
_QWEN3_MOE = replace(
    _QWEN2_MOE,
    fields={"qk_norm": "head"},
    kinds=by.used_windows,
    defaults=_QWEN2.defaults,
)

# Mistral AI (2024): `layer_types` lists the layers with a window.
_MINISTRAL = replace(_MISTRAL, windows="kinds", kinds=by.all_windows)

# ByteDance, Seed-OSS (2025).
_SEED_OSS = DecoderFamily(defaults={"head_dim": 128, "max_position_embeddings": 524288})

# Ai2 (2025): windows in three of four layers, without RoPE scaling.
_OLMO3 = replace(
    _OLMO2,
    keys={"rope_local_base_freq": "rope_theta"},
    windows="kinds",
    kinds=by.windows_of_period,
    defaults={
        **_OLMO2.defaults,
        "rope_theta": 5e5,
        "rope_local_base_freq": 5e5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
)

# Muennighoff et al., OLMoE (2024).
_OLMOE = DecoderFamily(
    names=tensor_names.QWEN_MOE,
    differences=by.olmoe,
    fields={"qk_norm": "row"},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
)

# IBM (2024): Granite with experts.
_GRANITE_MOE = replace(
    _GRANITE,
    names=tensor_names.GRANITE_MOE,
    keys={"num_experts": "num_local_experts"},
    differences=by.granite_moe,
    experts="halves",
)

# OpenAI, gpt-oss (2025): an attention sink for each head, and limited gates.
_GPT_OSS = DecoderFamily(
    names=tensor_names.GPT_OSS,
    keys={"num_experts": "num_local_experts"},
    differences=by.gpt_oss,
    windows="kinds",
    kinds=by.windows_of_period,
    experts="transposed",
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 64,
        "rope_theta": 150000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "num_experts_per_tok": 4,
    },
)

# Team GLM (2024): RoPE covers half of each head; interleaved pairs.
_GLM = DecoderFamily(
    names=tensor_names.GLM4,
    rotary="interleaved",
    defaults={
        "rms_norm_eps": 1.5625e-7,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131072,
    },
)

# Baidu, ERNIE 4.5 (2025): interleaved RoPE.
_ERNIE = DecoderFamily(
    rotary="interleaved",
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "rope_theta": 5e5,
        "max_position_embeddings": 131072,
    },
)

# Kyutai, Helium (2025): interleaved RoPE.
_HELIUM = DecoderFamily(
    rotary="interleaved",
    defaults={"rms_norm_eps": 1e-8, "rope_theta": 1e5, "max_position_embeddings": 4096},
)

# LG AI Research, EXAONE 4.0 (2025): norms after attention and network. If there are windows, layers
# without one have no rotary embedding.
_EXAONE4 = DecoderFamily(
    names=tensor_names.OLMO2,
    fields={"norms": "after", "qk_norm": "head"},
    windows="kinds",
    kinds=by.windows_of_period,
    rope_layers=by.rope_in_windows,
    defaults={
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "max_position_embeddings": 2048,
    },
)

# Arcee, AFM (2025): a feed-forward network without gate, with squared ReLU.
_ARCEE = DecoderFamily(
    names=tensor_names.ARCEE,
    fields={"gated": False},
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "relu2", "max_position_embeddings": 4096},
)

#: By model type.
LLAMA_FAMILIES: dict[str, DecoderFamily] = {
    "arcee": _ARCEE,
    "ernie4_5": _ERNIE,
    "exaone4": _EXAONE4,
    "glm": _GLM,
    "glm4": replace(_GLM, fields={"norms": "both"}),
    "gpt_oss": _GPT_OSS,
    "granitemoe": _GRANITE_MOE,
    "helium": _HELIUM,
    "ministral": _MINISTRAL,
    "olmo3": _OLMO3,
    "olmoe": _OLMOE,
    "seed_oss": _SEED_OSS,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "granite": _GRANITE,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": _MIXTRAL,
    "olmo2": _OLMO2,
    "phi3": _PHI3,
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "smollm3": _SMOLLM3,
}
