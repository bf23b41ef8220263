"""TextGenerator: texts against transformers, options, streams, and errors."""

from __future__ import annotations

import gc
import json
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.generation.text_generator import TextGenerator
from clrt.runtime.opencl.session import session_for
from tests.generation.oracle_texts import CONTEXT, GREEDY, PROMPTS, VOCABULARY
from tests.generation.text_folders import (
    TEXTS,
    computed,
    make_generator,
    pages_in_use,
    random_prompts,
    write_texts,
)
from tests.harness import quick_device


def test_greedy_texts_match_transformers(endless: TextGenerator) -> None:
    """All prompts in one call."""
    found = endless.generate(list(PROMPTS.values()), max_new_tokens=GREEDY)
    for name, text in zip(PROMPTS, found, strict=True):
        assert list(text.tokens) == TEXTS["greedy"][name], name
        assert text.finish_reason == "length" and text.prompt_tokens == len(PROMPTS[name])
        assert text.text == str(text) == endless.tokenizer.decode(list(text.tokens))


def test_batched_texts_match_single_texts(endless: TextGenerator) -> None:
    """Greedy and sampled; more texts than run at a time."""
    prompts = random_prompts(11, 80)
    for options in ({}, {"temperature": 1.0, "top_k": 20, "seed": 3}):
        options = {"max_new_tokens": 20, **options}
        together = endless.generate(prompts, **options)
        assert together == [endless.generate(prompt, **options) for prompt in prompts]


def test_text_prompt_matches_token_prompt(endless: TextGenerator) -> None:
    text = "The quick brown fox"
    tokens = endless.tokenizer.encode(text).ids
    assert endless.generate(text, max_new_tokens=5) == endless.generate(tokens, max_new_tokens=5)
    both = endless.generate([text, np.array(tokens)], max_new_tokens=5)
    assert len(both) == 2 and both[0] == both[1]
    assert len(endless.generate([text], max_new_tokens=1)) == 1


def test_seed_makes_sampling_reproducible(endless: TextGenerator) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 12}
    one, two, other = (endless.generate("x", seed=seed, **options) for seed in (1, 1, 2))
    assert one == two != other
    assert endless.generate("x", **options) != endless.generate("x", **options)
    several = endless.generate("x", seed=1, num_return_sequences=3, **options)
    assert several[0] == one and len({text.tokens for text in several}) == 3
    four = endless.generate(["x", "y"], seed=1, num_return_sequences=2, **options)
    assert four[:2] == several[:2] and len(four) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.5, "top_k": 1},
        {"temperature": 1.5, "top_p": 1e-6},
        {"temperature": 1.5, "min_p": 1.0},
        {"temperature": 1e-4, "typical_p": 1.0},
    ],
)
def test_narrow_sampling_options_give_greedy_text(
    endless: TextGenerator, options: dict[str, Any]
) -> None:
    found = endless.generate(PROMPTS["short"], max_new_tokens=20, seed=5, **options)
    assert list(found.tokens) == TEXTS["greedy"]["short"][:20]


def test_sampling_object_matches_keyword_options(endless: TextGenerator) -> None:
    given = clrt.Sampling(temperature=1.0, seed=3, max_new_tokens=9)
    found = endless.generate("x", sampling=given)
    assert found == endless.generate("x", temperature=1.0, seed=3, max_new_tokens=9)
    assert len(endless.generate("x", sampling=given, max_new_tokens=2).tokens) == 2
    with pytest.raises(clrt.InputError, match=r"expected a clrt\.Sampling"):
        endless.generate("x", sampling={"seed": 1})  # type: ignore[typeddict-item]


