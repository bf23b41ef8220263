"""Failures during generation: full cache, failed runs, unsatisfiable rules."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import clrt
from clrt.generation import forced_decoding, scoring
from clrt.generation.engine import CHUNK, DecoderEngine
from clrt.generation.kv_cache import KvCache
from clrt.generation.text_generator import TextGenerator
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from tests.generation.oracle_texts import CONTEXT, PROMPTS
from tests.generation.text_folders import (
    TEXTS,
    computed,
    make_generator,
    pages_in_use,
    random_prompts,
    write_texts,
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextGenerator]:
    """Its cache has room for 8 pages."""
    monkeypatch.setattr(DecoderEngine, "_free_bytes", property(lambda self: self._left_bytes(8)))
    monkeypatch.setattr(DecoderEngine, "_left_bytes", _left_bytes, raising=False)
    with make_generator(write_texts(tmp_path)) as made:
        yield made


def _left_bytes(engine: DecoderEngine, pages: int) -> int:
    return pages * engine.cache.page_bytes - engine.cache.nbytes


def test_texts_wait_for_cache_pages(small: TextGenerator, endless: TextGenerator) -> None:
    prompts = random_prompts(7, 90)
    found = small.generate(prompts, max_new_tokens=40)
    assert found == endless.generate(prompts, max_new_tokens=40)
    assert pages_in_use(small) == 0
    drawn = {"max_new_tokens": 40, "temperature": 1.0, "seed": 4, "repetition_penalty": 1.2}
    assert small.generate(prompts, **drawn) == endless.generate(prompts, **drawn)


def test_text_exceeding_kv_cache_fails_without_affecting_others(small: TextGenerator) -> None:
    streams = [
        small.stream(prompt, max_new_tokens=60)
        for prompt in (PROMPTS["short"], [9] * (9 * PAGE_TOKENS), PROMPTS["one"])
    ]
    with pytest.raises(clrt.OutOfMemoryError, match="cannot hold more than 256 tokens"):
        streams[1].result  # noqa: B018
    for stream, name in ((streams[0], "short"), (streams[2], "one")):
        assert list(stream.result.tokens) == TEXTS["greedy"][name][:60]
    assert pages_in_use(small) == 0
    for call in (small.embed, small.score):
        with pytest.raises(clrt.OutOfMemoryError):
            call([9] * (9 * PAGE_TOKENS))
        assert pages_in_use(small) == 0
    with pytest.raises(clrt.OutOfMemoryError):
        small.generate(PROMPTS["long"], num_beams=8, max_new_tokens=50)
    assert pages_in_use(small) == 0 and small.generate("x", max_new_tokens=2).tokens


def test_generation_scores_and_beams_share_small_cache(
    small: TextGenerator, endless: TextGenerator
) -> None:
    """Each call fits into the cache alone; eight calls run in four threads."""
    prompts = random_prompts(5, 70)

    def calls(model: TextGenerator) -> list[Any]:
        return [
            lambda: model.generate(prompts, max_new_tokens=40),
            lambda: [s.tolist() for s in model.score(prompts)],
            lambda: model.generate(PROMPTS["short"], num_beams=3, max_new_tokens=40),
            lambda: model.embed(prompts[0]).tolist(),
        ]

    expected = [call() for call in calls(endless)]
    with ThreadPoolExecutor(4) as pool:
        found = [f.result() for f in [pool.submit(call) for call in calls(small) * 2]]
    for k, one in enumerate(found):
        if k % 4 in (0, 2):
            assert one == expected[k % 4]
        else:
            for got, wanted in zip(one, expected[k % 4], strict=True):
                assert got == pytest.approx(wanted, abs=1e-4)
    assert pages_in_use(small) == 0


def test_memory_limit_bounds_cache_size(tmp_path: Path) -> None:
    write_texts(tmp_path)
    with make_generator(tmp_path, memory_limit="3MiB") as generator:
        engine = generator._scheduler.engine
        found = generator.generate(random_prompts(12, 200), max_new_tokens=30)
        assert len(found) == 12
        held = engine.cache.nbytes
        assert engine._model_bytes is not None and engine._model_bytes + held <= 3 << 20


def failing(engine: DecoderEngine, error: BaseException, at: int, monkeypatch: Any) -> None:
    """Lets the step after so many others fail behind its run."""
    run, left = engine.model.run, [at]

    def broken(*args: Any, **options: Any) -> Any:
        found = run(*args, **options)
        left[0] -= 1
        if left[0] == -1:
            raise error
        return found

    monkeypatch.setattr(engine.model, "run", broken)


def test_failed_step_ends_its_texts_and_resets_cache(
    endless: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = endless._scheduler.engine
    streams = [endless.stream(PROMPTS[name], max_new_tokens=50) for name in ("short", "long")]
    with monkeypatch.context() as patched:
        failing(engine, clrt.DeviceError("The driver fails."), 5, patched)
        for stream in streams:
            with pytest.raises(clrt.DeviceError, match="The driver fails"):
                list(stream)
    assert pages_in_use(endless) == 0
    before = computed(endless)
    again = endless.generate(PROMPTS["long"], max_new_tokens=50)
    assert list(again.tokens) == TEXTS["greedy"]["long"][:50]
    assert computed(endless) - before == len(PROMPTS["long"]) + 49  # nothing is left of the cache


def test_interrupt_in_one_thread_leaves_other_texts_intact(
    endless: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives in the thread of one text; the tokens of the other are recomputed."""
    first = endless.stream(PROMPTS["short"], max_new_tokens=60)
    second = endless.stream(PROMPTS["long"], max_new_tokens=60)
    with monkeypatch.context() as patched:
        failing(endless._scheduler.engine, KeyboardInterrupt(), 9, patched)
        with pytest.raises(KeyboardInterrupt):
            list(first)
    first.close()
    assert list(second.result.tokens) == TEXTS["greedy"]["long"][:60]
    assert pages_in_use(endless) == 0


