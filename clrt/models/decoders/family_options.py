"""What config.json decides in some families: functions of its values to fields of `DecoderConfig`.

Rules by layer give a list with an entry for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clrt.models.decoders.decoder import FULL, SLIDING, MoeConfig
from clrt.models.huggingface.config_values import ConfigValues

Fields = Mapping[str, Any]


def none(config: ConfigValues) -> Fields:
    """Nothing."""
    return {}


def gemma(config: ConfigValues) -> Fields:
    """Embeddings grow by the root of their width; "gelu" in early files meant its tanh form."""
    found: dict[str, Any] = {"embedding_scale": config.integer("hidden_size") ** 0.5}
    if config.text("hidden_act", "gelu") == "gelu":
        found["activation"] = "gelu_pytorch_tanh"
    if config.flag("use_bidirectional_attention", False):
        raise config.unsupported("use_bidirectional_attention", "decoders see what is before them")
    return found


def gemma2(config: ConfigValues) -> Fields:
    """A scale of scores of its own, and limits of scores and logits."""
    return {
        **gemma(config),
        "scale": config.number("query_pre_attn_scalar", 256.0, least=1e-6) ** -0.5,
        "softcap": config.number("attn_logit_softcapping", 0.0, least=0.0),
        "final_softcap": config.number("final_logit_softcapping", 0.0, least=0.0),
    }


def granite(config: ConfigValues) -> Fields:
    """Multipliers of embeddings, scores and residuals; a divisor of logits."""
    return {
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "scale": config.number("attention_multiplier", 1.0),
        "logit_scale": 1 / config.number("logits_scaling", 1.0, least=1e-6),
    }


def gpt2(config: ConfigValues) -> Fields:
    """Places have embeddings; scores need not be scaled by the size of heads.

    StarCoder's heads share one of K and V, if `multi_query`.
    """
    if config.flag("scale_attn_by_inverse_layer_idx", False):
        raise config.unsupported("scale_attn_by_inverse_layer_idx", "all layers scale alike")
    scaled = config.flag("scale_attn_weights", True)
    found: dict[str, Any] = {
        "places": config.integer("max_position_embeddings"),
        "scale": None if scaled else 1.0,
    }
    return found | ({"kv_heads": 1} if config.flag("multi_query", False) else {})


def opt(config: ConfigValues) -> Fields:
    """Places have embeddings. The one size with norms behind the parts of layers is not built."""
    if not config.flag("do_layer_norm_before", True):
        raise config.unsupported("do_layer_norm_before", "true is")
    hidden = config.integer("hidden_size")
    if config.integer("word_embed_proj_dim", default=hidden) != hidden:
        raise config.unsupported("word_embed_proj_dim", f"hidden_size {hidden} is")
    return {"places": config.integer("max_position_embeddings")}


def parallel_by_default(config: ConfigValues) -> Fields:
    """GPT-NeoX: both parts of a layer read its input, unless config.json denies it."""
    return {"parallel": config.flag("use_parallel_residual", True)}


def stablelm(config: ConfigValues) -> Fields:
    """Both parts of a layer may read its input by one norm; heads may have norms of their own."""
    return {
        "parallel": config.flag("use_parallel_residual", False),
        "qk_norm": "heads" if config.flag("qk_layernorm", False) else "none",
    }


def phi(config: ConfigValues) -> Fields:
    """Phi-1 and 2; norms of heads, which none of them has, are not built."""
    if config.flag("qk_layernorm", False):
        raise config.unsupported("qk_layernorm", "heads without norms are")
    return {}


def cohere(config: ConfigValues) -> Fields:
    """Logits are scaled; each head may have a norm of its own (Command R+)."""
    return {
        "logit_scale": config.number("logit_scale", 0.0625),
        "qk_norm": "heads" if config.flag("use_qk_norm", False) else "none",
    }


def olmo(config: ConfigValues) -> Fields:
    """Q, K and V may be clipped."""
    return {"clip": config.number("clip_qkv", 0.0, least=0.0)}


def bloom(config: ConfigValues) -> Fields:
    """Scores fall with distance."""
    if config.flag("apply_residual_connection_post_layernorm", False):
        raise config.unsupported(
            "apply_residual_connection_post_layernorm", "residuals are what norms read"
        )
    return {"slopes": _slopes(config.integer("num_attention_heads", most=_MOST_HEADS))}


def falcon(config: ConfigValues) -> Fields:
    """The larger models have heads of K and V in groups, the smaller ones one or all.

    falcon-rw falls with distance instead of rotary embeddings, before scores are scaled.
    """
    heads = config.integer("num_attention_heads", most=_MOST_HEADS)
    grouped = config.flag("new_decoder_architecture", False)
    kv_heads = 1 if config.flag("multi_query", True) else heads
    if grouped:
        kv_heads = config.integer("num_kv_heads", default=heads, most=heads)
    found: dict[str, Any] = {
        "kv_heads": kv_heads,
        "parallel": grouped or config.flag("parallel_attn", True),
    }
    if heads % kv_heads:
        raise config.wrong("num_kv_heads", f"a divisor of {heads} heads", kv_heads)
    if config.flag("alibi", False):
        scale = (config.integer("hidden_size") // heads) ** -0.5
        found["slopes"] = tuple(scale * slope for slope in _slopes(heads))
    return found


def mpt(config: ConfigValues) -> Fields:
    """Scores fall with distance; Q, K and V may be clipped. The rest of `attn_config` is fixed."""
    attention = config.inner("attn_config")
    if attention.text("attn_type", "multihead_attention") != "multihead_attention":
        raise attention.unsupported("attn_type", "'multihead_attention' is")
    for key, wanted in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if attention.flag(key, wanted) != wanted:
            raise attention.unsupported(key, f"{wanted} is")
    heads = config.integer("num_attention_heads", most=_MOST_HEADS)
    scale = attention.number("softmax_scale", 0.0, least=0.0)
    most = attention.integer("alibi_bias_max", default=8, most=1000)
    return {
        "slopes": _mpt_slopes(heads, most),
        "clip": attention.number("clip_qkv", 0.0, least=0.0),
        "scale": scale or None,
    }


def mixtral(config: ConfigValues) -> Fields:
    """All layers have experts, as wide as the feed-forward network that they replace."""
    return {"experts": _experts(config, "intermediate_size", normalised=True)}


def olmoe(config: ConfigValues) -> Fields:
    """Experts; Q, K and V may be clipped."""
    normalised = config.flag("norm_topk_prob", False)
    return {**olmo(config), "experts": _experts(config, "intermediate_size", normalised=normalised)}


def gpt_oss(config: ConfigValues) -> Fields:
    """Experts whose gates have a limit."""
    if config.number("swiglu_alpha", _ALPHA) != _ALPHA:
        raise config.unsupported("swiglu_alpha", f"{_ALPHA} is")
    limit = config.number("swiglu_limit", 7.0, least=1e-6)
    return {**mixtral(config), "gate_limit": limit}


def granite_moe(config: ConfigValues) -> Fields:
    """Granite's factors, and experts."""
    return {**granite(config), **mixtral(config)}


