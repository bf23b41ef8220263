"""Results of text generation: timings and generated texts."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from clrt.generation.result import GeneratedText, TextTimings, TokenLogprob


def test_text_timings_compute_tokens_per_second() -> None:
    timings = TextTimings(1.5, 0.5, 100, 2.0, 11)
    assert (timings.prompt_tokens_per_s, timings.tokens_per_s) == (200, 5)
    assert str(timings) == (
        "load 1.50 s; prompt 100 tokens in 0.50 s (200.0/s); answer 11 tokens in 2.00 s (5.0/s)"
    )


@pytest.mark.parametrize("tokens", [0, 1])
def test_text_timings_without_time_have_zero_rates(tokens: int) -> None:
    timings = TextTimings(0, 0, 0, 0, tokens)
    assert (timings.prompt_tokens_per_s, timings.tokens_per_s) == (0, 0)


def test_generated_text_is_frozen_picklable_and_ignores_timings() -> None:
    likely = TokenLogprob(3, -0.5, ((3, -0.5), (1, -2.0)))
    made = GeneratedText("Hi", (3,), "stop", 7, (likely,), TextTimings(0, 1, 7, 0, 1))
    assert str(made) == "Hi" and pickle.loads(pickle.dumps(made)) == made
    assert made == dataclasses.replace(made, timings=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.text = ""  # type: ignore[misc]
