"""Reads config.json into what determines the graph."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clrt.errors import ModelError, UnsupportedError
from clrt.importer.huggingface.families import FAMILIES, RELATIVE_BUCKETS, Family


@dataclass(frozen=True)
class HuggingFaceConfig:
    """What config.json says that determines the graph."""

    family: Family
    architecture: str
    vocabulary: int
    hidden: int
    embedding: int
    layers: int
    heads: int
    intermediate: int
    activation: str
    epsilon: float
    max_positions: int
    token_types: int
    padding_index: int
    groups: int
    inner: int

    @property
    def head_size(self) -> int:
        """The width of one attention head."""
        return self.hidden // self.heads

    @property
    def projected(self) -> bool:
        """Whether a layer projects the embeddings to the hidden size."""
        family = self.family
        differs = self.embedding != self.hidden
        return family.projection is not None and (family.projection_always or differs)

    def layer_paths(self) -> Iterator[str]:
        """The tensor path of each layer in order; ALBERT repeats some."""
        for i in range(self.layers):
            for j in range(self.inner):
                group = i * self.groups // self.layers
                yield self.family.layer.format(layer=i, group=group, inner=j)


# Layers of ALBERT share their weights: nothing else would end a graph of too many.
_MAX_LAYERS = 10_000


class _ConfigValues:
    """config.json's values under the names used here, with typed access."""

    def __init__(self, file: Path, values: Mapping[str, Any], family: Family) -> None:
        renamed = {key: values[old] for key, old in family.config_names.items() if old in values}
        self._file = file
        self._names = family.config_names
        self._values = {**family.config_defaults, **values, **renamed, **family.config_fixed}

    def integer(
        self, key: str, default: int | None = None, least: int = 1, most: int = (1 << 31) - 1
    ) -> int:
        value = self._values.get(key, default)
        if value is None and default is not None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(key, f"a whole number of at least {least}", value)
        if value > most:
            raise self._wrong(key, f"a whole number of at most {most}", value)
        return value

    def number(self, key: str, default: float) -> float:
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def get(self, key: str) -> object:
        return self._values.get(key)

    def _wrong(self, key: str, kind: str, value: object) -> ModelError:
        return ModelError(
            f"{self._file} must give '{self._names.get(key, key)}' as {kind}, not {value!r}; "
            "download the model's own config.json."
        )


def read_config(folder: Path) -> HuggingFaceConfig:
    """Reads and checks a model folder's config.json.

    Args:
        folder: The model folder.

    Returns:
        What determines the graph.

    Raises:
        ModelError: The file is missing, is no JSON object, or lacks a value.
        UnsupportedError: The model type or an option of it is not supported.
    """
    file = folder / "config.json"
    values = _read_json(file)
    family = _family(file, values.get("model_type"))
    reader = _ConfigValues(file, values, family)
    _check_options(file, reader, family)
    config = _make_config(reader, family)
    if config.hidden % config.heads:
        raise ModelError(
            f"{file} splits a hidden size of {config.hidden} over {config.heads} attention heads, "
            "which leaves a rest; download the model's own config.json."
        )
    return config


def _make_config(reader: _ConfigValues, family: Family) -> HuggingFaceConfig:
    hidden = reader.integer("hidden_size")
    wants_embedding = family.projection is not None
    return HuggingFaceConfig(
        family=family,
        architecture=_first_name(reader.get("architectures")),
        vocabulary=reader.integer("vocab_size"),
        hidden=hidden,
        embedding=reader.integer("embedding_size") if wants_embedding else hidden,
        layers=reader.integer("num_hidden_layers", most=_MAX_LAYERS),
        heads=reader.integer("num_attention_heads"),
        intermediate=reader.integer("intermediate_size"),
        activation=reader.text("hidden_act", "gelu"),
        epsilon=reader.number("layer_norm_eps", 1e-12),
        max_positions=reader.integer("max_position_embeddings"),
        token_types=reader.integer("type_vocab_size", default=2, least=0),
        padding_index=reader.integer("pad_token_id", default=0, least=0),
        groups=reader.integer("num_hidden_groups", default=1),
        inner=reader.integer("inner_group_num", default=1),
    )


def _first_name(architectures: object) -> str:
    """The first architecture; empty where it is not a class name."""
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    return first if isinstance(first, str) and first.isidentifier() else ""


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ModelError(
            f"{file} is missing; download the model's config.json into this folder, or give the "
            "path of an ONNX file."
        )
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON ({error}); download it again.") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file} is not a JSON object; download the model's own config.json.")
    return values


def _family(file: Path, model_type: object) -> Family:
    if model_type is None:
        raise ModelError(f'{file} has no \'model_type\'; add it, for example "model_type": "bert".')
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise _unsupported(
            file, f"model type {model_type!r}", f"the types {', '.join(FAMILIES)} are"
        )
    return FAMILIES[model_type]


def _check_options(file: Path, reader: _ConfigValues, family: Family) -> None:
    embedding = reader.get("position_embedding_type") or "absolute"
    if embedding != "absolute":
        raise _unsupported(file, f"position_embedding_type {embedding!r}", "only 'absolute' is")
    if reader.get("is_decoder"):
        raise _unsupported(file, "is_decoder (causal attention)", "only encoders are")
    buckets = reader.integer("relative_attention_num_buckets", default=RELATIVE_BUCKETS)
    if family.relative_bias and buckets != RELATIVE_BUCKETS:
        raise _unsupported(
            file, f"relative_attention_num_buckets {buckets}", f"only {RELATIVE_BUCKETS} is"
        )


def _unsupported(file: Path, what: str, known: str) -> UnsupportedError:
    return UnsupportedError(
        f"{file} asks for {what}, which clrt cannot build from safetensors ({known} supported); "
        f"export the model to ONNX and put it in {file.parent / 'onnx' / 'model.onnx'}."
    )
