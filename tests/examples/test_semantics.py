"""Search with the real model: results by meaning, scores, and highlights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import clrt
from examples.semantic_search.encoder import DEFAULT_MODEL, Encoder, find_encoder
from examples.semantic_search.index import update_index
from examples.semantic_search.search import find, words_of
from examples.semantic_search.store import Store
from tests.examples.samples import TEXTS, write_texts


@pytest.fixture(scope="module")
def encoder() -> Iterator[Encoder]:
    made = Encoder(find_encoder())
    yield made
    made.close()


def test_search_finds_text_by_meaning(encoder: Encoder, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts")
    with Store(tmp_path / "index.sqlite") as store:
        store.accept_model(encoder.probe)
        assert update_index(store, folder, encoder.encode_passages)
        for query, name in (
            ("marine mammals at rest", "otters.txt"),
            ("making a loaf", "notes/bread.md"),
            ("monetary policy", "web/rates.html"),
            ("sea level during the day", "tide.pdf"),
        ):
            results = find(store, encoder.encode_query(query))
            assert results[0].path == str(Path(name))
        assert find(store, encoder.encode_query("javascript closures"))[:1] == []


def test_scores_match_sentence_encoder(encoder: Encoder, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts")
    with Store(tmp_path / "index.sqlite") as store:
        store.accept_model(encoder.probe)
        update_index(store, folder, encoder.encode_passages)
        hits = store.nearest(encoder.encode_query("otters"), len(TEXTS))
    with clrt.SentenceEncoder(DEFAULT_MODEL) as other:
        vectors = other.encode([hit.text for hit in hits])
        expected = vectors @ other.encode("otters")
    assert len(hits) == len(TEXTS)
    np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-4)


def test_model_file_beside_program_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_encoder() == DEFAULT_MODEL
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "search"))
    assert find_encoder() == DEFAULT_MODEL
    (tmp_path / "mini.clrt").touch()
    assert find_encoder() == tmp_path / "mini.clrt"


def test_query_words_are_highlighted() -> None:
    text = "Bakers baked; the bakery sells Bread, not gold."
    words = [text[s.start : s.end] for s in words_of("What do bakers of bread sell?", text)]
    assert words == ["Bakers", "baked", "bakery", "sells", "Bread"]
    assert list(words_of("to be or", text)) == []