def test_logit_bias_and_repetition_penalty_are_applied(endless: TextGenerator) -> None:
    prompt, greedy = PROMPTS["short"], TEXTS["greedy"]["short"]
    banned = endless.generate(prompt, max_new_tokens=20, logit_bias={greedy[0]: float("-inf")})
    assert greedy[0] not in banned.tokens
    wanted = endless.generate(prompt, max_new_tokens=3, logit_bias={7: 1000.0})
    assert wanted.tokens == (7, 7, 7)
    assert len(set(endless.generate(prompt, max_new_tokens=60, repetition_penalty=1e6).tokens)) > 58


def test_stop_text_across_tokens_ends_generation(endless: TextGenerator) -> None:
    whole = endless.generate(PROMPTS["page"], max_new_tokens=60)
    pieces = [endless.tokenizer.decode([token]) for token in whole.tokens]
    ends = np.cumsum([len(piece) for piece in pieces[:20]])
    for end in ends[5:]:
        stop = whole.text[end - 1 : end + 1]
        if "�" in stop:
            continue
        before = whole.text.partition(stop)[0]
        for stops in (stop, ["never", stop]):
            found = endless.generate(PROMPTS["page"], max_new_tokens=60, stop=stops)
            assert found.text == before and found.finish_reason == "stop"
        found = endless.generate(PROMPTS["page"], max_new_tokens=60, stop=stop, include_stop=True)
        assert found.text == before + stop
        return
    raise AssertionError("no pair of letters lies across two tokens")


def test_eos_token_ends_generation(tmp_path: Path) -> None:
    greedy = TEXTS["greedy"]["short"]
    end = greedy.index(greedy[5])
    with make_generator(write_texts(tmp_path, [greedy[5]])) as generator:
        found = generator.generate(PROMPTS["short"])
        assert found.tokens == tuple(greedy[: end + 1]) and found.finish_reason == "stop"
        assert found.text == generator.tokenizer.decode(greedy[:end])


def test_stream_pieces_join_to_generated_text(endless: TextGenerator) -> None:
    whole = endless.generate(PROMPTS["long"], max_new_tokens=50)
    with endless.stream(PROMPTS["long"], max_new_tokens=50) as stream:
        pieces = list(stream)
    assert "".join(pieces) == whole.text and all(pieces)
    assert stream.result == whole
    stream = endless.stream(PROMPTS["long"], max_new_tokens=50)
    next(stream)
    assert stream.result == whole


def test_stream_pieces_contain_whole_characters(endless: TextGenerator) -> None:
    text = "日本語🎉" * 3
    tokens = endless.tokenizer.encode(text).ids
    for token, following in pairwise(tokens):
        forced = {token: 1e6}
        stream = endless.stream([following], max_new_tokens=1, logit_bias=forced)
        assert "".join(stream) == endless.tokenizer.decode([token])


def test_closed_stream_stops_and_frees_pages(endless: TextGenerator) -> None:
    stream = endless.stream(PROMPTS["long"], max_new_tokens=200)
    first = [next(stream) for _ in range(3)]
    before = computed(endless)
    stream.close()
    assert list(stream) == [] and computed(endless) == before
    assert pages_in_use(endless) == 0
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text == "".join(first)
    assert "cancelled" in repr(stream)


def test_deleted_stream_frees_pages(endless: TextGenerator) -> None:
    stream = endless.stream(PROMPTS["long"], max_new_tokens=200)
    next(stream)
    assert pages_in_use(endless)
    del stream
    gc.collect()
    assert pages_in_use(endless) == 0


def test_logprobs_match_scores_and_are_sorted(endless: TextGenerator) -> None:
    prompt = PROMPTS["short"]
    assert endless.generate(prompt, max_new_tokens=4).logprobs is None
    found = endless.generate(prompt, max_new_tokens=20, temperature=1.0, seed=4, logprobs=5)
    assert [told.token for told in found.logprobs] == list(found.tokens)
    scores = endless.score([*prompt, *found.tokens])[len(prompt) - 1 :]
    np.testing.assert_allclose([told.logprob for told in found.logprobs], scores, atol=1e-4)
    for told in found.logprobs:
        values = [logprob for _, logprob in told.top]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert told.logprob <= values[0] + 1e-4
        assert dict(told.top).get(told.token, told.logprob) == pytest.approx(told.logprob, abs=1e-4)


