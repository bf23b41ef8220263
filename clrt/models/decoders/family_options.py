"""Options that are specific to some families, as fields of `DecoderConfig`.

Options are read from a config.json or from the metadata of a GGUF file, by "Llama's keys": the
names that values have in Llama's config.json. Functions of (config, number of layers) return a flag
for each layer. Functions of (config, tensor names) return values, by Llama's keys, that a GGUF file
implies but does not store.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import partial
from typing import Any

from clrt.models.decoders.decoder import (
    FULL,
    MAX_EXPERTS,
    MAX_HEADS,
    SLIDING,
    MoeConfig,
    alibi_slopes,
)
from clrt.models.huggingface.config_values import MAX_LAYERS, ConfigValues

Fields = Mapping[str, Any]

# alpha of Swish in gpt-oss's experts
_ALPHA = 1.702


def none_computed(config: ConfigValues, tensors: Container[str]) -> Mapping[str, object]:
    """Returns {}: GGUF files of the family imply no values."""
    return {}


def gemma(config: ConfigValues) -> Fields:
    """Returns Gemma's fields of DecoderConfig: embeddings are scaled by sqrt(hidden).

    "gelu" in early files means its tanh form.

    Raises:
        UnsupportedError: Attention is bidirectional.
    """
    fields: dict[str, Any] = {"embedding_scale": config.integer("hidden_size") ** 0.5}
    if config.text("hidden_act", "gelu") == "gelu":
        fields["activation"] = "gelu_pytorch_tanh"
    if config.flag("use_bidirectional_attention", False):
        raise config.unsupported(
            "use_bidirectional_attention", "decoders attend to earlier tokens only"
        )
    return fields


def query_scale(config: ConfigValues) -> Fields:
    """Returns `scale`, the multiplier of attention scores, as a field of DecoderConfig.

    Returns {} if the configuration has no `query_pre_attn_scalar`.
    """
    if "query_pre_attn_scalar" not in config:
        return {}
    return {"scale": config.number("query_pre_attn_scalar", least=1e-6) ** -0.5}


def softcaps(config: ConfigValues) -> Fields:
    """Returns the soft limits of attention scores and of logits as fields of DecoderConfig."""
    return {
        "softcap": config.number("attn_logit_softcapping", 0.0, least=0.0),
        "final_softcap": config.number("final_logit_softcapping", 0.0, least=0.0),
    }


def scale_of_27b(layers: int, config: ConfigValues, tensors: Container[str]) -> Mapping[str, int]:
    """Returns `query_pre_attn_scalar` of Gemma's 27B models, which GGUF files lack; {} for others.

    Args:
        layers: Number of layers of the 27B model of the family; llama.cpp identifies it by this.
        config: Metadata of the file.
        tensors: Names of the file's tensors; unused.
    """
    if config.integer("num_hidden_layers", most=MAX_LAYERS) != layers:
        return {}
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    return {"query_pre_attn_scalar": max(config.integer("hidden_size") // heads, 1)}


def multipliers(config: ConfigValues) -> Fields:
    """Returns Granite's fields of DecoderConfig: scales (embedding, residual, score, logit).

    A stored multiplier of 0 means the default of the field; `logits_scaling`, a divisor, must be
    above 0.
    """
    return {
        "embedding_scale": config.number("embedding_multiplier", 1.0) or 1.0,
        "residual_scale": config.number("residual_multiplier", 1.0) or 1.0,
        "scale": config.number("attention_multiplier", 0.0) or None,
        "logit_scale": 1 / config.number("logits_scaling", 1.0, least=1e-6),
    }


def gpt2(config: ConfigValues) -> Fields:
    """Returns fields of DecoderConfig for GPT-2 and StarCoder.

    These are the number of learned position embeddings; a score multiplier of 1 if
    `scale_attn_weights` is false; and a single KV head if `multi_query` is true (StarCoder).

    Raises:
        UnsupportedError: Scores are also scaled by layer.
    """
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        raise config.unsupported("scale_attn_by_inverse_layer_idx", "all layers scale alike")
    fields: dict[str, Any] = {"places": config.integer("max_position_embeddings")}
    fields |= {} if config.flag("scale_attn_weights", True) else {"scale": 1.0}
    return fields | ({"kv_heads": 1} if config.flag("multi_query", False) else {})


def opt(config: ConfigValues) -> Fields:
    """Returns OPT's fields of DecoderConfig: the number of learned position embeddings.

    Raises:
        UnsupportedError: Norms follow attention and feed-forward network instead of preceding them,
            or embeddings are projected.
    """
    if not config.flag("do_layer_norm_before", True):
        raise config.unsupported("do_layer_norm_before", "true is")
    hidden = config.integer("hidden_size")
    if config.integer("word_embed_proj_dim", default=hidden) != hidden:
        raise config.unsupported("word_embed_proj_dim", f"hidden_size {hidden} is")
    return {"places": config.integer("max_position_embeddings")}


def parallel_by_default(config: ConfigValues) -> Fields:
    """Returns GPT-NeoX's fields of DecoderConfig: whether attention and network are parallel.

    `use_parallel_residual` says so; the default is true.
    """
    return {"parallel": config.flag("use_parallel_residual", True)}


def stablelm(config: ConfigValues) -> Fields:
    """Returns StableLM's fields of DecoderConfig: optional parallel residuals and QK norms."""
    return {
        "parallel": config.flag("use_parallel_residual", False),
        "qk_norm": "heads" if config.flag("qk_layernorm", False) else "none",
    }


