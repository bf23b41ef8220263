"""Folder with a small word-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "query", ":", "a", "b", "c", "d", "e"]
PAD, CLS, SEP, UNK, QUERY, COLON, A, B, C, D, E = range(len(WORDS))


def make_folder(folder: Path, max_length: int | None = 8, **pooling: object) -> Path:
    """Writes a tokenizer of `WORDS` with `[CLS] … [SEP]`, and mean pooling; no weights."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    tokenizer.enable_padding(length=32, pad_id=PAD, pad_token="[PAD]")
    tokenizer.enable_truncation(4)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": p, "type": f"sentence_transformers.models.{k}"} for p, k in kinds.items()]
    files: dict[str, object] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, **pooling},
        "sentence_bert_config.json": {"max_seq_length": max_length},
        "tokenizer_config.json": {"pad_token": "[PAD]"},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder
