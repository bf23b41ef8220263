"""Reads decoders from Hugging Face folders (config.json and safetensors)."""

from __future__ import annotations

from pathlib import Path

from clrt.models.decoders.config import read_decoder
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.weight_source import WeightSource
from clrt.models.decoders.weights import HuggingFaceWeights
from clrt.models.huggingface.checkpoint import Checkpoint


def read_folder(folder: Path, context: int | None = None) -> tuple[DecoderConfig, WeightSource]:
    """Returns the configuration and weights of the decoder in a Hugging Face folder.

    Weights are read when they are first used.

    Args:
        folder: Folder with config.json, and model.safetensors or its sharded form.
        context: Requested context length in tokens, which some rotary embeddings depend on; None
            for the context length in config.json.

    Raises:
        ModelError: A file is missing or damaged, or a value of config.json is wrong.
        UnsupportedError: The family or an option of the model is unsupported.
        InputError: `context` exceeds the number of position embeddings.
    """
    decoder, family, config = read_decoder(folder, context)
    # T5's flag is no evidence: transformers sets it even if the model has a separate head.
    tied = config.flag("tie_word_embeddings", False) and decoder.encoder is None
    kind = "CausalLM" if decoder.encoder is None else "Seq2SeqLM"
    checkpoint = Checkpoint(folder, f"AutoModelFor{kind}")
    return decoder, HuggingFaceWeights(checkpoint, family, decoder, tied=tied)
