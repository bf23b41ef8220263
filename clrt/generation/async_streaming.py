"""Answers as they come, while an event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor

from clrt.errors import InputError
from clrt.generation.beams import BeamSearch
from clrt.generation.generation_state import GenerationState
from clrt.generation.result import GeneratedText
from clrt.generation.scheduler import Scheduler
from clrt.generation.streaming import Finish, PieceReader


class AsyncGeneratedStream(PieceReader, AsyncIterator[str]):
    """The pieces of one answer, from `TextGenerator.astream`, while the event loop goes on.

    Args:
        workers: One thread, which drives the scheduler for all such streams.
    """

    def __init__(
        self, scheduler: Scheduler, answer: GenerationState, finish: Finish, workers: Executor
    ) -> None:
        super().__init__(scheduler, answer, finish)
        self._workers = workers

    async def __anext__(self) -> str:
        """The next piece.

        Raises:
            ClrtError: What went wrong.
        """
        while not (piece := self._next()):
            if self._has_ended():
                raise StopAsyncIteration
            await self._wait(self._given)
        return piece

    async def _wait(self, pieces: int) -> None:
        loop = asyncio.get_running_loop()
        wait = self._scheduler.wait
        try:
            await loop.run_in_executor(self._workers, wait, self._answer, pieces)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def aclose(self) -> None:
        """Ends the text where it is; `result` has it as far as it came."""
        self._close()

    async def __aenter__(self) -> AsyncGeneratedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def finish(self) -> GeneratedText:
        """The whole answer, once it is there.

        Raises:
            ClrtError: What went wrong.
        """
        async for _ in self:
            pass
        return self._settle()

    @property
    def result(self) -> GeneratedText:
        """The answer, behind its last piece.

        Raises:
            InputError: It goes on.
        """
        if self._result is None:
            raise InputError("The text goes on; read its pieces, or await `finish`.")
        return self._result


async def finish_all(streams: Sequence[AsyncGeneratedStream]) -> list[GeneratedText]:
    """The whole answers; where one fails, or the task is cancelled, all end.

    Raises:
        ClrtError: What went wrong.
    """
    try:
        return list(await asyncio.gather(*(stream.finish() for stream in streams)))
    finally:
        for stream in streams:
            await stream.aclose()


async def search_all(searches: Sequence[BeamSearch]) -> list[GeneratedText]:
    """What beam searches find, one search after the other; the same holds.

    Raises:
        ClrtError: What went wrong.
    """
    found: list[GeneratedText] = []
    for search in searches:
        try:
            found += await asyncio.to_thread(search.run)
        finally:
            search.cancelled = True
    return found