def qwen_moe(config: ConfigValues) -> Fields:
    """Layers with a router have experts; Qwen 2's have one more that all tokens go to."""
    normalised = config.flag("norm_topk_prob", False)
    return {"experts": _experts(config, "moe_intermediate_size", normalised=normalised)}


def _experts(config: ConfigValues, size: str, *, normalised: bool) -> MoeConfig:
    count = config.integer("num_experts", most=_MOST_EXPERTS)
    return MoeConfig(
        count=count,
        used=config.integer("num_experts_per_tok", most=count),
        size=config.integer(size),
        normalised=normalised,
        shared=config.integer("shared_expert_intermediate_size", default=0, least=0),
    )


_MOST_HEADS, _MOST_EXPERTS = 1 << 16, 1 << 16
# Of gpt-oss's gates.
_ALPHA = 1.702


def _slopes(heads: int) -> tuple[float, ...]:
    """ALiBi's slopes: powers of two, and between them where `heads` is no power of two."""
    whole = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8 / whole * k) for k in range(1, whole + 1)]
    return (*first, *(2.0 ** (-4 / whole * k) for k in range(1, 2 * (heads - whole), 2)))


def _mpt_slopes(heads: int, most: int) -> tuple[float, ...]:
    """MPT's slopes: of as many heads as the next power of two, every other one first."""
    whole = 1 << (heads - 1).bit_length()
    slopes = [2.0 ** (-most / whole * k) for k in range(1, whole + 1)]
    return tuple((slopes if whole == heads else slopes[1::2] + slopes[::2])[:heads])


def no_windows(config: ConfigValues, layers: int) -> list[bool]:
    """No layer has a window."""
    return [False] * layers


def upper_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Qwen 2 and 3: layers from `max_window_layers` on, if `use_sliding_window`."""
    first = config.integer("max_window_layers", default=28, least=0)
    used = config.flag("use_sliding_window", False)
    return [used and layer >= first for layer in range(layers)]


def lower_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Qwen 2's experts: every other layer below `max_window_layers`, if `use_sliding_window`."""
    end = config.integer("max_window_layers", default=28, least=0)
    used = config.flag("use_sliding_window", False)
    return [used and layer % 2 == 0 and layer < end for layer in range(layers)]


def all_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Ministral: all layers."""
    return [True] * layers


def used_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Qwen 3's experts: all layers, if `use_sliding_window`."""
    return [config.flag("use_sliding_window", False)] * layers


def windows_of_period(config: ConfigValues, layers: int) -> list[bool]:
    """Gemma 2 and 3, OLMo 3, Cohere 2, gpt-oss: all but each `sliding_window_pattern`-th layer."""
    period = config.integer("sliding_window_pattern", default=6)
    return [bool((layer + 1) % period) for layer in range(layers)]


def unturned_windows(config: ConfigValues, layers: int) -> list[bool]:
    """SmolLM3: layers without rotary embedding, if `use_sliding_window`."""
    used = config.flag("use_sliding_window", False)
    return [used and not turned for turned in sometimes_turned(config, layers)]


def turned(config: ConfigValues, layers: int) -> list[bool]:
    """All layers have a rotary embedding."""
    return [True] * layers


def turned_without_alibi(config: ConfigValues, layers: int) -> list[bool]:
    """Falcon: all layers have a rotary embedding, or none."""
    return [not config.flag("alibi", False)] * layers


def turned_in_windows(config: ConfigValues, layers: int) -> list[bool]:
    """Cohere 2, EXAONE 4: layers with a window, or all where none has one."""
    if config.integer("sliding_window", default=0, least=0) == 0:
        return [True] * layers
    if "layer_types" in config:
        known = (FULL, SLIDING)
        return [kind == SLIDING for kind in config.texts("layer_types", layers, known)]
    return windows_of_period(config, layers)


def sometimes_turned(config: ConfigValues, layers: int) -> list[bool]:
    """SmolLM3: all but each `no_rope_layer_interval`-th layer; `no_rope_layers` has 0 for those.

    Source: Yang et al., Rope to Nope and Back Again (2025).
    """
    if "no_rope_layers" in config:
        return [bool(flag) for flag in config.numbers("no_rope_layers", layers, longer=True)]
    period = config.integer("no_rope_layer_interval", default=4)
    return [bool((layer + 1) % period) for layer in range(layers)]
