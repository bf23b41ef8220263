"""The models that `tools/oracles.py` exports: all-MiniLM-L6-v2, and tiny ones of many families."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.pytorch_utils import Conv1D

VOCABULARY = 200
POSITIONS = 80


@dataclass(frozen=True)
class Exporter:
    """One of torch's exporters at one opset."""

    dynamo: bool
    opset: int

    @property
    def name(self) -> str:
        return f"{'dynamo' if self.dynamo else 'torchscript'}{self.opset}"


TS14, TS17 = Exporter(False, 14), Exporter(False, 17)
DY18, DY20 = Exporter(True, 18), Exporter(True, 20)


@dataclass(frozen=True)
class Family:
    """A model to export, what it takes and what it gives.

    Attributes:
        name: The file is named `NAME_EXPORTER.onnx`.
        build: Makes the torch model.
        inputs: Names out of `input_ids`, `attention_mask`, `token_type_ids`, `pixel_values`.
        outputs: Each output with its dynamic axes.
        exporters: What to export with.
        pad: The id of padding.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: tuple[str, ...]
    outputs: dict[str, dict[int, str]]
    exporters: tuple[Exporter, ...]
    pad: int = 0


class OnesMask(torch.nn.Module):
    """Takes ids alone and makes the mask of ones itself."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids))


def minilm(folder: Path) -> Family:
    """all-MiniLM-L6-v2 itself."""
    return Family(
        "minilm",
        lambda: transformers.AutoModel.from_pretrained(folder),
        ("input_ids", "attention_mask", "token_type_ids"),
        {"last_hidden_state": {0: "batch", 1: "sequence"}, "pooler_output": {0: "batch"}},
        (TS17, DY18, DY20),
    )


def families() -> list[Family]:
    """The tiny models with random weights."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": POSITIONS,
    }
    image: dict[str, Any] = {
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 96,
    }
    gpt2: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": POSITIONS,
        "use_cache": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }

    hidden = {"last_hidden_state": {0: "batch", 1: "sequence"}}
    pooled = hidden | {"pooler_output": {0: "batch"}}
    patches = {"last_hidden_state": {0: "batch"}, "pooler_output": {0: "batch"}}
    logits = {"logits": {0: "batch", 1: "sequence"}}
    classes = {"logits": {0: "batch"}}
    three = ("input_ids", "attention_mask", "token_type_ids")
    two = ("input_ids", "attention_mask")
    every = (TS14, TS17, DY18, DY20)
    some = (TS17, DY20)

    roberta = sizes | {"pad_token_id": 1, "type_vocab_size": 1, "num_labels": 3}
    distilbert = {
        "vocab_size": VOCABULARY,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": POSITIONS,
    }
    narrow = sizes | {"embedding_size": 16}
    bare = make("GPT2LMHeadModel", **gpt2)
    return [
        Family("bert", make("BertModel", **sizes), three, pooled, every),
        Family("bert_eager", make("BertModel", "eager", **sizes), three, pooled, some),
        Family("bert_mlm", make("BertForMaskedLM", **sizes), three, logits, some),
        Family(
            "roberta_classifier",
            make("RobertaForSequenceClassification", **roberta),
            two,
            classes,
            every,
            pad=1,
        ),
        Family("distilbert", make("DistilBertModel", **distilbert), two, hidden, every),
        Family("mpnet", make("MPNetModel", **sizes), two, pooled, every, pad=1),
        Family("albert", make("AlbertModel", **narrow), three, pooled, every),
        Family("electra", make("ElectraModel", **narrow), three, hidden, every),
        Family("gpt2", bare, two, logits, every),
        Family("gpt2_nomask", bare, two[:1], logits, (DY18, DY20)),
        # Without a mask transformers looks for packed texts, by an op the old exporter lacks.
        Family("gpt2_nomask", lambda: OnesMask(bare()), two[:1], logits, (TS14, TS17)),
        Family("vit", make("ViTModel", **image), ("pixel_values",), patches, every),
        Family("deit", make("DeiTModel", **image), ("pixel_values",), patches, some),
    ]


def make(kind: str, attention: str | None = None, **options: Any) -> Callable[[], Any]:
    """Builds `KindModel(KindConfig(**options))`, for `kind` such as `BertModel`."""

    def build() -> torch.nn.Module:
        model_class = getattr(transformers, kind)
        config = model_class.config_class(**options)
        if attention is not None:
            config._attn_implementation = attention
        return randomized(model_class(config))

    return build


def randomized(model: torch.nn.Module) -> torch.nn.Module:
    """Move biases and norms off their constant start, and give every matrix its spread."""
    noise = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        fresh = torch.randn(parameter.shape, generator=noise)
        if parameter.ndim < 2:
            parameter.data = parameter.data + 0.1 * fresh
        else:
            parameter.data = spread(model, name) * fresh
    return model


def spread(model: torch.nn.Module, name: str) -> float:
    """The standard deviation that keeps activations near 1: one over the root of the fan-in."""
    owner = model.get_submodule(name.rpartition(".")[0])
    shape = model.get_parameter(name).shape
    return 1 / math.sqrt(shape[0] if isinstance(owner, Conv1D) else math.prod(shape[1:]))


# --------------------------------------------------------------------------- exporting
