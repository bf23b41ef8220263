"""Answers that run together: each step takes the next tokens of all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock, RLock
from typing import TypeVar

from clrt.errors import ClrtError, InputError, NumberError, OutOfMemoryError
from clrt.generation.answer import Answer
from clrt.generation.encoded_source import EncodedSource
from clrt.generation.engine import CHUNK, CachedSequence, Engine, StepPart
from clrt.generation.result import FinishReason
from clrt.ir.op import Array
from clrt.ops.attention.pages import PAGE
from clrt.ops.generation.sample_tokens import SampleTokens

# On Windows Ctrl-C does not end a wait without an end.
_LOOK_S = 0.5
T = TypeVar("T")


class Scheduler:
    """Runs answers on an engine, those of several threads in one step.

    No thread is the scheduler's own: of the threads that wait for tokens one makes the next step
    for all of them.

    Args:
        sequences: How many answers run at a time; more wait.
    """

    def __init__(self, engine: Engine, sequences: int) -> None:
        self.engine = engine
        self._most = sequences
        # One thread at a time has `_driving`, and with it the engine; it is never waited for, as a
        # collector may end an answer in any thread. `_changed` is told when it is let go.
        self._driving = Lock()
        self._bulk = Lock()
        self._changed = Condition(RLock())
        self._waiting: deque[Answer] = deque()
        self._running: list[Answer] = []
        # Whether the cache is full: no answer begins before one ends, or what `bulk` is for.
        self._full = False
        self._closed = False

    def add(self, answers: Sequence[Answer]) -> None:
        """Queues answers; `wait` then drives them.

        Raises:
            InputError: The generator is closed.
        """
        self._check_open()
        self._waiting.extend(answers)

    def wait(self, answer: Answer, pieces: int) -> None:
        """Returns once an answer has more pieces than that, or has ended, perhaps by an error."""
        while len(answer.pieces) <= pieces and answer.reason is None:
            with self._changed:
                drives = self._driving.acquire(blocking=False)
                if not drives:
                    self._changed.wait(_LOOK_S)
            if drives:
                try:
                    runs = answer.reason is not None or self._advance()
                finally:
                    self._let_go()
                with self._changed:
                    if not runs and self._full:
                        self._changed.wait(_LOOK_S)

    def end(self, answer: Answer, reason: FinishReason = "cancelled") -> None:
        """Ends an answer, whatever it does, and waits for nothing."""
        if answer.reason is None:
            answer.reason = reason
        self._tidy()

    @contextmanager
    def exclusive(self) -> Iterator[Engine]:
        """The engine, for a block; steps of answers are before it and behind it.

        Raises:
            InputError: The generator is closed.
        """
        with self._changed:
            while not self._driving.acquire(blocking=False):
                self._changed.wait(_LOOK_S)
        try:
            self._check_open()
            yield self.engine
        finally:
            self._let_go()

    @contextmanager
    def bulk(self) -> Iterator[None]:
        """Around blocks of `exclusive` that hold sequences in between: one thread at a time."""
        while not self._bulk.acquire(timeout=_LOOK_S):
            pass
        try:
            yield
        finally:
            self._bulk.release()
            with self._changed:
                self._full = False
                self._changed.notify_all()

    def with_room(self, call: Callable[[], T]) -> T:
        """What a call within `exclusive` gives; where there is no room for it, answers make way.

        Raises:
            OutOfMemoryError: There is no room for it alone.
        """
        while True:
            try:
                return call()
            except OutOfMemoryError:
                if not self._running:
                    raise
                self._postpone()

    def close(self) -> None:
        """Ends all answers, and frees the device's memory."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for answer in [*self._running, *self._waiting]:
                answer.error = answer.error or _closed()
                answer.reason = answer.reason or "cancelled"
            while not self._driving.acquire(blocking=False):
                self._changed.wait(_LOOK_S)
        try:
            self.engine.close_model()
        finally:
            self._let_go()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _let_go(self) -> None:
        self._driving.release()
        self._tidy()
        with self._changed:
            self._changed.notify_all()

    def _tidy(self) -> None:
        """Frees what ended answers have, unless a thread drives: it does so when it lets go."""
        while any(a.reason is not None for a in tuple(self._running)):
            if not self._driving.acquire(blocking=False):
                return
            try:
                self._clear()
            finally:
                self._driving.release()
        with self._changed:
            self._changed.notify_all()

    def _advance(self) -> bool:
        """One step: the next token of each text, and as much of prompts as a step has room for.
        Whether there was something to do.
        """
        self._clear()
        self._start()
        parts, taking = self._parts()
        if not parts:
            return bool(self._running)
        wants_logits = any(answer.top for answer in taking)
        outputs = ["token", "logprob", *(["logits"] if wants_logits else [])]
        try:
            found = self.engine.step(parts, outputs)
        except OutOfMemoryError as error:
            self._make_way(error)
            return True
        except ClrtError as error:
            blamed = _blamed(error, taking)
            if blamed is None:
                self._fail(self._running, error)
            else:
                self._fail([blamed], _no_token())
            return True
        for row, answer in enumerate(taking):
            logits = found["logits"][row] if answer.top else None
            self._take(answer, int(found["token"][row]), float(found["logprob"][row]), logits)
        return True

    def _parts(self) -> tuple[list[StepPart], list[Answer]]:
        """What a step runs, and the answers that get a token by it."""
        parts: list[StepPart] = []
        taking: list[Answer] = []
        room, encoding = CHUNK, set[EncodedSource]()
        # Texts under way come first: they have one token each, and somebody reads along.
        for answer in sorted(self._running, key=lambda a: _sequence(a).all_left):
            sequence = _sequence(answer)
            count = min(sequence.left, room)
            if count <= 0:
                break
            if (source := sequence.source) is not None and source not in encoding and source.left:
                # One source runs in any case, however long; else it might wait for ever.
                if encoding and source.left + count > room:
                    continue
                encoding.add(source)
                room -= source.left
            whole = count == sequence.left
            if whole:
                try:
                    answer.prepare()
                except ClrtError as error:
                    self._fail([answer], error)
                    continue
                taking.append(answer)
            room -= count
            parts.append(StepPart(sequence, count, [answer.sampler] if whole else ()))
        return parts, taking

    def _take(self, answer: Answer, token: int, logprob: float, logits: Array | None) -> None:
        if answer.reason is not None:  # another thread has ended it meanwhile
            return
        sequence, before = _sequence(answer), len(answer.tokens)
        room = self.engine.context - len(sequence.tokens) - 1
        try:
            answer.take(token, logprob, logits, room)
        except ClrtError as error:
            self._fail([answer], error)
        sequence.tokens += answer.tokens[before:]

    def _start(self) -> None:
        """Begins answers as far as there is room; not those whose prompts begin like one that is
        just computed: they take its pages afterwards.
        """
        later: list[Answer] = []
        while self._waiting and len(self._running) < self._most and not self._full:
            answer = self._waiting.popleft()
            if answer.reason is not None:
                continue
            if any(_computes_for(other, answer) for other in self._running):
                later.append(answer)
                continue
            try:
                sequence = open_text(self.engine, [*answer.prompt, *answer.tokens], answer.source)
            except ClrtError as error:
                self._fail([answer], error)
                continue
            answer.sequence = sequence
            if answer.computed is None:
                source = sequence.source
                answer.computed = sequence.left if source is None else source.left
            self._running.append(answer)
        self._waiting.extendleft(reversed(later))

    def _make_way(self, error: OutOfMemoryError) -> None:
        """Where there is no room for all, the last one waits until another has ended."""
        if len(self._running) == 1 and not self._bulk.locked():
            self._fail(self._running, error)
        else:
            self._postpone()

    def _postpone(self) -> None:
        """The last one that began gives up its pages, and begins again once there is room."""
        last = self._running.pop()
        self.engine.close(_sequence(last))
        last.sequence = None
        self._waiting.appendleft(last)
        self._full = True

    def _fail(self, answers: Sequence[Answer], error: ClrtError) -> None:
        for answer in answers:
            answer.error = answer.error or error
            answer.reason = answer.reason or "cancelled"

    def _clear(self) -> None:
        """Frees what ended answers have."""
        for answer in [a for a in self._running if a.reason is not None]:
            self._running.remove(answer)
            self.engine.close(_sequence(answer))
            self._full = False


