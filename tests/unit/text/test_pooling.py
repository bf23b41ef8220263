"""Pooling graph and its masks compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clrt.ir.dtypes import DType
from clrt.runtime.execution.signature import TensorSpec
from clrt.text.modules import POOLING_MODES
from clrt.text.pooling import FIRST, MASK, RESULT, TOKENS, pooling_masks
from clrt.text.pooling_graph import pooling_graph
from tests.unit.text.fakes import evaluate

Array = NDArray[Any]
LENGTHS = (5, 1, 3)


def tokens(dtype: type = np.float32) -> Array:
    return np.random.default_rng(1).standard_normal((3, 5, 4)).astype(dtype)


def mask() -> Array:
    return (np.arange(5) < np.array(LENGTHS)[:, None]).astype(np.int64)


def pool(
    modes: tuple[str, ...],
    x: Array,
    skipped: int = 0,
    unit_before: bool = False,
    truncate_dim: int | None = None,
    unit_after: bool = False,
) -> Array:
    spec = TensorSpec("x", DType.of(x.dtype), ("batch", "sequence", x.shape[-1]))
    graph = pooling_graph(modes, spec, unit_before, truncate_dim, unit_after)
    answer = evaluate(graph, {TOKENS: x, **pooling_masks(modes, mask(), skipped)})[RESULT]
    assert answer.dtype == np.float32
    return answer


def expected(mode: str, row: Array, first: int = 0) -> Array:
    """Returns the pooled vector of `row`, whose first token has position `first`."""
    pooled: Array = {
        "cls": lambda: row[0],
        "max": lambda: row.max(axis=0),
        "mean": lambda: row.mean(axis=0),
        "mean_sqrt_len": lambda: row.sum(axis=0) / np.sqrt(len(row)),
        "sum": lambda: row.sum(axis=0),
        "weightedmean": lambda: np.average(row, axis=0, weights=first + 1 + np.arange(len(row))),
        "lasttoken": lambda: row[-1],
    }[mode]()
    return pooled


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_pooling_ignores_padding(mode: str) -> None:
    x = tokens()
    found = pool((mode,), np.where(mask()[..., None] == 1, x, np.float32(1e6)))
    wanted = [expected(mode, row[:n]) for row, n in zip(x, LENGTHS, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_pooling_skips_prompt_tokens(mode: str) -> None:
    x = tokens()
    found = pool((mode,), x, skipped=2)
    for row in (0, 2):
        wanted = expected(mode, x[row, 2 : LENGTHS[row]], 2)
        np.testing.assert_allclose(found[row], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize("skipped", [0, 2])
def test_pooling_handles_left_padding(mode: str, skipped: int) -> None:
    x, left = tokens(), mask()[:, ::-1].copy()
    spec = TensorSpec("x", DType.FLOAT32, ("batch", "sequence", 4))
    graph = pooling_graph((mode,), spec, False, None, False)
    found = evaluate(graph, {TOKENS: x, **pooling_masks((mode,), left, skipped)})[RESULT]
    for row in (0, 2):
        wanted = expected(mode, x[row, 5 - LENGTHS[row] + skipped :], skipped)
        np.testing.assert_allclose(found[row], wanted, rtol=1e-5, atol=1e-6)


def test_prompt_only_text_pools_to_zero_or_cls() -> None:
    x = tokens()
    np.testing.assert_array_equal(pool(("mean",), x, skipped=2)[1], np.zeros(4))
    np.testing.assert_array_equal(pool(("cls",), x, skipped=2)[1], x[1, 0])
    for mode in ("lasttoken", "weightedmean"):
        np.testing.assert_array_equal(pool((mode,), x, skipped=2)[1], np.zeros(4))


def test_pooling_modes_are_concatenated() -> None:
    x = tokens()
    found = pool(("cls", "mean"), x)
    assert found.shape == (3, 8)
    np.testing.assert_array_equal(found, np.hstack([pool(("cls",), x), pool(("mean",), x)]))


def test_float16_tokens_are_pooled_as_float32() -> None:
    x = tokens(np.float16)
    np.testing.assert_array_equal(pool(("mean",), x), pool(("mean",), x.astype(np.float32)))


def lengths(x: Array) -> Array:
    return np.asarray(np.linalg.norm(x, axis=1))


def test_normalized_vectors_have_unit_length() -> None:
    plain = pool(("mean",), tokens())
    for before, after in ((True, False), (False, True), (True, True)):
        unit = pool(("mean",), tokens(), unit_before=before, unit_after=after)
        np.testing.assert_allclose(unit, plain / lengths(plain)[:, None], rtol=1e-6)


def test_normalized_zero_vector_stays_zero() -> None:
    found = pool(("mean",), np.zeros((3, 5, 4), np.float32), unit_after=True)
    np.testing.assert_array_equal(found, np.zeros((3, 4)))


def test_truncation_is_applied_between_normalisations() -> None:
    whole = pool(("mean",), tokens(), unit_before=True)
    kept = pool(("mean",), tokens(), unit_before=True, truncate_dim=2)
    np.testing.assert_allclose(kept, whole[:, :2], rtol=1e-6)
    both = pool(("mean",), tokens(), unit_before=True, truncate_dim=2, unit_after=True)
    np.testing.assert_allclose(both, kept / lengths(kept)[:, None], rtol=1e-6)
    assert pool(("mean",), tokens(), truncate_dim=99).shape == (3, 4)


def test_pooling_masks_select_tokens_per_mode() -> None:
    assert pooling_masks(("cls",), mask(), 0).keys() == {FIRST}
    assert pooling_masks(("mean",), mask(), 0).keys() == {MASK}
    both = pooling_masks(("cls", "mean"), mask(), 2)
    assert both[MASK].tolist() == [[0, 0, 1, 1, 1], [0] * 5, [0, 0, 1, 0, 0]]
    assert both[FIRST].tolist() == [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
