"""Reads Whisper models from Hugging Face folders.

Source: Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (2022);
transformers, `models/whisper/modeling_whisper.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.decoder_family import DecoderFamily
from clrt.models.decoders.weight_source import WeightSource
from clrt.models.decoders.weights import HuggingFaceWeights
from clrt.models.huggingface.checkpoint import Checkpoint
from clrt.models.huggingface.config_values import MAX_LAYERS, ConfigValues
from clrt.models.huggingface.model_files import read_object

MODEL_TYPE = "whisper"
# Sanity limits: number of positions, and of mel bins.
_MAX_PLACES, _MAX_MELS = 1 << 16, 512
# Stride of the second convolution: feature frames per encoder position.
_STRIDE = 2
_FAMILY = DecoderFamily(names=tensor_names.WHISPER, rotary="none")


def read_whisper(folder: Path) -> tuple[DecoderConfig, WeightSource]:
    """Returns the configuration and weights of a Whisper model; weights are read on use.

    Args:
        folder: Folder with config.json, and model.safetensors or its sharded form.

    Raises:
        ModelError: A file is missing or damaged, or a value of config.json is wrong.
        UnsupportedError: An option is not supported.
    """
    file = folder / "config.json"
    config = ConfigValues(file, read_object(file))
    if "quantization_config" in config:
        raise config.unsupported("quantization_config", "checkpoints that are not quantised are")
    encoder = replace(
        _part(config, "encoder", "max_source_positions", 1500),
        features=config.integer("num_mel_bins", default=80, most=_MAX_MELS),
        stride=_STRIDE,
    )
    decoder = _part(config, "decoder", "max_target_positions", 448)
    tied = config.flag("tie_word_embeddings", True)
    checkpoint = Checkpoint(folder, "AutoModelForSpeechSeq2Seq")
    weights = HuggingFaceWeights(checkpoint, _FAMILY, decoder, tied=tied)
    return replace(decoder, encoder=encoder), weights


def _part(config: ConfigValues, part: str, places: str, default: int) -> DecoderConfig:
    """Reads the configuration of Whisper's encoder or decoder from config.json.

    Args:
        config: Values of config.json.
        part: "encoder" or "decoder".
        places: Key of the maximum number of positions.
        default: Maximum number of positions if the key is missing.
    """
    hidden = config.integer("d_model")
    heads = config.integer(f"{part}_attention_heads")
    if hidden % heads:
        raise config.wrong(f"{part}_attention_heads", f"a divisor of d_model {hidden}", heads)
    count = config.integer(places, default=default, most=_MAX_PLACES)
    return DecoderConfig(
        family=f"{MODEL_TYPE}_{part}",
        vocabulary=config.integer("vocab_size"),
        hidden=hidden,
        layers=config.integer(f"{part}_layers", most=MAX_LAYERS),
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        intermediate=config.integer(f"{part}_ffn_dim", default=4 * hidden),
        context=count,
        norm="layer",
        epsilon=1e-5,
        activation=config.text("activation_function", "gelu"),
        gated=False,
        places=count,
    )
