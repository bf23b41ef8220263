"""Decoder families with RMS norms and gated feed-forward networks (Llama)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder_family import NO_WINDOWS, DecoderFamily, GgufForm

# Touvron et al., LLaMA (2023); also SmolLM, Yi, Vicuna and many others. Its GGUF architecture also
# covers Mixtral.
_LLAMA = DecoderFamily(
    defaults={"max_position_embeddings": 2048},
    gguf=GgufForm(
        "llama",
        keys={"moe_intermediate_size": "feed_forward_length"},
        options=(by.optional_experts,),
        permuted=True,
    ),
)

# Jiang et al., Mistral 7B (2023): all layers have a window of `sliding_window` tokens.
_MISTRAL = DecoderFamily(
    windows="all",
    defaults={"sliding_window": 4096, "max_position_embeddings": 131072},
    gguf="llama",
)

# Hugging Face (2025): some layers have no rotary embedding (`no_rope_layers`).
_SMOLLM3 = DecoderFamily(
    windows="kinds",
    kinds=by.windows_without_rope,
    rope_layers=by.rope_in_some_layers,
    defaults={"rope_theta": 2e6, "max_position_embeddings": 32768},
    gguf=GgufForm("smollm3", fixed=NO_WINDOWS, permuted=True),
)

# Yang et al., Qwen2 (2024): Q, K and V have biases; also Qwen 2.5.
_QWEN2 = DecoderFamily(
    windows="kinds",
    kinds=by.upper_windows,
    defaults={"sliding_window": 4096, "max_position_embeddings": 32768},
    gguf=GgufForm("qwen2", fixed=NO_WINDOWS),
)

# Yang et al., Qwen3 (2025): norms of Q and K heads instead of biases.
_QWEN3 = replace(
    _QWEN2,
    fields={"qk_norm": "head"},
    defaults={**_QWEN2.defaults, "head_dim": 128},
    gguf=GgufForm("qwen3", fixed=NO_WINDOWS),
)

# Gemma Team (2024): scales of norms are stored minus 1.
_GEMMA = DecoderFamily(
    options=(by.gemma,),
    defaults={"head_dim": 256, "max_position_embeddings": 8192},
    norm_shift=1.0,
    gguf=GgufForm("gemma"),
)

# Gemma Team, Gemma 2 (2024): windows in every other layer, soft limits of scores and logits.
_GEMMA2 = DecoderFamily(
    fields={"norms": "both"},
    options=(by.gemma, by.query_scale, by.softcaps),
    windows="kinds",
    kinds=by.windows_of_period,
    keys={"hidden_act": "hidden_activation"},
    defaults={
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    names=tensor_names.GEMMA2,
    norm_shift=1.0,
    gguf=GgufForm(
        "gemma2",
        defaults=(
            "sliding_window",
            "sliding_window_pattern",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ),
        computed=partial(by.scale_of_27b, 46),
    ),
)

# Gemma Team, Gemma 3 (2025): norms of Q and K heads instead of soft limits, and two rotary
# embeddings. Files of the larger models omit most values of the text model.
_GEMMA3 = replace(
    _GEMMA2,
    fields={"norms": "both", "qk_norm": "head"},
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
    gguf=GgufForm(
        "gemma3", defaults=("rope_local_base_freq",), computed=partial(by.scale_of_27b, 62)
    ),
)

# Abdin et al., Phi-3 (2024); also Phi-3.5, Phi-4 and Phi-4-mini.
_PHI3 = DecoderFamily(
    windows="all",
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
    },
    names=tensor_names.PHI3,
    gguf=GgufForm("phi3", names={"ffn_gate_up": "ffn_up"}),
)

# OLMo Team, 2 OLMo 2 Furious (2024): norms after attention and network, and of whole rows of Q and
# K.
_OLMO2 = DecoderFamily(
    fields={"norms": "after", "qk_norm": "row"},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    names=tensor_names.OLMO2,
    gguf="olmo2",
)

# IBM (2024): multipliers of embeddings, scores, residuals and logits, as in Yang et al., muP
# (2022).
_GRANITE_GGUF = GgufForm(
    "granite",
    keys={"moe_intermediate_size": "feed_forward_length"},
    options=(by.multipliers, by.optional_experts),
    permuted=True,
)
_GRANITE = DecoderFamily(
    options=(by.multipliers,),
    rope_layers=by.rope_if_finetuned,
    defaults={"max_position_embeddings": 2048, "attention_multiplier": 1.0},
    gguf=_GRANITE_GGUF,
)

# Jiang et al., Mixtral of Experts (2024).
_MIXTRAL = DecoderFamily(
    options=(by.normalised_experts,),
    windows="all",
    keys={"num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    names=tensor_names.MIXTRAL,
    gguf="llama",
)

# Qwen1.5-MoE (2024): a shared expert for all tokens.
_QWEN2_MOE = replace(
    _QWEN2,
    options=(by.experts_with_shared,),
    kinds=by.lower_windows,
    keys={"num_experts": "num_local_experts"},
    defaults={**_QWEN2.defaults, "shared_expert_intermediate_size": 5632},
    names=tensor_names.QWEN_MOE,
    gguf=GgufForm("qwen2moe", fixed=NO_WINDOWS, computed=by.expert_sizes, tied=False),
)

# Yang et al., Qwen3 (2025).
_QWEN3_MOE = replace(
    _QWEN2_MOE,
    fields={"qk_norm": "head"},
    options=(by.experts,),
    kinds=by.used_windows,
    defaults=_QWEN2.defaults,
    gguf=GgufForm(
        "qwen3moe", fixed={**NO_WINDOWS, "norm_topk_prob": True}, computed=by.expert_sizes
    ),
)

# Mistral AI (2024): `layer_types` lists the layers with a window.
_MINISTRAL = replace(_MISTRAL, windows="kinds", kinds=by.all_windows, gguf="")

# ByteDance, Seed-OSS (2025).
_SEED_OSS = DecoderFamily(
    defaults={"head_dim": 128, "max_position_embeddings": 524288},
    gguf=GgufForm("seed_oss", names={"ffn_norm": "post_attention_norm"}),
)

# Ai2 (2025): windows in three of four layers, without RoPE scaling. GGUF files have the
# architecture of OLMo 2.
_OLMO3 = replace(
    _OLMO2,
    windows="kinds",
    kinds=by.windows_of_period,
    keys={"rope_local_base_freq": "rope_theta"},
    defaults={
        **_OLMO2.defaults,
        "rope_theta": 5e5,
        "rope_local_base_freq": 5e5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    gguf=GgufForm("olmo2", defaults=("sliding_window_pattern",), tied=False),
)

# Muennighoff et al., OLMoE (2024).
_OLMOE = DecoderFamily(
    fields={"qk_norm": "row"},
    options=(by.clip, by.experts),
    keys={"moe_intermediate_size": "intermediate_size"},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    names=tensor_names.QWEN_MOE,
)

# IBM (2024): Granite with experts.
_GRANITE_MOE = replace(
    _GRANITE,
    options=(by.multipliers, by.normalised_experts),
    keys=_MIXTRAL.keys,
    names=tensor_names.GRANITE_MOE,
    experts="halves",
    gguf=replace(_GRANITE_GGUF, architecture="granitemoe"),
)

# OpenAI, gpt-oss (2025): an attention sink for each head, and limited gates.
_GPT_OSS = DecoderFamily(
    options=(by.normalised_experts, by.gate_limit),
    windows="kinds",
    kinds=by.windows_of_period,
    keys=_MIXTRAL.keys,
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 64,
        "rope_theta": 150000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "num_experts_per_tok": 4,
    },
    names=tensor_names.GPT_OSS,
    experts="transposed",
    gguf=GgufForm(
        "gpt-oss",
        defaults=("sliding_window_pattern",),
        computed=by.expert_sizes,
        names={"ffn_norm": "post_attention_norm"},
        tied=False,
    ),
)

# Team GLM (2024): RoPE covers half of each head; interleaved pairs.
_GLM = DecoderFamily(
    rotary="interleaved",
    defaults={
        "rms_norm_eps": 1.5625e-7,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131072,
    },
    names=tensor_names.GLM4,
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
    names=tensor_names.OLMO2,
)

# Arcee, AFM (2025): a feed-forward network without gate, with squared ReLU.
_ARCEE = DecoderFamily(
    fields={"gated": False},
    activation="relu2",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    names=tensor_names.ARCEE,
    gguf=GgufForm("arcee", permuted=True),
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
