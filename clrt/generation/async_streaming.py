"""Async streams of generated text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor

from clrt.errors import InputError
from clrt.generation.beams import BeamSearch
from clrt.generation.generation_state import GenerationState
from clrt.generation.result import GeneratedText
from clrt.generation.scheduler import Scheduler
from clrt.generation.streaming import Finish, TextChunkReader


class AsyncGeneratedStream(TextChunkReader, AsyncIterator[str]):
    """Text chunks of one generation, from `TextGenerator.astream`, without blocking the event loop.

    Args:
        scheduler: Scheduler that the generation was added to.
        answer: State of the generation.
        finish: Creates the result from the state of an ended generation.
        workers: Executor with one thread, which runs the scheduler for all async streams.
    """

    def __init__(
        self, scheduler: Scheduler, answer: GenerationState, finish: Finish, workers: Executor
    ) -> None:
        super().__init__(scheduler, answer, finish)
        self._workers = workers

    async def __anext__(self) -> str:
        """Returns the next text chunk; ends the iteration after the last.

        Raises:
            ClrtError: Generation failed.
        """
        while not (piece := self._next()):
            if self._has_ended():
                raise StopAsyncIteration
            await self._wait(self._num_read)
        return piece

    async def _wait(self, pieces: int) -> None:
        """Waits in a thread until there are more than `pieces` text chunks, or generation ends.

        If the task is cancelled, cancels generation.
        """
        loop = asyncio.get_running_loop()
        wait = self._scheduler.wait
        try:
            await loop.run_in_executor(self._workers, wait, self._answer, pieces)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def aclose(self) -> None:
        """Ends generation now; `result` then has the text generated so far."""
        self._close()

    async def __aenter__(self) -> AsyncGeneratedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def finish(self) -> GeneratedText:
        """Returns the complete result once generation has ended.

        Raises:
            ClrtError: Generation failed.
        """
        async for _ in self:
            pass
        return self._finalize()

    @property
    def result(self) -> GeneratedText:
        """Result of the generation, once its last chunk was read or the stream was closed.

        Raises:
            InputError: Chunks are left to read.
        """
        if self._result is None:
            raise InputError("The text is not finished; read its chunks, or await `finish`.")
        return self._result


async def finish_all(streams: Sequence[AsyncGeneratedStream]) -> list[GeneratedText]:
    """Returns the results of all streams; if one fails or the task is cancelled, ends them all.

    Raises:
        ClrtError: A generation failed.
    """
    try:
        return list(await asyncio.gather(*(stream.finish() for stream in streams)))
    finally:
        for stream in streams:
            await stream.aclose()


async def search_all(searches: Sequence[BeamSearch]) -> list[GeneratedText]:
    """Runs beam searches one after the other, without blocking the event loop.

    Cancelling the task ends the running search.

    Returns:
        The texts of all searches, in order.

    Raises:
        ClrtError: A search failed.
    """
    texts: list[GeneratedText] = []
    for search in searches:
        try:
            texts += await asyncio.to_thread(search.run)
        finally:
            search.cancelled = True
    return texts
