"""The architectures of llama.cpp's GGUF files, as data.

The defaults of `Architecture` are Qwen 2's. If llama.cpp approximates what a model was trained
with, this table has the original: GPT-NeoX, Falcon and MPT have the exact GELU, and all layers of
Phi-3 have the window of its files.

Source: llama.cpp, src/models and conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from clrt.models.decoders.decoder import MAX_EXPERTS, MAX_HEADS, MoeConfig, alibi_slopes
from clrt.models.decoders.gguf_keys import DecoderKeys
from clrt.models.huggingface.config_values import MAX_LAYERS

Fields: TypeAlias = Mapping[str, Any]
Names: TypeAlias = Container[str]


def _rope_everywhere(keys: DecoderKeys, layers: int) -> list[bool]:
    """Returns True for all layers: all have a rotary embedding."""
    return [True] * layers


def _granite_rope(keys: DecoderKeys, layers: int) -> list[bool]:
    """Returns the metadata flag "rope.scaling.finetuned" for all layers.

    Granite files use it to tell whether layers have a rotary embedding.
    """
    return [keys.flag("rope.scaling.finetuned", True)] * layers


def _smollm3_rope(keys: DecoderKeys, layers: int) -> list[bool]:
    """Returns True (RoPE) for all but every fourth layer."""
    return [bool((layer + 1) % 4) for layer in range(layers)]


@dataclass(frozen=True)
class Architecture:
    """A llama.cpp architecture: how to read its metadata and tensors.

    Functions of (metadata keys, number of layers) return an entry per layer; functions of tensor
    names get the names in the file.

    Attributes:
        rotary: Pairing of rotated elements: "halves", or "interleaved", for which llama.cpp's
            converter has permuted the rows of Q and K; "none" without RoPE.
        fields: DecoderConfig fields that are the same for all models.
        differences: Returns additional DecoderConfig fields from the metadata and tensor names.
        names: Returns the file's name by clrt's name, for tensors with different names.
        rope_layers: Returns whether each layer has a rotary embedding.
        windows: Period of layers: all but the last of each period have a sliding window; 0 if all
            have one, None if none has.
        window: Window size if the file has none; 0 for no window.
        local_scaled: Whether layers with a window have the same rotary embedding as those without.
        local_base: If not, default RoPE base of layers with a window; None for the same base as
            layers without.
        local_only: Whether only layers with a window have a rotary embedding.
        scaled: Whether norms have scales.
        tied: Whether the head may be missing; the embeddings then serve as head.
    """

    rotary: Literal["none", "halves", "interleaved"] = "halves"
    fields: Fields = field(default_factory=dict)
    differences: Callable[[DecoderKeys, Names], Fields] = lambda keys, tensors: {}
    names: Callable[[Names], Mapping[str, str]] = lambda tensors: {}
    rope_layers: Callable[[DecoderKeys, int], list[bool]] = _rope_everywhere
    windows: int | None = None
    window: int = 0
    local_scaled: bool = True
    local_base: float | None = None
    local_only: bool = False
    scaled: bool = True
    tied: bool = True


def _llama(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Llama's fields of DecoderConfig: experts (Mixtral), None for a model without."""
    return {"experts": _experts(keys, "feed_forward_length", normalised=True)}


