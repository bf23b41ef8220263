"""Models and texts of the benchmark; nothing is downloaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .runtimes import ModelFiles
from .turns import call_apart

MINILM = "MiniLM"
BERT_BASE = "BERT-base"
_BERT_CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_SHORTEST_SENTENCE = 20


def find_minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, in Hugging Face's cache or in the package that carries it."""
    from clrt.models.locate import find_model

    return Path(find_model("all-MiniLM-L6-v2"))


def prepare_model(name: str, source: Path | None, work: Path) -> ModelFiles:
    """A model's files; what is not there is made in the folder `work`.

    Args:
        name: `MINILM`, `BERT_BASE`, or the stem of `source`.
        source: An ONNX file or a Hugging Face folder; None for the model of that name.
    """
    if source is None and name == BERT_BASE:
        source = make_bert_base(work)
    source = (source or find_minilm()).resolve()
    if source.is_file():
        return ModelFiles(name, source, source)
    for exported in (source / "onnx" / "model.onnx", source / "model.onnx"):
        if exported.is_file():
            return ModelFiles(name, source, exported)
    target = work / f"{name}.onnx"
    call_apart(_export, source, target)
    return ModelFiles(name, source, target)


def make_bert_base(work: Path) -> Path:
    """Returns the folder of a checkpoint of BERT-base's geometry, creating it if absent."""
    folder = work / "bert-base"
    if not (folder / "model.safetensors").exists():
        call_apart(_write_bert_base, folder)
    return folder


def _export(folder: Path, target: Path) -> None:
    """Writes the graph that clrt builds of a checkpoint as one ONNX file."""
    from clrt.models.as_onnx import onnx_model

    content = onnx_model(folder)
    assert isinstance(content, bytes)
    target.write_bytes(content)


def _write_bert_base(folder: Path) -> None:
    """Writes a checkpoint of BERT-base's geometry with random weights."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_BERT_CONFIG), encoding="utf-8")
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in _bert_tensors():
        if name.endswith("LayerNorm.weight"):
            weights[name] = np.ones(shape, np.float32)
        else:
            weights[name] = rng.standard_normal(shape, np.float32) * np.float32(0.02)
    save_file(weights, folder / "model.safetensors")


def _bert_tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Returns names and shapes of the checkpoint's tensors."""
    hidden, wide = 768, 3072
    tables = {"word": 30522, "position": 512, "token_type": 2}
    for table, rows in tables.items():
        yield f"embeddings.{table}_embeddings.weight", (rows, hidden)
    norms = ["embeddings.LayerNorm"]
    dense = [("pooler.dense", hidden, hidden)]
    for layer in (f"encoder.layer.{i}" for i in range(12)):
        heads = ("attention.self.query", "attention.self.key", "attention.self.value")
        dense += [(f"{layer}.{h}", hidden, hidden) for h in (*heads, "attention.output.dense")]
        dense.append((f"{layer}.intermediate.dense", wide, hidden))
        dense.append((f"{layer}.output.dense", hidden, wide))
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, outputs, inputs in dense:
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)
    for name in norms:
        yield f"{name}.weight", (hidden,)
        yield f"{name}.bias", (hidden,)


def read_texts(count: int) -> list[str]:
    """Paragraphs and sentences of Python's own help topics, of 2 to several hundred words.

    The same for one version of Python: taken at even distances from all of them, in their order.
    """
    from pydoc_data.topics import topics

    texts = list(dict.fromkeys(t for _, topic in sorted(topics.items()) for t in split_text(topic)))
    picks = np.linspace(0, len(texts) - 1, min(count, len(texts))).astype(int)
    return [texts[int(i)] for i in picks]


def split_text(text: str) -> Iterator[str]:
    """The paragraphs that have words, and the sentences of those that have several."""
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        if not re.search(r"[A-Za-z]{3}", paragraph):
            continue
        yield paragraph
        sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)
        if len(sentences) > 1:
            yield from (s for s in sentences if len(s) > _SHORTEST_SENTENCE)
