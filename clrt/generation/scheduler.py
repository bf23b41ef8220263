"""Answers that run together: each step takes the next tokens of all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock, RLock
from typing import TypeVar

from clrt.errors import ClrtError, InputError, OutOfMemoryError
from clrt.generation.answer import Answer
from clrt.generation.answer_steps import AnswerSteps, fail, sequence_of
from clrt.generation.drafter import Drafter
from clrt.generation.engine import Engine
from clrt.generation.result import FinishReason
from clrt.generation.speculation import Speculation
from clrt.generation.step_parts import CachedSequence
from clrt.ir.op import Array
from clrt.ops.attention.page_form import PAGE

# On Windows Ctrl-C does not end a wait without an end.
_LOOK_S = 0.5
T = TypeVar("T")


class Scheduler:
    """Runs answers on an engine, those of several threads in one step.

    No thread is the scheduler's own: of the threads that wait for tokens one makes the next step
    for all of them.

    Args:
        sequences: How many answers run at a time; more wait.
        drafter: A draft model, if there is one.
    """

    def __init__(self, engine: Engine, sequences: int, drafter: Drafter | None = None) -> None:
        self.engine = engine
        self.speculation = Speculation(engine.context, drafter)
        self._steps = AnswerSteps(engine, self.speculation)
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
            self.speculation.close()
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
        """One step: the next tokens of each text, and as much of prompts as a step has room for.
        Whether there was something to do.
        """
        self._clear()
        self._start()
        try:
            guesses = self.speculation.guess(self._running)
        except ClrtError as error:  # of the draft model
            fail(self._running, error)
            return True
        if guesses:
            try:
                return self._steps.step(self._running, guesses)
            except OutOfMemoryError:  # what follows needs less room
                pass
        try:
            return self._steps.step(self._running, {})
        except OutOfMemoryError as error:
            self._make_way(error)
            return True

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
                fail([answer], error)
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
            fail(self._running, error)
        else:
            self._postpone()

    def _postpone(self) -> None:
        """The last one that began gives up its pages, and begins again once there is room."""
        last = self._running.pop()
        self.engine.close(sequence_of(last))
        self.speculation.forget(last)
        last.sequence = None
        self._waiting.appendleft(last)
        self._full = True

    def _clear(self) -> None:
        """Frees what ended answers have."""
        for answer in [a for a in self._running if a.reason is not None]:
            self._running.remove(answer)
            self.engine.close(sequence_of(answer))
            self.speculation.forget(answer)
            self._full = False


def open_text(
    engine: Engine,
    tokens: Sequence[int],
    source: Array | None,
    anew: bool = False,
    length: int | None = None,
) -> CachedSequence:
    """A sequence for a text that has come so far.

    Args:
        source: What the encoder reads; None for a decoder alone.
        anew: Whether all tokens are run in any case.
        length: Tokens of the whole text; None for those that there are.

    Raises:
        InputError: It is longer than the context.
    """
    if source is None:
        return engine.open(tokens, anew, length=length)
    read = engine.read(source)
    try:
        return engine.open(tokens, anew, read, length)
    finally:
        engine.release(read)


def _computes_for(running: Answer, waiting: Answer) -> bool:
    """Whether a text is about to compute pages that another one's prompt begins with."""
    done = sequence_of(running).done
    if running.source is not waiting.source:
        return False
    if done // PAGE >= len(running.prompt) // PAGE:
        return False
    end = done - done % PAGE + PAGE
    return len(waiting.prompt) > end and waiting.prompt[:end] == running.prompt[:end]


def _closed() -> InputError:
    return InputError("The generator is closed; make it again to use it.")
