"""GGUF files with only a tokenizer, written by llama.cpp's Python package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer

from clrt.formats.gguf.file import read_gguf
from clrt.formats.gguf.metadata import Metadata
from clrt.models.tokenizers.gguf_tokenizer import GgufTokenizer, read_tokenizer

# Small models of SentencePiece, and what they answer: made by tools/sentencepiece_cases.py.
CASES = json.loads((Path(__file__).parent / "data" / "sentencepiece.json").read_text("utf-8"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def write(
    path: Path, model: str, tokens: Sequence[str], *, architecture: str = "llama", **more: Any
) -> Metadata:
    """Writes a file and returns its metadata.

    Args:
        more: Values of other keys under "tokenizer.ggml.".
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    for name, value in more.items():
        key = name.replace("normalizer_", "normalizer.")
        key = f"tokenizer.{'' if name == 'chat_template' else 'ggml.'}{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path).metadata


def of_library(
    path: Path, model: str, original: Tokenizer, types: Mapping[str, int] = {}, **more: Any
) -> GgufTokenizer:
    """Writes a tokenizer of the tokenizers library to a GGUF file and reads it back.

    Args:
        types: Token types other than NORMAL, by token.
    """
    ids = original.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    assert list(range(len(tokens))) == sorted(ids.values())
    stored = json.loads(original.to_str())["model"]
    if "merges" in stored:
        more["merges"] = [" ".join(pair) for pair in stored["merges"]]
    kinds = [types.get(t, NORMAL) for t in tokens]
    return read_tokenizer(write(path, model, tokens, token_type=kinds, **more))


def scored(path: Path, case: Mapping[str, Any], model: str, **more: Any) -> GgufTokenizer:
    """Reads a SentencePiece tokenizer written from a case of the data file."""
    settings = {k: case[k] for k in ("add_space_prefix", "remove_extra_whitespaces")}
    settings |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | more
    scores = [float(s) for s in np.float32(case["scores"])]
    written = write(
        path, model, case["tokens"], scores=scores, token_type=case["types"], **settings
    )
    return read_tokenizer(written)