def test_generation_timings_count_prompt_and_new_tokens(endless: TextGenerator) -> None:
    found = endless.generate([[k] * 40 for k in (5, 6)], max_new_tokens=6)
    for text in found:
        timings = text.timings
        assert timings.load_s == 0 < timings.prompt_s and timings.tokens_s > 0
        assert (timings.prompt_tokens, timings.tokens) == (40, 6)
    again = endless.generate([5] * 40, max_new_tokens=6)
    assert again == found[0] and again.timings.prompt_tokens == 8


def test_first_generation_includes_load_time(tmp_path: Path) -> None:
    with make_generator(write_texts(tmp_path)) as generator:
        first, second = (generator.generate("x", max_new_tokens=1) for _ in range(2))
    assert first.timings.load_s > 0 == second.timings.load_s


def test_generation_ends_at_context(endless: TextGenerator) -> None:
    found = endless.generate([9] * (CONTEXT - 4), max_new_tokens=50)
    assert len(found.tokens) == 4 and found.finish_reason == "length"
    assert len(endless.generate([9] * CONTEXT, max_new_tokens=50).tokens) == 1


def test_generation_config_of_folder_sets_defaults(tmp_path: Path) -> None:
    proposed = {"max_new_tokens": 3, "do_sample": True, "temperature": 2.0, "num_beams": 2}
    with make_generator(write_texts(tmp_path, sampling=proposed)) as generator:
        with pytest.raises(clrt.UnsupportedError, match="do_sample with num_beams 2"):
            generator.generate("x")
        assert len(generator.generate("x", num_beams=2).tokens) == 3
        greedy = generator.generate(PROMPTS["short"], num_beams=1, temperature=0)
        assert list(greedy.tokens) == TEXTS["greedy"]["short"][:3]
        stream = generator.stream(PROMPTS["short"], temperature=0)
        assert stream.result == greedy
        assert generator.generate(PROMPTS["short"], temperature=0) == greedy


def test_float16_cache_matches_greedy_text(tmp_path: Path) -> None:
    with make_generator(write_texts(tmp_path), cache="float16", context=100) as generator:
        found = generator.generate(PROMPTS["short"], max_new_tokens=8)
        assert list(found.tokens) == TEXTS["greedy"]["short"][:8]
        assert generator.context == 100


WRONG_PROMPTS: list[tuple[Any, str]] = [
    ("", "no tokens"),
    ([], "an empty list"),
    (["x", ""], "no tokens"),
    ([VOCABULARY], r"token 450; the model has embeddings of 0 to 449"),
    ([-1], "token -1"),
    ([1, "x"], "token 'x'"),
    ([True, 1], "token True"),
    (7, "The prompt is 7"),
    ([["a", ["b"]]], "several prompts are one list"),
    ({"role": "user"}, "The prompt is {'role'"),
    ("\ud800", "not valid Unicode"),
    ([9] * (CONTEXT + 1), "has 321 tokens, and the context 320"),
    ([{"role": "user", "content": "Hello"}], "has no chat template; give the prompt as text"),
]