def phi(config: ConfigValues) -> Fields:
    """Returns {}: Phi-1 and 2 have no options of their own.

    Raises:
        UnsupportedError: config.json asks for norms of Q and K heads, which no published model has.
    """
    if config.flag("qk_layernorm", False):
        raise config.unsupported("qk_layernorm", "heads without norms are")
    return {}


def cohere(config: ConfigValues) -> Fields:
    """Returns Cohere's fields of DecoderConfig.

    These are a multiplier of logits (0 means 1), and optional norms of Q and K heads (Command R+).
    """
    return {
        "logit_scale": config.number("logit_scale", 1.0) or 1.0,
        "qk_norm": "heads" if config.flag("use_qk_norm", False) else "none",
    }


def clip(config: ConfigValues) -> Fields:
    """Returns an optional limit of the values of Q, K and V as a field of DecoderConfig."""
    return {"clip": config.number("clip_qkv", 0.0, least=0.0)}


def bloom(config: ConfigValues) -> Fields:
    """Returns BLOOM's fields of DecoderConfig: the ALiBi slopes.

    Raises:
        UnsupportedError: Residuals are the outputs of norms instead of their inputs.
    """
    if config.flag("apply_residual_connection_post_layernorm", False):
        raise config.unsupported(
            "apply_residual_connection_post_layernorm", "residuals are what norms read"
        )
    return {"slopes": alibi_slopes(config.integer("num_attention_heads", most=MAX_HEADS))}