def open_text(
    engine: Engine, tokens: Sequence[int], source: Array | None, anew: bool = False
) -> CachedSequence:
    """A sequence for a text that has come so far.

    Args:
        source: What the encoder reads; None for a decoder alone.
        anew: Whether all tokens are run in any case.

    Raises:
        InputError: It is longer than the context.
    """
    if source is None:
        return engine.open(tokens, anew)
    read = engine.read(source)
    try:
        return engine.open(tokens, anew, read)
    finally:
        engine.release(read)


def _sequence(answer: Answer) -> CachedSequence:
    assert answer.sequence is not None
    return answer.sequence


def _computes_for(running: Answer, waiting: Answer) -> bool:
    """Whether a text is about to compute pages that another one's prompt begins with."""
    done = _sequence(running).done
    if running.source is not waiting.source:
        return False
    if done // PAGE >= len(running.prompt) // PAGE:
        return False
    end = done - done % PAGE + PAGE
    return len(waiting.prompt) > end and waiting.prompt[:end] == running.prompt[:end]


def _closed() -> InputError:
    return InputError("The generator is closed; make it again to use it.")


def _no_token() -> InputError:
    return InputError(
        "No token can follow: logit_bias and the rule ban all of them, or logits are not numbers."
    )


def _blamed(error: ClrtError, taking: Sequence[Answer]) -> Answer | None:
    """The answer whose row of SampleTokens an error is about; None where it is about another."""
    found = error if isinstance(error, NumberError) else error.__cause__
    if not isinstance(found, NumberError) or found.node is None:
        return None
    row = int(found.number) - 1
    own = isinstance(found.node.op, SampleTokens) and 0 <= row < len(taking)
    return taking[row] if own else None
