"""Text generation from several threads and from an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import clrt
from clrt.generation.text_generator import TextGenerator
from tests.generation.oracle_texts import PROMPTS
from tests.generation.text_folders import (
    TEXTS,
    make_generator,
    pages_in_use,
    random_prompts,
    write_texts,
)


def test_threads_get_same_texts_as_single_calls(endless: TextGenerator) -> None:
    prompts = random_prompts(12, 60)
    alone = [endless.generate(prompt, max_new_tokens=15) for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda p: endless.generate(p, max_new_tokens=15), prompts * 2))
    assert together == alone * 2
    assert pages_in_use(endless) == 0


def test_streams_of_threads_advance_together(endless: TextGenerator) -> None:
    """No stream waits for the end of another text."""
    seen: list[int] = []
    streams = [endless.stream([k + 5], max_new_tokens=100) for k in range(3)]
    together = threading.Barrier(3)

    def read(number: int) -> None:
        together.wait()
        for _ in streams[number]:
            seen.append(number)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    firsts = [seen.index(k) for k in range(3)]
    lasts = [len(seen) - 1 - seen[::-1].index(k) for k in range(3)]
    assert max(firsts) < min(lasts)


def test_stream_is_cancelled_from_other_thread(endless: TextGenerator) -> None:
    stream = endless.stream(PROMPTS["long"], max_new_tokens=200)
    next(stream)
    timer = threading.Timer(0.05, stream.cancel)
    timer.start()
    rest = list(stream)
    timer.join()
    assert stream.result.finish_reason == "cancelled" and len(rest) < 199
    assert pages_in_use(endless) == 0


def test_close_ends_streams_of_other_threads(tmp_path: Path) -> None:
    generator = make_generator(write_texts(tmp_path))
    stream = generator.stream(PROMPTS["long"], max_new_tokens=230)
    next(stream)
    timer = threading.Timer(0.05, generator.close)
    timer.start()
    with pytest.raises(clrt.InputError, match="closed"):
        while True:
            list(stream)
    timer.join()


def test_agenerate_leaves_event_loop_responsive(endless: TextGenerator) -> None:
    async def main() -> tuple[list[Any], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        asked = [endless.agenerate(p, max_new_tokens=30) for p in PROMPTS.values()]
        found = await asyncio.gather(*asked)
        ticking.cancel()
        return found, ticks

    found, ticks = asyncio.run(main())
    for name, text in zip(PROMPTS, found, strict=True):
        assert list(text.tokens) == TEXTS["greedy"][name][:30]
    assert ticks > 30


def test_astream_and_agenerate_match_generate(endless: TextGenerator) -> None:
    async def main() -> None:
        whole = endless.generate(PROMPTS["short"], max_new_tokens=20)
        async with endless.astream(PROMPTS["short"], max_new_tokens=20) as stream:
            with pytest.raises(clrt.InputError, match="text is not finished"):
                stream.result  # noqa: B018
            pieces = [piece async for piece in stream]
        assert "".join(pieces) == whole.text and stream.result == whole
        stream = endless.astream(PROMPTS["short"], max_new_tokens=200)
        await anext(stream)
        await stream.aclose()
        assert stream.result.finish_reason == "cancelled"
        several = await endless.agenerate(["x", "y"], max_new_tokens=3, num_return_sequences=2)
        assert len(several) == 4
        beams = await endless.agenerate(PROMPTS["short"], max_new_tokens=6, num_beams=2)
        assert beams == endless.generate(PROMPTS["short"], max_new_tokens=6, num_beams=2)

    asyncio.run(main())
    assert pages_in_use(endless) == 0


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}])
def test_cancelled_task_ends_its_text(endless: TextGenerator, options: dict[str, Any]) -> None:
    async def main() -> None:
        asked = endless.agenerate(PROMPTS["long"], max_new_tokens=220, **options)
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(asked, 0.05)

    asyncio.run(main())
    end = time.monotonic() + 10
    while pages_in_use(endless) and time.monotonic() < end:
        time.sleep(0.01)
    assert pages_in_use(endless) == 0


def test_agenerate_errors_reach_awaiting_task(endless: TextGenerator) -> None:
    banned = dict.fromkeys(range(450), float("-inf"))

    async def main() -> None:
        with pytest.raises(clrt.InputError):
            await endless.agenerate(["x", "y"], logit_bias=banned)
        with pytest.raises(clrt.InputError, match="did you mean"):
            await endless.agenerate("x", sed=1)
        with pytest.raises(clrt.InputError):
            async for _ in endless.astream("x", logit_bias=banned):
                pass

    asyncio.run(main())
    assert pages_in_use(endless) == 0
