"""LongRoPE: all tokens of a text use the frequencies for its length, as in transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from clrt import TextGenerator
from clrt.generation.compiled import read_compiled_language_model, write_language_model
from clrt.generation.model_reader import read_language_model
from tests.generation.checkpoints import DATA, load_json, tokens, write_folder
from tests.generation.oracle_decoders import LENGTHS, VOCABULARY
from tests.generation.oracle_texts import LONG_PROMPTS, LONG_SCORED, LONG_STEPS
from tests.generation.text_folders import make_generator

CASE = load_json()["phi3_long"]
EXPECTED = json.loads((DATA / "longrope.json").read_text(encoding="utf-8"))
TEXT: list[int] = tokens(LENGTHS[0]).tolist()
TOLERANCE = 1e-4
BORDER = 32


def write_model(folder: Path, **config: Any) -> Path:
    """The folder of the model, with changes of its config.json."""
    write_folder(folder, {**CASE, "config": {**CASE["config"], **config}})
    library = Tokenizer(models.WordLevel({f"t{k}": k for k in range(VOCABULARY)}, unk_token="t0"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("phi3"))


@pytest.fixture(scope="module")
def generator(folder: Path) -> Iterator[TextGenerator]:
    with make_generator(folder) as made:
        yield made


def check_greedy(model: TextGenerator, length: int, **options: Any) -> None:
    """Asserts that the greedy continuation of `TEXT[:length]` matches transformers."""
    found = model.generate(TEXT[:length], max_new_tokens=LONG_STEPS, logprobs=1, **options)
    wanted = EXPECTED["greedy"][str(length)]
    assert list(found.tokens) == wanted["tokens"]
    assert found.logprobs is not None
    got = [one.logprob for one in found.logprobs]
    np.testing.assert_allclose(got, wanted["logprobs"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", LONG_SCORED)
def test_longrope_scores_match_transformers(generator: TextGenerator, length: int) -> None:
    found = generator.score(TEXT[:length])
    np.testing.assert_allclose(found, EXPECTED["scores"][str(length)], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", LONG_PROMPTS)
def test_longrope_text_is_recomputed_beyond_original_length(
    generator: TextGenerator, length: int
) -> None:
    check_greedy(generator, length)


def test_longrope_prefix_cache_separates_short_and_long_texts(folder: Path) -> None:
    with make_generator(folder) as model:
        for length in (40, 20, 33, 32, 40):
            check_greedy(model, length)


def test_longrope_short_and_long_texts_run_in_one_batch(generator: TextGenerator) -> None:
    prompts = [TEXT[:length] for length in LONG_PROMPTS]
    found = generator.generate(prompts, max_new_tokens=LONG_STEPS)
    wanted = [EXPECTED["greedy"][str(length)]["tokens"] for length in LONG_PROMPTS]
    assert [list(one.tokens) for one in found] == wanted


def test_longrope_drafts_do_not_switch_frequencies(generator: TextGenerator) -> None:
    for length in LONG_PROMPTS:
        check_greedy(generator, length, lookup_tokens=8)


def test_longrope_beams_are_recomputed_beyond_original_length(generator: TextGenerator) -> None:
    prompt = TEXT[:30]
    found = generator.generate(prompt, num_beams=2, max_new_tokens=6, logprobs=1)
    assert found.logprobs is not None
    for k, one in enumerate(found.logprobs):
        before = [*prompt, *found.tokens[:k]]
        fresh = generator.generate(before, max_new_tokens=1, logprobs=20)
        assert fresh.logprobs is not None
        wanted = dict(fresh.logprobs[0].top)[one.token]
        assert one.logprob == pytest.approx(wanted, abs=TOLERANCE)


def test_longrope_scores_are_independent_of_context(tmp_path: Path) -> None:
    with make_generator(write_model(tmp_path), context=BORDER) as model:
        np.testing.assert_allclose(model.score(TEXT[:12]), EXPECTED["scores"]["12"], atol=TOLERANCE)


@pytest.mark.parametrize("length", [BORDER, BORDER + 1])
def test_longrope_saved_cache_keeps_its_frequencies(
    folder: Path, tmp_path: Path, length: int
) -> None:
    with make_generator(folder) as model:
        model.save_cache(tmp_path / "cache", TEXT[:length])
    with make_generator(folder) as model:
        model.load_cache(tmp_path / "cache")
        for prompt in (BORDER, BORDER + 1, 40):
            check_greedy(model, prompt)


def test_compiled_longrope_model_keeps_original_length(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "phi3.clrt"
    write_language_model(read_language_model(folder, None, "float32"), path, "float32", "test")
    assert read_compiled_language_model(path, None, "float32").decoder.long_beyond == BORDER
    with make_generator(path) as model:
        check_greedy(model, 31)
