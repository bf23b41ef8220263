"""Decoder families with LayerNorm and, mostly, feed-forward networks without gates (GPT)."""

from __future__ import annotations

from dataclasses import replace

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder_family import DecoderFamily

# Li et al., Textbooks Are All You Need II (2023): attention and network read one norm.
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

# Radford et al. (2019): learned position embeddings.
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

# Black et al., GPT-NeoX-20B (2022); also Pythia. RoPE covers part of each head (`rotary_pct`).
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

# BigScience (2022): ALiBi (Press et al., 2021), and a norm after the embeddings.
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

# Almazrouei et al. (2023): three forms, by `new_decoder_architecture` and `alibi`.
_FALCON = DecoderFamily(
    names=tensor_names.FALCON,
    keys={
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    differences=by.falcon,
    fields={"norm": "layer", "gated": False},
    rope_layers=by.rope_without_alibi,
    grouped=True,
    defaults={"rms_norm_eps": 1e-5, "hidden_act": "gelu", "max_position_embeddings": 2048},
)

# MosaicML (2023): ALiBi, and no biases.
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

# Groeneveld et al., OLMo (2024): norms have neither scale nor bias.
_OLMO = DecoderFamily(
    differences=by.olmo,
    fields={"norm": "layer", "epsilon": 1e-5},
    defaults={"max_position_embeddings": 2048},
)

# Stability AI (2023): RoPE covers a quarter of each head.
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

# Lozhkov et al., StarCoder 2 (2024).
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

# Cohere, Command R (2024): attention and network read one norm.
_COHERE = DecoderFamily(
    keys={"rms_norm_eps": "layer_norm_eps"},
    differences=by.cohere,
    fields={"norm": "layer", "parallel": True},
    rotary="interleaved",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 8192},
)

# Cohere, Command R7B (2024): layers without a window have no rotary embedding.
_COHERE2 = replace(
    _COHERE,
    windows="kinds",
    kinds=by.windows_of_period,
    rope_layers=by.rope_in_windows,
    defaults={
        **_COHERE.defaults,
        "rope_theta": 1e4,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
)

# Parmar et al., Nemotron-4 (2024): scales of norms are stored minus 1; squared ReLU.
_NEMOTRON = DecoderFamily(
    names=tensor_names.ARCEE,
    keys={"rms_norm_eps": "norm_eps"},
    fields={"norm": "layer", "norm_shift": 1.0, "gated": False},
    defaults={
        "rms_norm_eps": 1e-5,
        "hidden_act": "relu2",
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
    },
)

# Li et al., StarCoder (2023): GPT-2 with one KV head.
_GPT_BIGCODE = replace(
    _GPT2,
    transposed=False,
    grouped=True,
    defaults={**_GPT2.defaults, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
)

# Wang and Komatsuzaki (2021): RoPE covers `rotary_dim` elements of each head; one norm per layer.
_GPT_J = replace(
    _GPT2,
    names=tensor_names.GPT_J,
    differences=by.none,
    fields={"norm": "layer", "gated": False, "parallel": True},
    rotary="interleaved",
    transposed=False,
    defaults={**_GPT2.defaults, "rotary_dim": 64, "max_position_embeddings": 2048},
)

# Zhang et al., OPT (2022): position 0 is row 2 of the position embedding table.
_OPT = DecoderFamily(
    names=tensor_names.OPT,
    keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    differences=by.opt,
    fields={"norm": "layer", "gated": False, "epsilon": 1e-5},
    rotary="none",
    first_place=2,
    defaults={"hidden_act": "relu", "max_position_embeddings": 2048},
)

#: By model type.
GPT_FAMILIES: dict[str, DecoderFamily] = {
    "cohere2": _COHERE2,
    "gpt_bigcode": _GPT_BIGCODE,
    "gptj": _GPT_J,
    "nemotron": _NEMOTRON,
    "opt": _OPT,
    "bloom": _BLOOM,
    "cohere": _COHERE,
    "falcon": _FALCON,
    "gpt2": _GPT2,
    "gpt_neox": _GPT_NEOX,
    "mpt": _MPT,
    "olmo": _OLMO,
    "phi": _PHI,
    "stablelm": _STABLELM,
    "starcoder2": _STARCODER2,
}
