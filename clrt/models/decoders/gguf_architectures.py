"""How llama.cpp builds the decoders of each architecture, as data.

The defaults of `Architecture` are Qwen 2's. Where the files of llama.cpp do not say what a model
was trained with, and llama.cpp approximates it, this is as the model was trained: GPT-NeoX, Falcon
and MPT have the exact GELU, and all layers of Phi-3 have the window that its files give.

Source: llama.cpp, src/models and conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from clrt.models.decoders.decoder import MoeConfig
from clrt.models.decoders.gguf_keys import DecoderKeys
from clrt.models.huggingface.config_values import MAX_LAYERS

Fields: TypeAlias = Mapping[str, Any]
Names: TypeAlias = Container[str]

MOST_HEADS, _MOST_EXPERTS = 1 << 16, 1 << 16


def _all_turn(keys: DecoderKeys, layers: int) -> list[bool]:
    """All layers have a rotary embedding."""
    return [True] * layers


def _granite_turns(keys: DecoderKeys, layers: int) -> list[bool]:
    """All layers have a rotary embedding, or none: the key means something else elsewhere."""
    return [keys.flag("rope.scaling.finetuned", True)] * layers


def _smollm3_turns(keys: DecoderKeys, layers: int) -> list[bool]:
    """Every fourth layer has no rotary embedding."""
    return [bool((layer + 1) % 4) for layer in range(layers)]


@dataclass(frozen=True)
class Architecture:
    """One architecture of decoders.

    Attributes:
        rotary: Places turn Q and K; "interleaved" by pairs of neighbours, for which llama.cpp's
            converter has permuted the rows of both.
        fields: What holds for all its decoders.
        differences: What else the metadata, and the names of tensors, decide.
        names: What files call tensors, where it is not the names used here.
        turns: Whether each layer has a rotary embedding.
        windows: Of so many layers all but the last have a window; 0 for all, None for no layer.
        window: Its width, where the file gives none; 0 for none.
        local_scaled: Layers with a window turn as the others do.
        local_base: Else the base of their powers, where the file gives none; None for the others'.
        local_only: Layers without a window do not turn.
        scaled: Norms have scales.
        tied: There may be no head, and then the embeddings are it.
    """

    rotary: Literal["none", "halves", "interleaved"] = "halves"
    fields: Fields = field(default_factory=dict)
    differences: Callable[[DecoderKeys, Names], Fields] = lambda keys, tensors: {}
    names: Callable[[Names], Mapping[str, str]] = lambda tensors: {}
    turns: Callable[[DecoderKeys, int], list[bool]] = _all_turn
    windows: int | None = None
    window: int = 0
    local_scaled: bool = True
    local_base: float | None = None
    local_only: bool = False
    scaled: bool = True
    tied: bool = True


def _llama(keys: DecoderKeys, tensors: Names) -> Fields:
    """Mixtral is a Llama with experts, as wide as the feed-forward network that they replace."""
    return {"experts": _experts(keys, "feed_forward_length", normalised=True)}


def _qwen2_moe(keys: DecoderKeys, tensors: Names) -> Fields:
    """The shares of experts are not normalised; all tokens go to one more."""
    experts = _experts(keys, "expert_feed_forward_length", normalised=False)
    shared = keys.integer("expert_shared_feed_forward_length", 0, least=0)
    shared = shared or keys.shared("feed_forward_length", _layers(keys))
    return {"experts": experts and replace(experts, shared=shared)}


def _qwen3_moe(keys: DecoderKeys, tensors: Names) -> Fields:
    """The shares of experts are normalised."""
    return {"experts": _experts(keys, "expert_feed_forward_length", normalised=True)}


def _experts(keys: DecoderKeys, size: str, *, normalised: bool) -> MoeConfig | None:
    layers = _layers(keys)
    count = keys.integer("expert_count", 0, least=0, most=_MOST_EXPERTS)
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
    """Embeddings grow by the root of their width."""
    return {"embedding_scale": keys.integer("embedding_length") ** 0.5}


def _gemma2(keys: DecoderKeys, tensors: Names) -> Fields:
    """Scores and logits are limited."""
    return {
        **_gemma(keys, tensors),
        **_scale_of_27b(keys, 46),
        "softcap": keys.number("attn_logit_softcapping", 50.0, least=0.0),
        "final_softcap": keys.number("final_logit_softcapping", 30.0, least=0.0),
    }


def _gemma3(keys: DecoderKeys, tensors: Names) -> Fields:
    """Logits may be limited."""
    softcap = keys.number("final_logit_softcapping", 0.0, least=0.0)
    return {**_gemma(keys, tensors), **_scale_of_27b(keys, 62), "final_softcap": softcap}


def _scale_of_27b(keys: DecoderKeys, layers: int) -> Fields:
    """The models of 27B, which llama.cpp knows by their layers, have a scale of their own."""
    if _layers(keys) != layers:
        return {}
    heads = keys.shared("attention.head_count", layers, most=MOST_HEADS)
    return {"scale": max(keys.integer("embedding_length") // heads, 1) ** -0.5}


def _granite(keys: DecoderKeys, tensors: Names) -> Fields:
    """Factors of embeddings and residuals, where 0 is 1; a divisor of logits."""
    return {
        **_llama(keys, tensors),
        "embedding_scale": keys.number("embedding_scale", 1.0) or 1.0,
        "residual_scale": keys.number("residual_scale", 1.0) or 1.0,
        "logit_scale": 1 / keys.number("logit_scale", least=1e-6),
    }


def _cohere(keys: DecoderKeys, tensors: Names) -> Fields:
    """A factor of logits, where 0 is 1; heads may have norms."""
    has_norms = "blk.0.attn_q_norm.weight" in tensors
    return {
        "logit_scale": keys.number("logit_scale", 1.0) or 1.0,
        "qk_norm": "heads" if has_norms else "none",
    }


def _neox(keys: DecoderKeys, tensors: Names) -> Fields:
    """Both parts of a layer read its input, if the file says so."""
    return {"parallel": keys.flag("use_parallel_residual", True)}


def _stablelm(keys: DecoderKeys, tensors: Names) -> Fields:
    """Both parts of a layer read its input if there is one norm; heads may have norms."""
    has_norms = "blk.0.attn_q_norm.weight" in tensors
    return {
        "parallel": "blk.0.ffn_norm.weight" not in tensors,
        "qk_norm": "heads" if has_norms else "none",
    }


def _olmo(keys: DecoderKeys, tensors: Names) -> Fields:
    """Q, K and V may be clipped."""
    return {"clip": keys.number("attention.clamp_kqv", 0.0, least=0.0)}


def _bloom(keys: DecoderKeys, tensors: Names) -> Fields:
    """Scores fall with distance."""
    return {"slopes": _slopes(keys, 8.0)}


def _mpt(keys: DecoderKeys, tensors: Names) -> Fields:
    """Scores fall with distance, or places have embeddings; Q, K and V may be clipped."""
    bias = keys.number("attention.max_alibi_bias", 0.0, least=0.0, most=1e3)
    has_places = "position_embd.weight" in tensors
    return {
        **_olmo(keys, tensors),
        **(_places(keys, tensors) if has_places else {}),
        "slopes": _slopes(keys, bias) if bias else (),
    }


def _slopes(keys: DecoderKeys, most: float) -> tuple[float, ...]:
    """ALiBi's slopes: powers of 2 ** -most, and between them where heads are no power of two."""
    heads = keys.shared("attention.head_count", _layers(keys), most=MOST_HEADS)
    whole = 1 << (heads.bit_length() - 1)
    steps = [*range(2, 2 * whole + 1, 2), *range(1, 2 * (heads - whole), 2)]
    return tuple(2.0 ** (-most / whole * step / 2) for step in steps)


