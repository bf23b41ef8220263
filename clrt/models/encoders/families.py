"""The families of BERT-like encoders, as data.

`Family`'s defaults are BERT's; other families list only their differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from clrt.util.fast_dataclass import dataclass

#: Number of buckets of MPNet's relative position bias, and minimum distance of the last bucket;
#: fixed in the reference implementation.
RELATIVE_BUCKETS = 32
RELATIVE_REACH = 128


@dataclass(frozen=True)
class ClassHead:
    """A sequence classification head on the first token: an optional hidden layer, and an output.

    Attributes:
        dense: Path of the hidden layer; None if the output layer reads the pooler instead.
        activation: Activation after `dense`.
        output: Path of the layer that computes the logits.
    """

    dense: str | None = None
    activation: str = "tanh"
    output: str = "classifier"


@dataclass(frozen=True)
class MaskedLm:
    """A masked language model head: dense, activation, norm, decoder.

    Attributes:
        dense: Path of the hidden layer.
        norm: Path of the layer normalisation after the hidden layer.
        decoder: Path of the layer that computes logits; if the checkpoint has no weight of it, the
            word embeddings are used.
        biases: Possible names of the bias of the layer `decoder`, best first.
        activation: Activation after `dense`; None for the activation of the encoder.
    """

    dense: str = "cls.predictions.transform.dense"
    norm: str = "cls.predictions.transform.LayerNorm"
    decoder: str = "cls.predictions.decoder"
    biases: tuple[str, ...] = ("cls.predictions.decoder.bias", "cls.predictions.bias")
    activation: str | None = None


@dataclass(frozen=True)
class Family:
    """Tensor names and graph differences of a family; the defaults are BERT's.

    Attributes:
        prefix: Prefix of the encoder's tensors in checkpoints saved with a head.
        layer: Path of a layer, with {layer}, {group} and {inner} to substitute.
        query: Path of the query projection within a layer.
        key: Path of the key projection within a layer.
        value: Path of the value projection within a layer.
        attention_output: Path of the attention's output projection within a layer.
        attention_norm: Path of the norm after attention.
        feed_in: Path of the first layer of the feed-forward network.
        feed_out: Path of the second layer of the feed-forward network.
        feed_norm: Path of the norm after the feed-forward network.
        projection: Path of the layer from embedding size to hidden size; None for none.
        projection_always: Whether `projection` exists even if the two sizes are equal.
        positions: "sequence" numbers all tokens, "padding" only those that are not padding.
        token_types: "input" reads token_type_ids, "first" uses type 0 for all tokens, "none" has no
            token types.
        relative_bias: Path of the table of a relative position bias, shared by all layers; None for
            none.
        pooler: Path of the pooler's layer; None for none.
        classifier: Sequence classification head.
        masked_lm: Masked language model head.
        config_names: Key in the family's config.json by BERT's key, for keys with different names.
        config_defaults: Values of keys that config.json may omit.
        config_fixed: Values that override config.json.
    """

    prefix: str = "bert."
    layer: str = "encoder.layer.{layer}."
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    feed_in: str = "intermediate.dense"
    feed_out: str = "output.dense"
    feed_norm: str = "output.LayerNorm"
    projection: str | None = None
    projection_always: bool = False
    positions: Literal["sequence", "padding"] = "sequence"
    token_types: Literal["input", "first", "none"] = "input"
    relative_bias: str | None = None
    pooler: str | None = "pooler.dense"
    classifier: ClassHead = ClassHead()
    masked_lm: MaskedLm = MaskedLm()
    config_names: Mapping[str, str] = field(default_factory=dict)
    config_defaults: Mapping[str, object] = field(default_factory=dict)
    config_fixed: Mapping[str, object] = field(default_factory=dict)


_LM_HEAD = MaskedLm(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    decoder="lm_head.decoder",
    biases=("lm_head.decoder.bias", "lm_head.bias"),
    activation="gelu",
)

_ROBERTA = Family(
    prefix="roberta.",
    positions="padding",
    token_types="first",
    classifier=ClassHead("classifier.dense", "tanh", "classifier.out_proj"),
    masked_lm=_LM_HEAD,
    config_defaults={"pad_token_id": 1},
)

_DISTILBERT = Family(
    prefix="distilbert.",
    layer="transformer.layer.{layer}.",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    feed_in="ffn.lin1",
    feed_out="ffn.lin2",
    feed_norm="output_layer_norm",
    token_types="none",
    pooler=None,
    classifier=ClassHead("pre_classifier", "relu", "classifier"),
    masked_lm=MaskedLm(
        dense="vocab_transform",
        norm="vocab_layer_norm",
        decoder="vocab_projector",
        biases=("vocab_projector.bias",),
    ),
    config_names={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    config_fixed={"layer_norm_eps": 1e-12},
)

_MPNET = Family(
    prefix="mpnet.",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    positions="padding",
    token_types="none",
    relative_bias="encoder.relative_attention_bias",
    classifier=ClassHead("classifier.dense", "tanh", "classifier.out_proj"),
    masked_lm=_LM_HEAD,
    config_fixed={"pad_token_id": 1},
)

_ALBERT = Family(
    prefix="albert.",
    layer="encoder.albert_layer_groups.{group}.albert_layers.{inner}.",
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attention_output="attention.dense",
    attention_norm="attention.LayerNorm",
    feed_in="ffn",
    feed_out="ffn_output",
    feed_norm="full_layer_layer_norm",
    projection="encoder.embedding_hidden_mapping_in",
    projection_always=True,
    pooler="pooler",
    masked_lm=MaskedLm(
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        decoder="predictions.decoder",
        biases=("predictions.decoder.bias", "predictions.bias"),
    ),
    config_defaults={"hidden_act": "gelu_new", "embedding_size": 128},
)

_ELECTRA = Family(
    prefix="electra.",
    projection="embeddings_project",
    pooler=None,
    classifier=ClassHead("classifier.dense", "gelu", "classifier.out_proj"),
    masked_lm=MaskedLm(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        decoder="generator_lm_head",
        biases=("generator_lm_head.bias",),
        activation="gelu",
    ),
    config_defaults={"embedding_size": 128},
)

FAMILIES: dict[str, Family] = {
    "albert": _ALBERT,
    "bert": Family(),
    "camembert": _ROBERTA,
    "distilbert": _DISTILBERT,
    "electra": _ELECTRA,
    "mpnet": _MPNET,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
