"""Streams of generated text."""

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
"""Callback for the end of a generation, with its result; None if it failed."""


class TextChunkReader:
    """Reads the text chunks of a generation; base class of sync and async streams.

    Args:
        scheduler: Scheduler that runs the generation.
        answer: State of the generation.
        finish: Creates the result from the state of an ended generation.
        ending: Callback for the end of the generation; None for none.
    """

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
        self._num_read = 0
        self._is_finalized = False
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
        """Whether the stream is open: neither read to its end nor closed."""
        return not self._is_finalized

    def cancel(self) -> None:
        """Ends generation without waiting for a running step; may be called from any thread."""
        self._scheduler.end(self._answer)

    def _next(self) -> str:
        """Returns the next text chunk that is available without waiting; "" if there is none.

        Text of tool calls is left out; the result has the calls.
        """
        calls, has_ended = self._calls, self._answer.reason is not None
        while self._num_read < len(self._answer.pieces):
            self._num_read += 1
            piece = self._answer.pieces[self._num_read - 1]
            if calls is not None:
                piece = calls.push(piece)
            if piece:
                return piece
        return calls.finish() if calls is not None and has_ended else ""

    def _has_ended(self) -> bool:
        """Whether generation has ended and all chunks were returned; if so, creates the result.

        Raises:
            ClrtError: Generation failed.
        """
        if self._answer.reason is None or self._num_read < len(self._answer.pieces):
            return False
        if self._calls is not None and self._calls.is_holding:
            return False
        self._finalize()
        return True

    def _finalize(self) -> GeneratedText:
        """Returns the result of an ended generation; the first call runs the `ending` callback.

        Raises:
            ClrtError: Generation failed.
        """
        error = self._answer.error
        if not self._is_finalized:
            if error is None and self._result is None:
                self._result = self._finish(self._answer)
            ending, self._ending = self._ending, None
            if ending is not None:
                ending(self._answer, self._result)
            self._is_finalized = True
        if error is not None:
            raise error
        assert self._result is not None
        return self._result

    def _close(self) -> None:
        """Ends generation now and drops chunks not yet read; raises no error of the generation."""
        self.cancel()
        self._num_read = len(self._answer.pieces)
        self._calls = None
        with suppress(ClrtError):
            self._finalize()


class GeneratedStream(TextChunkReader, Iterator[str]):
    """Text chunks of one generation, from `TextGenerator.stream`, in whole characters.

    Closing or garbage-collecting the stream ends generation.
    """

    def __next__(self) -> str:
        """Returns the next text chunk; waits for it and runs decoder steps meanwhile.

        Raises:
            ClrtError: Generation failed.
        """
        while not (piece := self._next()):
            if self._has_ended():
                raise StopIteration
            self._scheduler.wait(self._answer, self._num_read)
        return piece

    def __enter__(self) -> GeneratedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends generation now; `result` then has the text generated so far."""
        self._close()

    @property
    def result(self) -> GeneratedText:
        """Complete result of the generation; waits until it has ended.

        Raises:
            ClrtError: Generation failed.
        """
        while self._answer.reason is None:
            self._scheduler.wait(self._answer, len(self._answer.pieces))
        return self._finalize()
