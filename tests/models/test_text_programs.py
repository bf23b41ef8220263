"""Programs written for sentence-transformers give equal results on clrt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clrt.sentence_transformers as package
from tests.models.fixtures import DATA
from tests.models.text_programs import programs, to_array

# One model of each kind, and what differs in clrt's own code; the rest are other families, and
# other ways to say the same.
QUICK = (
    "encode_bert", "encode_int8", "prompts_", "own_query", "truncated", "max_seq_length", "tokens",
    "sizes", "quantized_", "calibrated_", "ranged_", "similarity_dot", "search", "communities",
    "paraphrases", "pairs_bert", "pairs_kept", "pairs_ranked", "sparse_max_log1p_relu",
    "sparse_sum_relu", "sparse_decoded",
)  # fmt: skip


def _marked(name: str) -> object:
    return name if name.startswith(QUICK) else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [_marked(name) for name in programs()])
def test_program_matches_sentence_transformers(name: str, tmp_path: Path) -> None:
    with np.load(DATA / "text_programs.npz") as archive:
        wanted = archive[name]
    found = to_array(programs()[name](package, tmp_path))
    assert found.shape == wanted.shape
    assert found.dtype.kind == wanted.dtype.kind
    # A computed number at the edge of a step may fall on either side.
    if name in ("encode_int8", "encode_uint8"):
        found, wanted = found.astype(int), wanted.astype(int)
        assert (found != wanted).mean() <= 0.02
        assert np.abs(found - wanted).max() <= 1
        return
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_every_program_has_stored_result() -> None:
    with np.load(DATA / "text_programs.npz") as archive:
        assert set(archive) == set(programs())
