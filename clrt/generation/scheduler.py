"""Continuous batching: each decoder step runs the next tokens of all running generations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from clrt.errors import ClrtError, InputError, OutOfMemoryError
from clrt.generation.decode_step_runner import DecodeStepRunner, fail, sequence_of
from clrt.generation.draft_model import DraftModel
from clrt.generation.engine import DecoderEngine
from clrt.generation.generation_state import GenerationState
from clrt.generation.result import FinishReason
from clrt.generation.sequences import KvSequence
from clrt.generation.speculative_decoding import SpeculativeDecoder
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.op import Array
from clrt.util.active_calls import LOOK_S, ActiveCall, CallMutex

T = TypeVar("T")


class Scheduler:
    """Runs generations of several threads in shared decoder steps.

    There is no scheduler thread: one of the threads that wait for text in `wait` runs the next step
    for all generations.

    Args:
        engine: Engine of the model.
        sequences: Maximum number of generations that run at a time; further ones are queued.
        drafter: Draft model for speculative decoding; None for prompt lookup only.
    """

    def __init__(
        self, engine: DecoderEngine, sequences: int, drafter: DraftModel | None = None
    ) -> None:
        self.engine = engine
        self.speculation = SpeculativeDecoder(engine.context, drafter)
        self._steps = DecodeStepRunner(engine, self.speculation)
        self._max_running = sequences
        # The holder of `_engine_lock` may use the engine. `end` never blocks on it, because the
        # garbage collector may call `end` in any thread.
        self._engine_lock, self._bulk_lock = CallMutex(), CallMutex()
        # The call that keeps sequences open between its `exclusive` calls, if any.
        self._holder: ActiveCall | None = None
        # All generations that were added and have not ended. Each is also in `_waiting` or
        # `_running`, unless an exception interrupted a move between the two.
        self._answers: dict[GenerationState, None] = {}
        self._waiting: deque[GenerationState] = deque()
        self._running: list[GenerationState] = []
        # Whether the cache is full: nothing is started until a generation or `bulk` call ends.
        self._full = False
        self._closed_error = self._freed = False

    def add(self, answers: Sequence[GenerationState]) -> None:
        """Queues generations that have not started; calls of `wait` then run them.

        Raises:
            InputError: The generator is closed.
        """
        self._check_open()
        self._answers.update(dict.fromkeys(answers))
        self._waiting.extend(answers)

    def wait(self, answer: GenerationState, pieces: int) -> None:
        """Waits until a generation has more than `pieces` text chunks, or has ended.

        Runs decoder steps of all generations meanwhile, unless another thread runs them.
        """
        call = ActiveCall()
        try:
            while len(answer.pieces) <= pieces and answer.reason is None:
                ticket = self._engine_lock.enter()
                if not self._engine_lock.try_take(call):
                    ticket.acquire(timeout=LOOK_S)
                    continue
                try:
                    self._recover()
                    runs = answer.reason is not None or self._run_step()
                except ClrtError:
                    self._release_engine()
                    raise
                self._release_engine()
                ticket = self._engine_lock.enter()
                if not runs and self._full:
                    ticket.acquire(timeout=LOOK_S)
        finally:
            call.end()

    def end(self, answer: GenerationState, reason: FinishReason = "cancelled") -> None:
        """Ends a queued or running generation with `reason`; does not wait for a running step."""
        if answer.reason is None:
            answer.reason = reason
        self._free_ended()

    def exclusive(self, work: Callable[[DecoderEngine], T]) -> T:
        """Waits until no thread uses the engine, then calls `work(engine)` and returns its result.

        Raises:
            InputError: The generator is closed.
        """
        call = ActiveCall()
        try:
            self._engine_lock.take(call)
            try:
                self._recover()
                self._check_open()
                result = work(self.engine)
            except ClrtError:
                self._release_engine()
                raise
            self._release_engine()
            return result
        finally:
            call.end()

    def bulk(self, work: Callable[[], T]) -> T:
        """Returns `work()`, which may keep sequences open between its calls of `exclusive`.

        Only one call of `bulk` runs at a time; other calls wait.
        """
        call = ActiveCall()
        try:
            self._bulk_lock.take(call)
            self._holder = call
            try:
                result = work()
            except ClrtError:
                self._end_bulk()
                raise
            self._end_bulk()
            return result
        finally:
            call.end()

    def _end_bulk(self) -> None:
        self._holder = None
        self._full = False
        self._bulk_lock.give_back()
        self._engine_lock.wake()

    def with_room(self, call: Callable[[], T]) -> T:
        """Repeats `call()` until it does not run out of memory; returns its result.

        Preempts one running generation before each repetition. Must be called within `exclusive`.

        Raises:
            OutOfMemoryError: The call runs out of memory even without running generations.
        """
        while True:
            try:
                return call()
            except OutOfMemoryError:
                if not self._running:
                    raise
                self._preempt()

    def close(self) -> None:
        """Ends all generations and frees the device memory; may be called again."""
        if self._freed:
            return
        self._closed_error = True
        for answer in tuple(self._answers):
            answer.error = answer.error or _closed_error()
            answer.reason = answer.reason or "cancelled"
        call = ActiveCall()
        try:
            self._engine_lock.take(call)
            self.speculation.close()
            self.engine.close_model()
            self._freed = True
            self._release_engine()
        finally:
            call.end()

    def _check_open(self) -> None:
        if self._closed_error:
            raise _closed_error()

    def _release_engine(self) -> None:
        self._engine_lock.give_back()
        self._free_ended()

    def _free_ended(self) -> None:
        """Closes the sequences of ended generations and recovers from interrupted calls.

        Returns at once if another thread holds the engine: that thread calls this method when
        releasing the engine.
        """
        call = ActiveCall()
        try:
            while any(a.reason is not None for a in tuple(self._running)) or self._is_interrupted:
                if not self._engine_lock.try_take(call):
                    return
                self._recover()
                self._close_ended()
                self._engine_lock.give_back()
        finally:
            call.end()

    @property
    def _is_interrupted(self) -> bool:
        """Whether an exception interrupted a call that held the engine, or a call of `bulk`."""
        holder = self._holder  # read once: the thread that calls `bulk` sets it to None
        is_over = holder is not None and holder.is_over and self._holder is holder
        return is_over or self._engine_lock.is_left

    def _recover(self) -> None:
        """Resets engine and speculation if an exception interrupted a call, else does nothing.

        Requeues all generations, so that their sequences are recomputed, and drops tokens that have
        no text chunk yet. Sequences of a running `bulk` call stay open. Other threads may submit
        generations meanwhile, so `_answers` and `_waiting` are changed, never replaced.
        """
        holder = self._holder
        bulk_is_over = holder is not None and holder.is_over and self._holder is holder
        if not bulk_is_over and not self._engine_lock.is_torn:
            return
        kept_sequences = []
        if holder is not None and not bulk_is_over:
            generation_sequences = {a.sequence for a in self._answers}
            kept_sequences = [s for s in self.engine.sequences if s not in generation_sequences]
        self.speculation.reset()
        self._running = []
        answers = [a for a in tuple(self._answers) if not a.has_ended]
        for answer in answers:
            answer.rewind(self.engine.context)
            answer.sequence = None
        self.engine.begin_anew(kept_sequences)
        for answer in [a for a in tuple(self._answers) if a.has_ended]:
            self._answers.pop(answer, None)
        queued = set(tuple(self._waiting))
        self._waiting.extendleft(reversed([a for a in answers if a not in queued]))
        self._full = False
        if bulk_is_over and self._holder is holder:
            self._holder = None
        self._engine_lock.is_torn = False

    def _run_step(self) -> bool:
        """Runs one decoder step with the pending tokens of all running generations.

        First closes ended generations and starts queued generations. A step has a limited number of
        tokens, so a long prompt needs several steps.

        Returns:
            Whether there were running generations.
        """
        self._close_ended()
        self._start_waiting()
        try:
            guesses = self.speculation.guess(self._running)
        except ClrtError as error:  # from the draft model
            fail(self._running, error)
            return True
        if guesses:
            try:
                return self._steps.step(self._running, guesses)
            except OutOfMemoryError:  # a step without draft tokens needs less memory
                pass
        try:
            return self._steps.step(self._running, {})
        except OutOfMemoryError as error:
            self._handle_out_of_memory(error)
            return True

    def _start_waiting(self) -> None:
        """Opens sequences for queued generations, up to the maximum number of running generations.

        A generation stays queued while a running one computes a common prefix of their prompts: the
        queued generation can later reuse the pages of the prefix.
        """
        later: list[GenerationState] = []
        while self._waiting and len(self._running) < self._max_running and not self._full:
            answer = self._waiting.popleft()
            if answer.has_ended:
                self._answers.pop(answer, None)
                continue
            if answer in self._running:  # `_recover` queued it while it was being submitted
                continue
            if any(_computes_prefix_of(other, answer) for other in self._running):
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

    def _handle_out_of_memory(self, error: OutOfMemoryError) -> None:
        """Handles a step that ran out of memory: preempts the generation started last.

        If only one generation runs and no `bulk` call keeps sequences, ends it with `error`.
        """
        if len(self._running) == 1 and self._holder is None:
            fail(self._running, error)
        else:
            self._preempt()

    def _preempt(self) -> None:
        """Closes the sequence of the generation started last and requeues it at the front."""
        last = self._running.pop()
        self.engine.close(sequence_of(last))
        self.speculation.forget(last)
        last.sequence = None
        self._waiting.appendleft(last)
        self._full = True

    def _close_ended(self) -> None:
        """Closes the sequences of ended generations and forgets these generations."""
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
    """Opens a KV sequence of tokens; with an encoder, registers its encoder input, too.

    Args:
        engine: Engine that opens the sequence.
        tokens: Tokens of the sequence so far.
        source: Encoder input: tokens or frames; None for a decoder-only model.
        anew: Whether to recompute all tokens, ignoring cached pages.
        length: Expected final number of tokens; None for the number of `tokens`.

    Raises:
        InputError: There are more tokens than the context, or the encoder input is too long.
    """
    if source is None:
        return engine.open(tokens, anew, length=length)
    read = engine.read(source)
    try:
        return engine.open(tokens, anew, read, length)
    finally:
        engine.release(read)


def _computes_prefix_of(running: GenerationState, waiting: GenerationState) -> bool:
    """Whether the next page that `running` computes is also a page of the prompt of `waiting`."""
    done = sequence_of(running).done
    if running.source is not waiting.source:
        return False
    if done // PAGE_TOKENS >= len(running.prompt) // PAGE_TOKENS:
        return False
    end = done - done % PAGE_TOKENS + PAGE_TOKENS
    return len(waiting.prompt) > end and waiting.prompt[:end] == running.prompt[:end]


def _closed_error() -> InputError:
    return InputError("The generator is closed; create a new one.")
