"""Decoder families with LayerNorm and, mostly, feed-forward networks without gates (GPT)."""

from __future__ import annotations

from dataclasses import replace

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder_family import NO_WINDOWS, DecoderFamily, GgufForm

_Q_NORM = "blk.0.attn_q_norm.weight"

# Li et al., Textbooks Are All You Need II (2023): attention and network read one norm.
_PHI = DecoderFamily(
    fields={"norm": "layer", "gated": False, "parallel": True},
    activation="gelu_new",
    options=(by.phi,),
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults={
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 2048,
    },
    names=tensor_names.PHI,
    gguf=GgufForm("phi2", tied=False),
)

# Radford et al. (2019): learned position embeddings.
_GPT2 = DecoderFamily(
    fields={"norm": "layer", "gated": False},
    activation="gelu_new",
    options=(by.gpt2,),
    rotary="none",
    keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 1024},
    names=tensor_names.GPT2,
    transposed=True,
    gguf=GgufForm("gpt2"),
)

# Black et al., GPT-NeoX-20B (2022); also Pythia. RoPE covers part of each head (`rotary_pct`).
_GPT_NEOX = DecoderFamily(
    fields={"norm": "layer", "gated": False},
    activation="gelu",
    options=(by.parallel_by_default,),
    keys={
        "rms_norm_eps": "layer_norm_eps",
        "rope_theta": "rotary_emb_base",
        "partial_rotary_factor": "rotary_pct",
    },
    defaults={
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 2048,
    },
    names=tensor_names.GPT_NEOX,
    grouped=True,
    gguf=GgufForm("gptneox", tied=False),
)

# BigScience (2022): ALiBi (Press et al., 2021), and a norm after the embeddings.
_BLOOM = DecoderFamily(
    fields={"norm": "layer", "gated": False, "activation": "gelu_new"},
    options=(by.bloom,),
    rotary="none",
    keys={
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    names=tensor_names.BLOOM,
    grouped=True,
    gguf=GgufForm("bloom"),
)

# Almazrouei et al. (2023): three forms, by `new_decoder_architecture` and `alibi`.
_FALCON = DecoderFamily(
    fields={"norm": "layer", "gated": False},
    activation="gelu",
    options=(by.falcon,),
    rope_layers=by.rope_without_alibi,
    keys={
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    names=tensor_names.FALCON,
    grouped=True,
    # llama.cpp has no Falcon with ALiBi; layers with two norms have that of attention second.
    gguf=GgufForm(
        "falcon",
        keys={"num_kv_heads": "attention.head_count_kv"},
        fixed={"new_decoder_architecture": True},
        names={"attn_norm": "attn_norm_2", "ffn_norm": "attn_norm"},
        named_if="blk.0.attn_norm_2.weight",
    ),
)

# MosaicML (2023): ALiBi, and no biases.
_MPT = DecoderFamily(
    fields={"norm": "layer", "gated": False, "activation": "gelu"},
    options=(by.mpt,),
    rotary="none",
    keys={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    names=tensor_names.MPT,
    gguf=GgufForm("mpt", flags={"learned_pos_emb": "position_embd.weight"}, options=(by.mpt_gguf,)),
)

# Groeneveld et al., OLMo (2024): norms have neither scale nor bias.
_OLMO = DecoderFamily(
    fields={"norm": "layer"},
    options=(by.clip,),
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    gguf=GgufForm("olmo", permuted=True, scaled=False),
)

# Stability AI (2023): RoPE covers a quarter of each head.
_STABLELM = DecoderFamily(
    fields={"norm": "layer"},
    options=(by.stablelm,),
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults={
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 4096,
    },
    names=tensor_names.STABLELM,
    gguf=GgufForm(
        "stablelm",
        flags={"use_parallel_residual": "!blk.0.ffn_norm.weight", "qk_layernorm": _Q_NORM},
        tied=False,
    ),
)

# Lozhkov et al., StarCoder 2 (2024).
_STARCODER2 = DecoderFamily(
    fields={"norm": "layer", "gated": False},
    activation="gelu_pytorch_tanh",
    windows="all",
    keys={"rms_norm_eps": "norm_epsilon"},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    names=tensor_names.STARCODER2,
    gguf=GgufForm("starcoder2", fixed=NO_WINDOWS),
)

# Cohere, Command R (2024): attention and network read one norm.
_COHERE = DecoderFamily(
    fields={"norm": "layer", "parallel": True},
    options=(by.cohere,),
    rotary="interleaved",
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "max_position_embeddings": 8192,
        "logit_scale": 0.0625,
    },
    gguf=GgufForm("command-r", flags={"use_qk_norm": _Q_NORM}),
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
    gguf=GgufForm("cohere2", flags={"use_qk_norm": _Q_NORM}, defaults=("sliding_window_pattern",)),
)

# Parmar et al., Nemotron-4 (2024): scales of norms are stored minus 1; squared ReLU.
_NEMOTRON = DecoderFamily(
    fields={"norm": "layer", "gated": False},
    activation="relu2",
    keys={"rms_norm_eps": "norm_eps"},
    defaults={
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
    },
    names=tensor_names.ARCEE,
    norm_shift=1.0,
    gguf=GgufForm("nemotron", tied=False),
)

# Li et al., StarCoder (2023): GPT-2 with one KV head.
_GPT_BIGCODE = replace(
    _GPT2,
    activation="gelu_pytorch_tanh",
    defaults={**_GPT2.defaults, "multi_query": True},
    transposed=False,
    grouped=True,
    gguf=GgufForm("starcoder"),
)

# Wang and Komatsuzaki (2021): RoPE covers `rotary_dim` elements of each head; one norm per layer.
_GPT_J = replace(
    _GPT2,
    fields={"norm": "layer", "gated": False, "parallel": True},
    options=(),
    rotary="interleaved",
    defaults={**_GPT2.defaults, "rotary_dim": 64, "max_position_embeddings": 2048},
    names=tensor_names.GPT_J,
    transposed=False,
    gguf="",
)

# Zhang et al., OPT (2022): position 0 is row 2 of the position embedding table.
_OPT = DecoderFamily(
    fields={"norm": "layer", "gated": False},
    activation="relu",
    options=(by.opt,),
    rotary="none",
    keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    names=tensor_names.OPT,
    first_place=2,
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
