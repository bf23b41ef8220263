"""Speculative decoding gives equal texts: by prompt lookup and by a draft model, alone or both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import clrt
from clrt.generation.engine import DecoderEngine
from clrt.generation.result import GeneratedText
from clrt.generation.text_generator import TextGenerator
from clrt.runtime.opencl.devices import DeviceInfo
from tests.generation.oracle_texts import CONTEXT, PROMPTS
from tests.generation.test_faults import failing
from tests.generation.text_folders import (
    END,
    TEXTS,
    make_generator,
    pages_in_use,
    random_prompts,
    write_encoder_decoder,
    write_texts,
)
from tests.generation.tokenizers_of_tests import byte_level
from tests.harness import all_devices, name_of

OFF: dict[str, Any] = {"lookup_tokens": 0, "draft_tokens": 0}
KINDS: dict[str, dict[str, Any]] = {
    "lookup": {"lookup_tokens": 8, "draft_tokens": 0},
    "draft": {"draft_tokens": 8},
    "both": {"lookup_tokens": 15, "draft_tokens": 5},
}
# Texts of few tokens repeat themselves.
FEW = {token: 25.0 for token in (7, 90, 201, 333)}


def draft_folder(folder: Path, noise: float = 0.03) -> Path:
    """The same decoder with noisy weights: some of its drafts are accepted."""
    write_texts(folder, template=None)
    file = folder / "model.safetensors"
    rng = np.random.default_rng(0)
    tensors = {
        name: x + noise * x.std() * rng.standard_normal(x.shape, np.float32)
        for name, x in load_file(file).items()
    }
    save_file({n: x.astype(np.float32) for n, x in tensors.items()}, file, {"format": "pt"})
    return folder


def pay_always(generator: TextGenerator) -> TextGenerator:
    """Makes every step cost the same, so that tokens are drafted wherever possible."""
    speculation = generator._scheduler.speculation
    speculation.costs.of = lambda tokens: 1.0  # type: ignore[method-assign]
    if speculation._drafter is not None:
        speculation._drafter.guess_s = lambda texts: 0.0  # type: ignore[method-assign]
        speculation._drafter._may_read = lambda text: True  # type: ignore[method-assign]
    return generator


def drafts_in_use(generator: TextGenerator) -> int:
    """Pages of the draft model's cache."""
    drafter = generator._scheduler.speculation._drafter
    assert drafter is not None
    assert not drafter._texts and not drafter._excluded
    return drafter.engine.cache.pool.in_use


@pytest.fixture(scope="module", params=all_devices(), ids=name_of)
def guessing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TextGenerator]:
    """It has a draft model."""
    device: DeviceInfo = request.param
    folder = write_texts(tmp_path_factory.mktemp("texts"), template=None)
    draft = draft_folder(tmp_path_factory.mktemp("draft"))
    with TextGenerator(folder, draft=draft, device=device, sequences=8) as made:
        yield pay_always(made)
        assert pages_in_use(made) == drafts_in_use(made) == 0


def accepted(*texts: GeneratedText) -> int:
    return sum(text.timings.accepted for text in texts if text.timings is not None)


_MANY = [*random_prompts(6, 80), *PROMPTS.values()]
_OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.3, "seed": 3, "top_p": 0.9},
    "drawn_bias": {"temperature": 1.0, "seed": 5, "logit_bias": FEW, "num_return_sequences": 2},
    "penalties": {
        **{"logit_bias": FEW, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        **{"repetition_penalty": 1.2, "temperature": 1.0, "seed": 1},
    },
}
OPTIONS = {name: {"max_new_tokens": 40, **options} for name, options in _OPTIONS.items()}