def falcon(config: ConfigValues) -> Fields:
    """Returns Falcon's fields of DecoderConfig: KV heads, parallel residuals and ALiBi slopes.

    New models have grouped KV heads; old models have one KV head, or one per query head. falcon-rw
    has ALiBi instead of rotary embeddings; its biases are added before scores are scaled.

    Raises:
        ModelError: The number of KV heads does not divide the number of heads.
    """
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    grouped = config.flag("new_decoder_architecture", False)
    kv_heads = 1 if config.flag("multi_query", True) else heads
    if grouped:
        kv_heads = config.integer("num_kv_heads", default=heads, most=heads)
    fields: dict[str, Any] = {
        "kv_heads": kv_heads,
        "parallel": grouped or config.flag("parallel_attn", True),
    }
    if heads % kv_heads:
        raise config.wrong("num_kv_heads", f"a divisor of {heads} heads", kv_heads)
    if config.flag("alibi", False):
        scale = (config.integer("hidden_size") // heads) ** -0.5
        fields["slopes"] = tuple(scale * slope for slope in alibi_slopes(heads))
    return fields


def mpt(config: ConfigValues) -> Fields:
    """Returns MPT's fields of DecoderConfig.

    These are ALiBi slopes, and an optional multiplier of scores and limit of Q, K and V.

    Raises:
        UnsupportedError: The attention is not causal multi-head attention with ALiBi, or
            normalises Q and K.
    """
    attention = config.inner("attn_config")
    if attention.text("attn_type", "multihead_attention") != "multihead_attention":
        raise attention.unsupported("attn_type", "'multihead_attention' is")
    for key, wanted in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if attention.flag(key, wanted) != wanted:
            raise attention.unsupported(key, f"{wanted} is")
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    scale = attention.number("softmax_scale", 0.0, least=0.0)
    most = attention.integer("alibi_bias_max", default=8, most=1000)
    return {
        "slopes": alibi_slopes(heads, most),
        "clip": attention.number("clip_qkv", 0.0, least=0.0),
        "scale": scale or None,
    }


def mpt_gguf(config: ConfigValues) -> Fields:
    """Returns MPT's fields of DecoderConfig for a GGUF file.

    These are ALiBi slopes or learned position embeddings, and an optional limit of Q, K and V.
    """
    bias = config.number("attention.max_alibi_bias", 0.0, least=0.0, most=1e3)
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    has_table = config.flag("learned_pos_emb", False)
    return {
        **clip(config),
        **({"places": config.integer("max_position_embeddings")} if has_table else {}),
        "slopes": alibi_slopes(heads, bias) if bias else (),
    }


def experts(
    config: ConfigValues, *, normalised: bool | None = None, shared: bool = False
) -> Fields:
    """Returns a mixture of experts as a field of DecoderConfig.

    Layers whose router is missing in the checkpoint have no experts.

    Args:
        normalised: Whether router weights are normalised; None to read `norm_topk_prob`.
        shared: Whether the model may have a shared expert.
    """
    shared_size = "shared_expert_intermediate_size"
    count = config.integer("num_experts", most=MAX_EXPERTS)
    if normalised is None:
        normalised = config.flag("norm_topk_prob", False)
    return {
        "experts": MoeConfig(
            count=count,
            used=config.integer("num_experts_per_tok", most=count),
            size=config.integer("moe_intermediate_size"),
            normalised=normalised,
            shared=config.integer(shared_size, default=0, least=0) if shared else 0,
        )
    }


normalised_experts = partial(experts, normalised=True)
experts_with_shared = partial(experts, shared=True)


def optional_experts(config: ConfigValues) -> Fields:
    """Returns a mixture of experts as a field of DecoderConfig; {} for a model without experts.

    Router weights are normalised.
    """
    count = config.integer("num_experts", 0, least=0, most=MAX_EXPERTS)
    return normalised_experts(config) if count else {}


def expert_sizes(config: ConfigValues, tensors: Container[str]) -> Mapping[str, int]:
    """Returns sizes of Qwen MoE's experts that a GGUF file lacks or stores as 0, by Llama's key."""
    sizes = {}
    if "moe_intermediate_size" not in config:
        used = config.integer("num_experts_per_tok", most=MAX_EXPERTS)
        sizes["moe_intermediate_size"] = max(config.integer("intermediate_size") // used, 1)
    shared = "blk.0.ffn_gate_inp_shexp.weight"
    if shared in tensors and not config.integer("shared_expert_intermediate_size", 0, least=0):
        sizes["shared_expert_intermediate_size"] = config.integer("intermediate_size")
    return sizes


def gate_limit(config: ConfigValues) -> Fields:
    """Returns the limit of gates as a field of DecoderConfig (gpt-oss).

    Raises:
        UnsupportedError: `swiglu_alpha` is not 1.702.
    """
    if config.number("swiglu_alpha", _ALPHA) != _ALPHA:
        raise config.unsupported("swiglu_alpha", f"{_ALPHA} is")
    return {"gate_limit": config.number("swiglu_limit", 7.0, least=1e-6)}


def no_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Returns False for all layers: none has a sliding window."""
    return [False] * layers


def upper_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True (a sliding window) for layers with index >= `max_window_layers` (Qwen 2 and 3).

    Returns False for all layers if `use_sliding_window` is false.
    """
    first = config.integer("max_window_layers", default=28, least=0)
    used = config.flag("use_sliding_window", False)
    return [used and layer >= first for layer in range(layers)]


def lower_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True (a sliding window) for even layers below `max_window_layers` (Qwen 2 MoE).

    Returns False for all layers if `use_sliding_window` is false.
    """
    end = config.integer("max_window_layers", default=28, least=0)
    used = config.flag("use_sliding_window", False)
    return [used and layer % 2 == 0 and layer < end for layer in range(layers)]


def all_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True for all layers: all have a sliding window (Ministral)."""
    return [True] * layers


def used_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Returns `use_sliding_window` for all layers: all have a window, or none (Qwen 3 MoE)."""
    return [config.flag("use_sliding_window", False)] * layers


def windows_of_period(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True (a sliding window) for all but every `sliding_window_pattern`-th layer.

    Returns True for all layers if `sliding_window_pattern` is 0. Used by Gemma 2 and 3, OLMo 3,
    Cohere 2 and gpt-oss.
    """
    period = config.integer("sliding_window_pattern", default=6, least=0)
    return [not period or bool((layer + 1) % period) for layer in range(layers)]


def windows_without_rope(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True (a sliding window) for layers without a rotary embedding (SmolLM3).

    Returns False for all layers if `use_sliding_window` is false.
    """
    used = config.flag("use_sliding_window", False)
    return [used and not has_rope for has_rope in rope_in_some_layers(config, layers)]


def rope_everywhere(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True for all layers: all have a rotary embedding."""
    return [True] * layers


def rope_if_finetuned(config: ConfigValues, layers: int) -> list[bool]:
    """Returns a flag of GGUF files, true by default, for all layers: all have RoPE, or none.

    The flag is "rope.scaling.finetuned" (Granite).
    """
    return [config.flag("rope.scaling.finetuned", True)] * layers


def rope_without_alibi(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True (RoPE) for all layers; False for all if the model has ALiBi (Falcon)."""
    return [not config.flag("alibi", False)] * layers


def rope_in_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True (RoPE) for layers with a sliding window (Cohere 2, EXAONE 4).

    If no layer has a window, returns True for all layers.
    """
    if config.integer("sliding_window", default=0, least=0) == 0:
        return [True] * layers
    if "layer_types" in config:
        known = (FULL, SLIDING)
        return [kind == SLIDING for kind in config.texts("layer_types", layers, known)]
    return windows_of_period(config, layers)


def rope_in_some_layers(config: ConfigValues, layers: int) -> list[bool]:
    """Returns True (RoPE) for layers with a nonzero entry in `no_rope_layers` (SmolLM3).

    If config.json has no such list, returns True for all but every `no_rope_layer_interval`-th
    layer.

    Source: Yang et al., Rope to Nope and Back Again (2025).
    """
    if "no_rope_layers" in config:
        return [bool(flag) for flag in config.numbers("no_rope_layers", layers, longer=True)]
    period = config.integer("no_rope_layer_interval", default=4)
    return [bool((layer + 1) % period) for layer in range(layers)]