def _places(keys: DecoderKeys, tensors: Names) -> Fields:
    """Places have embeddings."""
    return {"places": keys.integer("context_length")}


def _phi3_names(tensors: Names) -> Mapping[str, str]:
    """Gate and up projection lie as one."""
    return {"ffn_gate_up": "ffn_up"}


def _behind_attention(tensors: Names) -> Mapping[str, str]:
    """The norm before the feed-forward network is called by what it follows."""
    return {"ffn_norm": "post_attention_norm"}


def _falcon_names(tensors: Names) -> Mapping[str, str]:
    """Larger models have a norm for each part of a layer, and the second is that of attention."""
    if "blk.0.attn_norm_2.weight" not in tensors:
        return {}
    return {"attn_norm": "attn_norm_2", "ffn_norm": "attn_norm"}


_LAYER_NORM: Fields = {"norm": "layer", "gated": False}
_TANH: Fields = {"activation": "gelu_pytorch_tanh"}
_BOTH: Fields = {**_TANH, "norms": "both"}
_SQUARED: Fields = {"gated": False, "activation": "relu2"}
_COHERE: Fields = {"norm": "layer", "parallel": True}
# gpt-oss: what llama.cpp has as a constant.
_LIMITED: Fields = {"gate_limit": 7.0}

#: By the name that files give. Llama's is also that of Mistral, Mixtral and SmolLM, and OLMo 2's
#: that of OLMo 3.
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
    "granite": Architecture("interleaved", differences=_granite, turns=_granite_turns),
    "falcon": Architecture(
        fields={**_LAYER_NORM, "activation": "gelu", "parallel": True}, names=_falcon_names
    ),
    "starcoder2": Architecture(fields={**_LAYER_NORM, **_TANH}),
    "stablelm": Architecture(fields={"norm": "layer"}, differences=_stablelm, tied=False),
    "bloom": Architecture("none", {**_LAYER_NORM, **_TANH}, _bloom),
    "mpt": Architecture("none", {**_LAYER_NORM, "activation": "gelu"}, _mpt),
    "smollm3": Architecture("interleaved", turns=_smollm3_turns),
    "arcee": Architecture("interleaved", _SQUARED),
    "command-r": Architecture("interleaved", _COHERE, _cohere),
    "cohere2": Architecture("interleaved", _COHERE, _cohere, windows=4, local_only=True),
    "gpt-oss": Architecture(
        "halves", _LIMITED, _qwen3_moe, _behind_attention, windows=2, tied=False
    ),
    "granitemoe": Architecture("interleaved", differences=_granite, turns=_granite_turns),
    "nemotron": Architecture("halves", {**_SQUARED, "norm": "layer"}, tied=False),
    "seed_oss": Architecture(names=_behind_attention),
    "starcoder": Architecture("none", {**_LAYER_NORM, **_TANH}, _places),
}
