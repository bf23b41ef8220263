"""Encoder-decoder families (T5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder import DecoderConfig, RelativeBiasConfig
from clrt.models.decoders.decoder_family import DecoderFamily
from clrt.models.huggingface.config_values import MAX_LAYERS, ConfigValues

# Sanity limits of the relative position bias: number of buckets, and maximum distance in tokens.
_MAX_BUCKETS, _MAX_REACH = 1 << 12, 1 << 16
_GATED = "gated-"


def _t5(config: ConfigValues) -> Mapping[str, Any]:
    """Returns T5's fields of DecoderConfig.

    `feed_forward_proj` tells both the activation and whether there is a gate. By default there are
    as many decoder as encoder layers. Logits are scaled if `scale_decoder_outputs` is true; by
    default if the head is tied to the embeddings, as in the first T5.

    Raises:
        ModelError: A value is wrong.
    """
    buckets = config.integer("relative_attention_num_buckets", default=32, most=_MAX_BUCKETS)
    reach = config.integer("relative_attention_max_distance", default=128, most=_MAX_REACH)
    if buckets % 4 or buckets < 4:
        raise config.wrong("relative_attention_num_buckets", "a multiple of 4", buckets)
    if reach <= buckets // 2:
        key, kind = "relative_attention_max_distance", f"a whole number above {buckets // 2}"
        raise config.wrong(key, kind, reach)
    name = config.text("feed_forward_proj", "relu")
    activation = name.removeprefix(_GATED)
    tied = config.flag("tie_word_embeddings", True)
    fields: dict[str, Any] = {
        "layers": config.integer(
            "num_decoder_layers", default=config.integer("num_hidden_layers"), most=MAX_LAYERS
        ),
        "scale": 1.0,
        "relative": RelativeBiasConfig(buckets, reach),
        "gated": name.startswith(_GATED),
        "activation": "gelu_new" if name == "gated-gelu" else activation,
    }
    if config.flag("scale_decoder_outputs", tied):
        fields["logit_scale"] = config.integer("hidden_size") ** -0.5
    return fields


def _mt5(config: ConfigValues) -> Mapping[str, Any]:
    """Returns mT5's fields of DecoderConfig: T5's, but logits are never scaled."""
    return {**_t5(config), "logit_scale": 1.0}


def _umt5(config: ConfigValues) -> Mapping[str, Any]:
    """Returns UMT5's fields of DecoderConfig: T5's, with a table of position biases per layer."""
    fields = _t5(config)
    return {**fields, "relative": replace(fields["relative"], each=True)}


def _encoder(config: ConfigValues, decoder: DecoderConfig) -> DecoderConfig:
    """Returns the encoder's configuration: the decoder's, with the encoder's number of layers."""
    return replace(decoder, layers=config.integer("num_hidden_layers", most=MAX_LAYERS))


# Raffel et al. (2019); also T5 1.1 and Flan-T5. Files have no context length; the models were
# trained with 512.
_T5 = DecoderFamily(
    options=(_t5,),
    rotary="none",
    keys={
        "hidden_size": "d_model",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    defaults={
        "vocab_size": 32128,
        "hidden_size": 512,
        "head_dim": 64,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "max_position_embeddings": 512,
    },
    names=tensor_names.T5,
    encoder=_encoder,
)

# Xue et al. (2020).
_MT5 = replace(_T5, options=(_mt5,), defaults={**_T5.defaults, "vocab_size": 250112})

# Chung et al. (2023).
_UMT5 = replace(_MT5, options=(_umt5,))

T5_FAMILIES: dict[str, DecoderFamily] = {"t5": _T5, "mt5": _MT5, "umt5": _UMT5}
