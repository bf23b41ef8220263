"""Reads and writes Whisper models: Hugging Face folders, and files of clrt-convert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clrt.audio.config import preset_of, read_preset
from clrt.audio.feature_extractors import LogMel, Preset
from clrt.audio.whisper.vocabulary import WhisperVocabulary
from clrt.errors import ModelError
from clrt.formats.safetensors import SafetensorsHeader, damaged
from clrt.generation.compiled import write_decoder
from clrt.generation.model_settings import decoder_of, sizes_of
from clrt.ir.graph import Graph
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.node_errors import NodeErrorContext
from clrt.models.compiled_file import extras_of, open_compiled
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.whisper import MODEL_TYPE, read_whisper
from clrt.models.sources import is_compiled
from clrt.util.fast_dataclass import dataclass

_EXTRA = "speech"
_EXTRACTOR = "WhisperFeatureExtractor"


@dataclass(frozen=True, eq=False)
class WhisperModel:
    """A Whisper model as read from its files.

    Attributes:
        graph: Graph of encoder and decoder; for a compiled file, the file's header.
        decoder: Configuration of the decoder, which contains the encoder's configuration.
        preset: Feature extractor of the encoder's input.
        vocabulary: Tokens of the model.
    """

    graph: Graph | SafetensorsHeader
    decoder: DecoderConfig
    preset: LogMel
    vocabulary: WhisperVocabulary

    @property
    def encoder(self) -> DecoderConfig:
        """Configuration of the encoder."""
        assert self.decoder.encoder is not None
        return self.decoder.encoder

    @property
    def frames(self) -> int:
        """Number of feature frames of a window."""
        return self.encoder.places * self.encoder.stride


def read_whisper_model(source: Path) -> WhisperModel:
    """Reads a Whisper model from a folder or file.

    The graph in a compiled file is not read: `WhisperModel.graph` is then the file's header.

    Args:
        source: A Hugging Face folder, or a compiled file.

    Raises:
        ModelError: A file is missing or damaged, or belongs to another model.
        UnsupportedError: The model needs a feature that clrt does not support.
    """
    if is_compiled(source):
        return _read_compiled(source)
    with NodeErrorContext(f"'{source}'"):
        decoder, weights = read_whisper(source)
        vocabulary = WhisperVocabulary.read(source, decoder.vocabulary)
        preset = _checked(read_preset(source), decoder, source)
        return WhisperModel(decoder_graph(decoder, weights), decoder, preset, vocabulary)


def write_whisper_model(model: WhisperModel, path: Path, producer: str) -> None:
    """Writes a Whisper model to one file, with weights packed for the process's device.

    Args:
        model: Model with a graph, as read from a folder.
        path: File to write.
        producer: Name of the writing program.

    Raises:
        InputError: The file cannot be written.
    """
    assert isinstance(model.graph, Graph)
    extras = {
        "decoder": sizes_of(model.decoder),
        "encoder": sizes_of(model.encoder),
        "page": PAGE_TOKENS,
        "features": asdict(model.preset),
        "tokens": model.vocabulary.values(),
        "tokenizer": model.vocabulary.tokenizer.to_str(),
    }
    write_decoder(model.graph, _EXTRA, extras, path, producer)


def _read_compiled(path: Path) -> WhisperModel:
    header = open_compiled(path)
    extras = extras_of(header).get(_EXTRA)
    if not isinstance(extras, Mapping):
        raise ModelError(
            f"'{path}' is not a speech model; convert a Whisper folder by clrt-convert."
        )
    if extras.get("page") != PAGE_TOKENS:
        raise ModelError(f"'{path}' was converted with another page size; convert the model again.")
    encoder = decoder_of(path, extras.get("encoder"), f"{MODEL_TYPE}_encoder")
    decoder = decoder_of(path, extras.get("decoder"), f"{MODEL_TYPE}_decoder", encoder)
    parts: list[Mapping[str, Any]] = []
    for name in ("features", "tokens"):
        values = extras.get(name)
        if not isinstance(values, Mapping):
            raise damaged(path, f"its {name} are not an object")
        parts.append(values)
    features, tokens = parts
    preset = preset_of({**features, "feature_extractor_type": _EXTRACTOR}, f"'{path}'")
    vocabulary = WhisperVocabulary.of(path, extras.get("tokenizer"), tokens, decoder.vocabulary)
    return WhisperModel(header, decoder, _checked(preset, decoder, path), vocabulary)


def _checked(preset: Preset, decoder: DecoderConfig, source: Path) -> LogMel:
    """Returns the feature extractor after checking that it fits the encoder.

    Args:
        preset: Feature extractor.
        decoder: Configuration of the decoder, which contains the encoder's configuration.
        source: Path of the model, for the error's message.

    Raises:
        ModelError: The feature extractor is not Whisper's, or its number of frames or mel bands
            differs from the encoder's.
    """
    encoder = decoder.encoder
    assert encoder is not None
    frames, bands = encoder.places * encoder.stride, encoder.features
    if not isinstance(preset, LogMel) or (preset.frames, preset.feature_size) != (frames, bands):
        raise ModelError(
            f"'{source}' has a preprocessor_config.json of another model: config.json asks for "
            f"{frames} frames of {bands} mel bands; download both again."
        )
    return preset