def test_scores_survive_cache_reset(
    endless: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = endless.score(PROMPTS["long"])
    monkeypatch.setattr(scoring, "_MAX_LOGITS", 1)
    next_parts, steps = forced_decoding._next_parts, []

    def resetting(engine: DecoderEngine, *args: Any) -> Any:
        steps.append(1)
        if len(steps) == 3:
            engine.reset()
        return next_parts(engine, *args)

    monkeypatch.setattr(forced_decoding, "_next_parts", resetting)
    assert endless.score(PROMPTS["long"]) == pytest.approx(expected, abs=1e-4)


def test_text_with_all_tokens_banned_fails_alone(endless: TextGenerator) -> None:
    banned = dict.fromkeys(range(450), float("-inf"))
    bad = endless.stream(PROMPTS["one"], logit_bias=banned)
    good = endless.stream(PROMPTS["short"], max_new_tokens=20)
    with pytest.raises(clrt.InputError, match="No token can follow: logit_bias"):
        list(bad)
    assert list(good.result.tokens) == TEXTS["greedy"]["short"][:20]


def test_prompt_of_several_chunks_runs_beside_other_text(tmp_path: Path) -> None:
    with make_generator(write_texts(tmp_path), context=2 * CHUNK + 200) as generator:
        prompt = [(5 * k) % 450 for k in range(2 * CHUNK + 9)]
        steps = [generator.generate(prompt, max_new_tokens=5)]
        generator._scheduler.engine.reset()
        other = generator.stream(PROMPTS["short"], max_new_tokens=30)
        next(other)
        steps.append(generator.generate(prompt, max_new_tokens=5))
        assert steps[0] == steps[1]
        assert list(other.result.tokens) == TEXTS["greedy"]["short"][:30]


def test_failed_cache_growth_leaves_cache_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_generator(write_texts(tmp_path)) as generator:
        cache = generator._scheduler.engine.cache
        expected = generator.generate(PROMPTS["long"], max_new_tokens=20)
        tensor = KvCache._tensor

        def full(self: KvCache, shape: tuple[int, ...]) -> Any:
            if shape[0]:
                raise clrt.OutOfMemoryError("The device has no room.")
            return tensor(self, shape)

        with monkeypatch.context() as patched:
            patched.setattr(KvCache, "_tensor", full)
            held = cache.pool._count
            with pytest.raises(clrt.OutOfMemoryError, match=r"cannot hold more than .* tokens"):
                generator.generate([9] * (CONTEXT - 9), max_new_tokens=4)
            assert (pages_in_use(generator), cache.pool._count) == (0, held)
            assert generator.generate(PROMPTS["long"], max_new_tokens=20) == expected
        assert generator.generate([9] * (CONTEXT - 9), max_new_tokens=4).tokens
        assert cache.pool._count > held


def test_cache_slabs_respect_largest_buffer_size(tmp_path: Path) -> None:
    with make_generator(write_texts(tmp_path)) as generator:
        engine = generator._scheduler.engine
        expected = generator.generate([9] * (CONTEXT - 9), max_new_tokens=9)
        engine.reset()
        engine.cache._largest = 2
        assert generator.generate([9] * (CONTEXT - 9), max_new_tokens=9) == expected
        assert [slab.shape[0] for slab in engine.cache.slabs] == [2] * 5 + [0]


def test_out_of_memory_step_runs_fewer_texts_or_fails(
    endless: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other texts of the step are deferred; a single text fails, and the cache is kept."""
    engine = endless._scheduler.engine
    run, most = engine.model.run, 48

    def tight(feeds: Any, *args: Any, **options: Any) -> Any:
        if len(feeds["step"]) > most:
            raise clrt.OutOfMemoryError("There is no room for a step of so many tokens.")
        return run(feeds, *args, **options)

    prompts = [PROMPTS["short"], PROMPTS["one"], [7] * 40]
    expected = endless.generate(prompts, max_new_tokens=9)
    endless.generate(PROMPTS["long"], max_new_tokens=1)
    with monkeypatch.context() as patched:
        patched.setattr(engine.model, "run", tight)
        assert endless.generate(prompts, max_new_tokens=9) == expected
        most = 0
        with pytest.raises(clrt.OutOfMemoryError, match="There is no room for a step"):
            endless.generate(PROMPTS["short"], max_new_tokens=9)
    assert pages_in_use(endless) == 0
    before = computed(endless)
    endless.generate(PROMPTS["long"], max_new_tokens=1)
    assert computed(endless) - before < PAGE_TOKENS + 1


def test_cancel_within_step_drops_incomplete_character(
    chatting: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, run = chatting._scheduler.engine, chatting._scheduler.engine.model.run
    *start, last = chatting.tokenizer.encode("a🎉").ids
    other = chatting.stream(PROMPTS["short"], max_new_tokens=30)
    stream = chatting.stream([5], regex="a🎉b", logprobs=1)

    def cancelling(*args: Any, **options: Any) -> Any:
        if len(stream._answer.tokens) == len(start):
            stream.cancel()
        return run(*args, **options)

    monkeypatch.setattr(engine.model, "run", cancelling)
    pieces = list(stream)
    assert stream.result.finish_reason == "cancelled" and last not in stream.result.tokens
    assert stream.result.text == "".join(pieces) == "a"  # and nothing of the character
    assert list(other.result.tokens) == TEXTS["greedy"]["short"][:30]
    assert pages_in_use(chatting) == 0
