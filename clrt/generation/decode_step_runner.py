"""Runs a decoder step for all running generations, and appends the new tokens to them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from clrt.errors import ClrtError, InputError, NumberError, OutOfMemoryError
from clrt.generation.encoder_inputs import EncoderInput
from clrt.generation.engine import CHUNK, DecoderEngine
from clrt.generation.generation_state import GenerationState
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import KvSequence, ScheduledSequence
from clrt.generation.speculative_decoding import SpeculativeDecoder
from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class ScheduledRequest:
    """A generation in one decoder step, with its scheduled sequence."""

    answer: GenerationState
    part: ScheduledSequence


class DecodeStepRunner:
    """Runs decoder steps of generations, with their draft tokens, on an engine."""

    def __init__(self, engine: DecoderEngine, speculation: SpeculativeDecoder) -> None:
        self._engine = engine
        self._speculation = speculation

    def step(
        self, running: Sequence[GenerationState], guesses: Mapping[GenerationState, Sequence[int]]
    ) -> bool:
        """Runs one decoder step of the running generations and appends the new tokens to them.

        Args:
            running: Generations with open sequences.
            guesses: Draft tokens by generation; {} for none.

        Returns:
            Whether there were running generations.

        Raises:
            OutOfMemoryError: The step does not fit into memory.
        """
        started = time.perf_counter()
        turns: list[ScheduledRequest] = []
        try:
            self._prepare(running, guesses, turns)
            if not turns:
                return bool(running)
            outputs, row = self._run(running, turns, started), 0
            for turn in turns:
                if outputs is not None and turn.part.samplers:
                    self._accept_tokens(turn, outputs, row)
                    row += len(turn.part.samplers)
            return True
        finally:
            for turn in turns:
                self._engine.commit_drafts(turn.part.sequence, ())

    def _run(
        self, running: Sequence[GenerationState], turns: Sequence[ScheduledRequest], started: float
    ) -> dict[str, Array] | None:
        """Runs a prepared step on the engine; handles errors of single generations.

        Args:
            running: Running generations; all end with an error if the whole step fails.
            turns: Scheduled sequences of the step.
            started: Start time of the step (`time.perf_counter`).

        Returns:
            Outputs by name, one row per sampler. None if the step failed: the generation that
            caused it has then ended with an error, or gets no more draft tokens.

        Raises:
            OutOfMemoryError: The step does not fit into memory.
        """
        wants_logits = any(turn.answer.top for turn in turns if turn.part.samplers)
        outputs = ["token", "logprob", *(["logits"] if wants_logits else [])]
        reads_prompt = any(
            t.part.count > len(t.part.samplers) or t.part.sequence.all_left > t.part.sequence.left
            for t in turns
        )
        try:
            results = self._engine.step([turn.part for turn in turns], outputs)
        except OutOfMemoryError:
            raise
        except ClrtError as error:
            rows = [(t.answer, k) for t in turns for k in range(len(t.part.samplers))]
            blamed = _failed_row(error, rows)
            if blamed is None:
                fail(running, error)
            elif blamed[1]:  # the row follows a draft token, which may be wrong
                self._speculation.stop(blamed[0])
            else:
                fail([blamed[0]], _no_token_error())
            return None
        if not reads_prompt:
            tokens = sum(turn.part.count for turn in turns)
            self._speculation.costs.note(tokens, time.perf_counter() - started)
        return results

    def _prepare(
        self,
        running: Sequence[GenerationState],
        guesses: Mapping[GenerationState, Sequence[int]],
        turns: list[ScheduledRequest],
    ) -> None:
        """Appends the scheduled sequences of the next step to `turns`, up to `CHUNK` tokens.

        Args:
            running: Generations with open sequences.
            guesses: Draft tokens by generation; {} for none.
            turns: List to which the generations of the step are appended.
        """
        room, encoding = CHUNK, set[EncoderInput]()
        # Short sequences first: generations past their prompt need few tokens, and users wait for
        # them.
        for answer in sorted(running, key=lambda a: sequence_of(a).all_left):
            sequence = sequence_of(answer)
            count = min(sequence.left, room)
            if count <= 0:
                break
            if (source := sequence.source) is not None and source not in encoding and source.left:
                # The first encoder input runs however long it is; otherwise it might wait forever.
                if encoding and source.left + count > room:
                    continue
                encoding.add(source)
                room -= source.left
            drafts: Sequence[int] = ()
            samplers: Sequence[TokenSampler] = ()
            if count == sequence.left:
                max_drafts = min(room - count, sequence.most_guesses)
                proposed = guesses.get(answer, ())[: max(max_drafts, 0)]
                try:
                    drafts, samplers = answer.prepare(proposed)
                except ClrtError as error:
                    fail([answer], error)
                    continue
                count += len(samplers) - 1
            room -= count
            turns.append(ScheduledRequest(answer, ScheduledSequence(sequence, count, samplers)))
            sequence.guess(drafts)

    def _accept_tokens(self, turn: ScheduledRequest, found: Mapping[str, Array], row: int) -> None:
        """Appends the tokens of a step to a generation, up to the first rejected draft token.

        Args:
            turn: The generation and its scheduled sequence.
            found: Outputs of the step by name.
            row: First output row of the sequence.
        """
        answer, sequence = turn.answer, turn.part.sequence
        guesses = sequence.tokens[sequence.known :]
        before, room = len(answer.tokens), self._engine.context - sequence.known - 1
        new_tokens: list[int] = []
        try:
            # Another thread may have ended it in the meantime.
            while answer.reason is None and new_tokens == guesses[: len(new_tokens)]:
                at = row + len(new_tokens)
                logits = found["logits"][at] if answer.top else None
                token, logprob = int(found["token"][at]), float(found["logprob"][at])
                answer.take(token, logprob, logits, room - len(new_tokens))
                new_tokens = answer.tokens[before:]
        except ClrtError as error:
            fail([answer], error)
        finally:
            accepted = self._engine.commit_drafts(sequence, answer.tokens[before:])
            answer.drafted += len(guesses)
            answer.accepted += accepted
            self._speculation.note(answer, len(guesses), accepted)


def sequence_of(answer: GenerationState) -> KvSequence:
    """Returns the KV sequence of a running generation."""
    assert answer.sequence is not None
    return answer.sequence


def fail(answers: Sequence[GenerationState], error: ClrtError) -> None:
    """Sets the error of generations, unless they have one, and ends those that still run."""
    for answer in answers:
        answer.error = answer.error or error
        answer.reason = answer.reason or "cancelled"


def _no_token_error() -> InputError:
    return InputError(
        "No token can follow: logit_bias and the constraint ban all, or all logits are NaN or -inf."
    )


def _failed_row(
    error: ClrtError, rows: Sequence[tuple[GenerationState, int]]
) -> tuple[GenerationState, int] | None:
    """Returns the entry of `rows` for which the op SampleTokens found no token that may follow.

    None if `error` has another cause.

    Args:
        error: Error of the step.
        rows: Generation of each output row, and the number of draft tokens before it.
    """
    cause = error if isinstance(error, NumberError) else error.__cause__
    if not isinstance(cause, NumberError) or cause.node is None:
        return None
    row = int(cause.number) - 1
    if cause.node.op.name != "SampleTokens" or not rows or row < 0:
        return None
    return rows[row] if row < len(rows) else rows[0]  # padding rows repeat row 0
