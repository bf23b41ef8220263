"""Draft tokens: prompt lookup, step time model, acceptance rate and draft budget; no device."""

from __future__ import annotations

import time

import numpy as np
import pytest

from clrt.generation.prompt_lookup import LookupIndex
from clrt.generation.speculation_policy import (
    MAX_DRAFT_TOKENS,
    AcceptanceRate,
    DecodeTimeModel,
    DraftBudget,
    bucket_size,
)


def index_of(*tokens: int) -> LookupIndex:
    made = LookupIndex()
    made.extend(tokens)
    return made


def test_lookup_drafts_continuation_of_matching_tokens() -> None:
    assert index_of(1, 2, 3, 4, 5, 6, 1, 2, 3).guess(2) == ([4, 5], 3)
    assert index_of(9, 2, 3, 4, 5, 6, 1, 2, 3).guess(2) == ([4, 5], 2)
    assert index_of(1, 2, 3, 4, 5, 6, 7, 8, 3).guess(2) == ([], 0)
    for tokens in ((), (1,), (1, 1), (1, 2, 1)):
        assert index_of(*tokens).guess(5) == ([], 0)
    assert index_of(1, 2, 3, 1, 2).guess(0) == ([], 0)


def test_lookup_prefers_longest_then_latest_match() -> None:
    tokens = [7, 1, 2, 3, 50, *[8, 1, 2, 3, 60], *[9, 1, 2, 3, 70], *[8, 1, 2, 3]]
    assert index_of(*tokens).guess(1) == ([60], 4)
    # The latest match, if several are equally long.
    assert index_of(1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3).guess(1)[0] == [60]


def test_lookup_continues_repeating_text() -> None:
    assert index_of(5, 6, 7, 5, 6, 7).guess(8) == ([5, 6, 7, 5, 6, 7, 5, 6], 3)
    assert index_of(4, 4, 4).guess(5)[0] == [4] * 5


def test_incremental_lookup_index_matches_full_index() -> None:
    tokens = np.random.default_rng(0).integers(0, 7, 300).tolist()
    whole, grown = index_of(*tokens), LookupIndex()
    for token in tokens:
        grown.extend([token])
    assert grown == whole
    for end in range(2, 300, 7):
        made, alike = index_of(*tokens[:end]).guess(3)
        assert bool(made) == (alike >= 2)
        if made:
            text = tokens[:end]
            assert any(
                text[k - alike : k] == text[-alike:] and [*text, *made][k : k + 3] == made
                for k in range(alike, end)
            )


