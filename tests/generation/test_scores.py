"""Perplexities against transformers, scores and vectors of texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clrt
from clrt.generation import scoring
from clrt.generation.text_generator import TextGenerator
from tests.generation.checkpoints import noise
from tests.generation.oracle_texts import CONTEXT, PROMPTS
from tests.generation.text_folders import TEXTS, computed, pages_in_use, random_prompts


def test_perplexities(endless: TextGenerator) -> None:
    for name, expected in TEXTS["perplexities"].items():
        assert endless.perplexity(PROMPTS[name]) == pytest.approx(expected, rel=1e-4)
    score = endless.score(PROMPTS["long"])
    assert np.exp(-score.mean()) == pytest.approx(TEXTS["perplexities"]["long"], rel=1e-4)


def test_scores_together_as_one_by_one(
    endless: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*random_prompts(9, 90), [5]]
    alone = [endless.score(text) for text in texts]
    for most in (1 << 24, 450 * 7):  # some tokens at a time
        monkeypatch.setattr(scoring, "_MOST_LOGITS", most)
        for found, expected in zip(endless.score(texts), alone, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)
    assert [len(score) for score in alone] == [len(text) - 1 for text in texts]
    assert pages_in_use(endless) == 0


def test_a_long_text_is_read_in_windows(endless: TextGenerator) -> None:
    tokens = random_prompts(1, 3)[0] * 2 + [(11 * k) % 450 for k in range(CONTEXT + 90)]
    stride, seen, sums, count = 100, 0, 0.0, 0
    for start in range(0, len(tokens), stride):
        window = tokens[start : start + CONTEXT]
        part = endless.score(window)[max(seen - start, 1) - 1 :]
        sums, count, seen = sums + float(part.sum()), count + len(part), start + len(window)
        if seen == len(tokens):
            break
    assert count == len(tokens) - 1
    assert endless.perplexity(tokens, stride=stride) == pytest.approx(np.exp(-sums / count), 1e-4)
    assert endless.perplexity(tokens) > 1
    before = computed(endless)
    endless.perplexity(tokens, stride=CONTEXT)
    assert computed(endless) - before <= len(tokens)


def test_vectors(endless: TextGenerator) -> None:
    """What the logits are made of: the last one gives the token that follows."""
    prompts = random_prompts(6, 70)
    last = endless.embed(prompts, pooling="last")
    assert last.shape == (6, TEXTS["config"]["hidden_size"]) and last.dtype == np.float32
    head = noise("lm_head.weight", tuple(TEXTS["tensors"]["lm_head.weight"]))
    following = endless.generate(prompts, max_new_tokens=1)
    assert (last @ head.T).argmax(axis=1).tolist() == [text.tokens[0] for text in following]
    mean = endless.embed(prompts)
    for prompt, vector in zip(prompts, mean, strict=True):
        parts = [endless.embed(prompt[: k + 1], pooling="last") for k in range(len(prompt))]
        np.testing.assert_allclose(vector, np.mean(parts, axis=0), atol=1e-4)
        break
    assert endless.embed("The quick").shape == mean.shape[1:]
    assert pages_in_use(endless) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.perplexity([5]), "fewer than two tokens"),
        (lambda g: g.perplexity("x", stride=0), "stride is 0"),
        (lambda g: g.perplexity("xyz", stride=1.5), "stride is 1.5"),
        (lambda g: g.embed("x", pooling="max"), "pooling is 'max'; it is one of mean, last"),
        (lambda g: g.embed(""), "no tokens"),
        (lambda g: g.score([[5], [6] * 400]), "and the context 320"),
    ],
)
def test_wrong_calls(endless: TextGenerator, call: Any, message: str) -> None:
    with pytest.raises(clrt.InputError, match=message):
        call(endless)
    assert pages_in_use(endless) == 0
