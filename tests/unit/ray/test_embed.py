"""`clrt.ray.Embed` on batches in Ray Data's format, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
import clrt.ray
from clrt.errors import InputError
from tests.unit.text.jobs.corpus import HIDDEN, make_model, make_texts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def batch(texts: list[Any]) -> dict[str, np.ndarray]:
    column = np.empty(len(texts), object)
    column[:] = texts
    return {"id": np.arange(len(texts)), "text": column}


def test_ray_embed_matches_encode(model: Path) -> None:
    texts = make_texts(20)
    with clrt.SentenceEncoder(model, device="cpu") as encoder:
        wanted = encoder.encode(texts, normalize_embeddings=True, prompt="query: ")
    embed = clrt.ray.Embed(
        model, device="cpu", output="v", normalize_embeddings=True, prompt="query: "
    )
    for given in (batch(texts), {**batch(texts), "text": np.array(texts)}):
        found = embed(given)
        assert found.keys() == {"id", "text", "v", "error"}
        np.testing.assert_allclose(found["v"], wanted, atol=1e-6)
        assert list(found["error"]) == [""] * 20
        np.testing.assert_array_equal(found["id"], np.arange(20))


def test_bad_rows_get_nan_vectors_and_error_text(model: Path) -> None:
    embed = clrt.ray.Embed(model, device="cpu")
    found = embed(batch(["a", None, float("nan"), 7, "\ud800", "b"]))
    good = [True, False, False, False, False, True]
    assert list(np.isfinite(found["vector"]).all(axis=1)) == good
    assert list(np.isnan(found["vector"]).all(axis=1)) == [not g for g in good]
    assert [not said for said in found["error"]] == good
    assert found["error"][1] == "'text' is null" and "of type int" in found["error"][3]
    none = embed(batch([None, None]))
    assert none["vector"].shape == (2, HIDDEN) and np.isnan(none["vector"]).all()


def test_bad_rows_raise_without_error_column(model: Path) -> None:
    embed = clrt.ray.Embed(model, device="cpu", error=None)
    assert embed(batch(["a"])).keys() == {"id", "text", "vector"}
    with pytest.raises(InputError, match=r"'text' is null in row 1 of a batch"):
        embed(batch(["a", None]))


def test_missing_column_and_list_batch_are_refused(model: Path) -> None:
    embed = clrt.ray.Embed(model, device="cpu", column="body")
    with pytest.raises(InputError, match="no column 'body'; the columns are: 'id', 'text'"):
        embed(batch(["a"]))
    with pytest.raises(InputError, match="leave batch_format out"):
        embed(["a"])  # type: ignore[arg-type]
