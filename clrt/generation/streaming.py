"""Answers as they come, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias
from weakref import ref

from clrt.errors import ClrtError
from clrt.generation.generation_state import GenerationState
from clrt.generation.result import GeneratedText
from clrt.generation.scheduler import Scheduler
from clrt.generation.tool_calls import CallReader

Finish: TypeAlias = Callable[[GenerationState], GeneratedText]
Ending: TypeAlias = "Callable[[GenerationState, GeneratedText | None], None]"
"""Is told once that an answer has ended, and what came of it; None where it failed."""


class PieceReader:
    """What both kinds of streams have."""

    def __init__(
        self,
        scheduler: Scheduler,
        answer: GenerationState,
        finish: Finish,
        ending: Ending | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._answer = answer
        self._finish = finish
        self._ending = ending
        answer.reader = ref(self)
        self._given = 0
        self._settled = False
        self._calls = CallReader(answer.calls) if answer.calls is not None else None
        self._result: GeneratedText | None = None

    def __del__(self) -> None:
        if hasattr(self, "_result"):
            self._close()

    def __repr__(self) -> str:
        state = self._answer.reason or f"{len(self._answer.tokens)} tokens so far"
        return f"<clrt.{type(self).__name__}: {state}>"

    @property
    def is_open(self) -> bool:
        """Whether the text may go on."""
        return not self._settled

    def cancel(self) -> None:
        """Ends the text, from any thread; nothing is waited for."""
        self._scheduler.end(self._answer)

    def _next(self) -> str:
        """The next piece that is there; empty where there is none yet.

        Calls of tools are no pieces: the result has them.
        """
        calls, has_ended = self._calls, self._answer.reason is not None
        while self._given < len(self._answer.pieces):
            self._given += 1
            piece = self._answer.pieces[self._given - 1]
            if calls is not None:
                piece = calls.push(piece)
            if piece:
                return piece
        return calls.finish() if calls is not None and has_ended else ""

    def _has_ended(self) -> bool:
        """Whether all was given.

        Raises:
            ClrtError: What went wrong.
        """
        if self._answer.reason is None or self._given < len(self._answer.pieces):
            return False
        if self._calls is not None and self._calls.is_holding:
            return False
        self._settle()
        return True

    def _settle(self) -> GeneratedText:
        """What has come of the answer, which has ended.

        Raises:
            ClrtError: What went wrong.
        """
        error = self._answer.error
        if not self._settled:
            if error is None and self._result is None:
                self._result = self._finish(self._answer)
            ending, self._ending = self._ending, None
            if ending is not None:
                ending(self._answer, self._result)
            self._settled = True
        if error is not None:
            raise error
        assert self._result is not None
        return self._result

    def _close(self) -> None:
        """Ends the text where it is."""
        self.cancel()
        self._given = len(self._answer.pieces)
        self._calls = None
        with suppress(ClrtError):
            self._settle()


class GeneratedStream(PieceReader, Iterator[str]):
    """The pieces of one answer, from `TextGenerator.stream`; none ends within a character.

    Closing it, or letting go of it, ends the text.
    """

    def __next__(self) -> str:
        """The next piece; it waits for it.

        Raises:
            ClrtError: What went wrong.
        """
        while not (piece := self._next()):
            if self._has_ended():
                raise StopIteration
            self._scheduler.wait(self._answer, self._given)
        return piece

    def __enter__(self) -> GeneratedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the text where it is; `result` has it as far as it came."""
        self._close()

    @property
    def result(self) -> GeneratedText:
        """The whole answer; waits for what is missing.

        Raises:
            ClrtError: What went wrong.
        """
        while self._answer.reason is None:
            self._scheduler.wait(self._answer, len(self._answer.pieces))
        return self._settle()
