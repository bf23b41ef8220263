"""Perplexity against transformers, and scores and embeddings of texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

import clrt
from clrt.generation import scoring
from clrt.generation.text_generator import TextGenerator
from tests.generation.checkpoints import noise
from tests.generation.oracle_texts import CONTEXT, PROMPTS
from tests.generation.text_folders import (
    TEXTS,
    computed,
    make_generator,
    pages_in_use,
    random_prompts,
    write_texts,
)


def test_perplexity_matches_transformers(endless: TextGenerator) -> None:
    for name, expected in TEXTS["perplexities"].items():
        assert endless.perplexity(PROMPTS[name]) == pytest.approx(expected, rel=1e-4)
    score = endless.score(PROMPTS["long"])
    assert np.exp(-score.mean()) == pytest.approx(TEXTS["perplexities"]["long"], rel=1e-4)


def test_batched_scores_match_single_scores(
    endless: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*random_prompts(9, 90), [5]]
    alone = [endless.score(text) for text in texts]
    for most in (1 << 24, 450 * 7):  # some tokens at a time
        monkeypatch.setattr(scoring, "_MAX_LOGITS", most)
        for found, expected in zip(endless.score(texts), alone, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)
    assert [len(score) for score in alone] == [len(text) - 1 for text in texts]
    assert pages_in_use(endless) == 0


def test_perplexity_of_long_text_uses_strided_windows(endless: TextGenerator) -> None:
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


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model whose tokenizer begins texts with token 7."""
    folder = write_texts(tmp_path_factory.mktemp("begun"), template=None)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 7)]
    )
    library.save(str(folder / "tokenizer.json"))
    with make_generator(folder, context=64) as made:
        yield made


TEXT = "The quick brown fox does not jump over what lies there, and it says so. " * 6


@pytest.mark.parametrize("stride", [None, 10, 63, 64])
def test_perplexity_windows_begin_with_bos(begun: TextGenerator, stride: int | None) -> None:
    body = begun.tokenizer.encode(TEXT, add_special_tokens=False).ids
    step, seen, scores = min(stride or 32, 63), 0, list[float]()
    for start in range(0, len(body), step):
        window = body[start : start + 63]
        scores += begun.score([7, *window])[max(seen - start, 0) :].tolist()
        seen = start + len(window)
        if seen == len(body):
            break
    assert len(scores) == len(body)
    assert begun.perplexity(TEXT, stride) == pytest.approx(np.exp(-np.mean(scores)), rel=1e-4)
    assert begun.perplexity([7, *body], stride) == begun.perplexity(TEXT, stride)


@pytest.mark.parametrize("given_tokens", [False, True])
def test_perplexity_llama_cpp_mode_scores_second_halves(
    begun: TextGenerator, endless: TextGenerator, given_tokens: bool
) -> None:
    """Token by token, as llama-perplexity is written."""
    tokens = begun.tokenizer.encode(TEXT).ids
    logs = []
    for chunk in range(len(tokens) // 64):
        window = [7, *tokens[chunk * 64 + 1 : (chunk + 1) * 64]]
        logs += [begun.score(window)[place] for place in range(32, 63)]
    found = begun.perplexity(tokens if given_tokens else TEXT, compare="llama.cpp")
    assert found == pytest.approx(np.exp(-np.mean(logs)), rel=1e-4)
    # Without BOS a window keeps its first token.
    plain = [(11 * k) % 450 for k in range(2 * CONTEXT + 5)]
    halves = [endless.score(plain[k : k + CONTEXT])[CONTEXT // 2 :] for k in (0, CONTEXT)]
    found = endless.perplexity(plain, compare="llama.cpp")
    assert found == pytest.approx(np.exp(-np.mean(np.concatenate(halves))), rel=1e-4)


def test_embeddings_match_logits_and_mean_of_tokens(endless: TextGenerator) -> None:
    """Hidden states before the output head: the last one gives the next token."""
    prompts = random_prompts(6, 70)
    last = endless.embed(prompts, pooling="last")
    assert last.shape == (6, TEXTS["config"]["hidden_size"]) and last.dtype == np.float32
    head = noise("lm_head.weight", tuple(TEXTS["tensors"]["lm_head.weight"]))
    following = endless.generate(prompts, max_new_tokens=1)
    assert (last @ head.T).argmax(axis=1).tolist() == [text.tokens[0] for text in following]
    mean = endless.embed(prompts)
    first = prompts[0]
    parts = [endless.embed(first[: k + 1], pooling="last") for k in range(len(first))]
    np.testing.assert_allclose(mean[0], np.mean(parts, axis=0), atol=1e-4)
    assert endless.embed("The quick").shape == mean.shape[1:]
    assert pages_in_use(endless) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.perplexity([5]), "fewer than two tokens"),
        (lambda g: g.perplexity("x", stride=0), "stride is 0"),
        (lambda g: g.perplexity("xyz", stride=1.5), "stride is 1.5"),
        (lambda g: g.perplexity("xyz", compare="ollama"), "compare is 'ollama'"),
        (lambda g: g.perplexity("xyz", 3, compare="llama.cpp"), "have no stride"),
        (lambda g: g.perplexity("xyz", compare="llama.cpp"), "two windows of the context, 640"),
        (lambda g: g.embed("x", pooling="max"), "pooling is 'max'; expected one of mean, last"),
        (lambda g: g.embed(""), "no tokens"),
        (lambda g: g.score([[5], [6] * 400]), "and the context 320"),
    ],
)
def test_invalid_score_calls_are_refused(endless: TextGenerator, call: Any, message: str) -> None:
    with pytest.raises(clrt.InputError, match=message):
        call(endless)
    assert pages_in_use(endless) == 0
