"""Decoders of Hugging Face folders: config.json, and safetensors under names of their own."""

from __future__ import annotations

from pathlib import Path

from clrt.models.decoders.config import read_decoder
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.weight_source import WeightSource
from clrt.models.decoders.weights import HuggingFaceWeights
from clrt.models.huggingface.checkpoint import Checkpoint


def read_folder(folder: Path, context: int | None = None) -> tuple[DecoderConfig, WeightSource]:
    """What a model folder describes, and its weights, which stay in their files until used.

    Args:
        folder: With config.json, and model.safetensors or its sharded form.
        context: Places that are asked for, which some rotary embeddings depend on; None for those
            that config.json gives.

    Raises:
        ModelError: A file is missing or damaged, or a value of config.json is wrong.
        UnsupportedError: The model is of another family, or uses an option not built here.
        InputError: More places are asked for than have embeddings.
    """
    decoder, family, config = read_decoder(folder, context)
    # T5's transformers say "tied" of models with a head of their own, too.
    tied = config.flag("tie_word_embeddings", False) and decoder.encoder is None
    kind = "CausalLM" if decoder.encoder is None else "Seq2SeqLM"
    checkpoint = Checkpoint(folder, f"AutoModelFor{kind}")
    return decoder, HuggingFaceWeights(checkpoint, family, decoder, tied=tied)
