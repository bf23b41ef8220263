"""Reads the config.json of a BERT-like encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clrt.errors import ModelError, UnsupportedError
from clrt.models.encoders.families import FAMILIES, RELATIVE_BUCKETS, Family
from clrt.models.huggingface.config_values import MAX_LAYERS, ConfigValues
from clrt.models.huggingface.model_files import read_object
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class HuggingFaceConfig:
    """The values of config.json that determine an encoder's graph.

    Attributes:
        family: Tensor names and graph differences of the model type.
        architecture: Name of the transformers class; "" if the file names none.
        vocabulary: Number of tokens.
        hidden: Elements of a token between layers.
        layers: Number of layers.
        heads: Number of attention heads.
        intermediate: Elements of a token inside a feed-forward network.
        embedding: Elements of an embedding; `hidden` unless the family projects embeddings.
        activation: Activation by transformers' name.
        epsilon: Epsilon of layer normalisations.
        max_positions: Rows of the position embedding table.
        token_types: Rows of the token type embedding table; 0 for none.
        padding_index: Id of the padding token.
        groups: Groups of layers that share weights (ALBERT).
        inner: Layers per group (ALBERT).
    """

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
        """Elements of an attention head."""
        return self.hidden // self.heads

    @property
    def projected(self) -> bool:
        """Whether a layer projects the embeddings to the hidden size."""
        family = self.family
        differs = self.embedding != self.hidden
        return family.projection is not None and (family.projection_always or differs)

    def layer_paths(self) -> Iterator[str]:
        """Yields the prefix of each layer's tensors in order; ALBERT repeats some prefixes."""
        for i in range(self.layers):
            for j in range(self.inner):
                group = i * self.groups // self.layers
                yield self.family.layer.format(layer=i, group=group, inner=j)


def read_config(folder: Path) -> HuggingFaceConfig:
    """Reads and checks the config.json of a BERT-like encoder.

    Args:
        folder: The model folder.

    Raises:
        ModelError: The file is missing, not a JSON object, lacks a value, or has a wrong one.
        UnsupportedError: The model type or an option of it is not supported.
    """
    file = folder / "config.json"
    values = read_object(file)
    family = _family(file, values.get("model_type"))
    reader = ConfigValues(
        file, values, family.config_names, family.config_defaults, family.config_fixed
    )
    _check_options(file, reader, family)
    config = _make_config(reader, family)
    if config.hidden % config.heads:
        raise ModelError(
            f"{file} has a hidden size of {config.hidden}, which is not divisible by "
            f"{config.heads} attention heads; download the model's own config.json."
        )
    return config


def _make_config(reader: ConfigValues, family: Family) -> HuggingFaceConfig:
    """Reads the values of config.json, without checking sizes against each other."""
    hidden = reader.integer("hidden_size")
    wants_embedding = family.projection is not None
    return HuggingFaceConfig(
        family=family,
        architecture=_first_name(reader.get("architectures")),
        vocabulary=reader.integer("vocab_size"),
        hidden=hidden,
        embedding=reader.integer("embedding_size") if wants_embedding else hidden,
        layers=reader.integer("num_hidden_layers", most=MAX_LAYERS),
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
    """Returns the first class name in config.json's `architectures`; "" if there is none.

    Args:
        architectures: The value in the file; "" is also returned if it is no list of names.
    """
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    return first if isinstance(first, str) and first.isidentifier() else ""


def _family(file: Path, model_type: object) -> Family:
    """Returns the encoder family of a model type.

    Args:
        file: The config.json, for messages.
        model_type: JSON value of its `model_type`; None if it is missing.

    Raises:
        ModelError: `model_type` is missing.
        UnsupportedError: The model type is unknown.
    """
    if model_type is None:
        raise ModelError(f'{file} has no \'model_type\'; add it, for example "model_type": "bert".')
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise _unsupported(
            file, f"model type {model_type!r}", f"the types {', '.join(FAMILIES)} are"
        )
    return FAMILIES[model_type]


def _check_options(file: Path, reader: ConfigValues, family: Family) -> None:
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
        f"{file} needs {what}, which clrt cannot build from safetensors ({known} supported); "
        f"export the model to ONNX and put it in {file.parent / 'onnx' / 'model.onnx'}."
    )
