"""Calls interrupted by an exception anywhere, as by Ctrl-C; later calls give correct results.

`CLRT_INTERRUPTS=1000` interrupts each call 1000 times (`make test-interrupts`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clrt.generation.text_generator import TextGenerator
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.active_calls import ActiveCall
from tests.generation.text_folders import pages_in_use, write_texts
from tests.harness import all_devices, name_of, quick_device
from tests.interrupting import TIMES, interrupted, lines_of, sampled

PROMPTS = [[3, 4, 5], [9, 8, 7, 6], [11] * 40]
NAMES = ["generate", "stream", "score", "beams"]


def _devices() -> list[Any]:
    """The one with the quickest compiler; `make test-interrupts` takes the others, too."""
    others = [d for d in all_devices() if d is not quick_device()]
    return [quick_device(), *(pytest.param(d, marks=pytest.mark.slow) for d in others)]


class Checked:
    """A generator, and the texts that it makes when nothing breaks off."""

    def __init__(self, folder: Path, device: DeviceInfo) -> None:
        self.made = TextGenerator(write_texts(folder), device=device)
        self.long = self._tokens(PROMPTS[2], 40)
        self.wanted = [self._tokens(prompt) for prompt in PROMPTS]
        self.scores = self.made.score(PROMPTS[2]).tolist()

    def _tokens(self, prompt: list[int], count: int = 6) -> tuple[int, ...]:
        found: tuple[int, ...] = self.made.generate(
            prompt, max_new_tokens=count, temperature=0
        ).tokens
        return found

    def check(self, *, scores: bool = False) -> None:
        """Fails where a text or a score is not what it was, or something is left in the cache."""
        made = self.made.generate(PROMPTS, max_new_tokens=6, temperature=0)
        assert [text.tokens for text in made] == self.wanted
        if scores:
            assert self.made.score(PROMPTS[2]).tolist() == self.scores
        scheduler = self.made._scheduler
        assert pages_in_use(self.made) == 0
        assert not scheduler.engine.sequences and not scheduler._answers

    def call(self, name: str) -> Callable[[], object]:
        """What is broken off."""
        made = self.made

        def stream() -> None:
            with made.stream(PROMPTS[1], max_new_tokens=6, temperature=0) as pieces:
                list(pieces)

        return {
            "generate": partial(made.generate, PROMPTS, max_new_tokens=6, temperature=0),
            "stream": stream,
            "score": partial(made.score, PROMPTS[2]),
            "beams": partial(made.generate, PROMPTS[1], num_beams=2, max_new_tokens=4),
        }[name]


@pytest.fixture(scope="module", params=_devices(), ids=name_of)
def checked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Checked]:
    found = Checked(tmp_path_factory.mktemp("texts"), request.param)
    yield found
    found.made.close()


@pytest.mark.parametrize("name", NAMES)
def test_generation_recovers_from_exception_at_any_line(checked: Checked, name: str) -> None:
    call = checked.call(name)
    call()
    for number, line in enumerate(sampled(lines_of(call), TIMES, seed=1)):
        lines_of(call, stop_at=line)
        checked.check(scores=number % 4 == 0)


@pytest.mark.parametrize("name", NAMES)
def test_generation_recovers_from_signal_at_any_time(checked: Checked, name: str) -> None:
    call, draw = checked.call(name), Random(2)
    call()
    for number in range(TIMES):
        start = time.perf_counter()
        call()
        interrupted(call, draw.random() * (time.perf_counter() - start))
        checked.check(scores=number % 4 == 0)


def test_other_threads_continue_after_interrupted_thread(checked: Checked) -> None:
    """The interrupted thread was also computing their tokens."""
    call, draw = checked.call("generate"), Random(3)
    for _ in range(TIMES):
        found: list[tuple[int, ...]] = []
        thread = threading.Thread(
            target=lambda found=found: found.append(checked._tokens(PROMPTS[2], 40))
        )
        thread.start()
        interrupted(call, draw.random() * 0.05)
        thread.join(100)
        assert found == [checked.long]
    checked.check(scores=True)


@pytest.mark.parametrize("queued", [False, True], ids=["noted", "queued"])
def test_generation_submitted_during_recovery_is_not_lost(
    checked: Checked, queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads submit without a lock: first they note a generation, then they queue it."""
    scheduler = checked.made._scheduler
    begin, extend, found = scheduler.engine.begin_anew, [], list[tuple[int, ...]]()
    thread = threading.Thread(target=lambda: found.append(checked._tokens(PROMPTS[0])))

    def begin_late(kept: Any) -> None:
        monkeypatch.undo()
        thread.start()
        while not scheduler._answers:
            time.sleep(0.001)
        if not queued:  # as if the thread had got no further
            extend.extend(scheduler._waiting)
            scheduler._waiting.clear()
        begin(kept)

    monkeypatch.setattr(scheduler.engine, "begin_anew", begin_late)
    scheduler._engine_lock.is_torn = True
    scheduler.exclusive(lambda engine: None)
    scheduler._waiting.extend(extend)
    thread.join(100)
    assert found == [checked.wanted[0]]
    checked.check(scores=True)


def test_chat_turn_interrupted_before_its_stream_is_returned_is_over(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = checked.made.chat(max_new_tokens=3)

    def interrupt(call: ActiveCall) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(ActiveCall, "end", interrupt)
    with suppress(KeyboardInterrupt):
        chat.stream("a")
    chat.send("b")
    assert len(chat.messages) % 2 == 0 and chat.messages[-2]["content"] == "b"


def test_interrupted_chat_turn_is_completed_or_undone(checked: Checked) -> None:
    chat = checked.made.chat(max_new_tokens=3)
    chat.send("a")
    chat.reset()
    for line in sampled(lines_of(partial(chat.send, "a")), TIMES, seed=4):
        chat.reset()
        lines_of(partial(chat.send, "a"), stop_at=line)
        chat.send("b")
        assert len(chat.messages) % 2 == 0 and chat.messages[-2]["content"] == "b"
