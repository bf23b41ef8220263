"""Runs texts that are given through a decoder: what it makes of each of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from clrt.errors import InputError
from clrt.generation.engine import CHUNK, CachedSequence, Engine, StepPart
from clrt.generation.sampler import TokenSampler
from clrt.generation.scheduler import Scheduler
from clrt.ir.op import Array


class PlaceRows(NamedTuple):
    """Outputs for some places of a text.

    Attributes:
        text: Its number.
        first: The first place.
        values: A row for each place.
    """

    text: int
    first: int
    values: Array


@dataclass
class _ReadText:
    """A text on its way: its tokens up to `at` have given their rows."""

    number: int
    tokens: Sequence[int]
    at: int
    sequence: CachedSequence | None = None


def read_rows(
    scheduler: Scheduler,
    texts: Sequence[tuple[Sequence[int], int]],
    output: str,
    sampler: Callable[[int, int], TokenSampler],
    most: int = CHUNK,
) -> Iterator[PlaceRows]:
    """An output of the graph for the tokens of texts, in the order of their places.

    Other requests take their turns between the steps. Closing it frees the cache.

    Args:
        texts: Tokens, and the first place whose row is wanted.
        output: Its name.
        sampler: Of a text and a place.
        most: Tokens of a step at most; as many rows are in memory at a time.

    Raises:
        InputError: A text is longer than the context.
        OutOfMemoryError: The cache has no room.
    """
    waiting = [_ReadText(k, tokens, first) for k, (tokens, first) in enumerate(texts)]
    waiting.reverse()
    running: list[_ReadText] = []
    try:
        while waiting or running:
            with scheduler.exclusive() as engine:
                found = _read_step(engine, waiting, running, output, sampler, most)
            yield from found
    finally:
        close_sequences(scheduler, [t.sequence for t in running if t.sequence is not None])


def _read_step(
    engine: Engine,
    waiting: list[_ReadText],
    running: list[_ReadText],
    output: str,
    sampler: Callable[[int, int], TokenSampler],
    most: int,
) -> list[PlaceRows]:
    room, parts, places = most, [], []
    while waiting and sum(t.sequence.left for t in running if t.sequence) < room:
        text = waiting[-1]
        text.sequence = engine.open(text.tokens, anew=True)
        running.append(waiting.pop())
    for text in running:
        sequence = text.sequence
        assert sequence is not None
        count = min(sequence.left, room)
        if not count:
            break
        room -= count
        end = sequence.done + count
        # After a failure of another request the beginning is run once more.
        wanted = range(max(text.at, sequence.done), end)
        parts.append(StepPart(sequence, count, [sampler(text.number, p) for p in wanted]))
        places.append((text, wanted))
    values = engine.step(parts, [output]).get(output)
    found, row = [], 0
    for text, wanted in places:
        if wanted and values is not None:
            found.append(PlaceRows(text.number, wanted.start, values[row : row + len(wanted)]))
            row, text.at = row + len(wanted), wanted.stop
        assert text.sequence is not None
        if not text.sequence.left:
            engine.close(text.sequence)
            running.remove(text)
    return found


def run_to_end(
    engine: Engine, sequences: Sequence[CachedSequence], sampler: TokenSampler, output: str
) -> list[Array]:
    """Runs what is left of sequences, at least a token of each; an output behind their last tokens.

    Raises:
        OutOfMemoryError: The cache has no room.
    """
    rows: dict[CachedSequence, Array] = {}
    while len(rows) < len(sequences):
        room, parts = CHUNK, []
        for sequence in sequences:
            count = min(sequence.left, room)
            if count:
                room -= count
                last = count == sequence.left
                parts.append(StepPart(sequence, count, [sampler] if last else ()))
        done = [part.sequence for part in parts if part.samplers]
        values = engine.step(parts, [output]).get(output, ())
        rows |= dict(zip(done, values, strict=True))
    return [rows[sequence] for sequence in sequences]


def close_sequences(scheduler: Scheduler, sequences: Sequence[CachedSequence]) -> None:
    """Frees what sequences have, whatever became of the engine."""
    if not sequences:
        return
    with suppress(InputError), scheduler.exclusive() as engine:
        for sequence in sequences:
            engine.close(sequence)
