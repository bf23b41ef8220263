"""Tiny model folders of sentence-transformers: random weights, and a tokenizer of a few words.

Both sides read them: `tools/oracles.py` by sentence-transformers, the tests by clrt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.unit.models.encoders import checkpoints

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
WORDS = [
    "query", "passage", ":", "a", "cat", "dog", "sleeps", "runs", "on", "the", "red", "blue",
    "mat", "house", "and", "near", "it", "is", "old",
]  # fmt: skip
TEXTS = [
    "a cat sleeps on the mat",
    "the dog runs",
    "",
    "the old house is near the red mat and it is blue",
    "an unknown word",
    "a red dog and a blue cat and a red dog and a blue cat and a red dog and a blue cat",
    "it is old",
]
PAIRS = [(a, b) for a in TEXTS[:4] for b in TEXTS[3:]]
TYPE = "sentence_transformers.models."


def make_folder(
    folder: Path,
    family: str = "bert",
    head: str = "Model",
    labels: int = checkpoints.LABELS,
    files: dict[str, Any] | None = None,
    types: bool = True,
    **changes: Any,
) -> Path:
    """Writes a folder with a model of the family.

    Args:
        labels: Rows of a classifier.
        files: JSON files beside those of the model.
        types: Whether the tokenizer tells the texts of a pair apart, where the family can.
        changes: Other values of config.json.
    """
    config = checkpoints.make_config(family, head, **changes)
    tensors = checkpoints.make_tensors(family, head)
    if head == "ForSequenceClassification":
        output = checkpoints.CLASSIFIERS[family][1]
        for name in (f"{output}.weight", f"{output}.bias"):
            tensors[name] = tensors[name][:labels].copy()
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
        config["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
    checkpoints.write(folder, config, tensors)
    _write_tokenizer(folder, config["pad_token_id"], family in checkpoints.TYPED and types)
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def sentence_files(
    pooling: dict[str, Any], normalize: bool = False, **whole: Any
) -> dict[str, Any]:
    """Returns the files of a sentence encoder: modules, pooling, prompts."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2": "Normalize"} if normalize else {})
    size = {"word_embedding_dimension": checkpoints.HIDDEN}
    return {
        "modules.json": _modules(kinds),
        "1_Pooling/config.json": {**size, **pooling},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
        "config_sentence_transformers.json": whole,
    }


def sparse_files(strategy: str, activation: str, **whole: Any) -> dict[str, Any]:
    """Returns the files of a sparse encoder."""
    pooling = {"pooling_strategy": strategy, "activation_function": activation}
    return {
        "modules.json": _modules({"": "MLMTransformer", "1_SpladePooling": "SpladePooling"}),
        "1_SpladePooling/config.json": {**pooling, "word_embedding_dimension": None},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
        "config_sentence_transformers.json": {"model_type": "SparseEncoder", **whole},
    }


def _modules(kinds: dict[str, str]) -> list[dict[str, Any]]:
    places = {"MLMTransformer": "sentence_transformers.sparse_encoder.models."}
    places["SpladePooling"] = places["MLMTransformer"]
    return [
        {"idx": i, "name": str(i), "path": path, "type": places.get(kind, TYPE) + kind}
        for i, (path, kind) in enumerate(kinds.items())
    ]


def _write_tokenizer(folder: Path, pad: int, types: bool) -> None:
    tokens = [*SPECIAL[1 : pad + 1], "[PAD]", *SPECIAL[pad + 1 :], *WORDS]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    second = 0 if pad else 1  # only BERT's like tell the texts of a pair apart
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = ("pad", "cls", "sep", "unk", "mask")
    named = {f"{role}_token": token for role, token in zip(roles, SPECIAL, strict=True)}
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 24, **named}
    settings["model_input_names"] = inputs
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