@pytest.mark.parametrize(("prompt", "message"), WRONG_PROMPTS)
def test_invalid_prompts_are_refused(endless: TextGenerator, prompt: Any, message: str) -> None:
    with pytest.raises(clrt.InputError, match=message):
        endless.generate(prompt, max_new_tokens=2)
    assert pages_in_use(endless) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "no option 'temprature'; did you mean 'temperature'"),
        ({"max_tokens": 1}, "did you mean 'max_new_tokens'"),
        ({"zzz": 1}, "there are max_new_tokens, "),
        ({"template_variables": 3}, "template_variables is 3"),
        ({"logit_bias": {450: 1.0}}, "logit_bias has the token 450; the model has tokens 0 to 449"),
        ({"num_beams": 10**9}, "num_beams is 1000000000; expected a whole number from 1 to 1024"),
        ({"num_return_sequences": 10**9}, "expected a whole number from 1 to 65536"),
        ({"top_p": 2}, "top_p is 2"),
        ({"regex": "a", "grammar": "b"}, "one of json_schema, regex and grammar"),
        ({"num_beams": 2, "temperature": 1.0}, "num_beams does not go with temperature"),
        ({"num_beams": 2, "regex": "a"}, "num_beams does not go with regex"),
    ],
)
def test_invalid_generation_options_are_refused(
    chatting: TextGenerator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(clrt.InputError, match=message):
        chatting.generate("x", **options)


def test_stream_of_several_texts_is_refused(endless: TextGenerator) -> None:
    for options in ({"num_beams": 2}, {"num_return_sequences": 2}):
        with pytest.raises(clrt.InputError, match="`stream` returns one text"):
            endless.stream("x", **options)
    with pytest.raises(clrt.InputError, match="several prompts"):
        endless.stream(["x", "y"])


def test_invalid_generator_arguments_are_refused(tmp_path: Path) -> None:
    write_texts(tmp_path)
    for options in ({"cache": "int4"}, {"context": 0}, {"sequences": 0}):
        with pytest.raises(clrt.InputError, match=next(iter(options))):
            make_generator(tmp_path, **options)
    for source in (tmp_path / ("x" * 300), tmp_path / "a\0b", tmp_path / "none"):
        with pytest.raises(clrt.ModelError, match="cannot be read: "):
            make_generator(source)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(clrt.ModelError, match=r"tokenizer\.json"):
        make_generator(tmp_path)


def test_close_frees_device_memory(tmp_path: Path) -> None:
    session = session_for(quick_device())
    gc.collect()
    session.trim()
    before = session.allocated_bytes
    with make_generator(write_texts(tmp_path)) as generator:
        generator.generate("x", max_new_tokens=3)
        assert session.allocated_bytes > before
    gc.collect()
    assert session.allocated_bytes <= before


def test_closed_generator_refuses_calls(tmp_path: Path) -> None:
    with make_generator(write_texts(tmp_path)) as generator:
        assert "TextGenerator" in repr(generator) and "llama" in repr(generator)
        stream = generator.stream("x", max_new_tokens=100)
        next(stream)
    generator.close()
    with pytest.raises(clrt.InputError, match="generator is closed"):
        stream.result  # noqa: B018
    for call in (generator.generate, generator.stream, generator.score, generator.embed):
        with pytest.raises(clrt.InputError, match="generator is closed"):
            call("xyz")


def test_huge_context_allocates_no_memory_upfront(tmp_path: Path) -> None:
    """The context in config.json reserves no memory."""
    folder = write_texts(tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["max_position_embeddings"] = 1 << 30
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with make_generator(folder) as generator:
        found = generator.generate(PROMPTS["short"], max_new_tokens=20)
        assert list(found.tokens) == TEXTS["greedy"]["short"][:20]
        engine = generator._scheduler.engine
        assert prod(engine._table.shape) < 1 << 20
        assert engine.cache.nbytes < 1 << 20


def test_extreme_option_values_do_not_overflow(
    chatting: TextGenerator, recwarn: pytest.WarningsRecorder
) -> None:
    greedy = chatting.generate(PROMPTS["short"], max_new_tokens=9)
    for options in ({"temperature": 1e-300}, {"logit_bias": {3: -1e300}}):
        assert chatting.generate(PROMPTS["short"], max_new_tokens=9, **options) == greedy
    assert len(chatting.generate(PROMPTS["short"], max_new_tokens=9, temperature=1e300).tokens) > 0
    biased = chatting.generate(PROMPTS["short"], max_new_tokens=3, logit_bias={3: 1e300})
    assert biased.tokens == (3, 3, 3) and not recwarn.list
