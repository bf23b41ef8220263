"""Small random checkpoints of each family of Hugging Face models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Array = NDArray[Any]
Tensors = dict[str, Array]

HIDDEN, HEADS, LAYERS, WIDE, VOCABULARY, POSITIONS, LABELS, NARROW = 8, 2, 2, 12, 30, 200, 5, 6
ROBERTA_LIKE = ("roberta", "xlm-roberta", "camembert")
TYPED = ("bert", "albert", "electra")
FAMILIES = ("bert", *ROBERTA_LIKE, "distilbert", "mpnet", "albert", "electra")

# Spelled out from the reference implementations, independently of the table under test: what
# precedes a layer's tensors, then query, key, value, attention output, attention norm, both
# feed-forward layers, and the last norm.
BERT_LAYER = (
    "encoder.layer.{}.",
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
)
LAYER_NAMES = {
    "bert": BERT_LAYER,
    "roberta": BERT_LAYER,
    "xlm-roberta": BERT_LAYER,
    "camembert": BERT_LAYER,
    "electra": BERT_LAYER,
    "distilbert": (
        "transformer.layer.{}.",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm "
        "ffn.lin1 ffn.lin2 output_layer_norm",
    ),
    "mpnet": (
        "encoder.layer.{}.",
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o "
        "attention.LayerNorm intermediate.dense output.dense output.LayerNorm",
    ),
    "albert": (
        "encoder.albert_layer_groups.{}.albert_layers.0.",
        "attention.query attention.key attention.value attention.dense attention.LayerNorm "
        "ffn ffn_output full_layer_layer_norm",
    ),
}
PREFIXES = {
    "bert": "bert.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
    "camembert": "roberta.",
    "distilbert": "distilbert.",
    "mpnet": "mpnet.",
    "albert": "albert.",
    "electra": "electra.",
}
PROJECTIONS = {
    "albert": "encoder.embedding_hidden_mapping_in",
    "electra": "embeddings_project",
}
POOLERS = dict.fromkeys(("bert", *ROBERTA_LIKE, "mpnet"), "pooler.dense") | {"albert": "pooler"}
# The layers before the classifier's last, its last, and the activation between them.
CLASSIFIERS = {
    "bert": ("pooler", "classifier", "tanh"),
    "albert": ("pooler", "classifier", "tanh"),
    "distilbert": ("pre_classifier", "classifier", "relu"),
    "electra": ("classifier.dense", "classifier.out_proj", "gelu"),
} | dict.fromkeys((*ROBERTA_LIKE, "mpnet"), ("classifier.dense", "classifier.out_proj", "tanh"))
# Dense layer, norm, the bias of the decoder whose weight is tied to the word embeddings.
LM_HEADS = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    "albert": ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "electra": (
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
    ),
} | dict.fromkeys((*ROBERTA_LIKE, "mpnet"), ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"))


def embedding_size(family: str) -> int:
    return NARROW if family in PROJECTIONS else HIDDEN


def make_config(family: str, head: str = "Model", **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": family,
        "architectures": ["Some" + head],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "layer_norm_eps": 1e-12 if family == "distilbert" else 1e-5,
        "pad_token_id": 0 if family in (*TYPED, "distilbert") else 1,
    }
    sizes = (HIDDEN, LAYERS, HEADS, WIDE, "gelu")
    if family == "distilbert":
        keys = ("dim", "n_layers", "n_heads", "hidden_dim", "activation")
    else:
        keys = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "hidden_act",
        )
        config["type_vocab_size"] = 2
    config |= dict(zip(keys, sizes, strict=True))
    if family in PROJECTIONS:
        config["embedding_size"] = NARROW
    if family == "albert":
        config |= {"num_hidden_groups": LAYERS, "inner_group_num": 1}
    return config | changes


class Maker:
    """Draws the tensors of a checkpoint."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.tensors: Tensors = {}

    def table(self, name: str, *shape: int, scale: float = 0.5) -> None:
        drawn = self.random.normal(scale=scale, size=shape)
        self.tensors[name] = drawn.astype(np.float32)

    def linear(self, path: str, outputs: int, inputs: int) -> None:
        self.table(f"{path}.weight", outputs, inputs)
        self.table(f"{path}.bias", outputs)

    def norm(self, path: str, size: int) -> None:
        self.table(f"{path}.weight", size)
        self.tensors[f"{path}.weight"] += 1
        self.table(f"{path}.bias", size)


def make_tensors(family: str, head: str = "Model", *, prefixed: bool = True) -> Tensors:
    maker = Maker(seed=sum(map(ord, family + head)))
    prefix, size = PREFIXES[family] if prefixed else "", embedding_size(family)
    maker.table(f"{prefix}embeddings.word_embeddings.weight", VOCABULARY, size)
    maker.table(f"{prefix}embeddings.position_embeddings.weight", POSITIONS, size)
    if family not in ("distilbert", "mpnet"):
        maker.table(f"{prefix}embeddings.token_type_embeddings.weight", 2, size)
    maker.norm(f"{prefix}embeddings.LayerNorm", size)
    if family in PROJECTIONS:
        maker.linear(prefix + PROJECTIONS[family], HIDDEN, NARROW)
    if family == "mpnet":
        maker.table(f"{prefix}encoder.relative_attention_bias.weight", 32, HEADS, scale=2.0)
    if family in POOLERS:
        maker.linear(prefix + POOLERS[family], HIDDEN, HIDDEN)
    path, names = LAYER_NAMES[family]
    for layer in range(LAYERS):
        make_layer(maker, prefix + path.format(layer), names.split())
    make_head(maker, family, head)
    return maker.tensors


def make_layer(maker: Maker, path: str, names: list[str]) -> None:
    *attention, attention_norm, feed_in, feed_out, feed_norm = (path + name for name in names)
    for name in attention:
        maker.linear(name, HIDDEN, HIDDEN)
    maker.norm(attention_norm, HIDDEN)
    maker.linear(feed_in, WIDE, HIDDEN)
    maker.linear(feed_out, HIDDEN, WIDE)
    maker.norm(feed_norm, HIDDEN)


def make_head(maker: Maker, family: str, head: str) -> None:
    if head == "ForSequenceClassification":
        dense, output, _ = CLASSIFIERS[family]
        if dense != "pooler":
            maker.linear(dense, HIDDEN, HIDDEN)
        maker.linear(output, LABELS, HIDDEN)
    elif head == "ForTokenClassification":
        maker.linear("classifier", LABELS, HIDDEN)
    elif head == "ForQuestionAnswering":
        maker.linear("qa_outputs", 2, HIDDEN)
    elif head == "ForMaskedLM":
        dense, norm, bias = LM_HEADS[family]
        maker.linear(dense, embedding_size(family), HIDDEN)
        maker.norm(norm, embedding_size(family))
        maker.table(bias, VOCABULARY)


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_bfloat16(file: Path, tensors: Tensors) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, value in tensors.items():
        raw = value.astype(ml_dtypes.bfloat16).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def shard(folder: Path) -> None:
    """Splits a folder's weights over two files and an index."""
    single = folder / "model.safetensors"
    tensors = load_file(single)
    names = sorted(tensors)
    weight_map = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, folder / file)
    single.unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
