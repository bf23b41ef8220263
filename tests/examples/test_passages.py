"""Passages cover a text in order, and fit the model's token limit."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from clrt.models.locate import find_model
from examples.semantic_search.passages import MOST_TOKENS, count_tokens, split_passages
from tests.examples.test_extract import GERMAN, JAPANESE, RUSSIAN

PIECES = [
    "Word ",
    "long" * 40,
    ". ",
    "? ",
    "\n\n",
    "\f",
    "。",
    "12345678901234567890" * 9,
    "  ",
    "é🐟",
    "x\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.text(max_size=300))
def test_passages_cover_whole_text_in_order(text: str) -> None:
    spans = split_passages(text)
    parts = [text[s.start : s.end] for s in spans]
    assert all(a.end <= b.start for a, b in pairwise(spans))
    assert all(part == part.strip() != "" for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(count_tokens(part) <= MOST_TOKENS for part in parts)


def test_passages_end_at_sentences_and_paragraphs() -> None:
    long = "This sentence has about a dozen words, which is what most of them have. "
    text = f"{long * 5}\n\nA new paragraph begins. It goes on.\n\n{long * 20}"
    parts = [text[s.start : s.end] for s in split_passages(text)]
    assert parts[0] == (long * 5).strip()
    assert parts[1].startswith("A new paragraph begins. It goes on.")
    assert all(part.endswith((".", "!")) for part in parts)


def test_passages_fit_model_token_limit() -> None:
    tokenizer = Tokenizer.from_file(str(find_model("all-MiniLM-L6-v2") / "tokenizer.json"))
    tokenizer.no_truncation()
    code = json.dumps({f"key_{k}": [k * 1.5, None, f"a{k:x}b"] for k in range(200)})
    letters = "".join(chr(97 + k * k % 26) for k in range(5000))
    for text in (GERMAN, RUSSIAN * 3, JAPANESE, code, letters, "0123456789" * 99, "!?-" * 500):
        for span in split_passages(text):
            ids = tokenizer.encode(text[span.start : span.end]).ids
            assert len(ids) <= 256, text[span.start : span.end]
