"""Finds the files with passages similar to a query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .passages import Span
from .store import Hit, Store

if TYPE_CHECKING:
    from .store import FloatArray

MOST_PASSAGES = 200
MOST_RESULTS = 50
# Passages below have nothing to do with the query: MiniLM's mean of unrelated texts is about 0.
LEAST_SCORE = 0.2
_SHARE_OF_BEST = 0.6
_MOST_MARKED = 20

_WORDS = re.compile(r"\w{2,}")
_LEAST_LETTERS = 4  # shorter words say little of what a passage is about; nor do these
_COMMON = {"about", "does", "from", "have", "into", "that", "their", "there", "they", "this"}
_COMMON |= {"were", "what", "when", "where", "which", "will", "with", "would", "your"}


@dataclass(frozen=True)
class Result:
    """A file with matching passages.

    Attributes:
        path: Relative to the folder.
        hits: Its matching passages, best first.
    """

    path: str
    hits: tuple[Hit, ...]

    @property
    def best(self) -> Hit:
        """Passage most similar to the query."""
        return self.hits[0]


def find(store: Store, query: FloatArray) -> list[Result]:
    """Returns the files with passages similar to a query, best first.

    Args:
        store: The index, whose model gave `query`.
        query: Vector of the query, [dimension].
    """
    by_path: dict[str, list[Hit]] = {}
    for hit in store.nearest(query, MOST_PASSAGES):
        if hit.score >= LEAST_SCORE:
            by_path.setdefault(hit.path, []).append(hit)
    return [Result(path, tuple(_good(hits))) for path, hits in by_path.items()][:MOST_RESULTS]


def _good(hits: list[Hit]) -> list[Hit]:
    """Returns the best passage of a file, and those with nearly the same score."""
    return [hit for hit in hits if hit.score >= _SHARE_OF_BEST * hits[0].score][:_MOST_MARKED]


def words_of(query: str, text: str) -> Iterator[Span]:
    """Yields the spans of a query's words in a text, in any inflected form.

    Args:
        query: What was asked for.
        text: Of a passage.
    """
    words = {w.lower() for w in _WORDS.findall(query) if len(w) >= _LEAST_LETTERS} - _COMMON
    stems = tuple(w[: max(_LEAST_LETTERS, len(w) - 3)] for w in words)
    for match in _WORDS.finditer(text):
        if stems and match[0].lower().startswith(stems):
            yield Span(match.start(), match.end())
