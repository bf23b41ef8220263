"""Splits texts into passages of a few sentences, within the model's maximum length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Sentence encoders are trained on short texts; MiniLM cuts at 256 tokens, special ones included.
MOST_TOKENS = 120
ENOUGH_TOKENS = 40

_PARAGRAPH = re.compile(r"\n\s*\n\s*|\f\s*")
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[」』”’]*\s*")
# Words without end are cut, too.
_WORD = re.compile(r"[a-z]{1,100}|[0-9]{1,100}|\S", re.I)
# Letters and digits that a word piece holds, and fewer than most hold.
_PIECE_LETTERS = 5
_PIECE_DIGITS = 2


@dataclass(frozen=True)
class Span:
    """Range of a text: characters `start` to `end`, exclusive."""

    start: int
    end: int


def split_passages(text: str) -> list[Span]:
    """The passages of a text, in order; together they hold all that is no white space.

    A passage is made of whole sentences, and ends with its paragraph where it is long enough.

    Args:
        text: Of any length.
    """
    found: list[Span] = []
    start: int | None = None
    end = tokens = 0
    for paragraph in _pieces(text, Span(0, len(text)), _PARAGRAPH):
        for sentence in _sentences(text, paragraph):
            more = count_tokens(text[sentence.start : sentence.end])
            if start is not None and tokens + more > MOST_TOKENS:
                found.append(Span(start, end))
                start, tokens = None, 0
            start = sentence.start if start is None else start
            end, tokens = sentence.end, tokens + more
        if start is not None and tokens >= ENOUGH_TOKENS:
            found.append(Span(start, end))
            start, tokens = None, 0
    return found if start is None else [*found, Span(start, end)]


def count_tokens(text: str) -> int:
    """Estimates the number of tokens of a text, rather too high than too low."""
    return sum(
        1
        if len(word) == 1
        else -(-len(word) // (_PIECE_DIGITS if word.isdigit() else _PIECE_LETTERS))
        for word in _WORD.findall(text)
    )


def _sentences(text: str, paragraph: Span) -> Iterator[Span]:
    """Yields the sentences of a paragraph; those longer than a passage are cut between words."""
    for sentence in _pieces(text, paragraph, _SENTENCE):
        tokens, start, end = 0, sentence.start, sentence.start
        for word in _WORD.finditer(text, sentence.start, sentence.end):
            more = count_tokens(word[0])
            if tokens + more > MOST_TOKENS and end > start:
                yield Span(start, end)
                start, tokens = word.start(), 0
            end, tokens = word.end(), tokens + more
        if end > start:
            yield Span(start, end)


def _pieces(text: str, span: Span, separator: re.Pattern[str]) -> Iterator[Span]:
    """Yields the spans between separators, stripped of white space."""
    start = span.start
    for match in separator.finditer(text, span.start, span.end):
        yield from _stripped(text, Span(start, match.end()))
        start = match.end()
    yield from _stripped(text, Span(start, span.end))


def _stripped(text: str, span: Span) -> Iterator[Span]:
    part = text[span.start : span.end]
    start = span.start + len(part) - len(part.lstrip())
    end = span.start + len(part.rstrip())
    if end > start:
        yield Span(start, end)