@pytest.fixture(scope="module")
def plain(guessing: TextGenerator) -> Callable[[str], list[GeneratedText]]:
    """Returns the texts of `_MANY` by a name of `OPTIONS`, without speculation."""
    return cache(lambda name: guessing.generate(_MANY, **OPTIONS[name], **OFF))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_speculative_texts_match_plain_texts(
    guessing: TextGenerator,
    plain: Callable[[str], list[GeneratedText]],
    kind: dict[str, Any],
    name: str,
) -> None:
    """Generates more texts than run at a time, and a single text."""
    prompts, options = _MANY, OPTIONS[name]
    expected = plain(name)
    found = guessing.generate(prompts, **options, **kind)
    assert found == expected
    count = options.get("num_return_sequences", 1)
    alone = guessing.generate(prompts[0], **options, **kind)
    assert (alone if count > 1 else [alone]) == expected[:count]
    assert accepted(*expected) == 0
    if kind != KINDS["lookup"] or "logit_bias" in options:
        assert accepted(*found) > 0


def test_speculative_stops_and_logprobs_match_plain(guessing: TextGenerator) -> None:
    prompt = PROMPTS["page"]
    whole = guessing.generate(prompt, max_new_tokens=60, logit_bias=FEW, **OFF)
    stop = whole.text[len(whole.text) // 2 :][:3]
    for options in ({"stop": stop}, {"stop": stop, "include_stop": True}, {"max_new_tokens": 7}):
        options = {"max_new_tokens": 60, "logit_bias": FEW, **options}
        expected = guessing.generate(prompt, **options, **OFF)
        for kind in KINDS.values():
            assert guessing.generate(prompt, **options, **kind) == expected
    options = {"max_new_tokens": 50, "logit_bias": FEW, "temperature": 0.8, "seed": 2}
    expected = guessing.generate(prompt, logprobs=3, **options, **OFF)
    for kind in KINDS.values():
        found = guessing.generate(prompt, logprobs=3, **options, **kind)
        assert accepted(found) and found.tokens == expected.tokens
        for one, other in zip(found.logprobs, expected.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [t for t, _ in one.top] == [t for t, _ in other.top]
            assert [x for _, x in one.top] == pytest.approx([x for _, x in other.top], abs=1e-5)


def test_speculative_texts_follow_regex(tmp_path: Path) -> None:
    """Each draft position has its mask; a disallowed draft token is dropped."""
    prompt = "red, green, blue, red, green, blue, abc abc abc aaaaaaaa bbbb cccc"
    folder = write_texts(tmp_path / "texts", [END])
    with make_generator(folder, draft=draft_folder(tmp_path / "draft")) as generator:
        pay_always(generator)
        for regex in (r"((red|green|blue), ){4}end", r"[a-c]{30}", r"(abc ){2,9}!"):
            options = {"regex": regex, "max_new_tokens": 60, "temperature": 1.0, "seed": 4}
            for more in ({}, {"logprobs": 1}):
                expected = generator.generate(prompt, **options, **more, **OFF)
                for kind in KINDS.values():
                    found = generator.generate([prompt] * 2, **options, **more, **kind)
                    assert [text.tokens for text in found] == [expected.tokens] * 2
                    assert {text.finish_reason for text in found} == {expected.finish_reason}
                assert accepted(*found) or not more
        assert drafts_in_use(generator) == 0


def test_speculative_and_plain_streams_run_in_parallel(guessing: TextGenerator) -> None:
    """Streams use each kind of draft or none, in several threads, while others are cancelled."""
    prompts = random_prompts(12, 60)
    options: dict[str, Any] = {"max_new_tokens": 30, "logit_bias": FEW}
    expected = [guessing.generate(p, **options, **OFF) for p in prompts]
    kinds = [*KINDS.values(), OFF]

    def run(number: int) -> GeneratedText:
        kind = kinds[number % len(kinds)]
        with guessing.stream(prompts[number // 2], **options, **kind) as stream:
            if number % 6 == 5:
                next(stream)
                stream.cancel()
            pieces = list(stream)
        if number % 6 != 5:
            assert "".join(pieces) == stream.result.text
        return stream.result

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(run, range(24)))
    for number, text in enumerate(found):
        wanted = expected[number // 2].tokens
        assert text.tokens == wanted[: len(text.tokens)]
        assert text.finish_reason == ("cancelled" if number % 6 == 5 else "length")
    assert pages_in_use(guessing) == drafts_in_use(guessing) == 0


def test_speculative_cache_holds_only_accepted_tokens(guessing: TextGenerator) -> None:
    """Prompts that begin with a generated text reuse its pages and continue equally."""
    prompt = [(11 * k + 5) % 450 for k in range(45)]
    for kind in KINDS.values():
        for at in (30, 77, 119):
            guessing._scheduler.engine.reset()  # or other texts may take the pages
            whole = guessing.generate(prompt, max_new_tokens=150, logit_bias=FEW, **kind)
            start = [*prompt, *whole.tokens[:at]]
            rest = guessing.generate(start, max_new_tokens=20, logit_bias=FEW, **OFF)
            assert rest.tokens == whole.tokens[at : at + 20]
            assert rest.timings.prompt_tokens <= 32
            both = guessing.generate([start, start], max_new_tokens=20, logit_bias=FEW, **kind)
            assert [text.tokens for text in both] == [rest.tokens] * 2
        guessing._scheduler.engine.reset()
        assert guessing.generate(prompt, max_new_tokens=150, logit_bias=FEW, **OFF) == whole


def test_speculative_text_cancelled_within_step_frees_pages(
    guessing: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = guessing.generate(PROMPTS["long"], max_new_tokens=60, **OFF)
    other = guessing.stream(PROMPTS["long"], max_new_tokens=60, lookup_tokens=8)
    stream = guessing.stream(PROMPTS["short"], max_new_tokens=60, logit_bias=FEW)
    engine = guessing._scheduler.engine
    step, left = engine.step, [9]

    def cancelling(*args: Any) -> Any:
        found = step(*args)
        left[0] -= 1
        if not left[0]:
            stream.cancel()
        return found

    monkeypatch.setattr(engine, "step", cancelling)
    text = other.result
    assert stream.result.finish_reason == "cancelled" and text == expected
    assert pages_in_use(guessing) == drafts_in_use(guessing) == 0


def test_speculative_text_ends_at_context_and_max_new_tokens(guessing: TextGenerator) -> None:
    for prompt, most in (([9] * (CONTEXT - 13), 50), (PROMPTS["short"], 2), ([9] * CONTEXT, 5)):
        options = {"max_new_tokens": most, "logit_bias": {9: 50.0}}
        expected = guessing.generate(prompt, **options, **OFF)
        for kind in KINDS.values():
            found = guessing.generate(prompt, **options, **kind)
            assert found == expected and found.finish_reason == "length"


def test_speculative_texts_in_event_loop_match_plain(guessing: TextGenerator) -> None:
    async def main() -> list[GeneratedText]:
        asked = [
            guessing.agenerate(p, max_new_tokens=30, logit_bias=FEW, lookup_tokens=8)
            for p in PROMPTS.values()
        ]
        return list(await asyncio.gather(*asked))

    expected = guessing.generate(list(PROMPTS.values()), max_new_tokens=30, logit_bias=FEW, **OFF)
    assert asyncio.run(main()) == expected


def test_speculative_texts_survive_failed_runs(
    guessing: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures of the model or the draft model: other texts continue after an interrupt."""
    options: dict[str, Any] = {"max_new_tokens": 60, "logit_bias": FEW, **KINDS["both"]}
    expected = guessing.generate(PROMPTS["long"], **{**options, **OFF})
    drafter = guessing._scheduler.speculation._drafter
    assert drafter is not None
    with pytest.raises(clrt.InputError, match="num_beams does not go with draft_tokens"):
        guessing.generate("x", num_beams=2, draft_tokens=4)
    for engine in (guessing._scheduler.engine, drafter.engine):
        for error in (KeyboardInterrupt(), clrt.DeviceError("The driver fails.")):
            first = guessing.stream(PROMPTS["short"], **options)
            second = guessing.stream(PROMPTS["long"], **options)
            with monkeypatch.context() as patched:
                failing(engine, error, 3, patched)
                with pytest.raises(type(error)):
                    list(first)
            first.close()
            if isinstance(error, KeyboardInterrupt):
                assert second.result == expected
            else:
                with pytest.raises(clrt.DeviceError, match="The driver fails"):
                    list(second)
            assert pages_in_use(guessing) == drafts_in_use(guessing) == 0
    assert guessing.generate(PROMPTS["long"], **options) == expected


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextGenerator]:
    """Its caches have room for 8 pages each."""

    def room(engine: DecoderEngine) -> int:
        return 8 * engine.cache.page_bytes - engine.cache.nbytes

    monkeypatch.setattr(DecoderEngine, "_free_bytes", property(room))
    draft = draft_folder(tmp_path / "draft")
    with make_generator(write_texts(tmp_path / "texts"), draft=draft) as made:
        yield pay_always(made)


def test_speculative_texts_wait_for_cache_pages(
    small: TextGenerator, endless: TextGenerator
) -> None:
    prompts = random_prompts(7, 90)
    options = {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.2}
    options |= {"max_new_tokens": 40, "logit_bias": FEW}
    expected = endless.generate(prompts, **options)
    for kind in (KINDS["lookup"], KINDS["both"]):
        found = small.generate(prompts, **options, **kind)
        assert found == expected and accepted(*found)
        assert pages_in_use(small) == drafts_in_use(small) == 0
    # All but the last pages of a text that has room alone, and not with its guesses.
    prompt = [9] * (7 * 32 - 20)
    expected = endless.generate(prompt, max_new_tokens=50)
    assert small.generate(prompt, max_new_tokens=50, lookup_tokens=15) == expected


def steps_of(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    engine = generator._scheduler.engine
    step, steps = engine.step, []

    def counted(*args: Any) -> Any:
        steps.append(1)
        return step(*args)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "step", counted)
        generator.generate(PROMPTS["page"], **options)
    return len(steps)


def test_speculative_decoding_takes_fewer_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses an always accepted draft model, and prompt lookup in a repetitive text."""
    folder = write_texts(tmp_path / "texts", template=None)
    with make_generator(folder, draft=folder) as generator:
        pay_always(generator)
        for options in ({}, {"temperature": 1.0, "seed": 3}):
            options = {"max_new_tokens": 97, **options}
            assert steps_of(generator, monkeypatch, **options, **OFF) == 97
            assert steps_of(generator, monkeypatch, **options, draft_tokens=7) <= 16
        repeating = {"max_new_tokens": 97, "logit_bias": {7: 50.0, 90: 50.0}}
        steps = steps_of(generator, monkeypatch, **repeating, lookup_tokens=15, draft_tokens=0)
        assert steps <= 50
        found = generator.generate(PROMPTS["page"], max_new_tokens=97, draft_tokens=7)
        timings = found.timings
        assert timings.drafted >= timings.accepted > 70
        assert f"{timings.accepted} of {timings.drafted} guessed tokens" in str(timings)


def test_draft_model_skips_prompt_that_is_slow_to_read(
    guessing: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft model reads a prompt only if that is cheap relative to the text."""
    drafter = guessing._scheduler.speculation._drafter
    prompt = [(13 * k + 3) % 450 for k in range(80)]
    options: dict[str, Any] = {"max_new_tokens": 30, **KINDS["draft"]}
    monkeypatch.delattr(drafter, "_may_read")
    monkeypatch.setattr(drafter, "_read_s", 1e6)
    found = guessing.generate(prompt, **options)
    assert found.timings.drafted == 0
    monkeypatch.setattr(drafter, "_read_s", 1e-9)
    assert guessing.generate(prompt, **options) == found
    monkeypatch.setattr(drafter, "_has_read", True)
    other = guessing.generate(prompt[::-1], **options)
    assert other.timings.drafted > 0 and 0 < drafter._read_s < 1e-8


def test_draft_model_of_shorter_context_stops_drafting(
    tmp_path: Path, endless: TextGenerator
) -> None:
    """Texts continue without drafts, also if the draft model lacks embeddings of their tokens."""
    folder = write_texts(tmp_path / "texts", template=None)
    draft = write_texts(tmp_path / "draft", template=None)
    config = (draft / "config.json").read_text().replace(str(CONTEXT), "96")
    (draft / "config.json").write_text(config)
    with make_generator(folder, draft=draft) as generator:
        pay_always(generator)
        found = generator.generate(PROMPTS["long"], max_new_tokens=60)
        assert list(found.tokens) == TEXTS["greedy"]["long"][:60]
        assert 0 < accepted(found) < 12
        assert drafts_in_use(generator) == 0
        drafter = generator._scheduler.speculation._drafter
        drafter._vocabulary = 300
        assert (
            list(generator.generate(PROMPTS["one"], max_new_tokens=9).tokens)
            == (TEXTS["greedy"]["one"][:9])
        )


def test_encoder_decoder_lookup_matches_plain(tmp_path: Path) -> None:
    """Lookup also searches the encoder's input. Draft models are refused for these models."""
    folder = write_encoder_decoder(tmp_path / "t5")
    with make_generator(folder, sequences=8) as generator:
        pay_always(generator)
        prompts = [[7, 90, 201, 7, 90, 333] * 5, *random_prompts(3, 40)]
        for options in ({"max_new_tokens": 30}, {"max_new_tokens": 30, "logit_bias": FEW}):
            expected = generator.generate(prompts, **options)
            found = generator.generate(prompts, **options, lookup_tokens=8)
            assert found == expected and pages_in_use(generator) == 0
        assert accepted(*found) > 0
    for one, other in ((folder, folder), (folder, write_texts(tmp_path / "texts"))):
        with pytest.raises(clrt.UnsupportedError, match="`draft=` works only for models without"):
            make_generator(one, draft=other)


def test_draft_model_of_other_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts")
    draft = write_texts(tmp_path / "draft")
    tokenizer = Tokenizer.from_str(byte_level().to_str())  # byte_level() is shared
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save(str(draft / "tokenizer.json"))
    with pytest.raises(
        clrt.InputError, match=r"another vocabulary: token 4\d\d is none in 'texts' and"
    ):
        make_generator(folder, draft=draft)
    with pytest.raises(clrt.InputError, match="The draft is 3"):
        make_generator(folder, draft=3)
    with pytest.raises(clrt.ModelError):
        make_generator(folder, draft=tmp_path / "absent")


def test_invalid_speculative_options_are_refused(endless: TextGenerator) -> None:
    for options, message in (
        (
            {"draft_tokens": 4},
            "draft_tokens needs a draft model; create the generator with `draft=`",
        ),
        ({"lookup_tokens": 64}, "lookup_tokens is 64; expected a whole number from 0 to 63"),
        ({"lookup_tokens": 4, "num_beams": 2}, "num_beams does not go with lookup_tokens"),
        ({"draft_tokens": True}, "draft_tokens is True; expected a whole number"),
        ({"prompt_lookup_num_tokens": 64}, "lookup_tokens is 64"),
        ({"num_assistant_tokens": 4}, "draft_tokens needs a draft model"),
    ):
        with pytest.raises(clrt.InputError, match=message):
            endless.generate("x", **options)
    assert endless.generate("x", draft_tokens=0, max_new_tokens=2).tokens


def test_drafting_stops_if_unprofitable(endless: TextGenerator) -> None:
    """According to the step time model; the text is unchanged."""
    options: dict[str, Any] = {"max_new_tokens": 100, "logit_bias": FEW}
    expected = endless.generate(PROMPTS["page"], **options)
    costs = endless._scheduler.speculation.costs
    assert costs.of(1) > 0
    for dear in (False, True):
        costs._seconds = {1: 1.0, 64: 640.0 if dear else 1.0}
        note, costs.note = costs.note, lambda tokens, seconds: None  # type: ignore[method-assign]
        found = endless.generate(PROMPTS["page"], lookup_tokens=15, **options)
        costs.note = note  # type: ignore[method-assign]
        assert found == expected
        assert (found.timings.drafted == 0) == dear
