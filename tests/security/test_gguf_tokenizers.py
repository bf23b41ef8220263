"""Malicious GGUF vocabularies: refused with the cause; the tokenizers library never panics."""

from __future__ import annotations

import base64
import os
import struct
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from clrt.errors import ClrtError
from clrt.formats.gguf.file import read_gguf
from clrt.models.tokenizers import gguf_vocabulary
from clrt.models.tokenizers.gguf_tokenizer import read_tokenizer
from tests.security.mutation_values import flipped
from tests.unit.models.tokenizers.gguf_vocabularies import CASES, write
from tests.unit.text.awkward import TEXTS

_COUNT = int(os.environ.get("CLRT_FUZZ_FILES", "1500")) // 4
CHARSMAP = base64.b64decode(CASES["t5"]["charsmap"])
BPE: dict[str, Any] = {"tokens": ["a", "b", "ab"], "merges": ["a b"], "pre": "gpt-2"}
SCORED: dict[str, Any] = {"tokens": ["<unk>", "<s>", "a"], "scores": [0.0, 0.0, -1.0]}
WORDS: dict[str, Any] = {"tokens": ["[UNK]", "▁a", "b"], "unknown_token_id": 0}
UNIGRAM = {**SCORED, "unknown_token_id": 0}


def _pointing(given: dict[int, int]) -> bytes:
    """A table of 256 units, 0 but for some, and a text of one character."""
    units = np.zeros(256, "<u4")
    units[list(given)] = list(given.values())
    return struct.pack("<I", 1024) + units.tobytes() + b"\xc3\xa9\0"


# The model, its keys, and how its error goes on.
CASES_OF_HARM: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown kind": ("rwkv", BPE, "has a tokenizer of the kind 'rwkv', but clrt supports gpt2"),
    "no merges": ("gpt2", {**BPE, "merges": None}, "has no metadata 'tokenizer.ggml.merges'"),
    "merges of unknown tokens": (
        "gpt2",
        {**BPE, "merges": ["a c"]},
        "is not valid for a tokenizer",
    ),
    "merges into an unknown token": (
        "gpt2",
        {**BPE, "merges": ["b a"]},
        "is not valid for a tokenizer",
    ),
    "a merge of one": ("gpt2", {**BPE, "merges": ["ab"]}, "'ab' in 'tokenizer.ggml.merges' is no"),
    "a token twice": ("gpt2", {**BPE, "tokens": ["a", "b", "a"]}, "the token 'a' twice"),
    "tokens that are numbers": (
        "gpt2",
        {**BPE, "tokens": [1, 2]},
        "'tokenizer.ggml.tokens' of",
    ),
    "few types": (
        "llama",
        {**SCORED, "token_type": [1]},
        "has 3 tokens, and 'tokenizer.ggml.token_type' 1 elements",
    ),
    "few scores": ("llama", {**SCORED, "scores": [1.0]}, "'tokenizer.ggml.scores' 1 elements"),
    "a score that is none": (
        "t5",
        {**UNIGRAM, "scores": [0.0, float("nan"), 0.0]},
        "a score of its vocabulary is not a finite number",
    ),
    "an endless score": (
        "t5",
        {**UNIGRAM, "scores": [0.0, float("-inf"), 0.0]},
        "a score of its vocabulary is not a finite number",
    ),
    "no scores": ("t5", {**UNIGRAM, "scores": None}, "has no scores, or no unknown token"),
    "no unknown token": ("bert", {"tokens": ["▁a"]}, "its vocabulary has no unknown token"),
    "a flag that is text": ("llama", {**SCORED, "add_space_prefix": "yes"}, "is a text and not"),
    "an empty table": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": b"\0"},
        "charsmap' is shorter than it says",
    ),
    "a long table": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": struct.pack("<I", 2**32 - 4) + bytes(8)},
        "charsmap' is shorter than it says",
    ),
    "a short table": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": struct.pack("<I", 4) + bytes(8)},
        "charsmap' points outside itself",
    ),
    "a table that points away": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": _pointing({0: 300 << 10})},
        "charsmap' points outside itself",
    ),
    "a table that points far away": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": _pointing({7: 0x7FFFFE00})},
        "charsmap' points outside itself",
    ),
    "a root that is a leaf": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": _pointing({0: 0xFFFFFE00})},
        "charsmap' points outside itself",
    ),
    "a text past the end": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": _pointing({1: 0x100})},
        "charsmap' points outside its texts",
    ),
    "a text that is half a character": (
        "t5",
        {**UNIGRAM, "precompiled_charsmap": _pointing({0: 0x900, 2: 2**31 + 1})},
        "charsmap' points outside its texts",
    ),
}


