"""Requests that run together: each step takes the next tokens of all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, TypeAlias

from clrt.errors import ClrtError, InputError
from clrt.generation.engine import CHUNK, CachedSequence, Engine, StepPart
from clrt.generation.sampler import TokenSampler

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "constraint"]


@dataclass(eq=False)
class Continuation:
    """A text to be continued.

    Attributes:
        prompt: Tokens, one or more.
        sampler: Chooses tokens.
        limit: The most tokens that are made.
        ends: Tokens that end the text.
        tokens, logprobs: What was made so far; a token that ends the text is the last of them.
        reason: Why it ended; None while it goes on.
        error: What went wrong, if so.
    """

    prompt: list[int]
    sampler: TokenSampler
    limit: int
    ends: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    error: ClrtError | None = None
    sequence: CachedSequence | None = None


class Scheduler:
    """Runs requests on an engine, those of several threads in one step.

    No thread is the scheduler's own: of the threads that wait for tokens one makes the next step
    for all of them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._driving = Lock()
        self._waiting: deque[Continuation] = deque()
        self._running: list[Continuation] = []

    def add(self, request: Continuation) -> None:
        """Queues a request; `tokens` of it then gives what is made."""
        if not request.prompt:
            raise InputError("The prompt has no tokens; give at least one.")
        self._waiting.append(request)

    def tokens(self, request: Continuation) -> Iterator[int]:
        """The tokens of a request, as they come. Closing it ends the request.

        Raises:
            ClrtError: What went wrong with the request; others go on.
        """
        given = 0
        try:
            while True:
                while given < len(request.tokens):
                    given += 1
                    yield request.tokens[given - 1]
                if request.error is not None:
                    raise request.error
                if request.reason is not None:
                    return
                with self._driving:
                    if given == len(request.tokens) and request.reason is None:
                        self._advance()
        finally:
            self.end(request, "cancelled")

    def end(self, request: Continuation, reason: FinishReason) -> None:
        """Ends a request, whatever it does."""
        if request.reason is None:
            request.reason = reason
        with self._driving:
            self._clear()

    def _advance(self) -> None:
        """One step: the next token of each text, and as much of prompts as a step has room for."""
        self._clear()
        self._start()
        parts: list[StepPart] = []
        taking: list[Continuation] = []
        room = CHUNK
        # Texts under way come first: they have one token each, and somebody reads along.
        for request in sorted(self._running, key=_left):
            sequence = request.sequence
            assert sequence is not None
            count = min(sequence.left, room)
            if not count:
                break
            room -= count
            whole = count == sequence.left
            parts.append(StepPart(sequence, count, request.sampler if whole else None))
            if whole:
                taking.append(request)
        if not parts:
            return
        try:
            found = self.engine.step(parts)
        except ClrtError as error:
            # One text less may be what it takes.
            self._fail(self._running[-1], error)
            return
        for request, token, logprob in zip(taking, found.tokens, found.logprobs, strict=True):
            self._take(request, token, logprob)

    def _take(self, request: Continuation, token: int, logprob: float) -> None:
        assert request.sequence is not None
        request.sequence.tokens.append(token)
        request.logprobs.append(logprob)
        request.tokens.append(token)
        if token in request.ends:
            request.reason = "stop"
        elif len(request.tokens) >= request.limit or (
            len(request.sequence.tokens) >= self.engine.context
        ):
            request.reason = "length"

    def _start(self) -> None:
        while self._waiting and self.engine.free_rows:
            request = self._waiting.popleft()
            if request.reason is not None:
                continue
            try:
                request.sequence = self.engine.open(request.prompt)
            except ClrtError as error:
                request.error = error
                continue
            self._running.append(request)

    def _fail(self, request: Continuation, error: ClrtError) -> None:
        request.error = error
        request.reason = "cancelled"
        self._clear()

    def _clear(self) -> None:
        """Frees what ended requests have."""
        for request in [r for r in self._running if r.reason is not None]:
            self._running.remove(request)
            assert request.sequence is not None
            self.engine.close(request.sequence)


def _left(request: Continuation) -> int:
    assert request.sequence is not None
    return request.sequence.left
