"""Answers that run together: each step takes the next tokens of all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from clrt.errors import ClrtError, InputError, OutOfMemoryError
from clrt.generation.draft_model import DraftModel
from clrt.generation.engine import DecoderEngine
from clrt.generation.generation_state import GenerationState
from clrt.generation.result import FinishReason
from clrt.generation.sequences import KvSequence
from clrt.generation.speculative_decoding import SpeculativeDecoder
from clrt.generation.step_runner import AnswerSteps, fail, sequence_of
from clrt.ir.op import Array
from clrt.ops.attention.page_layout import PAGE_TOKENS
from clrt.util.active_calls import LOOK_S, ActiveCall, Turns

T = TypeVar("T")


class Scheduler:
    """Runs answers on an engine, those of several threads in one step.

    No thread is the scheduler's own: of the threads that wait for tokens one makes the next step
    for all of them.

    Args:
        sequences: How many answers run at a time; more wait.
        drafter: A draft model, if there is one.
    """

    def __init__(
        self, engine: DecoderEngine, sequences: int, drafter: DraftModel | None = None
    ) -> None:
        self.engine = engine
        self.speculation = SpeculativeDecoder(engine.context, drafter)
        self._steps = AnswerSteps(engine, self.speculation)
        self._most = sequences
        # Who drives has the engine. A turn is not waited for where a text is ended, as a collector
        # may do that in any thread.
        self._driving, self._bulk = Turns(), Turns()
        # Whose call holds sequences between its turns.
        self._holder: ActiveCall | None = None
        # All that were added and have not ended; each is in one of the other two, but for those
        # that an exception was in the midst of moving.
        self._answers: dict[GenerationState, None] = {}
        self._waiting: deque[GenerationState] = deque()
        self._running: list[GenerationState] = []
        # Whether the cache is full: no answer begins before one ends, or what `bulk` is for.
        self._full = False
        self._closed = self._freed = False

    def add(self, answers: Sequence[GenerationState]) -> None:
        """Queues answers, each of which has its reader; `wait` then drives them.

        Raises:
            InputError: The generator is closed.
        """
        self._check_open()
        self._answers.update(dict.fromkeys(answers))
        self._waiting.extend(answers)

    def wait(self, answer: GenerationState, pieces: int) -> None:
        """Returns once an answer has more pieces than that, or has ended, perhaps by an error."""
        call = ActiveCall()
        try:
            while len(answer.pieces) <= pieces and answer.reason is None:
                ticket = self._driving.enter()
                if not self._driving.try_take(call):
                    ticket.acquire(timeout=LOOK_S)
                    continue
                try:
                    self._mend()
                    runs = answer.reason is not None or self._advance()
                except ClrtError:
                    self._let_go()
                    raise
                self._let_go()
                ticket = self._driving.enter()
                if not runs and self._full:
                    ticket.acquire(timeout=LOOK_S)
        finally:
            call.end()

    def end(self, answer: GenerationState, reason: FinishReason = "cancelled") -> None:
        """Ends an answer, whatever it does, and waits for nothing."""
        if answer.reason is None:
            answer.reason = reason
        self._tidy()

    def exclusive(self, work: Callable[[DecoderEngine], T]) -> T:
        """What a function makes with the engine; steps of answers are before it and behind it.

        Raises:
            InputError: The generator is closed.
        """
        call = ActiveCall()
        try:
            self._driving.take(call)
            try:
                self._mend()
                self._check_open()
                found = work(self.engine)
            except ClrtError:
                self._let_go()
                raise
            self._let_go()
            return found
        finally:
            call.end()

    def bulk(self, work: Callable[[], T]) -> T:
        """What a function makes in turns by `exclusive`, between which it holds sequences.

        One call at a time does so.
        """
        call = ActiveCall()
        try:
            self._bulk.take(call)
            self._holder = call
            try:
                found = work()
            except ClrtError:
                self._end_bulk()
                raise
            self._end_bulk()
            return found
        finally:
            call.end()

    def _end_bulk(self) -> None:
        self._holder = None
        self._full = False
        self._bulk.give_back()
        self._driving.wake()

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
        if self._freed:
            return
        self._closed = True
        for answer in tuple(self._answers):
            answer.error = answer.error or _closed()
            answer.reason = answer.reason or "cancelled"
        call = ActiveCall()
        try:
            self._driving.take(call)
            self.speculation.close()
            self.engine.close_model()
            self._freed = True
            self._let_go()
        finally:
            call.end()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()

    def _let_go(self) -> None:
        self._driving.give_back()
        self._tidy()

    def _tidy(self) -> None:
        """Frees what ended answers have, unless a thread drives: it does so when it lets go."""
        call = ActiveCall()
        try:
            while any(a.reason is not None for a in tuple(self._running)) or self._is_torn:
                if not self._driving.try_take(call):
                    return
                self._mend()
                self._clear()
                self._driving.give_back()
        finally:
            call.end()

    @property
    def _is_torn(self) -> bool:
        """Whether an exception broke off a call that drove, or that held sequences."""
        held = self._holder is not None and self._holder.is_over
        return held or self._driving.is_left

    def _mend(self) -> None:
        """Repairs what a call has left that an exception broke off: the engine begins anew, and all
        answers with it; each goes on behind the tokens that it has in whole.
        """
        held = self._holder is not None and self._holder.is_over
        if not held and not self._driving.is_torn:
            return
        kept = []
        if self._holder is not None and not held:
            own = {a.sequence for a in self._answers}
            kept = [s for s in self.engine.sequences if s not in own]
        self.speculation.reset()
        self._running = []
        answers = [a for a in tuple(self._answers) if not a.has_ended]
        for answer in answers:
            answer.rewind(self.engine.context)
            answer.sequence = None
        self.engine.begin_anew(kept)
        self._answers = dict.fromkeys(answers)
        self._waiting = deque(answers)
        self._full = False
        if held:
            self._holder = None
        self._driving.is_torn = False

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
        later: list[GenerationState] = []
        while self._waiting and len(self._running) < self._most and not self._full:
            answer = self._waiting.popleft()
            if answer.has_ended:
                self._answers.pop(answer, None)
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
        if len(self._running) == 1 and self._holder is None:
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
        for answer in [a for a in self._running if a.has_ended]:
            self._running.remove(answer)
            self.engine.close(sequence_of(answer))
            self.speculation.forget(answer)
            self._answers.pop(answer, None)
            self._full = False


def open_text(
    engine: DecoderEngine,
    tokens: Sequence[int],
    source: Array | None,
    anew: bool = False,
    length: int | None = None,
) -> KvSequence:
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


def _computes_for(running: GenerationState, waiting: GenerationState) -> bool:
    """Whether a text is about to compute pages that another one's prompt begins with."""
    done = sequence_of(running).done
    if running.source is not waiting.source:
        return False
    if done // PAGE_TOKENS >= len(running.prompt) // PAGE_TOKENS:
        return False
    end = done - done % PAGE_TOKENS + PAGE_TOKENS
    return len(waiting.prompt) > end and waiting.prompt[:end] == running.prompt[:end]


def _closed() -> InputError:
    return InputError("The generator is closed; make it again to use it.")