@pytest.mark.parametrize("name", CASES_OF_HARM)
def test_malicious_gguf_vocabulary_is_refused(name: str, tmp_path: Path) -> None:
    model, keys, expected = CASES_OF_HARM[name]
    given = {k: v for k, v in keys.items() if v is not None}
    metadata = write(tmp_path / "m.gguf", model, given.pop("tokens"), **given)
    with pytest.raises(ClrtError) as caught:
        read_tokenizer(metadata)
    assert expected in str(caught.value)
    assert str(tmp_path / "m.gguf") in str(caught.value)


@pytest.mark.parametrize(("model", "keys"), [("gpt2", BPE), ("t5", UNIGRAM), ("bert", WORDS)])
def test_unmodified_gguf_vocabulary_is_read(
    model: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    """Otherwise each case might be refused for another fault."""
    given = dict(keys)
    made = read_tokenizer(write(tmp_path / "m.gguf", model, given.pop("tokens"), **given))
    assert made.library.encode("a").ids


def test_gguf_vocabulary_of_too_many_characters_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_vocabulary, "_MAX_TEXT_CHARS", 100)
    metadata = write(tmp_path / "m.gguf", "llama", ["x" * 60, "y" * 60])
    with pytest.raises(ClrtError, match="its vocabulary has more than 100 characters"):
        read_tokenizer(metadata)


def test_long_gguf_token_is_read_in_linear_time(tmp_path: Path) -> None:
    """Trying every split of the token would take quadratic time."""
    tokens = ["<unk>", "<s>", "</s>", "a", *("a" * 2**i for i in range(1, 20))]
    scores = [float(-i) for i in range(len(tokens))]
    made = read_tokenizer(write(tmp_path / "m.gguf", "llama", tokens, scores=scores))
    assert made.library.encode("aaaa", add_special_tokens=False).tokens[-1] == "aaaa"


def _seed(name: str, path: Path) -> bytes:
    """A whole file that is read."""
    if name in ("gpt2", "bert"):
        keys = dict(BPE if name == "gpt2" else WORDS)
        keys |= {"token_type": [1, 3, 4], "bos_token_id": 1, "add_bos_token": True}
        write(path, name, keys.pop("tokens"), **keys)
        return path.read_bytes()
    case = CASES[name]
    few = 120
    keys = {"scores": case["scores"][:few], "token_type": case["types"][:few]}
    keys |= {"unknown_token_id": 0, "eos_token_id": 2, "add_space_prefix": True}
    if name == "t5":
        keys["precompiled_charsmap"] = CHARSMAP
    write(path, name, case["tokens"][:few], **keys)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "t5"])
def test_gguf_vocabulary_mutants_tokenize_or_raise_clrt_error(name: str, tmp_path: Path) -> None:
    """Reading and tokenizing raise only clrt errors."""
    path = tmp_path / "m.gguf"
    whole = _seed(name, path)
    endings: Counter[str] = Counter()
    for seed in range(_COUNT):
        rng = Random(f"{name} {seed}")
        path.unlink()
        path.write_bytes(flipped(rng, whole))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = read_tokenizer(read_gguf(path).metadata)
            for text in TEXTS:
                made.library.decode(made.library.encode(text).ids)
            endings["read"] += 1
        except ClrtError as error:
            endings[type(error).__name__] += 1
    assert endings["read"] > _COUNT / 20, endings
    assert endings["ModelError"] > _COUNT / 20, endings