def _qwen2_moe(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Qwen 2 MoE's fields of DecoderConfig: experts, and a shared one.

    Router weights are not normalised.
    """
    experts = _experts(keys, "expert_feed_forward_length", normalised=False)
    shared = keys.integer("expert_shared_feed_forward_length", 0, least=0)
    shared = shared or keys.shared("feed_forward_length", _layers(keys))
    return {"experts": experts and replace(experts, shared=shared)}


def _qwen3_moe(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Qwen 3 MoE's fields of DecoderConfig: experts with normalised router weights."""
    return {"experts": _experts(keys, "expert_feed_forward_length", normalised=True)}


def _experts(keys: DecoderKeys, size: str, *, normalised: bool) -> MoeConfig | None:
    layers = _layers(keys)
    count = keys.integer("expert_count", 0, least=0, most=MAX_EXPERTS)
    if not count:
        return None
    used = keys.shared("expert_used_count", layers, most=count)
    if size in keys:
        width = keys.shared(size, layers)
    else:
        width = max(keys.shared("feed_forward_length", layers) // used, 1)
    return MoeConfig(count, used, width, normalised)


def _layers(keys: DecoderKeys) -> int:
    return keys.integer("block_count", most=MAX_LAYERS)


def _gemma(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Gemma's fields of DecoderConfig: embeddings are scaled by sqrt(hidden)."""
    return {"embedding_scale": keys.integer("embedding_length") ** 0.5}


def _gemma2(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Gemma 2's fields of DecoderConfig: Gemma's, and soft limits of scores and logits."""
    return {
        **_gemma(keys, tensors),
        **_scale_of_27b(keys, 46),
        "softcap": keys.number("attn_logit_softcapping", 50.0, least=0.0),
        "final_softcap": keys.number("final_logit_softcapping", 30.0, least=0.0),
    }


def _gemma3(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Gemma 3's fields of DecoderConfig: Gemma's, and a soft limit of logits."""
    softcap = keys.number("final_logit_softcapping", 0.0, least=0.0)
    return {**_gemma(keys, tensors), **_scale_of_27b(keys, 62), "final_softcap": softcap}


def _scale_of_27b(keys: DecoderKeys, layers: int) -> Fields:
    """Returns the scale of attention scores for Gemma's 27B models; {} for other models.

    Args:
        layers: Number of layers of the 27B model, by which llama.cpp identifies it.
    """
    if _layers(keys) != layers:
        return {}
    heads = keys.shared("attention.head_count", layers, most=MAX_HEADS)
    return {"scale": max(keys.integer("embedding_length") // heads, 1) ** -0.5}


def _granite(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Granite's fields of DecoderConfig: scales (embedding, residual, logit), and experts.

    A stored scale of 0 means 1.
    """
    return {
        **_llama(keys, tensors),
        "embedding_scale": keys.number("embedding_scale", 1.0) or 1.0,
        "residual_scale": keys.number("residual_scale", 1.0) or 1.0,
        "logit_scale": 1 / keys.number("logit_scale", least=1e-6),
    }


def _cohere(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns Cohere's fields of DecoderConfig: a scale of logits, optional norms of Q and K heads.

    A stored scale of 0 means 1.
    """
    has_norms = "blk.0.attn_q_norm.weight" in tensors
    return {
        "logit_scale": keys.number("logit_scale", 1.0) or 1.0,
        "qk_norm": "heads" if has_norms else "none",
    }


def _neox(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns GPT-NeoX's fields of DecoderConfig.

    Attention and network run in parallel, unless "use_parallel_residual" is false.
    """
    return {"parallel": keys.flag("use_parallel_residual", True)}


def _stablelm(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns StableLM's fields of DecoderConfig.

    Attention and network run in parallel if a layer has one norm; norms of Q and K are optional.
    """
    has_norms = "blk.0.attn_q_norm.weight" in tensors
    return {
        "parallel": "blk.0.ffn_norm.weight" not in tensors,
        "qk_norm": "heads" if has_norms else "none",
    }


def _olmo(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns OLMo's fields of DecoderConfig: an optional limit of the values of Q, K and V."""
    return {"clip": keys.number("attention.clamp_kqv", 0.0, least=0.0)}


def _bloom(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns BLOOM's fields of DecoderConfig: the ALiBi slopes."""
    return {"slopes": alibi_slopes(_heads(keys))}


def _mpt(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns MPT's fields of DecoderConfig.

    These are ALiBi slopes or learned position embeddings, and an optional limit of Q, K and V.
    """
    bias = keys.number("attention.max_alibi_bias", 0.0, least=0.0, most=1e3)
    has_places = "position_embd.weight" in tensors
    return {
        **_olmo(keys, tensors),
        **(_places(keys, tensors) if has_places else {}),
        "slopes": alibi_slopes(_heads(keys), bias) if bias else (),
    }


def _heads(keys: DecoderKeys) -> int:
    """Reads the number of query heads."""
    return keys.shared("attention.head_count", _layers(keys), most=MAX_HEADS)


def _places(keys: DecoderKeys, tensors: Names) -> Fields:
    """Returns the field of DecoderConfig for learned position embeddings: their number."""
    return {"places": keys.integer("context_length")}


def _phi3_names(tensors: Names) -> Mapping[str, str]:
    """Returns Phi-3's name in GGUF files of the joint gate and up projection, by clrt's name."""
    return {"ffn_gate_up": "ffn_up"}


def _post_attention_names(tensors: Names) -> Mapping[str, str]:
    """Returns the name in GGUF files of the norm before the feed-forward network."""
    return {"ffn_norm": "post_attention_norm"}


def _falcon_names(tensors: Names) -> Mapping[str, str]:
    """Returns Falcon's names of norms in GGUF files, by clrt's names.

    If layers have two norms, the second one is that of attention; if not, the names are the same.
    """
    if "blk.0.attn_norm_2.weight" not in tensors:
        return {}
    return {"attn_norm": "attn_norm_2", "ffn_norm": "attn_norm"}


_LAYER_NORM: Fields = {"norm": "layer", "gated": False}
_TANH: Fields = {"activation": "gelu_pytorch_tanh"}
_BOTH: Fields = {**_TANH, "norms": "both"}
_SQUARED: Fields = {"gated": False, "activation": "relu2"}
_COHERE: Fields = {"norm": "layer", "parallel": True}
# gpt-oss: a constant in llama.cpp
_LIMITED: Fields = {"gate_limit": 7.0}

#: Architectures by "general.architecture". Mistral, Mixtral and SmolLM are "llama", OLMo 3 is
#: "olmo2".
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("interleaved", differences=_llama),
    "qwen2": Architecture(),
    "qwen3": Architecture(fields={"qk_norm": "head"}),
    "qwen2moe": Architecture(differences=_qwen2_moe, tied=False),
    "qwen3moe": Architecture(fields={"qk_norm": "head"}, differences=_qwen3_moe),
    "gemma": Architecture(fields=_TANH, differences=_gemma),
    "gemma2": Architecture(fields=_BOTH, differences=_gemma2, windows=2, window=4096),
    "gemma3": Architecture(
        fields={**_BOTH, "qk_norm": "head"},
        differences=_gemma3,
        windows=6,
        local_scaled=False,
        local_base=1e4,
    ),
    "phi2": Architecture(fields={**_LAYER_NORM, **_TANH, "parallel": True}, tied=False),
    "phi3": Architecture(names=_phi3_names, windows=0),
    "gpt2": Architecture("none", {**_LAYER_NORM, **_TANH}, _places),
    "gptneox": Architecture(
        fields={**_LAYER_NORM, "activation": "gelu"}, differences=_neox, tied=False
    ),
    "olmo": Architecture("interleaved", {"norm": "layer"}, _olmo, scaled=False),
    "olmo2": Architecture(
        fields={"norms": "after", "qk_norm": "row"}, windows=4, local_scaled=False, tied=False
    ),
    "granite": Architecture("interleaved", differences=_granite, rope_layers=_granite_rope),
    "falcon": Architecture(
        fields={**_LAYER_NORM, "activation": "gelu", "parallel": True}, names=_falcon_names
    ),
    "starcoder2": Architecture(fields={**_LAYER_NORM, **_TANH}),
    "stablelm": Architecture(fields={"norm": "layer"}, differences=_stablelm, tied=False),
    "bloom": Architecture("none", {**_LAYER_NORM, **_TANH}, _bloom),
    "mpt": Architecture("none", {**_LAYER_NORM, "activation": "gelu"}, _mpt),
    "smollm3": Architecture("interleaved", rope_layers=_smollm3_rope),
    "arcee": Architecture("interleaved", _SQUARED),
    "command-r": Architecture("interleaved", _COHERE, _cohere),
    "cohere2": Architecture("interleaved", _COHERE, _cohere, windows=4, local_only=True),
    "gpt-oss": Architecture(
        "halves", _LIMITED, _qwen3_moe, _post_attention_names, windows=2, tied=False
    ),
    "granitemoe": Architecture("interleaved", differences=_granite, rope_layers=_granite_rope),
    "nemotron": Architecture("halves", {**_SQUARED, "norm": "layer"}, tied=False),
    "seed_oss": Architecture(names=_post_attention_names),
    "starcoder": Architecture("none", {**_LAYER_NORM, **_TANH}, _places),
}
