"""Forced decoding: runs known token sequences through a decoder and returns outputs per token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from clrt.errors import InputError
from clrt.generation.engine import CHUNK, DecoderEngine
from clrt.generation.sampler import TokenSampler
from clrt.generation.scheduler import Scheduler, open_text
from clrt.generation.sequences import KvSequence, ScheduledSequence
from clrt.ir.op import Array
from clrt.util.fast_dataclass import dataclass


class ForcedSequence(NamedTuple):
    """A sequence of known tokens to run through a decoder.

    Attributes:
        tokens: Tokens, one or more.
        first: First position whose output row is wanted; all later rows are wanted, too.
        source: Encoder input; None for a decoder-only model.
        length: Number of tokens of the whole sequence, of which `tokens` is the beginning; None if
            `tokens` is the whole sequence.
    """

    tokens: Sequence[int]
    first: int
    source: Array | None = None
    length: int | None = None


class PositionRows(NamedTuple):
    """Rows of a graph output for consecutive positions of one sequence.

    Attributes:
        text: Index of the sequence in the argument `texts` of `read_rows`.
        first: Position of the first row.
        values: One row per position.
    """

    text: int
    first: int
    values: Array


@dataclass
class _TextProgress:
    """Progress of one sequence of known tokens through the decoder.

    Attributes:
        number: Index of the sequence in the argument `texts` of `read_rows`.
        text: Tokens of the sequence.
        at: First position whose row has not been returned yet.
        sequence: Sequence in the KV cache; None before the start.
    """

    number: int
    text: ForcedSequence
    at: int
    sequence: KvSequence | None = None


def read_rows(
    scheduler: Scheduler,
    texts: Sequence[ForcedSequence],
    output: str,
    sampler: Callable[[int, int], TokenSampler],
    take: Callable[[PositionRows], object],
    most: int = CHUNK,
) -> None:
    """Computes a graph output per token of sequences, in order of position within each.

    Steps of generations may run in between steps of this function.

    Args:
        scheduler: Scheduler whose engine runs the steps.
        texts: Token sequences.
        output: Name of the graph output.
        sampler: Returns the sampler for a sequence's index in `texts` and a position.
        take: Callback that receives the rows as they are computed.
        most: Maximum number of tokens per step, and of rows in memory at a time.

    Raises:
        InputError: A sequence is longer than the context.
        OutOfMemoryError: A sequence does not fit into the cache.
    """
    waiting = [_TextProgress(k, text, text.first) for k, text in enumerate(texts)]
    waiting.reverse()
    running: list[_TextProgress] = []

    def advance(engine: DecoderEngine) -> list[PositionRows]:
        parts = _next_parts(engine, waiting, running, sampler, most)
        step = partial(engine.step, [part for _, part in parts], [output])
        values = scheduler.with_room(step).get(output)
        return _collect_rows(engine, parts, running, values)

    def read() -> None:
        try:
            while waiting or running:
                for rows in scheduler.exclusive(advance):
                    take(rows)
        finally:
            close_sequences(scheduler, [t.sequence for t in running if t.sequence is not None])

    scheduler.bulk(read)


def _next_parts(
    engine: DecoderEngine,
    waiting: list[_TextProgress],
    running: list[_TextProgress],
    sampler: Callable[[int, int], TokenSampler],
    most: int,
) -> list[tuple[_TextProgress, ScheduledSequence]]:
    room, parts = most, []
    while waiting and sum(t.sequence.all_left for t in running if t.sequence) < room:
        text = waiting[-1]
        given = text.text
        text.sequence = open_text(engine, given.tokens, given.source, True, given.length)
        running.append(waiting.pop())
    for text in running:
        sequence = text.sequence
        assert sequence is not None
        count = min(sequence.left, room)
        if not count:
            break
        room -= count
        # A text restarts after the failure of another request: skip rows that were already
        # returned.
        wanted = range(max(text.at, sequence.done), sequence.done + count)
        parts.append(
            (text, ScheduledSequence(sequence, count, [sampler(text.number, p) for p in wanted]))
        )
    return parts


def _collect_rows(
    engine: DecoderEngine,
    parts: Sequence[tuple[_TextProgress, ScheduledSequence]],
    running: list[_TextProgress],
    values: Array | None,
) -> list[PositionRows]:
    """Returns the output rows of a finished step, and closes the sequences that are complete.

    Args:
        engine: Engine that ran the step.
        parts: Progress and scheduled work of each sequence of the step.
        running: Open sequences; the function removes complete sequences.
        values: Rows of the graph output; None if the step had no samplers.
    """
    collected, row = [], 0
    for text, part in parts:
        count = len(part.samplers)
        if count and values is not None:
            first = part.sequence.done - count
            collected.append(PositionRows(text.number, first, values[row : row + count]))
            row, text.at = row + count, part.sequence.done
        if not part.sequence.left:
            engine.close(part.sequence)
            running.remove(text)
    return collected


def run_to_end(
    scheduler: Scheduler, sequences: Sequence[KvSequence], sampler: TokenSampler, output: str
) -> list[Array]:
    """Runs all pending tokens of sequences; returns a graph output at the last token of each.

    Must be called within `scheduler.exclusive`.

    Args:
        scheduler: Scheduler whose engine runs the steps.
        sequences: Sequences, each with one pending token or more.
        sampler: Sampler for each sequence's output row.
        output: Name of the graph output.

    Raises:
        OutOfMemoryError: A sequence does not fit into the cache.
    """
    rows: dict[KvSequence, Array] = {}
    while len(rows) < len(sequences):
        room, parts = CHUNK, []
        for sequence in sequences:
            count = min(sequence.left, room)
            if count:
                room -= count
                last = count == sequence.left
                parts.append(ScheduledSequence(sequence, count, [sampler] if last else ()))
        done = [part.sequence for part in parts if part.samplers]
        step = partial(scheduler.engine.step, parts, [output])
        values = scheduler.with_room(step).get(output, ())
        rows |= dict(zip(done, values, strict=True))
    return [rows[sequence] for sequence in sequences]


def close_sequences(scheduler: Scheduler, sequences: Sequence[KvSequence]) -> None:
    """Closes KV sequences; does nothing if the scheduler is closed."""
    if not sequences:
        return

    def close(engine: DecoderEngine) -> None:
        for sequence in sequences:
            engine.close(sequence)

    with suppress(InputError):
        scheduler.exclusive(close)