def test_lookup_time_is_independent_of_text_length() -> None:
    """Even if the text repeats the same few tokens."""

    def seconds(length: int) -> float:
        made = index_of(*[1, 2] * (length // 2))
        start = time.perf_counter()
        for _ in range(200):
            made.extend([1, 2])
            made.guess(8)
        return time.perf_counter() - start

    assert min(seconds(40_000) for _ in range(3)) < 10 * min(seconds(1_000) for _ in range(3))


def measured(**seconds: float) -> DecodeTimeModel:
    made = DecodeTimeModel()
    for size, value in seconds.items():
        for _ in range(60):
            made.note(int(size[1:]), value)
    return made


def test_step_time_is_interpolated_between_measurements() -> None:
    assert DecodeTimeModel().of(3) == 0
    costs = measured(n1=1.0, n4=1.3)
    assert [costs.of(n) for n in (1, 2, 4)] == pytest.approx([1.0, 1.1, 1.3])
    assert costs.of(4) < costs.of(8) < 2.3
    assert measured(n4=1.0).of(1) == 1.0


def test_step_time_ignores_first_step_and_clamps_outliers() -> None:
    costs = measured(n1=1.0)
    costs.note(4, 100.0)
    assert costs.of(4) == pytest.approx(1.375)
    costs.note(4, 100.0)  # disturbed
    assert costs.of(4) == pytest.approx(2.75)
    costs.note(4, 1.2)
    assert costs.of(4) == pytest.approx(1.2)
    costs.note(4, 2.2)
    assert costs.of(4) == pytest.approx(1.4)
    costs.note(4, 100.0)
    assert costs.of(4) == pytest.approx(1.68)


def test_acceptance_rate_follows_accepted_drafts() -> None:
    trust = AcceptanceRate()
    first = trust.worth(7)
    trust.note(7, 7)
    assert first < trust.worth(7) <= 7
    for _ in range(20):
        trust.note(7, 0)
    assert trust.worth(7) < 0.2
    for _ in range(300):
        trust.pass_over()
    assert trust.worth(7) == pytest.approx(first, rel=0.1)
    other = AcceptanceRate()
    for _ in range(30):
        other.note(4, 2)
    assert other.share == pytest.approx(2 / 3, rel=0.05)


def test_acceptance_rate_of_new_text_starts_from_shared_rate() -> None:
    usual = AcceptanceRate.of_all()
    wrong, new = AcceptanceRate(usual), AcceptanceRate(usual)
    for _ in range(8):
        wrong.note(3, 0)
    assert new.share == usual.share < 0.1
    new.note(3, 3)
    assert wrong.share < 0.1 < 0.5 < new.share


def sure(right: int) -> AcceptanceRate:
    made = AcceptanceRate()
    for _ in range(20):
        made.note(8, right)
    return made


def count_of(
    trust: AcceptanceRate, most: int, costs: DecodeTimeModel, texts: int = 1, draft_s: float = 0.0
) -> int:
    return DraftBudget(costs, texts, texts).add(trust, most, draft_s)


def cpu() -> DecodeTimeModel:
    """Of a model of 135 million numbers in Q4_0 on two cores of a CPU."""
    return measured(n1=1.0, n2=1.2, n4=1.3, n8=2.0, n16=3.3, n32=7.0, n64=14.0)


def test_draft_count_maximizes_expected_speed() -> None:
    free, dear = measured(n1=1.0, n64=1.0), measured(n1=1.0, n64=64.0)
    assert count_of(sure(8), 100, free) == MAX_DRAFT_TOKENS
    assert count_of(sure(8), 5, free) == 3
    assert count_of(sure(8), 7, free) == 7
    assert count_of(sure(8), 0, free) == 0
    assert count_of(sure(8), 100, dear) == 0
    assert count_of(sure(8), 100, cpu()) == 15
    assert count_of(sure(2), 100, cpu()) == 3
    assert count_of(sure(0), 100, cpu()) == 0
    assert count_of(AcceptanceRate(), 100, DecodeTimeModel()) == 0  # nothing is known yet


def test_draft_count_includes_draft_time_and_other_texts() -> None:
    assert count_of(sure(8), 100, cpu(), draft_s=0.1) >= 7
    assert count_of(sure(8), 100, cpu(), draft_s=1.0) == 0
    assert count_of(sure(2), 100, cpu(), texts=8) < count_of(sure(2), 100, cpu())
    step = DraftBudget(cpu(), 2, 2)
    first = step.add(sure(8), 100, 0.1)
    assert first == 7 and (step.tokens, step.draft_s) == (9, pytest.approx(0.7))
    assert 7 < step.expected < 9
    assert step.add(sure(2), 100, 0.1) < 3


def test_unprofitable_drafting_is_retried_rarely() -> None:
    """After rejected drafts, then after a disturbed time measurement."""
    trust, costs = sure(0), cpu()
    assert 10 < next(k for k in range(1000) if count_of(trust, 8, costs)) < 200
    trust, costs = sure(8), measured(n1=1.0, n2=2.0, n3=3.0, n8=8.0)
    tries = [k for k in range(2000) if count_of(trust, 8, costs)]
    assert tries[0] > 10 and 4 < len(tries) < 100
    assert costs.cost_discount > 0.5


def test_step_sizes_are_rounded_to_buckets() -> None:
    assert [bucket_size(n) for n in (0, 1, 15, 16, 17, 32, 33)] == [0, 1, 15, 16, 32, 32, 48]
    costs = measured(n1=1.0, n16=2.0, n32=4.0)
    assert costs.of(17) == costs.of(30) == 4.0
