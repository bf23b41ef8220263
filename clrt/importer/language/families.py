"""How the families of decoders differ, as data.

The defaults of `DecoderFamily` are Llama's; others state their differences: what tensors and keys
of config.json are called, and what these mean for the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clrt.importer.huggingface.config_values import ConfigValues
from clrt.importer.language import differences as by
from clrt.importer.language import tensor_names
from clrt.importer.language.tensor_names import Names


@dataclass(frozen=True)
class DecoderFamily:
    """One family.

    Attributes:
        names: What tensors are called.
        keys: What config.json calls the keys that are read here.
        defaults: Values of keys that it may leave out.
        fields: What holds for all decoders of the family.
        differences: What config.json decides beyond what it does for all families.
        windows: Layers with a window: all, or those that `kinds` names; both only if it has one.
        kinds: Whether each layer has a window, where config.json has no `layer_types`.
        turned: Whether each layer has a rotary embedding.
        rotary: Places turn Q and K; "interleaved" by pairs of neighbours.
        inner: The object of config.json that describes the decoder.
        transposed: Matrices are stored `[inputs, outputs]`, but for embeddings.
        grouped: Q, K and V are stored as one, for each head of K: its heads of Q, K, V.
    """

    names: Names = field(default_factory=lambda: tensor_names.LLAMA)
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    differences: Callable[[ConfigValues], Mapping[str, Any]] = by.none
    windows: Literal["none", "all", "kinds"] = "none"
    kinds: Callable[[ConfigValues, int], list[bool]] = by.no_windows
    turned: Callable[[ConfigValues, int], list[bool]] = by.turned
    rotary: Literal["none", "halves", "interleaved"] = "halves"
    inner: str = ""
    transposed: bool = False
    grouped: bool = False


_LLAMA = DecoderFamily(defaults={"max_position_embeddings": 2048})

_MISTRAL = DecoderFamily(
    windows="all", defaults={"sliding_window": 4096, "max_position_embeddings": 131072}
)

_SMOLLM3 = DecoderFamily(
    windows="kinds",
    kinds=by.unturned_windows,
    turned=by.sometimes_turned,
    defaults={"rope_theta": 2e6, "max_position_embeddings": 32768},
)

_QWEN2 = DecoderFamily(
    windows="kinds",
    kinds=by.upper_windows,
    defaults={"sliding_window": 4096, "max_position_embeddings": 32768},
)

_QWEN3 = replace(_QWEN2, defaults={**_QWEN2.defaults, "head_dim": 128}, fields={"qk_norm": "head"})

_GEMMA = DecoderFamily(
    differences=by.gemma,
    fields={"norm_shift": 1.0},
    defaults={"head_dim": 256, "max_position_embeddings": 8192},
)

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

# Files of the larger models give few values of the part for text.
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

_PHI = DecoderFamily(
    names=tensor_names.PHI,
    keys={"rms_norm_eps": "layer_norm_eps"},
    differences=by.phi,
    fields={"norm": "layer", "gated": False, "parallel": True},
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 2048,
    },
)

_PHI3 = DecoderFamily(
    names=tensor_names.PHI3,
    windows="all",
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
    },
)

_GPT2 = DecoderFamily(
    names=tensor_names.GPT2,
    keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    differences=by.gpt2,
    fields={"norm": "layer", "gated": False},
    rotary="none",
    transposed=True,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu_new", "max_position_embeddings": 1024},
)

_GPT_NEOX = DecoderFamily(
    names=tensor_names.GPT_NEOX,
    keys={
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
    },
    differences=by.parallel_by_default,
    fields={"norm": "layer", "gated": False},
    grouped=True,
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 2048,
    },
)

_BLOOM = DecoderFamily(
    names=tensor_names.BLOOM,
    keys={
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    differences=by.bloom,
    fields={"norm": "layer", "gated": False, "activation": "gelu_new"},
    rotary="none",
    grouped=True,
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
)

_FALCON = DecoderFamily(
    names=tensor_names.FALCON,
    keys={
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    differences=by.falcon,
    fields={"norm": "layer", "gated": False},
    turned=by.turned_without_alibi,
    grouped=True,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu", "max_position_embeddings": 2048},
)

_MPT = DecoderFamily(
    names=tensor_names.MPT,
    keys={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    differences=by.mpt,
    fields={"norm": "layer", "gated": False, "activation": "gelu"},
    rotary="none",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
)

# Its norms have neither scale nor shift.
_OLMO = DecoderFamily(
    differences=by.olmo,
    fields={"norm": "layer", "epsilon": 1e-5},
    defaults={"max_position_embeddings": 2048},
)

_OLMO2 = DecoderFamily(
    names=tensor_names.OLMO2,
    fields={"norms": "after", "qk_norm": "row"},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
)

_GRANITE = DecoderFamily(differences=by.granite, defaults={"max_position_embeddings": 2048})

_STABLELM = DecoderFamily(
    names=tensor_names.STABLELM,
    keys={"rms_norm_eps": "layer_norm_eps"},
    differences=by.stablelm,
    fields={"norm": "layer"},
    defaults={
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 4096,
    },
)

_STARCODER2 = DecoderFamily(
    names=tensor_names.STARCODER2,
    keys={"rms_norm_eps": "norm_epsilon"},
    fields={"norm": "layer", "gated": False},
    windows="all",
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
    },
)

_COHERE = DecoderFamily(
    keys={"rms_norm_eps": "layer_norm_eps"},
    differences=by.cohere,
    fields={"norm": "layer", "parallel": True},
    rotary="interleaved",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 8192},
)

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

_QWEN2_MOE = replace(
    _QWEN2,
    names=tensor_names.QWEN_MOE,
    keys={"num_experts": "num_local_experts"},
    differences=by.qwen_moe,
    kinds=by.lower_windows,
    defaults={**_QWEN2.defaults, "shared_expert_intermediate_size": 5632},
)

_QWEN3_MOE = replace(
    _QWEN2_MOE,
    fields={"qk_norm": "head"},
    kinds=by.used_windows,
    defaults=_QWEN2.defaults,
)

#: By model type.
FAMILIES: dict[str, DecoderFamily] = {
    "bloom": _BLOOM,
    "cohere": _COHERE,
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": replace(_GEMMA3, inner="text_config"),
    "gemma3_text": _GEMMA3,
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
    "granite": _GRANITE,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": _MIXTRAL,
    "mpt": _MPT,
    "olmo": _OLMO,
    "olmo2": _OLMO2,
    "phi": _PHI,
    "phi3": _PHI3,
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "smollm3": _SMOLLM3,
    "stablelm": _STABLELM,
    "starcoder2": _STARCODER2,
}
